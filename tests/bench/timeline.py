"""Appends, compaction, window builds and queries of a timeline at sizes that no broker can fill in a benchmark.

The rows are those of timeline_rows.py, and no broker is needed. Tables of more than 20 million rows begin
clustered, because their first compaction is not measured.
"""

import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from latermq.config import PipelineConfig
from latermq.handover.window import Window
from latermq.pipeline.timeline.root import Root, open_root
from latermq.pipeline.timeline.table_sync import TableSync, added_files, newest_version
from latermq.pipeline.windows.local_build import build_locally
from tests.bench.contenders import LATERMQ
from tests.bench.load import Figures
from tests.bench.process_cost import measured, peak_memory_bytes
from tests.bench.scenarios import Row
from tests.bench.sizes import Sizes
from tests.bench.timeline_rows import (
    BATCH_ROWS,
    DAY_MS,
    LARGE_SPAN_MS,
    SPREAD_MS,
    START_MS,
    STORE,
    TimelineRows,
    entry_batch,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SMALL_ROWS = 10_000
_CLUSTERED_ABOVE = 20_000_000
_MORE_ROWS = 1_000_000  # rows that the second compaction finds (a tenth of smaller tables)
_COMMITS_OF_30_DAYS = 30 * 2_880  # one every half minute


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
        self._sync = TableSync(root, root.timeline)
        self._is_synced = True
        self._made = TimelineRows(root, rows, appended=self._appended)
        self._figures: Figures = {}

    def run(self) -> Figures:
        from latermq.pipeline.spark.session import close_session, open_session

        with measured(self._figures, "a session"):
            spark = open_session(PipelineConfig(master="local[2]"))
        try:
            self._fill(spark)
            self._compact(spark, "first compaction")
            self._made.append(spark, min(_MORE_ROWS, self._rows // 10))
            self._compact(spark, "compaction of a further part")
            self._measure(spark)
            for name, size in peak_memory_bytes().items():
                self._figures[f"peak memory of {name} (MiB)"] = size / (1 << 20)
        finally:
            close_session(spark)
        return self._figures

    def _fill(self, spark: "SparkSession") -> None:
        from latermq.pipeline.timeline.timeline import create_timeline

        with measured(self._figures, "making the rows"):
            if self._rows > _CLUSTERED_ABOVE:
                create_timeline(spark, self._root)
                self._write_clustered(spark, self._rows - self._made.large_rows)
                self._made.append_large(spark)
            else:
                self._made.fill(spark)
        self._figures["bytes per row"] = self._stored_bytes() / self._rows
        self._compare_syncs(spark)

    def _appended(self) -> None:
        if self._is_synced:
            self._sync.sync()

    def _compare_syncs(self, spark: "SparkSession") -> None:
        """The cost of syncing what was appended, in turns with appends that are not synced."""
        rows = min(BATCH_ROWS, self._rows // 20)
        rates: dict[bool, list[float]] = {True: [], False: []}
        for self._is_synced in (True, False, False, True, True, False):
            began_s = time.monotonic()
            self._made.append(spark, rows)
            rates[self._is_synced].append(rows / (time.monotonic() - began_s))
            self._sync.sync()
        self._is_synced = True
        for is_synced, name in ((True, "synced"), (False, "not synced")):
            self._figures[f"appended, {name} (rows/s)"] = max(rates[is_synced])

    def _write_clustered(self, spark: "SparkSession", count: int) -> None:
        """Write sorted files as compaction would, from Spark's tasks: each has the rows of one span of due times."""
        from latermq.pipeline.timeline.clustering import newest_version
        from latermq.pipeline.timeline.sorted_files import WrittenFile

        root_uri, tasks = self._root.uri, -(-count // BATCH_ROWS)

        def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in batch.column("id").to_pylist():
                    yield from _write_span(root_uri, number, tasks, count)

        columns = "path string, size_bytes bigint, rows bigint, stats string"
        found = spark.range(0, tasks, 1, min(tasks, 50)).mapInArrow(write, columns).collect()
        files = [WrittenFile(row.path, row.size_bytes, row.rows, row.stats) for row in found]
        newest_version(spark, self._root).swaps.commit([], files)
        self._made.entries = count

    def _compact(self, spark: "SparkSession", name: str) -> None:
        from latermq.pipeline.timeline.compact import compact, count_files

        first = newest_version(Path(self._root.timeline)) + 1
        with measured(self._figures, name):
            done = compact(spark, self._root, [self._made.state()])
        self._figures[f"{name}, files replaced (MB)"] = done.rewritten_bytes / 1e6
        self._figures[f"{name}, files added (MB)"] = self._added_bytes(first) / 1e6
        self._figures[f"files after the {name}"] = float(count_files(spark, self._root.timeline))

    def _measure(self, spark: "SparkSession") -> None:
        small = self._window(1, START_MS + 10 * DAY_MS, SPREAD_MS * _SMALL_ROWS // self._rows)
        large = self._window(2, self._made.large_from_ms, LARGE_SPAN_MS)
        for name, window in (("10,000", small), (f"{self._made.large_rows:,}", large)):
            self._best(f"roll of {name} without Spark", partial(self._build_locally, window))
            self._best(f"roll of {name} on Spark", partial(self._build_on_spark, spark, window))
        self._query(spark)
        with measured(self._figures, "opening the table as a driver starts"):
            self._open()
        self._add_commits()
        with measured(self._figures, "the same after 30 days of commits"):
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
        from latermq.pipeline.query.pending_timers import pending_rows, stored_rows, stored_takers
        from latermq.pipeline.timeline.local_timeline import open_local_timeline

        table = open_local_timeline(self._root, "")
        assert table is not None
        with measured(self._figures, "counting takers"):
            counts = stored_takers(table)
        timeline = stored_rows(spark, self._root, table)
        pending_rows(timeline, [self._made.state()], counts).createOrReplaceTempView("pending")
        span = f"due_ms BETWEEN {START_MS + 5 * DAY_MS} AND {START_MS + 5 * DAY_MS + 3_600_000}"
        self._best(
            "sql over an hour", lambda: spark.sql(f"SELECT count(*), max(due) FROM pending WHERE {span}").collect()
        )
        by_day = "SELECT date_trunc('day', due) AS day, count(*) FROM pending GROUP BY 1"
        self._best("count per day", lambda: spark.sql(by_day).collect())

    def _open(self) -> None:
        from latermq.pipeline.timeline.local_timeline import open_local_timeline
        from latermq.pipeline.timeline.torn_commits import remove_torn_commits

        remove_torn_commits(self._root, self._root.timeline)
        timeline = open_local_timeline(self._root, STORE)
        assert timeline is not None
        assert timeline.ingested == self._made.entries

    def _add_commits(self) -> None:
        """Make the log as long as after 30 days, had it no retention: commits that change nothing, and a checkpoint."""
        from deltalake import DeltaTable

        log = Path(self._root.timeline) / "_delta_log"
        first = DeltaTable(self._root.timeline).version() + 1
        line = '{"commitInfo":{"timestamp":1800000000000,"operation":"WRITE","operationParameters":{}}}\n'
        for version in range(first, first + _COMMITS_OF_30_DAYS):
            (log / f"{version:020d}.json").write_text(line)
        DeltaTable(self._root.timeline).create_checkpoint()

    def _best(self, name: str, action: Callable[[], object]) -> None:
        """The best of three runs. The first one compiles."""
        for _ in range(3):
            run: Figures = {}
            with measured(run, name):
                action()
            if run[f"{name} (s)"] < self._figures.get(f"{name} (s)", float("inf")):
                self._figures |= run

    def _added_bytes(self, first: int) -> int:
        """The size of the files that commits from this version on have added."""
        table = Path(self._root.timeline)
        commits = (table / "_delta_log" / f"{one:020d}.json" for one in range(first, newest_version(table) + 1))
        return sum(file.stat().st_size for commit in commits for file in added_files(commit, table))

    def _stored_bytes(self) -> int:
        return sum(path.stat().st_size for path in Path(self._root.timeline).glob("*.parquet"))


def _write_span(root_uri: str, number: int, tasks: int, count: int) -> Iterator[pa.RecordBatch]:
    """Write one of so many spans of due times, and describe its files."""
    from latermq.pipeline.timeline.rewrite_plan import DEFAULT_LIMITS
    from latermq.pipeline.timeline.sorted_files import FILE_SCHEMA, GROUP_ROWS, write_run

    random = np.random.default_rng(number)
    first, last = (count * one // tasks for one in (number, number + 1))
    low, high = (START_MS + SPREAD_MS * one // tasks for one in (number, number + 1))
    dues = np.sort(random.integers(low, high, last - first))
    offsets = first + random.permutation(last - first)

    def tables() -> Iterator[pa.Table]:
        for start in range(0, len(dues), GROUP_ROWS):
            rows = slice(start, start + GROUP_ROWS)
            table = pa.table(entry_batch(offsets[rows], dues[rows], random)).drop_columns(["takes"])
            table = table.rename_columns({"queue_offset": "entry_offset"})
            extra = {
                "store_id": pa.array(np.full(len(table), STORE)),
                "taker": pa.array(np.zeros(len(table), np.int32)),
                "due": pa.array(dues[rows] * 1_000).cast(FILE_SCHEMA.field("due").type),
            }
            for name, column in extra.items():
                table = table.append_column(name, column)
            yield table.select(FILE_SCHEMA.names)

    for file in write_run(open_root(root_uri), tables(), DEFAULT_LIMITS.file_bytes):
        yield pa.RecordBatch.from_pylist(
            [{"path": file.path, "size_bytes": file.size_bytes, "rows": file.rows, "stats": file.stats}]
        )
