"""The timeline at sizes that no broker can fill in a benchmark: Spark itself makes the rows, with random records.

Timers are due evenly over 40 days, except those of a window of a million (a tenth of smaller tables). One timer in ten
of that window is cancelled or moved. What is measured needs no broker. Tables of more than 20 million rows begin
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
import pyarrow.compute as pc

from latermq.arrays import Ints
from latermq.config import PipelineConfig
from latermq.handover.window import Window
from latermq.model.pipeline_state import PipelineState
from latermq.pipeline.timeline.root import Root, open_root
from latermq.pipeline.timeline.table_sync import TableSync, added_files, newest_version
from latermq.pipeline.windows.local_build import build_locally
from tests.bench.contenders import LATERMQ
from tests.bench.load import Figures
from tests.bench.process_cost import measured, peak_memory_bytes
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
_RECORD_BYTES = 200
_BATCH_ROWS = 500_000  # rows of one append, like the largest batch of ingest
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
        self._large_rows = min(_LARGE_ROWS, rows // 10)
        self._entries = 0
        self._sync = TableSync(root, root.timeline)
        self._figures: Figures = {}

    def run(self) -> Figures:
        from latermq.pipeline.spark.session import close_session, open_session

        with measured(self._figures, "a session"):
            spark = open_session(PipelineConfig(master="local[2]"))
        try:
            self._fill(spark)
            self._compact(spark, "first compaction")
            self._append(spark, min(_MORE_ROWS, self._rows // 10), "uniform")
            self._compact(spark, "compaction of a further part")
            self._measure(spark)
            for name, size in peak_memory_bytes().items():
                self._figures[f"peak memory of {name} (MiB)"] = size / (1 << 20)
        finally:
            close_session(spark)
        return self._figures

    def _fill(self, spark: "SparkSession") -> None:
        from latermq.pipeline.timeline.timeline import create_timeline

        create_timeline(spark, self._root)
        rest = self._rows - self._large_rows
        with measured(self._figures, "making the rows"):
            if self._rows > _CLUSTERED_ABOVE:
                self._write_clustered(spark, rest)
            else:
                self._append(spark, rest, "uniform")
            self._append(spark, self._large_rows, "large")
            self._take(spark)
        self._figures["bytes per row"] = self._stored_bytes() / self._rows
        self._compare_syncs(spark)

    def _append(self, spark: "SparkSession", count: int, shape: str, *, is_synced: bool = True) -> None:
        for start in range(0, count, _BATCH_ROWS):
            batch = min(_BATCH_ROWS, count - start)
            self._write(self._timers(spark, batch, shape), batch)
            if is_synced:
                self._sync.sync()

    def _compare_syncs(self, spark: "SparkSession") -> None:
        """The cost of syncing what was appended, in turns with appends that are not synced."""
        rows = min(_BATCH_ROWS, self._rows // 20)
        rates: dict[bool, list[float]] = {True: [], False: []}
        for is_synced in (True, False, False, True, True, False):
            began_s = time.monotonic()
            self._append(spark, rows, "uniform", is_synced=is_synced)
            rates[is_synced].append(rows / (time.monotonic() - began_s))
            self._sync.sync()
        for is_synced, name in ((True, "synced"), (False, "not synced")):
            self._figures[f"appended, {name} (rows/s)"] = max(rates[is_synced])

    def _write(self, entries: "DataFrame", count: int) -> None:
        from latermq.pipeline.driver.ingest import timeline_rows
        from latermq.pipeline.timeline.timeline import append

        start, self._entries = self._entries, self._entries + count
        append(timeline_rows(entries, STORE), self._root, STORE, start, self._entries, start)

    def _timers(self, spark: "SparkSession", count: int, shape: str) -> "DataFrame":
        first, spread_ms = self._entries, _SPREAD_MS
        large = shape == "large"

        def make(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                offsets = batch.column("id").to_numpy()
                random = np.random.default_rng(int(offsets[0]) if len(offsets) else 0)
                dues = _LARGE_FROM_MS + offsets % _LARGE_SPAN_MS
                if not large:
                    dues = _START_MS + random.integers(0, spread_ms, len(offsets))
                yield _entry_batch(offsets, dues, random)

        rows = spark.range(first, first + count, 1, spark.sparkContext.defaultParallelism)
        return rows.mapInArrow(make, _ENTRY_DDL)

    def _write_clustered(self, spark: "SparkSession", count: int) -> None:
        """Write sorted files as compaction would, from Spark's tasks: each has the rows of one span of due times."""
        from latermq.pipeline.timeline.clustering import newest_version
        from latermq.pipeline.timeline.sorted_files import WrittenFile

        root_uri, tasks = self._root.uri, -(-count // _BATCH_ROWS)

        def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in batch.column("id").to_pylist():
                    yield from _write_span(root_uri, number, tasks, count)

        columns = "path string, size_bytes bigint, rows bigint, stats string"
        found = spark.range(0, tasks, 1, min(tasks, 50)).mapInArrow(write, columns).collect()
        files = [WrittenFile(row.path, row.size_bytes, row.rows, row.stats) for row in found]
        newest_version(spark, self._root).swaps.commit([], files)
        self._entries = count

    def _take(self, spark: "SparkSession") -> None:
        """Cancel one in ten timers of the large window. Every second of these is a move to another day instead."""
        first = self._entries - self._large_rows
        count = self._large_rows // _TAKEN_SHARE
        entry = f"({first} + (queue_offset - {self._entries}) * {_TAKEN_SHARE})"
        is_move = "queue_offset % 2 = 0"
        key = f"lpad(CAST({entry} AS STRING), 16, '0')"
        taken_due = f"{_LARGE_FROM_MS} + {entry} % {_LARGE_SPAN_MS}"
        rows = spark.range(self._entries, self._entries + count, 1, 1).withColumnRenamed("id", "queue_offset")
        changes = rows.selectExpr(
            "queue_offset", f"IF({is_move}, {entry}, queue_offset) AS timer_id",
            f"IF({is_move}, 'move', 'cancel') AS kind", f"{taken_due} + {_DAY_MS} AS due_ms", "'bench' AS topic",
            f"IF({is_move}, {key}, 'bench+' || {key}) AS unique_key", "CAST(NULL AS STRING) AS keys",
            "CAST(NULL AS STRING) AS tags", f"CAST({taken_due} AS STRING) AS takes",
            f"IF({is_move}, CAST(repeat('m', {_RECORD_BYTES}) AS BINARY), NULL) AS record",
        )  # fmt: skip
        self._write(changes, count)

    def _compact(self, spark: "SparkSession", name: str) -> None:
        from latermq.pipeline.timeline.compact import compact, count_files

        first = newest_version(Path(self._root.timeline)) + 1
        with measured(self._figures, name):
            done = compact(spark, self._root, [self._state()])
        self._figures[f"{name}, files replaced (MB)"] = done.rewritten_bytes / 1e6
        self._figures[f"{name}, files added (MB)"] = self._added_bytes(first) / 1e6
        self._figures[f"files after the {name}"] = float(count_files(spark, self._root.timeline))

    def _state(self) -> PipelineState:
        return PipelineState(
            STORE, "bench", 1, self._entries, 0, self._entries, _START_MS, 0, 0, [], [], [], owned_from=0
        )

    def _measure(self, spark: "SparkSession") -> None:
        small = self._window(1, _START_MS + 10 * _DAY_MS, _SPREAD_MS * _SMALL_ROWS // self._rows)
        large = self._window(2, _LARGE_FROM_MS, _LARGE_SPAN_MS)
        for name, window in (("10,000", small), (f"{self._large_rows:,}", large)):
            self._best(f"roll of {name} without Spark", partial(self._build_locally, window))
            self._best(f"roll of {name} on Spark", partial(self._build_on_spark, spark, window))
        self._query(spark)
        with measured(self._figures, "opening the table as a driver starts"):
            self._open()
        self._add_commits()
        with measured(self._figures, "the same after 30 days of commits"):
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
        from latermq.pipeline.query.pending_timers import pending_rows, stored_takers
        from latermq.pipeline.timeline.local_timeline import open_local_timeline

        timeline = spark.read.format("delta").load(self._root.timeline)
        with measured(self._figures, "counting takers"):
            counts = stored_takers(open_local_timeline(self._root, ""))
        pending_rows(timeline, [self._state()], counts).createOrReplaceTempView("pending")
        span = f"due_ms BETWEEN {_START_MS + 5 * _DAY_MS} AND {_START_MS + 5 * _DAY_MS + 3_600_000}"
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
        assert timeline.ingested == self._entries

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


_ENTRY_DDL = (
    "queue_offset bigint, timer_id bigint, kind string, due_ms bigint, topic string, unique_key string, keys string, "
    "tags string, takes string, record binary"
)


def _entry_batch(offsets: Ints, dues: Ints, random: np.random.Generator) -> pa.RecordBatch:
    """Entries as ingest gets them, with random bytes as records."""
    count = len(offsets)
    ends = np.arange(count + 1, dtype=np.int32) * _RECORD_BYTES
    record = pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(random.bytes(count * _RECORD_BYTES))]
    )
    entries = pa.array(offsets, pa.int64())
    none = pa.nulls(count, pa.string())
    return pa.RecordBatch.from_pydict(
        {
            "queue_offset": entries,
            "timer_id": entries,
            "kind": pa.array(np.full(count, "timer")),
            "due_ms": pa.array(dues, pa.int64()),
            "topic": pa.array(np.full(count, "bench")),
            "unique_key": pc.utf8_lpad(entries.cast(pa.string()), 16, "0"),
            "keys": none,
            "tags": none,
            "takes": none,
            "record": record,
        }
    )


def _write_span(root_uri: str, number: int, tasks: int, count: int) -> Iterator[pa.RecordBatch]:
    """Write one of so many spans of due times, and describe its files."""
    from latermq.pipeline.timeline.rewrite_plan import DEFAULT_LIMITS
    from latermq.pipeline.timeline.sorted_files import FILE_SCHEMA, GROUP_ROWS, write_run

    random = np.random.default_rng(number)
    first, last = (count * one // tasks for one in (number, number + 1))
    low, high = (_START_MS + _SPREAD_MS * one // tasks for one in (number, number + 1))
    dues = np.sort(random.integers(low, high, last - first))
    offsets = first + random.permutation(last - first)

    def tables() -> Iterator[pa.Table]:
        for start in range(0, len(dues), GROUP_ROWS):
            rows = slice(start, start + GROUP_ROWS)
            table = pa.table(_entry_batch(offsets[rows], dues[rows], random)).drop_columns(["takes"])
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
