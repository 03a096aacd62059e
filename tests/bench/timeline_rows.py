"""The rows of a timeline at sizes that no broker can fill in a benchmark. Spark makes them, of at most 200 bytes each.

Timers are due evenly over 40 days, except those of a window of a million (a tenth of smaller tables). One timer in ten
of that window is cancelled or moved.
"""

from typing import TYPE_CHECKING

from latermq.model.pipeline_state import PipelineState
from latermq.pipeline.timeline.root import Root

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STORE = "a" * 32
DAY_MS = 86_400_000
SPREAD_MS = 40 * DAY_MS
START_MS = 1_800_000_000_000 // DAY_MS * DAY_MS
LARGE_SPAN_MS = 600_000
_LARGE_ROWS = 1_000_000
_TAKEN_SHARE = 10
_RECORD_BYTES = 120
_BATCH_ROWS = 5_000_000  # rows that one append makes


class TimelineRows:
    """The rows of one store. Their entries begin at `first_entry`.

    Entries below 0 are of no broker's log. So they can belong to the store of a real broker, and neither it nor its
    driver takes them for entries that they have to continue from.
    """

    def __init__(
        self, root: Root, rows: int, *, store_id: str = STORE, start_ms: int = START_MS, first_entry: int = 0
    ) -> None:
        self._root = root
        self._rows = rows
        self._store_id = store_id
        self._start_ms = start_ms
        self.large_rows = min(_LARGE_ROWS, rows // 10)
        self.large_from_ms = start_ms + 20 * DAY_MS
        self.entries = first_entry
        self.pending = 0

    def fill(self, spark: "SparkSession") -> None:
        """Create the table, and append the timers and what ends some of them."""
        from latermq.pipeline.timeline.timeline import create_timeline

        create_timeline(spark, self._root)
        self._append(spark, self._rows - self.large_rows, "uniform")
        self._append(spark, self.large_rows, "large")
        self._take(spark)

    def add_tenth(self, spark: "SparkSession") -> None:
        """Append a tenth as many timers again."""
        self._append(spark, self._rows // 10, "uniform")

    def state(self) -> PipelineState:
        """The state of a broker that has scheduled these rows and delivered none."""
        entries = max(0, self.entries)
        return PipelineState(
            self._store_id, "bench", 1, entries, 0, entries, self._start_ms, 0, 0, [], [], [], owned_from=0
        )

    def _append(self, spark: "SparkSession", count: int, shape: str) -> None:
        for start in range(0, count, _BATCH_ROWS):
            batch = min(_BATCH_ROWS, count - start)
            self._write(self._timers(spark, batch, shape), batch)
        self.pending += count

    def _write(self, entries: "DataFrame", count: int) -> None:
        from latermq.pipeline.driver.ingest import timeline_rows
        from latermq.pipeline.timeline.timeline import SCHEMA, append

        start, self.entries = self.entries, self.entries + count
        rows = timeline_rows(entries, self._store_id)
        if start < 0:
            rows.select(*SCHEMA.names).write.format("delta").mode("append").save(self._root.timeline)
        else:
            append(rows, self._root, self._store_id, start, self.entries, 0)

    def _timers(self, spark: "SparkSession", count: int, shape: str) -> "DataFrame":
        first, step = self.entries, max(1, SPREAD_MS // self._rows)
        due = f"{self.large_from_ms} + queue_offset % {LARGE_SPAN_MS}"
        if shape == "uniform":
            due = f"{self._start_ms} + pmod(xxhash64(queue_offset), {SPREAD_MS // step}) * {step}"
        rows = spark.range(first, first + count, 1, 4).withColumnRenamed("id", "queue_offset")
        return rows.selectExpr(
            "queue_offset", "queue_offset AS timer_id", "'timer' AS kind", f"{due} AS due_ms", "'bench' AS topic",
            "hex(queue_offset) AS unique_key", "CAST(NULL AS STRING) AS keys", "CAST(NULL AS STRING) AS tags",
            "CAST(NULL AS STRING) AS takes",
            f"CAST(rpad(hex(xxhash64(queue_offset)), {_RECORD_BYTES}, 'x') AS BINARY) AS record",
        )  # fmt: skip

    def _take(self, spark: "SparkSession") -> None:
        """Cancel one in ten timers of the large window. Every second of these is a move to another day instead."""
        first = self.entries - self.large_rows
        count = self.large_rows // _TAKEN_SHARE
        entry = f"({first} + (queue_offset - {self.entries}) * {_TAKEN_SHARE})"
        is_move = "queue_offset % 2 = 0"
        taken_due = f"{self.large_from_ms} + {entry} % {LARGE_SPAN_MS}"
        rows = spark.range(self.entries, self.entries + count, 1, 1).withColumnRenamed("id", "queue_offset")
        changes = rows.selectExpr(
            "queue_offset", f"IF({is_move}, {entry}, queue_offset) AS timer_id",
            f"IF({is_move}, 'move', 'cancel') AS kind", f"{taken_due} + {DAY_MS} AS due_ms", "'bench' AS topic",
            f"IF({is_move}, hex({entry}), 'bench+' || hex({entry})) AS unique_key", "CAST(NULL AS STRING) AS keys",
            "CAST(NULL AS STRING) AS tags", f"CAST({taken_due} AS STRING) AS takes",
            f"IF({is_move}, CAST(repeat('m', {_RECORD_BYTES}) AS BINARY), NULL) AS record",
        )  # fmt: skip
        self._write(changes, count)
        self.pending -= sum(entry % 2 for entry in range(self.entries - count, self.entries))
