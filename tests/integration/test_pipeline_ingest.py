"""Ingest against a real broker: far and near rows, exactly once over restarts, and the broker told after the table."""

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from latermq.client import OutgoingMessage, blocking
from latermq.errors import LaterMQError
from latermq.message.record import decode_record
from latermq.pipeline.driver.brokers import masters
from latermq.pipeline.driver.link import BrokerLink
from latermq.pipeline.timeline.root import Root, open_root
from latermq.pipeline_secret import secret_path
from tests.interop.waiting import wait_until
from tests.support.pipeline.drivers import begin_as_driver, driver_link
from tests.support.serving import Server, serving

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

HOUR_MS = 3_600_000
SHORT = ("store.flush_every=20ms", "pipeline.enabled=true", "pipeline.near_horizon=2m", "pipeline.window=1m",
         "pipeline.ingest_every=2s", "pipeline.roll_deadline=10s")  # fmt: skip


class Broker:
    """A broker with a short horizon, and what tests do with it."""

    def __init__(self, server: Server, timeline: Path) -> None:
        self.timeline = timeline
        self.namesrv = server.namesrv
        with blocking.Admin(server.namesrv) as admin:
            wait_until(admin.brokers, 30, "the broker is registered")
        (self.address,) = masters(server.namesrv).values()
        self.now_ms = int(time.time() * 1000)

    def schedule(self, count: int, in_ms: int, name: str) -> list[str]:
        """The unique keys of so many timers."""
        with blocking.Producer(self.namesrv) as producer:
            return [
                producer.send(
                    OutgoingMessage("later", b"%d" % number, "t", f"{name}{number}", deliver_at_ms=self.now_ms + in_ms)
                ).message_id
                for number in range(count)
            ]

    def wait_for_cut(self) -> None:
        """A broker makes cuts once a driver has begun."""
        with driver_link(self.address, self.timeline) as link:
            begin_as_driver(link, self.timeline)
            wait_until(lambda: link.state().cuts, 30, "the first cut")

    def flushed(self, at_least: int) -> int:
        with BrokerLink(self.address) as link:
            wait_until(lambda: link.state().flushed_entry >= at_least, 20, f"{at_least} entries are flushed")
            return link.state().flushed_entry


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    settings = [word for setting in SHORT for word in ("--set", setting)]
    with serving(tmp_path / "data", *settings, "--set", f"pipeline.timeline={tmp_path / 'pipeline'}") as server:
        yield Broker(server, tmp_path / "pipeline")


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return open_root(str(tmp_path / "pipeline"))


def ingest_all(spark: "SparkSession", root: Root, broker: Broker, batch_rows: int = 1000) -> None:
    from latermq.pipeline.driver.ingest import Ingest, IngestSettings

    with closing(Ingest(spark, root, broker.namesrv, "broker-a", IngestSettings(batch_rows=batch_rows))) as ingest:
        query = ingest.start(available_now=True)
        assert query.awaitTermination(60)


def rows_of(spark: "SparkSession", root: Root) -> "list[Row]":
    return spark.read.format("delta").load(root.timeline).orderBy("entry_offset").collect()


def test_far_records_are_kept_near_ones_and_cancels_only_by_name(
    spark: "SparkSession", root: Root, broker: Broker
) -> None:
    broker.wait_for_cut()
    far = broker.schedule(30, HOUR_MS, "far")
    near = broker.schedule(5, 30_000, "near")
    with blocking.Admin(broker.namesrv) as admin:
        admin.cancel_timer("later", key="far3")
        admin.move_timer("later", key="far4", due_ms=broker.now_ms + 2 * HOUR_MS)
        admin.move_timer("later", key="far5", due_ms=broker.now_ms + 30_000)
    broker.flushed(39)
    ingest_all(spark, root, broker)
    rows = rows_of(spark, root)
    by_kind = {kind: [row for row in rows if row.kind == kind] for kind in ("timer", "cancel", "move", "cut")}
    assert not by_kind["cut"]
    assert [row.unique_key for row in by_kind["timer"]] == far + near
    for row in by_kind["timer"]:
        assert (row.record is not None) == (row.unique_key in far)
    first = by_kind["timer"][0]
    message = decode_record(bytes(first.record))
    assert (message.body, message.queue_offset, message.properties["UNIQ_KEY"]) == (b"0", first.entry_offset, far[0])
    assert (first.timer_id, first.topic, first["keys"], first.tags) == (first.entry_offset, "later", "far0", "t")
    assert first.due_ms == broker.now_ms + HOUR_MS
    (cancel,) = by_kind["cancel"]
    assert (cancel.unique_key, cancel.topic, cancel.record) == (f"later+{far[3]}", "later", None)
    moved_far, moved_near = [row for row in by_kind["move"] if not row.taker]
    assert (moved_far.unique_key, moved_far.timer_id) == (far[4], by_kind["timer"][4].timer_id)
    assert decode_record(bytes(moved_far.record)).body == b"4"
    assert (moved_near.unique_key, moved_near.record) == (far[5], None)
    with BrokerLink(broker.address) as link:
        state = link.state()
        assert state.epoch == 2
        assert state.ingest_offset > rows[-1].entry_offset


