"""Random histories of a timer topic: records, rows of the timeline, and the expected rows of each window.

`History.rows` has a row per entry, as in a timeline of version 1, and where each cancel and move says that it takes
timers from. `timeline_rows` makes the rows of version 2 of them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties, write_deltalake

from latermq.handover.window import Window
from latermq.message.names import TIMER_TOPIC
from latermq.message.properties import (
    CUT,
    DUE_MS,
    KEYS,
    MOVE,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TAKES,
    TIMER_DELETE_KEY,
    TIMER_ID,
    UNIQUE_KEY,
    encode_properties,
)
from latermq.message.record_writer import encode_record
from latermq.message.takes import encode_takes
from latermq.model.pipeline_state import CutState, PipelineState, WindowState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HOST = bytes(8)
NEVER_MS = 1 << 60
SCHEMA_1 = pa.schema(
    [
        ("store_id", pa.string()),
        ("entry_offset", pa.int64()),
        ("timer_id", pa.int64()),
        ("kind", pa.string()),
        ("due_ms", pa.int64()),
        ("topic", pa.string()),
        ("unique_key", pa.string()),
        ("keys", pa.string()),
        ("tags", pa.string()),
        ("record", pa.binary()),
    ]
)
SCHEMA_2 = pa.schema([*SCHEMA_1, ("taker", pa.int32()), ("due", pa.timestamp("us", "UTC"))])

Row = dict[str, Any]
Key = tuple[int, int, int, bytes]  # due, entry, timer id, record: a row of a window


@dataclass
class History:
    """The entries of one store's timer topic."""

    store_id: str = "s"
    records: list[bytes] = field(default_factory=list)  # by entry, cuts included
    rows: list[Row] = field(default_factory=list)
    cuts: list[CutState] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    is_placing: bool = True  # whether cancels and moves say what they take; if not, they are unplaced

    @property
    def end(self) -> int:
        return len(self.records)

    def send(
        self, due_ms: int, key: str, topic: str = "T", *, body: bytes = b"body", timer_id: int | None = None
    ) -> int:
        """Append a timer or, with a timer id, the renewal of one."""
        extra_properties = {} if timer_id is None else {TIMER_ID: str(timer_id)}
        return self._schedule("timer", due_ms, key, topic, body, extra_properties)

    def move(self, due_ms: int, key: str, timer_id: int, topic: str = "T") -> int:
        takes = self._takes(f"{topic}+{key}")
        return self._schedule("move", due_ms, key, topic, b"body", {TIMER_ID: str(timer_id), MOVE: "1", **takes})

    def cancel(self, key: str, topic: str = "T", *, due_ms: int = 0) -> int:
        name = f"{topic}+{key}"
        takes = self._takes(name)
        properties = {REAL_TOPIC: topic, TIMER_DELETE_KEY: name, UNIQUE_KEY: name, DUE_MS: str(due_ms), **takes}
        entry = self._append(properties, b"0")
        self._row("cancel", entry, entry, due_ms, topic, name, None, takes.get(TAKES))
        return entry

    def pending(self, name: str | None = None) -> list[Row]:
        """The entries that schedule and that nothing has ended, of one name or of all."""
        renewed = {(row["timer_id"], row["due_ms"]): row["entry_offset"] for row in self.rows if row["kind"] == "timer"}
        return [
            row
            for row in self.rows
            if row["kind"] != "cancel"
            and name in (None, name_of(row))
            and renewed.get((row["timer_id"], row["due_ms"]), -1) <= row["entry_offset"]
            and not is_cancelled_or_moved(row, self.rows)
        ]

    def _takes(self, name: str) -> dict[str, str]:
        """The property in which a broker says where a cancel or a move finds what it ends."""
        takes = encode_takes(row["due_ms"] for row in self.pending(name)) if self.is_placing else ""
        return {TAKES: takes} if takes else {}

    def cut(self, frontier_ms: int, handback_ms: int) -> Window:
        number = len(self.cuts) + 1
        entry = self._append({TIMER_DELETE_KEY: "T+x", CUT: f"{number}", DUE_MS: "0"}, b"0")
        last_ms = self.cuts[-1].handback_ms if self.cuts else 0
        self.cuts.append(CutState(number, entry, frontier_ms, handback_ms))
        self.windows.append(Window(self.store_id, number, entry, last_ms, handback_ms))
        return self.windows[-1]

    def _schedule(
        self, kind: str, due_ms: int, key: str, topic: str, body: bytes, extra_properties: dict[str, str]
    ) -> int:
        properties = {DUE_MS: str(due_ms), REAL_TOPIC: topic, REAL_QUEUE_ID: "0", UNIQUE_KEY: key, KEYS: f"{key} b"}
        entry = self._append(properties | extra_properties, body)
        is_far = due_ms >= (self.cuts[-1].frontier_ms if self.cuts else NEVER_MS)
        record = self.records[entry] if is_far else None
        timer_id, takes = int(extra_properties.get(TIMER_ID, entry)), extra_properties.get(TAKES)
        self._row(kind, entry, timer_id, due_ms, topic, key, record, takes)
        return entry

    def _append(self, properties: dict[str, str], body: bytes) -> int:
        entry = self.end
        record = encode_record(
            TIMER_TOPIC.encode(), body, encode_properties(properties).encode(), queue_id=0, queue_offset=entry,
            physical_offset=entry * 1000, born_timestamp_ms=1, born_host=HOST, store_timestamp_ms=2, store_host=HOST,
        )  # fmt: skip
        self.records.append(record)
        return entry

    def _row(
        self,
        kind: str,
        entry: int,
        timer_id: int,
        due_ms: int,
        topic: str,
        unique_key: str,
        record: bytes | None,
        takes: str | None,
    ) -> None:
        values = (self.store_id, entry, timer_id, kind, due_ms, topic, unique_key, None, None, record, takes)
        self.rows.append(dict(zip((*SCHEMA_1.names, "takes"), values, strict=True)))

    def state(self, ingested: int, *, min_entry: int = 0, done_upto: int = 0, done_wake_ms: int = 0) -> PipelineState:
        """The state that the broker reports at the end, with entries below `ingested` ingested."""
        return PipelineState(
            self.store_id, "broker-a", 1, ingested, min_entry, self.end, 0, done_upto, done_wake_ms, [],
            self.cuts, [WindowState(one.number, one.cut_entry, one.from_ms, one.until_ms) for one in self.windows],
            owned_from=0,
        )  # fmt: skip

    def pull(self, start: int, until: int, piece: int = 7) -> Iterable[bytes]:
        """Concatenated records, a few at a time."""
        for at in range(start, until, piece):
            yield b"".join(self.records[at : min(until, at + piece)])


