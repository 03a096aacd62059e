"""Bulk schedule: spooled rows, sent as an executor sends them, from their files to the stored keys."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa

from latermq.pipeline.bulk.bulk_job import job_folder
from latermq.pipeline.bulk.row_frames import Target, requests_of
from latermq.pipeline.bulk.share_runner import SpooledJob, play_shares
from latermq.pipeline.bulk.spool import SpoolFile, write_spool
from latermq.pipeline.driver.brokers import masters
from latermq.pipeline.timeline.root import Root, open_root
from tests.bench.bulk_changes import AHEAD_MS, CpuTimes
from tests.bench.contenders import LATERMQ, LaterMQ
from tests.bench.scenarios import Row
from tests.bench.sizes import Sizes
from tests.interop.waiting import wait_until

TOPIC = "bench-bulk-schedule"
_BATCH_ROWS = 10_000  # as Spark passes them to its Python workers


def run_bulk_schedule(sizes: Sizes, folder: Path) -> Iterator[Row]:
    """Rows per second of a bulk schedule, and of a second run that finds all keys known."""
    with ExitStack() as stack:
        broker = LaterMQ(folder / "broker", LATERMQ, "wheel", ())
        stack.callback(broker.close)
        broker.start()
        addresses = wait_until(lambda: masters(broker.namesrv), 30, "the broker")
        root = open_root(str(folder / "pipeline"))
        for repeat in range(sizes.repeats):
            job = f"schedule-{repeat}"
            files = _spooled(root, job, sizes.bulk, sizes.size, tuple(addresses))
            spooled = SpooledJob(root.uri, job, root.at("bulk", job, "shares"), job_folder(root, job), addresses)
            figures = {}
            for run, expected in (("rows", (sizes.bulk, 0)), ("known rows", (0, sizes.bulk))):
                times = CpuTimes(broker.broker_pid)
                began_s = time.perf_counter()
                done = play_shares(spooled, files)
                figures[f"{run}/s"] = sizes.bulk / (time.perf_counter() - began_s)
                figures |= times.figures(run, sizes.bulk)
                assert (done.scheduled, done.known) == expected
            yield Row("bulk-schedule", LATERMQ, repeat, figures)


def _spooled(root: Root, job: str, count: int, size_bytes: int, brokers: tuple[str, ...]) -> list[SpoolFile]:
    now_ms = time.time_ns() // 1_000_000
    target = Target(job, brokers, topic=TOPIC, now_ms=now_ms)

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, count, _BATCH_ROWS):
            numbers = np.arange(start, min(start + _BATCH_ROWS, count))
            columns = {
                "key": [f"{job}-{number}" for number in numbers.tolist()],
                "due_ms": now_ms + AHEAD_MS + numbers,
                "body": [bytes(size_bytes)] * len(numbers),
            }
            yield pa.RecordBatch.from_pydict(columns)

    requests = (one for batch in batches() for one in requests_of(batch, target))
    return write_spool(root, root.at("bulk", job, "spool"), requests)
