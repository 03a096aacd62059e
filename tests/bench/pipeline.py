"""The pipeline: bulk scheduling, ingest, window builds from a growing timeline, bytes per far timer, and the lateness
of near timers meanwhile. Only LaterMQ has such a pipeline, so there is no comparison."""

import hashlib
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from latermq.client import OutgoingMessage, blocking
from latermq.config import PipelineConfig, Size
from latermq.handover.window import Window
from latermq.message.properties import encode_properties
from latermq.message.timer_code import TIMER
from latermq.model.pipeline_state import PipelineState
from latermq.pipeline.driver.brokers import masters
from latermq.pipeline.driver.link import BrokerLink
from latermq.pipeline.timeline.root import open_root
from latermq.pipeline.timeline.table_sync import TableSync
from latermq.pipeline.windows.build_process import NICE
from latermq.pipeline.windows.local_build import build_locally
from latermq.store.files.disk import FileDisk
from latermq.timer.far.far_names import SWEEP_ROWS, FarNames, Waiting
from tests.bench.contenders import LATERMQ, LaterMQ
from tests.bench.load import Figures, Load, SendShape, start_load
from tests.bench.roll import written_bytes
from tests.bench.scenarios import Row
from tests.bench.sizes import Sizes
from tests.bench.stored import mapped, records
from tests.bench.timers import TimerLoad
from tests.interop.waiting import wait_until
from tests.support.pipeline.pipeline_process import pipeline_process

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC = "bench-far"
_DAY_MS = 86_400_000
_WINDOW_MS = 600_000
# Timers are due within 40 days, the limit of cloud vendors. Those of the two measured windows are due first.
_SPREAD_MS = 40 * _DAY_MS
_FIXED_FROM_MS, _LARGE_FROM_MS, _REST_FROM_MS = 2 * _DAY_MS, 3 * _DAY_MS, 4 * _DAY_MS
# One in so many timers of the first part is in the window that does not change while the timeline grows.
_FIXED_SHARE = 10
_NAMES_AT_ONCE = 1_000  # the batch size of the broker
_NAMES = 1_000_000
# Near timers, due so soon after they are scheduled, for the length of their delivered records.
_SOON, _SOON_MS = 100, 3_000
_WAIT_S = 600.0
_FLUSHED_S = 1.0  # twice as long as a broker takes to flush
# Short windows of ten seconds, as for a demonstration, so that builds run all the time.
_FAR_LEAD_MS, _FAR_OVER_MS = 150_000, 60_000
_SHORT_INTERVALS = {"near_horizon": "2m", "window": "10s", "ingest_every": "2s", "roll_deadline": "30s"}


class _NoSync(TableSync):
    """To measure what syncing costs."""

    def sync(self) -> None:
        return


