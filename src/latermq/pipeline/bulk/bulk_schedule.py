"""Bulk scheduling of a DataFrame: all rows are checked and spooled before the first one becomes a timer."""

import logging
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from latermq.errors import IllegalMessage, LaterMQError
from latermq.model.rows import RowLimits
from latermq.pipeline.bulk.bulk_job import brokers_of_job, check_job, find_namesrv, job_folder
from latermq.pipeline.bulk.due_times import local_time_zone
from latermq.pipeline.bulk.job_root import find_job_root
from latermq.pipeline.bulk.pieces import executors_of
from latermq.pipeline.bulk.row_frames import BadRow, Target, check_columns, requests_of
from latermq.pipeline.bulk.share_runner import SpooledJob, play_shares
from latermq.pipeline.bulk.spool import Scheduled, SpoolFile, ask_receiver, write_spool
from latermq.pipeline.bulk.stream_job import batch_folder
from latermq.pipeline.driver.brokers import queues_of, scheduling_brokers
from latermq.pipeline.driver.link import BrokerLink
from latermq.pipeline.timeline.root import Root, open_root
from latermq.protocol.remoting.rows import MAX_TOPICS

_log = logging.getLogger("latermq.pipeline")

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FILES = pa.schema(
    [
        ("broker", pa.string()),
        ("path", pa.string()),
        ("rows", pa.int64()),
        ("size_bytes", pa.int64()),
        ("topics", pa.list_(pa.string())),
        ("problem", pa.string()),
        ("hint", pa.string()),
    ]
)
_FILES_DDL = (
    "broker string, path string, rows bigint, size_bytes bigint, topics array<string>, problem string, hint string"
)


@dataclass(frozen=True)
class Order:
    """A job as tasks and driver see it. Spark pickles it for its workers."""

    root_uri: str
    namesrv: str
    job: str
    target: Target
    run: str  # identifies this run: a killed earlier run may have left files
    batch: int | None = None  # of a stream

    @property
    def folder(self) -> str:
        """The folder of the spooled rows."""
        root = open_root(self.root_uri)
        if self.batch is None:
            return f"{job_folder(root, self.job)}/spool/{self.run}"
        return f"{batch_folder(root, self.job, self.batch)}/spool"

    @property
    def keys_folder(self) -> str:
        """The folder that remembers the scheduled rows."""
        root = open_root(self.root_uri)
        return job_folder(root, self.job) if self.batch is None else batch_folder(root, self.job, self.batch)

    def of_batch(self, batch: int) -> "Order":
        """The same for one batch of a stream. Its rows have names of their own: a later batch may repeat their keys."""
        return replace(self, batch=batch, target=replace(self.target, job=f"{self.job}#{batch}"))


def make_order(root: Root, namesrv: str, job: str, topic: str = "", time_zone: str = "") -> Order:
    """Query a job's brokers for their limits."""
    addresses = scheduling_brokers(namesrv, topic)
    brokers = brokers_of_job(root, check_job(job), addresses)
    limits = [row_limits(addresses[name], job) for name in brokers]
    target = Target(
        job=job,
        brokers=tuple(brokers),
        topic=topic,
        max_body_bytes=min(one.max_body_bytes for one in limits),
        max_delay_ms=min(one.max_delay_ms for one in limits),
        now_ms=time.time_ns() // 1_000_000,
        time_zone=time_zone,
    )
    return Order(root.uri, namesrv, job, target, secrets.token_hex(4))


def row_limits(address: str, job: str, topics: Sequence[str] = ()) -> RowLimits:
    """What a broker accepts in rows. With topics, refused without the right to send to them."""
    with BrokerLink(address) as link:
        return ask_receiver(link, job, topics).limits


def spool_partition(order: Order, batches: Iterator[pa.RecordBatch], partition: int) -> list[SpoolFile]:
    """The work of a task: check its rows and spool them."""
    target = order.target
    if not target.time_zone:
        target = replace(target, time_zone=session_time_zone())

    def requests() -> Iterator[Any]:
        first_row = 0
        for batch in batches:
            yield from requests_of(
                batch, target, where=f" of partition {partition}" if partition else "", first_row=first_row
            )
            first_row += batch.num_rows

    return write_spool(open_root(order.root_uri), order.folder, requests())


def session_time_zone() -> str:
    """The time zone of the Spark session whose task this is. Spark passes it to tasks only if it was set."""
    from pyspark import TaskContext

    context = TaskContext.get()
    given = context.getLocalProperty("spark.sql.session.timeZone") if context is not None else None
    return given or local_time_zone()