def test_each_entry_is_there_once_whoever_ingests_again(
    spark: "SparkSession", root: Root, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    from latermq.pipeline.timeline.timeline import ingested_entry

    broker.schedule(25, HOUR_MS, "a")
    first_end = broker.flushed(25)
    lost: list[int] = []
    with monkeypatch.context() as patched:
        # The table has the rows, and the driver dies before it can tell the broker.
        patched.setattr(BrokerLink, "commit_ingest", lambda link, offset, epoch: lost.append(offset))
        ingest_all(spark, root, broker, batch_rows=15)
    assert lost[-1] >= first_end
    with BrokerLink(broker.address) as link:
        assert link.state().ingest_offset == 0
        store_id = link.state().store_id
    broker.schedule(25, HOUR_MS, "b")
    broker.flushed(first_end + 25)
    ingest_all(spark, root, broker, batch_rows=20)
    ingest_all(spark, root, broker)
    rows = rows_of(spark, root)
    entries = [row.entry_offset for row in rows]
    assert len(set(entries)) == len(entries) == 50
    assert sorted(row["keys"] for row in rows) == sorted(f"{name}{number}" for name in "ab" for number in range(25))
    with BrokerLink(broker.address) as link:
        assert link.state().ingest_offset == ingested_entry(root, store_id) > entries[-1]


def test_a_running_stream_takes_what_comes_and_ends_when_another_driver_begins(
    spark: "SparkSession", root: Root, broker: Broker
) -> None:
    from latermq.pipeline.driver.ingest import Ingest, IngestSettings

    with (
        closing(Ingest(spark, root, broker.namesrv, "broker-a", IngestSettings(every_ms=200))) as ingest,
        driver_link(broker.address, broker.timeline) as link,
    ):

        def has_ingested(count: int) -> bool:
            """Whether so many timers are in the table, and the broker has been told; cuts are entries without a row."""
            rows = rows_of(spark, root)
            return len(rows) == count and link.state().ingest_offset > rows[-1].entry_offset

        query = ingest.start()
        broker.schedule(10, HOUR_MS, "a")
        wait_until(lambda: has_ingested(10), 30, "the first ten are ingested")
        broker.schedule(10, HOUR_MS, "b")
        wait_until(lambda: has_ingested(20), 30, "the next ten are ingested")
        begin_as_driver(link, broker.timeline)
        told = link.state().ingest_offset
        broker.schedule(1, HOUR_MS, "c")
        wait_until(lambda: not query.isActive, 30, "the stream has ended")
        assert "is over" in str(query.exception())
        assert link.state().ingest_offset == told
    assert {row["keys"] for row in rows_of(spark, root)} == {f"{name}{number}" for name in "ab" for number in range(10)}


def test_a_driver_with_another_folder_is_refused_and_ends_no_other(
    spark: "SparkSession", root: Root, broker: Broker
) -> None:
    from latermq.pipeline.driver.ingest import Ingest, IngestSettings

    broker.schedule(5, HOUR_MS, "a")
    broker.flushed(5)
    ingest_all(spark, root, broker)
    settings = IngestSettings(secret_file=str(secret_path("", root.uri)))
    elsewhere = open_root(f"{root.uri}-elsewhere")
    with BrokerLink(broker.address) as link:
        before = link.state()
        for _ in range(3):
            refused = pytest.raises(LaterMQError, match=rf"timeline, {root.uri}: the driver uses another folder")
            with closing(Ingest(spark, elsewhere, broker.namesrv, "broker-a", settings)) as ingest, refused:
                ingest.start()
        assert link.state().epoch == before.epoch  # and whoever ingests goes on
    assert not Path(elsewhere.timeline).exists()
