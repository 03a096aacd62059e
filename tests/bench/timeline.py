"""The timeline at sizes that no broker can fill in a benchmark. What is measured needs no broker."""

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from latermq.config import PipelineConfig
from latermq.handover.window import Window
from latermq.pipeline.timeline.root import Root, open_root
from latermq.pipeline.windows.local_build import build_locally
from tests.bench.contenders import LATERMQ
from tests.bench.load import Figures
from tests.bench.scenarios import Row
from tests.bench.sizes import Sizes
from tests.bench.timeline_rows import DAY_MS, LARGE_SPAN_MS, SPREAD_MS, START_MS, STORE, TimelineRows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SMALL_ROWS = 10_000


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
        self._made = TimelineRows(root, rows)
        self._figures: Figures = {}

    def run(self) -> Figures:
        from latermq.pipeline.spark.session import close_session, open_session

        with self._timed("a session (s)"):
            spark = open_session(PipelineConfig(master="local[2]"))
        try:
            self._fill(spark)
            self._compact(spark, "first compaction (s)")
            self._made.add_tenth(spark)
            self._compact(spark, "compaction of a further tenth (s)")
            self._measure(spark)
        finally:
            close_session(spark)
        return self._figures

    def _fill(self, spark: "SparkSession") -> None:
        with self._timed("making the rows (s)"):
            self._made.fill(spark)
        self._figures["bytes per row"] = self._stored_bytes() / self._rows

    def _compact(self, spark: "SparkSession", name: str) -> None:
        from latermq.pipeline.timeline.compact import compact, count_files

        with self._timed(name):
            compact(spark, self._root, [self._made.state()])
        self._figures[f"files after the {name.removesuffix(' (s)')}"] = float(count_files(spark, self._root.timeline))

    def _measure(self, spark: "SparkSession") -> None:
        small = self._window(1, START_MS + 10 * DAY_MS, SPREAD_MS * _SMALL_ROWS // self._rows)
        large = self._window(2, self._made.large_from_ms, LARGE_SPAN_MS)
        for name, window in (("10,000", small), (f"{self._made.large_rows:,}", large)):
            self._best(f"roll of {name} without Spark (s)", partial(self._build_locally, window))
            self._best(f"roll of {name} on Spark (s)", partial(self._build_on_spark, spark, window))
        self._query(spark)
        with self._timed("opening the table as a driver starts (s)"):
            self._open()

    def _window(self, number: int, from_ms: int, span_ms: int) -> Window:
        return Window(STORE, number, self._made.entries, from_ms, from_ms + span_ms)

    def _build_locally(self, window: Window) -> None:
        attempt = build_locally(self._root, self._made.state(), window, lambda *_: (), now_ms=time.time_ns())
        self._figures[f"rows of window {window.number}"] = float(attempt.manifest.rows)

    def _build_on_spark(self, spark: "SparkSession", window: Window) -> None:
        from latermq.pipeline.windows.spark_build import build_window

        attempt = build_window(spark, self._root, window, now_ms=time.time_ns())
        assert attempt.manifest.rows == self._figures[f"rows of window {window.number}"]

    def _query(self, spark: "SparkSession") -> None:
        from latermq.pipeline.query.pending_timers import pending_rows, stored_takers
        from latermq.pipeline.timeline.local_timeline import open_local_timeline

        timeline = spark.read.format("delta").load(self._root.timeline)
        with self._timed("counting takers (s)"):
            counts = stored_takers(open_local_timeline(self._root, ""))
        pending_rows(timeline, [self._made.state()], counts).createOrReplaceTempView("pending")
        span = f"due_ms BETWEEN {START_MS + 5 * DAY_MS} AND {START_MS + 5 * DAY_MS + 3_600_000}"
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
        assert timeline.ingested == self._made.entries

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