class PipelineBench:
    """A broker, a Spark session in this process, and a timeline that grows part by part."""

    def __init__(self, spark: "SparkSession", broker: LaterMQ, folder: Path, sizes: Sizes) -> None:
        self._spark = spark
        self._broker = broker
        self._folder = folder
        self._sizes = sizes
        self._root = open_root(str(folder / "pipeline"))
        self._random = np.random.default_rng(1)
        self._parts = 0
        self._now_ms = time.time_ns() // 1_000_000 // _WINDOW_MS * _WINDOW_MS
        self._large_rows = 0

    def run(self) -> Iterator[Row]:
        """All figures of a growing timeline, in the order of measurement."""
        [(self._name, address)] = wait_until(lambda: masters(self._broker.namesrv), 30, "the broker").items()
        with closing(BrokerLink(address)) as self._link:
            self._ingest()
            wait_until(lambda: self._link.state().cuts, 30, "the first cut")
            self._schedule(self._sizes.far_warm, large=0, fixed=0)
            self._ingest()
            part = self._sizes.far_part
            fixed = part // _FIXED_SHARE
            large = -(-part // max(1, self._sizes.far_parts - 1))
            for number in range(self._sizes.far_parts):
                rate = self._schedule(part, fixed=fixed if number == 0 else 0, large=large if number else 0)
                yield Row("pipeline-schedule", LATERMQ, number, {"rows/s": rate})
                # The first part pays for compilation. Then parts that are synced take turns with parts that are not.
                is_synced = not number or number % 2 == 1
                name = "pipeline-ingest" if is_synced else "pipeline-ingest, not synced"
                yield Row(name, LATERMQ, number, self._ingest(is_synced=is_synced))
                if number == 0:
                    yield from self._build_windows(f"{part:,}", {"fixed": fixed})
            yield from self._build_windows(
                f"{part * self._sizes.far_parts:,}", {"fixed": fixed, "large": self._large_rows}
            )
            yield Row("pipeline-bytes", LATERMQ, 0, self._bytes())

    # Filling

    def _schedule(self, count: int, *, fixed: int, large: int) -> float:
        """Schedule the rows of a Parquet file. Return rows per second."""
        from latermq.pipeline.bulk.bulk_schedule import schedule
        from latermq.pipeline.bulk.schedule_files import read_source

        self._parts += 1
        self._large_rows += large
        path = self._folder / f"part-{self._parts}.parquet"
        dues = np.concatenate(
            [
                self._now_ms + start_ms + self._random.integers(0, span_ms, rows)
                for start_ms, span_ms, rows in (
                    (_FIXED_FROM_MS, _WINDOW_MS, fixed),
                    (_LARGE_FROM_MS, _WINDOW_MS, large),
                    (_REST_FROM_MS, _SPREAD_MS - _REST_FROM_MS, count - fixed - large),
                )
            ]
        )
        self._random.shuffle(dues)
        size = self._sizes.size
        # Bodies that do not compress, so that they take their full size on disk.
        bodies = self._random.bytes(count * size)
        offsets = pa.array(np.arange(count + 1, dtype=np.int32) * size).buffers()[1]
        body = pa.Array.from_buffers(pa.binary(), count, [None, offsets, pa.py_buffer(bodies)])
        keys = pa.array([f"part-{self._parts}-{number}" for number in range(count)])
        pq.write_table(pa.table({"key": keys, "due_ms": dues, "body": body}), path)
        began_s = time.monotonic()
        rows = read_source(self._spark, str(path))
        done = schedule(rows, self._root, self._broker.namesrv, job=f"part-{self._parts}", topic=TOPIC)
        took_s = time.monotonic() - began_s
        assert done.scheduled == count, f"{done.scheduled} of {count} rows were scheduled"
        path.unlink()
        return count / took_s

    def _ingest(self, *, is_synced: bool = True) -> Figures:
        """Ingest all records. A stream starts once and then runs batches, each from pull to commit."""
        from latermq.pipeline.driver.ingest import Ingest

        time.sleep(_FLUSHED_S)
        before = self._link.state()
        began_s = time.monotonic()
        sync = (TableSync if is_synced else _NoSync)(self._root, self._root.timeline)
        with closing(Ingest(self._spark, self._root, self._broker.namesrv, self._name, table_sync=sync)) as ingest:
            query = ingest.start(available_now=True)
            query.awaitTermination()
        took_s = time.monotonic() - began_s
        timers = self._link.state().ingest_offset - before.ingest_offset
        batches_s = sum(batch["durationMs"]["triggerExecution"] for batch in query.recentProgress) / 1000
        return {"timers/s": timers / batches_s, "timers/s, start of the stream included": timers / took_s}

    # Building windows

    def _build_windows(self, among: str, windows: dict[str, int]) -> Iterator[Row]:
        from latermq.pipeline.timeline.compact import compact
        from latermq.pipeline.windows.spark_build import build_window

        state = self._link.state()
        done = compact(self._spark, self._root, [state])
        yield Row(
            f"pipeline-compact {among}", LATERMQ, 0, {"took (s)": done.duration_s, "files": float(done.files_after)}
        )
        starts = {"fixed": _FIXED_FROM_MS, "large": _LARGE_FROM_MS}
        builders: dict[str, Callable[[Window], int]] = {
            "Spark": lambda window: build_window(self._spark, self._root, window, now_ms=_now_ms()).manifest.rows,
            "delta-rs": lambda window: (
                build_locally(self._root, state, window, lambda start, until: (), now_ms=_now_ms()).manifest.rows
            ),
        }
        for repeat in range(self._sizes.repeats):
            for number, (window_name, count) in enumerate(windows.items()):
                from_ms = self._now_ms + starts[window_name]
                window = Window(state.store_id, 1_000_000 + number, state.ingest_offset, from_ms, from_ms + _WINDOW_MS)
                figures = {}
                for builder, build in builders.items():
                    began_s = time.monotonic()
                    rows = build(window)
                    figures[f"{builder} (s)"] = time.monotonic() - began_s
                    assert rows == count, f"{builder} built {rows} rows, not {count}"
                yield Row(f"pipeline-build {count:,} of {among}", LATERMQ, repeat, figures)

    # Bytes

    def _bytes(self) -> Figures:
        """Bytes written per far timer until its delivery. No file was vacuumed, so all of them still exist.

        Other windows are assumed to take as many bytes per row as the built ones.
        """
        timers = self._sizes.far_warm + self._sizes.far_part * self._sizes.far_parts
        data = self._folder / "broker" / "data"
        log_bytes = sum(file.stat().st_blocks * 512 for file in (data / "commitlog").iterdir())
        queues = [data / name for name in ("consumequeue", "index", "timerlog", "timerwheel")]
        windows = self._folder / "pipeline" / "windows"
        attempts = list(windows.glob("*/*/*"))
        per_row = [_size(attempt) / _rows_of(attempt) for attempt in attempts]
        figures = {
            "record in the log (bytes/timer)": log_bytes / timers,
            "delivered record in the log (bytes/timer)": self._delivered_bytes(),
            "queues and key index (bytes/timer)": 2 * sum(map(_used, queues)) / timers,
            "timeline, compaction included (bytes/timer)": _size(self._folder / "pipeline" / "timeline") / timers,
            "window (bytes/timer)": statistics.median(per_row),
            "names in RocksDB (bytes/timer)": self._names_bytes(min(timers, _NAMES)),
        }
        return {**figures, "all (bytes/timer)": sum(figures.values())}

    def _delivered_bytes(self) -> float:
        """The length of a delivered record: that of near timers with such bodies and keys."""
        folder = self._folder / "broker" / "data" / "commitlog"
        due_ms = _now_ms() + _SOON_MS
        with blocking.Producer(self._broker.namesrv) as producer:
            for number in range(_SOON):
                body, key = self._random.bytes(self._sizes.size), f"part-{self._parts}-{number:06d}"
                producer.send(OutgoingMessage(TOPIC, body, keys=(key,), deliver_at_ms=due_ms))
        return statistics.mean(wait_until(lambda: _record_sizes(folder, _SOON), _WAIT_S, "the near timers"))

    def _names_bytes(self, count: int) -> float:
        """What the names of the timers take, until they are deleted when the timers are delivered."""
        folder = self._folder / "names"
        names = FarNames(FileDisk(folder))
        before = written_bytes()
        for first in range(0, count, _NAMES_AT_ONCE):
            waiting = [
                Waiting(entry, TIMER, self._now_ms + entry, True, _waiting_properties(entry))
                for entry in range(first, first + _NAMES_AT_ONCE)
            ]
            names.adopt(waiting, first + _NAMES_AT_ONCE, retention_ms=_DAY_MS)
        names.save()
        for _ in range(3 * count // SWEEP_ROWS + 1):
            names.sweep(self._now_ms + count, self._now_ms)
        names.close()
        return (written_bytes() - before) / count


def _waiting_properties(entry: int) -> bytes:
    unique_key = hashlib.md5(str(entry).encode(), usedforsecurity=False).hexdigest().upper()
    properties = {"UNIQ_KEY": unique_key, "KEYS": f"part-1-{entry}", "REAL_TOPIC": TOPIC, "REAL_QID": "0"}
    return encode_properties(properties).encode()


def _record_sizes(folder: Path, count: int) -> list[int]:
    """The lengths of the records of the topic, if there are so many."""
    found = []
    for file in sorted(folder.iterdir()):
        with mapped(file) as data:
            found += [
                parts.size
                for at, parts in records(data, 0)
                if data[at + parts.topic_at : at + parts.topic_at + parts.topic_bytes] == TOPIC.encode()
            ]
    return found if len(found) >= count else []


def _rows_of(attempt: Path) -> int:
    return sum(pq.ParquetFile(file).metadata.num_rows for file in attempt.glob("*.parquet"))


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _used(folder: Path) -> int:
    """The allocated size of mapped files."""
    return sum(file.stat().st_blocks * 512 for file in folder.rglob("*") if file.is_file())


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def run_pipeline(sizes: Sizes, folder: Path) -> Iterator[Row]:
    """Measure a growing timeline, with Spark on both cores and no other load."""
    from latermq.pipeline.spark.session import close_session, open_session

    os.environ["SPARK_LOCAL_DIRS"] = str(folder / "spark")
    settings = ("pipeline.enabled=true", f"pipeline.timeline={folder / 'pipeline'}", "pipeline.roll_deadline=1ms")
    with ExitStack() as stack:
        broker = LaterMQ(folder / "broker", LATERMQ, "wheel", settings)
        stack.callback(broker.close)
        broker.start()
        spark = open_session(PipelineConfig(master="local[2]", driver_memory=Size.parse("2GiB")))
        stack.callback(close_session, spark)
        yield from PipelineBench(spark, broker, folder, sizes).run()


def run_near(sizes: Sizes, folder: Path) -> Iterator[Row]:
    """The lateness of near timers, without a driver and while one ingests and builds windows as in `latermq serve`."""
    settings = [f"pipeline.{name}={value}" for name, value in _SHORT_INTERVALS.items()]
    root = folder / "pipeline"
    with ExitStack() as stack:
        all_settings = ("pipeline.enabled=true", f"pipeline.timeline={root}", *settings)
        broker = LaterMQ(folder / "broker", LATERMQ, "wheel", all_settings)
        stack.callback(broker.close)
        broker.start()
        load = Load(stack.enter_context(start_load(folder)), [broker])
        timers = TimerLoad(load, sizes)
        [address] = wait_until(lambda: masters(broker.namesrv), 30, "the broker").values()
        link = stack.enter_context(closing(BrokerLink(address)))
        options = [word for setting in settings for word in ("--set", setting)]
        far = SendShape("async", sizes.async_threads, sizes.in_flight, sizes.size, due_over_ms=_FAR_OVER_MS)
        load.make_topic(broker, TOPIC, sizes.size)
        for repeat in range(sizes.repeats):
            figures = timers.spread(broker, f"near-alone-{repeat}", sizes.timers, sizes.spread_s)
            yield Row("pipeline-near, no driver", LATERMQ, repeat, figures)
        with pipeline_process(broker.namesrv, root, *options, full_jit=True) as driver:
            os.setpriority(os.PRIO_PROCESS, driver.pid, NICE)  # as `serve` does
            wait_until(lambda: link.state().cuts, _WAIT_S, "the driver's begin")
            for repeat in range(sizes.repeats):
                before = link.state()
                far_ahead = replace(far, due_from_ms=_now_ms() + _FAR_LEAD_MS)
                load.fill(broker, TOPIC, sizes.far_near, far_ahead)
                figures = timers.spread(broker, f"near-busy-{repeat}", sizes.timers, sizes.spread_s)
                after = link.state()
                meanwhile = {
                    "ingested meanwhile": float(after.ingest_offset - before.ingest_offset),
                    "windows built meanwhile": float(len(_built_windows(after) - _built_windows(before))),
                }
                yield Row("pipeline-near, ingest and build", LATERMQ, repeat, {**figures, **meanwhile})


def _built_windows(state: PipelineState) -> set[int]:
    return {window.number for window in state.windows if window.attempt}