def random_history(seed: int, steps: int = 120, store_id: str = "s") -> History:
    """Sends, cancels, moves, renewals and cuts over few times and names, so that they often affect each other.

    Some cancels and moves do not say what they take.
    """
    chance = Random(seed)
    history = History(store_id)
    frontier_ms = handback_ms = 0
    for _ in range(steps):
        due_ms, key = chance.randint(0, 3000), f"k{chance.randint(0, 25)}"
        topic = chance.choice(("T", "T+k1", "U"))
        history.is_placing = chance.random() < 0.8
        event = chance.random()
        earlier = history.pending() if 0.22 <= event < 0.37 else []
        if event < 0.1:
            handback_ms += chance.randint(0, 400)
            frontier_ms = handback_ms + chance.randint(0, 300)
            history.cut(frontier_ms, handback_ms)
        elif event < 0.22:
            history.cancel(key, topic, due_ms=due_ms)
        elif event < 0.32 and earlier:
            row = chance.choice(earlier)
            history.move(due_ms, row["unique_key"], row["timer_id"], row["topic"])
        elif event < 0.37 and (near := [row for row in earlier if row["record"] is None]):
            row = chance.choice(near)
            history.send(row["due_ms"], row["unique_key"], row["topic"], timer_id=row["timer_id"])
        else:
            history.send(due_ms, key, topic, body=bytes(chance.randint(0, 40)))
    history.cut(frontier_ms + 3000, handback_ms + 3000)
    return history


def name_of(row: Row) -> str:
    """The name of a row's timer, which a cancel or a move refers to."""
    return str(row["unique_key"]) if row["kind"] == "cancel" else f"{row['topic']}+{row['unique_key']}"


