"""Scheduling of a job's spooled rows, share by share: by Spark's executors, or in this process."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from latermq.pipeline.bulk.divided_spool import divide_spool
from latermq.pipeline.bulk.job_keys import SAMPLE_KEYS, JobKeys, stored_keys
from latermq.pipeline.bulk.pieces import ERROR, run_pieces
from latermq.pipeline.bulk.shares import Share, shares_for
from latermq.pipeline.bulk.spool import LINKS_PER_BROKER, Scheduled, SpoolFile, count_repeated, send_spool
from latermq.pipeline.timeline.root import open_root

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Tasks that divide spooled rows. Each writes a file per share and broker.
DIVIDERS = 16
# Of one Spark job; progress is reported after each job.
SHARES_PER_JOB = 8

_SHARES = f"scheduled bigint, known bigint, repeated bigint, repeated_keys array<string>, {ERROR}"
_FILES = f"broker string, path string, rows bigint, size_bytes bigint, topics array<string>, share int, {ERROR}"


class SpooledJob(NamedTuple):
    """A job whose rows are checked and spooled, as tasks see it. Spark pickles it for its workers."""

    root_uri: str
    job: str
    spool_folder: str
    keys_folder: str  # its keys, or those of a batch of a stream
    addresses: Mapping[str, str]
    is_dry_run: bool = False  # only counts repeated keys


def play_shares(
    spooled: SpooledJob,
    files: Sequence[SpoolFile],
    on_sent: Callable[[int], None] = lambda rows: None,
    spark: "SparkSession | None" = None,
) -> Scheduled:
    """Schedule the rows of these files that the job has not scheduled before, and remember them.

    A share is repeatable: its rows have names, and its keys are stored as soon as its timers are durable.
    """
    root = open_root(spooled.root_uri)
    shares = shares_for(sum(file.rows for file in files), stored_keys(root, spooled.keys_folder), spooled.job)
    if len(shares) > 1:
        files = _divide(spooled, files, len(shares), spark)
    of_share: dict[int, list[SpoolFile]] = defaultdict(list)
    for file in files:
        of_share[file.share].append(file)
    work = [(shares[number], own) for number, own in sorted(of_share.items())]
    if spark is None:
        done = [play_share(spooled, share, own, on_sent) for share, own in work]
    else:
        done = list(_play_on_executors(spark, spooled, work, on_sent))
    keys = tuple(key for one in done for key in one.repeated_keys)[:SAMPLE_KEYS]
    return Scheduled(
        sum(one.scheduled for one in done), sum(one.known for one in done), sum(one.repeated for one in done), keys
    )


def play_share(
    spooled: SpooledJob, share: Share, files: Sequence[SpoolFile], on_sent: Callable[[int], None] = lambda rows: None
) -> Scheduled:
    """Schedule the rows of one share."""
    root = open_root(spooled.root_uri)
    if spooled.is_dry_run:
        repeated = count_repeated(root, files)
        return Scheduled(repeated=repeated.rows, repeated_keys=repeated.sample)
    keys = JobKeys(root, spooled.keys_folder, share)
    return send_spool(root, files, dict(spooled.addresses), keys, spooled.job, on_sent)


def _divide(
    spooled: SpooledJob, files: Sequence[SpoolFile], shares: int, spark: "SparkSession | None"
) -> list[SpoolFile]:
    if spark is None:
        return divide_spool(open_root(spooled.root_uri), spooled.spool_folder, files, shares)
    groups = [list(files[number::DIVIDERS]) for number in range(min(DIVIDERS, len(files)))]

    def divide(number: int) -> list[dict[str, object]]:
        found = divide_spool(open_root(spooled.root_uri), spooled.spool_folder, groups[number], shares)
        return [{**file._asdict(), "topics": list(file.topics)} for file in found]

    rows = run_pieces(spark, f"dividing the rows of job {spooled.job}", len(groups), divide, _FILES, len(groups))
    return [SpoolFile(row.broker, row.path, row.rows, row.size_bytes, tuple(row.topics), row.share) for row in rows]


def _play_on_executors(
    spark: "SparkSession",
    spooled: SpooledJob,
    work: Sequence[tuple[Share, list[SpoolFile]]],
    on_sent: Callable[[int], None],
) -> Iterator[Scheduled]:
    for at in range(0, len(work), SHARES_PER_JOB):
        chosen = list(work[at : at + SHARES_PER_JOB])

        def play(number: int, chosen: list[tuple[Share, list[SpoolFile]]] = chosen) -> list[dict[str, object]]:
            done = play_share(spooled, *chosen[number])
            return [{**done._asdict(), "repeated_keys": list(done.repeated_keys)}]

        tasks = min(len(chosen), LINKS_PER_BROKER * len(spooled.addresses))
        for row in run_pieces(spark, f"scheduling the rows of job {spooled.job}", len(chosen), play, _SHARES, tasks):
            yield Scheduled(row.scheduled, row.known, row.repeated, tuple(row.repeated_keys))
        on_sent(sum(file.rows for _, files in chosen for file in files))
