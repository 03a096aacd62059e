"""The rows of a timeline at sizes that no broker can fill in a benchmark. Spark makes them, of random bytes.

Timers are due evenly over 40 days, except those of a window of a million (a tenth of smaller tables). One timer in ten
of that window is cancelled or moved.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from latermq.arrays import Ints
from latermq.config import PipelineConfig, Size
from latermq.model.pipeline_state import PipelineState
from latermq.pipeline.timeline.root import Root

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STORE = "a" * 32
DAY_MS = 86_400_000
SPREAD_MS = 40 * DAY_MS
START_MS = 1_800_000_000_000 // DAY_MS * DAY_MS
LARGE_SPAN_MS = 600_000
BATCH_ROWS = 500_000  # rows of one append, like the largest batch of ingest
_LARGE_ROWS = 1_000_000
_TAKEN_SHARE = 10
_RECORD_BYTES = 200
_KEY_DIGITS = 16
_ENTRY_DDL = (
    "queue_offset bigint, timer_id bigint, kind string, due_ms bigint, topic string, unique_key string, keys string, "
    "tags string, takes string, record binary"
)


class TimelineRows:
    """The rows of one store. Their entries begin at `first_entry`. `appended` is called after each append.

    Entries below 0 are of no broker's log. So they can belong to the store of a real broker, and neither it nor its
    driver takes them for entries that they have to continue from.
    """

    def __init__(
        self,
        root: Root,
        rows: int,
        *,
        store_id: str = STORE,
        start_ms: int = START_MS,
        first_entry: int = 0,
        appended: Callable[[], object] = lambda: None,
    ) -> None:
        self._root = root
        self._rows = rows
        self._store_id = store_id
        self._start_ms = start_ms
        self._appended = appended
        self.large_rows = min(_LARGE_ROWS, rows // 10)
        self.large_from_ms = start_ms + 20 * DAY_MS
        self.entries = first_entry
        self.pending = 0

    def fill(self, spark: "SparkSession") -> None:
        """Create the table, and append the timers and what ends some of them."""
        from latermq.pipeline.timeline.timeline import create_timeline

        create_timeline(spark, self._root)
        self.append(spark, self._rows - self.large_rows)
        self.append_large(spark)

    def append(self, spark: "SparkSession", count: int) -> None:
        """Append timers that are due evenly over the whole span."""
        self._append(spark, count, is_large=False)

    def append_large(self, spark: "SparkSession") -> None:
        """Append the timers of the large window, and what ends some of them."""
        self._append(spark, self.large_rows, is_large=True)
        self._take(spark)

    def state(self) -> PipelineState:
        """The state of a broker that has scheduled these rows and delivered none."""
        entries = max(0, self.entries)
        return PipelineState(
            self._store_id, "bench", 1, entries, 0, entries, self._start_ms, 0, 0, [], [], [], owned_from=0
        )

    def _append(self, spark: "SparkSession", count: int, *, is_large: bool) -> None:
        for start in range(0, count, BATCH_ROWS):
            batch = min(BATCH_ROWS, count - start)
            self._write(self._timers(spark, batch, is_large=is_large), batch)
        self.pending += count

    def _write(self, entries: "DataFrame", count: int) -> None:
        from latermq.pipeline.driver.ingest import timeline_rows
        from latermq.pipeline.timeline.timeline import SCHEMA, append

        start, self.entries = self.entries, self.entries + count
        rows = timeline_rows(entries, self._store_id)
        if start < 0:
            rows.select(*SCHEMA.names).write.format("delta").mode("append").save(self._root.timeline)
        else:
            append(rows, self._root, self._store_id, start, self.entries, start)
        self._appended()

    def _timers(self, spark: "SparkSession", count: int, *, is_large: bool) -> "DataFrame":
        first, start_ms, large_from_ms = self.entries, self._start_ms, self.large_from_ms

        def make(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                offsets = batch.column("id").to_numpy()
                random = np.random.default_rng(abs(int(offsets[0])) if len(offsets) else 0)
                dues = large_from_ms + offsets % LARGE_SPAN_MS
                if not is_large:
                    dues = start_ms + random.integers(0, SPREAD_MS, len(offsets))
                yield entry_batch(offsets, dues, random)

        rows = spark.range(first, first + count, 1, spark.sparkContext.defaultParallelism)
        return rows.mapInArrow(make, _ENTRY_DDL)

    def _take(self, spark: "SparkSession") -> None:
        """Cancel one in ten timers of the large window. Every second of these is a move to another day instead."""
        first = self.entries - self.large_rows
        count = self.large_rows // _TAKEN_SHARE
        entry = f"({first} + (queue_offset - {self.entries}) * {_TAKEN_SHARE})"
        is_move = "queue_offset % 2 = 0"
        key = f"lpad(CAST({entry} AS STRING), {_KEY_DIGITS}, '0')"
        taken_due = f"{self.large_from_ms} + pmod({entry}, {LARGE_SPAN_MS})"
        rows = spark.range(self.entries, self.entries + count, 1, 1).withColumnRenamed("id", "queue_offset")
        changes = rows.selectExpr(
            "queue_offset", f"IF({is_move}, {entry}, queue_offset) AS timer_id",
            f"IF({is_move}, 'move', 'cancel') AS kind", f"{taken_due} + {DAY_MS} AS due_ms", "'bench' AS topic",
            f"IF({is_move}, {key}, 'bench+' || {key}) AS unique_key", "CAST(NULL AS STRING) AS keys",
            "CAST(NULL AS STRING) AS tags", f"CAST({taken_due} AS STRING) AS takes",
            f"IF({is_move}, CAST(repeat('m', {_RECORD_BYTES}) AS BINARY), NULL) AS record",
        )  # fmt: skip
        self._write(changes, count)
        self.pending -= sum(entry % 2 for entry in range(self.entries - count, self.entries))


def fill_compacted(folder: Path, root: Root, rows: int, *, store_id: str, start_ms: int) -> TimelineRows:
    """Make the rows of a store that a server has, and compact them, with a Spark that is closed again."""
    from latermq.pipeline.spark.session import close_session, open_session
    from latermq.pipeline.timeline.compact import compact

    made = TimelineRows(root, rows, store_id=store_id, start_ms=start_ms, first_entry=-2 * rows)
    os.environ["SPARK_LOCAL_DIRS"] = str(folder / "spark")
    spark = open_session(PipelineConfig(master="local[2]", driver_memory=Size.parse("2GiB")))
    try:
        made.fill(spark)
        compact(spark, root, [made.state()])
    finally:
        close_session(spark)
    return made


def entry_batch(offsets: Ints, dues: Ints, random: np.random.Generator) -> pa.RecordBatch:
    """Entries as ingest gets them, with random bytes as records, because those of users hardly compress either."""
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
            "unique_key": pc.utf8_lpad(entries.cast(pa.string()), _KEY_DIGITS, "0"),
            "keys": none,
            "tags": none,
            "takes": none,
            "record": record,
        }
    )
