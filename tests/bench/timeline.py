"""The timeline at sizes that no broker can fill in a benchmark: Spark itself makes the rows, of at most 200 bytes each.

Timers are due evenly over 40 days, except those of a window of a million (a tenth of smaller tables). One timer in ten
of that window is cancelled or moved. What is measured needs no broker.
"""

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from latermq.config import PipelineConfig
from latermq.handover.window import Window
from latermq.model.pipeline_state import PipelineState
from latermq.pipeline.timeline.root import Root, open_root
from latermq.pipeline.windows.local_build import build_locally
from tests.bench.contenders import LATERMQ
from tests.bench.load import Figures
from tests.bench.scenarios import Row
from tests.bench.sizes import Sizes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STORE = "a" * 32
_DAY_MS = 86_400_000
_SPREAD_MS = 40 * _DAY_MS
_START_MS = 1_800_000_000_000 // _DAY_MS * _DAY_MS
_SMALL_ROWS, _LARGE_ROWS = 10_000, 1_000_000
_LARGE_FROM_MS, _LARGE_SPAN_MS = _START_MS + 20 * _DAY_MS, 600_000
_TAKEN_SHARE = 10
_RECORD_BYTES = 120
_BATCH_ROWS = 5_000_000  # rows that one append makes


def run_timeline(sizes: Sizes, folder: Path) -> Iterator[Row]:
    """The figures of one table after the other, each made and then removed."""
    for rows in sizes.timeline_rows:
        own = folder / str(rows)
        bench = TimelineBench(open_root(str(own)), rows)
        yield Row(f"timeline {rows:,}", LATERMQ, 0, bench.run())
        shutil.rmtree(own)