def send_spooled(
    order: Order,
    files: Sequence[SpoolFile],
    on_sent: Callable[[int], None] = lambda rows: None,
    spark: "SparkSession | None" = None,
    *,
    dry_run: bool = False,
) -> Scheduled:
    """Schedule the rows that tasks spooled: on the executors of a session, else in this process.

    Executors that would act as another user do not send. A dry run only counts rows with repeated keys.
    """
    try:
        addresses = scheduling_brokers(order.namesrv, order.target.topic)
        check_topics(order, addresses, files, dry_run=dry_run)
        spooled = SpooledJob(
            order.root_uri, order.job, f"{order.folder}/shares", order.keys_folder, addresses, is_dry_run=dry_run
        )
        done = play_shares(spooled, files, on_sent, executors_of(spark))
        if done.repeated and not dry_run:
            _log.warning("job %s: %s", order.job, repeated_note(done))
        return done
    finally:
        remove_spool(order)


def repeated_note(done: Scheduled) -> str:
    """A note for users about the rows that were left out because another row has the same key."""
    keys = ", ".join(map(repr, done.repeated_keys))
    return f"{done.repeated} rows were left out because another row has the same key, for example {keys}"


def remove_spool(order: Order) -> None:
    """Remove the spooled rows."""
    with suppress(OSError):  # nothing was spooled
        open_root(order.root_uri).files.delete_dir(order.folder)


def check_topics(order: Order, addresses: dict[str, str], files: Sequence[SpoolFile], *, dry_run: bool) -> None:
    """Refuse a topic that a broker does not have and may not create, and one that the user may not send to.

    A dry run sends nothing, so it needs no right to the topics.
    """
    topics_of: dict[str, set[str]] = defaultdict(set)
    for file in files:
        topics_of[file.broker].update(file.topics)
    required: set[tuple[str, str]] = set()
    for name, topics in sorted(topics_of.items()):
        asked = [] if dry_run else sorted(topics)
        for at in range(0, len(asked) or 1, MAX_TOPICS):
            some = asked[at : at + MAX_TOPICS]
            if name not in addresses or not row_limits(addresses[name], order.job, some).creates_topics:
                required.update((topic, name) for topic in topics)
    for topic in sorted({topic for topic, _ in required}):
        present: set[str] = set()
        with suppress(LaterMQError):
            present = {place.broker for place in queues_of(order.namesrv, topic)}
        for broker in sorted(name for of, name in required if of == topic and name not in present):
            raise IllegalMessage(
                f"broker {broker} has no topic {topic!r} and does not auto-create topics",
                hint=f"Create it first: latermq topic create {topic}",
            )


def schedule(
    rows: "DataFrame",
    root: Root | str | None = None,
    namesrv: str | None = None,
    *,
    job: str,
    topic: str = "",
    on_checked: Callable[[int], None] = lambda rows: None,
    on_sent: Callable[[int], None] = lambda rows: None,
    dry_run: bool = False,
) -> Scheduled:
    """Schedule every row of a frame as a timer exactly once, however often and late it is called under the same job.

    The job's folder below the root remembers the scheduled rows. If several rows have the same key, one becomes a timer
    and the others are counted.

    `on_checked` receives the number of rows once all of them are valid. `on_sent` receives the number of further rows
    scheduled. A dry run ends after the check: it reports problems and schedules nothing.
    """
    from pyspark import TaskContext
    from pyspark.sql.pandas.types import to_arrow_schema

    from latermq.pipeline.spark.spark_failures import spark_errors

    schema = to_arrow_schema(rows.schema, timezone="UTC")
    check_columns({field.name: field.type for field in schema}, has_topic=bool(topic))
    servers = find_namesrv(namesrv)
    time_zone = rows.sparkSession.conf.get("spark.sql.session.timeZone") or ""
    order = make_order(find_job_root(root, servers, check_job(job)), servers, job, topic, time_zone)

    def spool(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        try:
            files = spool_partition(order, batches, context.partitionId() if context is not None else 0)
        except BadRow as error:
            # Yielded as a row instead of raised: Spark turns an error of a task into a page of text.
            yield pa.RecordBatch.from_pylist([{"problem": error.message, "hint": error.hint}], _FILES)
            return
        yield pa.RecordBatch.from_pylist([{**file._asdict(), "topics": list(file.topics)} for file in files], _FILES)

    try:
        with spark_errors(f"reading the rows of job {job}"):
            found = rows.mapInArrow(spool, _FILES_DDL).collect()
        for row in found:
            if row.problem is not None:
                raise BadRow(row.problem, hint=row.hint or "")
        files = [SpoolFile(row.broker, row.path, row.rows, row.size_bytes, tuple(row.topics)) for row in found]
        on_checked(sum(file.rows for file in files))
        return send_spooled(order, files, on_sent, rows.sparkSession, dry_run=dry_run)
    finally:
        remove_spool(order)