def is_cancelled_or_moved(row: Row, rows: list[Row], before: int = NEVER_MS) -> bool:
    """Whether another row cancels or moves this one."""
    return any(
        other["kind"] != "timer"
        and other["store_id"] == row["store_id"]
        and row["entry_offset"] < other["entry_offset"] < before
        and name_of(other) == name_of(row)
        for other in rows
    )


def expected_rows(rows: list[Row], window: Window) -> list[Key]:
    """The rows of a window by its definition."""
    newest: dict[int, Key] = {}
    for row in rows:
        if (
            row["store_id"] == window.store_id
            and row["record"] is not None
            and window.from_ms <= row["due_ms"] < window.until_ms
            and row["entry_offset"] < window.cut_entry
            and not is_cancelled_or_moved(row, rows, window.cut_entry)
        ):
            key = (row["due_ms"], row["entry_offset"], row["timer_id"], row["record"])
            newest[key[2]] = max(newest.get(key[2], key), key, key=lambda one: one[1])
    return sorted(newest.values(), key=lambda key: (key[0], key[2], key[1]))


def table_keys(table: pa.Table) -> list[Key]:
    """The rows of a window from its file."""
    names = ("due_ms", "entry_offset", "timer_id", "record")
    return list(zip(*(table.column(name).to_pylist() for name in names), strict=True))


def write_timeline(uri: str, histories: Iterable[History], ingested: int, *, version: str = "2") -> None:
    """Write a timeline like that of an ingest, without Spark."""
    schema = SCHEMA_1 if version == "1" else SCHEMA_2
    columns = "due_ms,timer_id" if version == "1" else "store_id,due_ms,due,taker,topic,entry_offset,timer_id"
    properties = {"latermq.schema.version": version, "delta.dataSkippingStatsColumns": columns}
    DeltaTable.create(uri, schema, configuration=properties, raise_if_key_not_exists=False)
    for history in histories:
        append_rows(uri, [row for row in history.rows if row["entry_offset"] < ingested], history.store_id, ingested)


def timeline_rows(rows: list[Row]) -> list[Row]:
    """The timers and takers of version 2 that these entries are."""
    made: list[Row] = []
    for row in rows:
        plain = {name: value for name, value in row.items() if name != "takes"}
        if row["kind"] != "cancel":
            made.append(_at(plain, row["due_ms"], taker=0))
        places = [int(text) for text in row["takes"].split(",")] if row["takes"] else [None]
        if row["kind"] != "timer":
            made += [_at({**plain, "record": None}, due_ms, taker=1) for due_ms in places]
        elif row["timer_id"] != row["entry_offset"]:
            made.append(_at({**plain, "record": None, "kind": "renewal"}, row["due_ms"], taker=1))
    return made


def _at(row: Row, due_ms: int | None, *, taker: int) -> Row:
    due = None if due_ms is None else datetime.fromtimestamp(due_ms / 1000, UTC)
    return {**row, "due_ms": due_ms, "taker": taker, "due": due}


def append_rows(uri: str, rows: list[Row], store_id: str, ingested: int, *, group_rows: int | None = None) -> None:
    """Append rows like an ingest, in row groups of at most so many rows."""
    is_first = len(DeltaTable(uri).schema().fields) == len(SCHEMA_1)
    made, schema = (rows, SCHEMA_1) if is_first else (timeline_rows(rows), SCHEMA_2)
    batch = pa.Table.from_pylist(sorted(made, key=lambda row: row["due_ms"] or 0), schema)
    properties = CommitProperties(app_transactions=[Transaction(f"latermq-ingest-{store_id}", ingested)])
    groups = WriterProperties(max_row_group_size=group_rows)
    write_deltalake(uri, batch, mode="append", commit_properties=properties, writer_properties=groups)


def frame(spark: "SparkSession", rows: list[Row]) -> "DataFrame":
    """Rows of the timeline as a DataFrame, as ingest makes them of entries."""
    from pyspark.sql.pandas.types import from_arrow_schema

    from latermq.pipeline.timeline.takers import with_takers
    from latermq.pipeline.timeline.timeline import SCHEMA

    schema = from_arrow_schema(pa.schema([*SCHEMA_1, ("takes", pa.string())]))
    return with_takers(spark.createDataFrame([tuple(row.values()) for row in rows], schema)).select(*SCHEMA.names)