class TimelineBench:
    """One table, and a Spark session like that of the driver on one machine."""

    def __init__(self, root: Root, rows: int) -> None:
        self._root = root
        self._rows = rows
        self._large_rows = min(_LARGE_ROWS, rows // 10)
        self._entries = 0
        self._figures: Figures = {}

    def run(self) -> Figures:
        from latermq.pipeline.spark.session import close_session, open_session

        with self._timed("a session (s)"):
            spark = open_session(PipelineConfig(master="local[2]"))
        try:
            self._fill(spark)
            self._compact(spark, "first compaction (s)")
            self._add_tenth(spark)
            self._compact(spark, "compaction of a further tenth (s)")
            self._measure(spark)
        finally:
            close_session(spark)
        return self._figures

    def _fill(self, spark: "SparkSession") -> None:
        from latermq.pipeline.timeline.timeline import create_timeline

        create_timeline(spark, self._root)
        with self._timed("making the rows (s)"):
            self._append(spark, self._rows - self._large_rows, "uniform")
            self._append(spark, self._large_rows, "large")
            self._take(spark)
        self._figures["bytes per row"] = self._stored_bytes() / self._rows

    def _append(self, spark: "SparkSession", count: int, shape: str) -> None:
        for start in range(0, count, _BATCH_ROWS):
            batch = min(_BATCH_ROWS, count - start)
            self._write(self._timers(spark, batch, shape), batch)

    def _write(self, entries: "DataFrame", count: int) -> None:
        from latermq.pipeline.driver.ingest import timeline_rows
        from latermq.pipeline.timeline.timeline import append

        start, self._entries = self._entries, self._entries + count
        append(timeline_rows(entries, STORE), self._root, STORE, start, self._entries, 0)

    def _timers(self, spark: "SparkSession", count: int, shape: str) -> "DataFrame":
        first, step = self._entries, max(1, _SPREAD_MS // self._rows)
        due = f"{_LARGE_FROM_MS} + queue_offset % {_LARGE_SPAN_MS}"
        if shape == "uniform":
            due = f"{_START_MS} + pmod(xxhash64(queue_offset), {_SPREAD_MS // step}) * {step}"
        rows = spark.range(first, first + count, 1, 4).withColumnRenamed("id", "queue_offset")
        return rows.selectExpr(
            "queue_offset", "queue_offset AS timer_id", "'timer' AS kind", f"{due} AS due_ms", "'bench' AS topic",
            "hex(queue_offset) AS unique_key", "CAST(NULL AS STRING) AS keys", "CAST(NULL AS STRING) AS tags",
            "CAST(NULL AS STRING) AS takes",
            f"CAST(rpad(hex(xxhash64(queue_offset)), {_RECORD_BYTES}, 'x') AS BINARY) AS record",
        )  # fmt: skip

    def _take(self, spark: "SparkSession") -> None:
        """Cancel one in ten timers of the large window. Every second of these is a move to another day instead."""
        first = self._entries - self._large_rows
        count = self._large_rows // _TAKEN_SHARE
        entry = f"({first} + (queue_offset - {self._entries}) * {_TAKEN_SHARE})"
        is_move = "queue_offset % 2 = 0"
        taken_due = f"{_LARGE_FROM_MS} + {entry} % {_LARGE_SPAN_MS}"
        rows = spark.range(self._entries, self._entries + count, 1, 1).withColumnRenamed("id", "queue_offset")
        changes = rows.selectExpr(
            "queue_offset", f"IF({is_move}, {entry}, queue_offset) AS timer_id",
            f"IF({is_move}, 'move', 'cancel') AS kind", f"{taken_due} + {_DAY_MS} AS due_ms", "'bench' AS topic",
            f"IF({is_move}, hex({entry}), 'bench+' || hex({entry})) AS unique_key", "CAST(NULL AS STRING) AS keys",
            "CAST(NULL AS STRING) AS tags", f"CAST({taken_due} AS STRING) AS takes",
            f"IF({is_move}, CAST(repeat('m', {_RECORD_BYTES}) AS BINARY), NULL) AS record",
        )  # fmt: skip
        self._write(changes, count)

    def _add_tenth(self, spark: "SparkSession") -> None:
        self._append(spark, self._rows // 10, "uniform")

    def _compact(self, spark: "SparkSession", name: str) -> None:
        from latermq.pipeline.timeline.compact import compact, count_files

        with self._timed(name):
            compact(spark, self._root, [self._state()])
        self._figures[f"files after the {name.removesuffix(' (s)')}"] = float(count_files(spark, self._root.timeline))

    def _state(self) -> PipelineState:
        return PipelineState(
            STORE, "bench", 1, self._entries, 0, self._entries, _START_MS, 0, 0, [], [], [], owned_from=0
        )

    def _measure(self, spark: "SparkSession") -> None:
        small = self._window(1, _START_MS + 10 * _DAY_MS, _SPREAD_MS * _SMALL_ROWS // self._rows)
        large = self._window(2, _LARGE_FROM_MS, _LARGE_SPAN_MS)
        for name, window in (("10,000", small), (f"{self._large_rows:,}", large)):
            self._best(f"roll of {name} without Spark (s)", partial(self._build_locally, window))
            self._best(f"roll of {name} on Spark (s)", partial(self._build_on_spark, spark, window))
        self._query(spark)
        with self._timed("opening the table as a driver starts (s)"):
            self._open()

    def _window(self, number: int, from_ms: int, span_ms: int) -> Window:
        return Window(STORE, number, self._entries, from_ms, from_ms + span_ms)

    def _build_locally(self, window: Window) -> None:
        attempt = build_locally(self._root, self._state(), window, lambda *_: (), now_ms=time.time_ns())
        self._figures[f"rows of window {window.number}"] = float(attempt.manifest.rows)

    def _build_on_spark(self, spark: "SparkSession", window: Window) -> None:
        from latermq.pipeline.windows.spark_build import build_window

        attempt = build_window(spark, self._root, window, now_ms=time.time_ns())
        assert attempt.manifest.rows == self._figures[f"rows of window {window.number}"]

    def _query(self, spark: "SparkSession") -> None:
        from latermq.pipeline.query.pending_timers import count_takers, pending_rows

        timeline = spark.read.format("delta").load(self._root.timeline)
        with self._timed("counting takers (s)"):
            counts = count_takers(self._root, [self._state()])
        pending_rows(timeline, [self._state()], counts).createOrReplaceTempView("pending")
        span = f"due_ms BETWEEN {_START_MS + 5 * _DAY_MS} AND {_START_MS + 5 * _DAY_MS + 3_600_000}"
        self._best(
            "sql over an hour (s)", lambda: spark.sql(f"SELECT count(*), max(due) FROM pending WHERE {span}").collect()
        )
        by_day = "SELECT date_trunc('day', due) AS day, count(*) FROM pending GROUP BY 1"
        self._best("count per day (s)", lambda: spark.sql(by_day).collect())

    def _open(self) -> None:
        from latermq.pipeline.timeline.local_timeline import open_local_timeline
        from latermq.pipeline.timeline.torn_commits import remove_torn_commits

        remove_torn_commits(self._root, self._root.timeline)
        timeline = open_local_timeline(self._root, STORE)
        assert timeline is not None
        assert timeline.ingested == self._entries

    def _best(self, name: str, action: Callable[[], object]) -> None:
        """The best of three runs. The first one compiles."""
        for _ in range(3):
            began_s = time.monotonic()
            action()
            took_s = time.monotonic() - began_s
            self._figures[name] = min(self._figures.get(name, took_s), took_s)

    @contextlib.contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began_s = time.monotonic()
        yield
        self._figures[name] = time.monotonic() - began_s

    def _stored_bytes(self) -> int:
        return sum(path.stat().st_size for path in Path(self._root.timeline).glob("*.parquet"))
