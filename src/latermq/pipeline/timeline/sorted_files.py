"""Sorted data files of the timeline, written from the rows of other files: sorted in memory, or merged.

This runs in Spark's tasks, without a JVM's share of the work: Arrow reads, sorts and writes these rows at a fraction of
the cost of a shuffle. Memory is bounded by what is sorted at once, and by a few row groups of each merged file.
"""

import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from latermq.arrays import Ints
from latermq.pipeline.timeline.data_files import SORTED_PREFIX
from latermq.pipeline.timeline.rewrite_plan import RewriteLimits
from latermq.pipeline.timeline.root import Root, file_errors

TABLE = "timeline"
_FIELDS = [
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
    ("taker", pa.int32()),
    ("due", pa.timestamp("us", tz="UTC")),
]
FILE_SCHEMA = pa.schema(_FIELDS)
_LARGE = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
# In memory: arrays of 64-bit offsets may exceed 2 GiB.
_HELD_SCHEMA = pa.schema([(name, _LARGE.get(kind, kind)) for name, kind in _FIELDS])
# A window of a large table takes a few thousand rows of a file. Small row groups let it skip the others.
GROUP_ROWS = 20_000
GROUP_BYTES = 8 << 20
_REPEATED = ["store_id", "kind", "topic", "tags", "taker"]  # columns with few values
# In sorted files these take 10 bytes per row instead of 14, and half the time. Spark and delta-rs read them as fast.
_ENCODINGS = {
    **dict.fromkeys(("entry_offset", "timer_id", "due_ms", "due"), "DELTA_BINARY_PACKED"),
    "unique_key": "DELTA_LENGTH_BYTE_ARRAY",  # random letters alone compress better than with lengths between them
}
_WITH_STATISTICS = ["store_id", "due_ms", "due", "taker", "topic", "entry_offset", "timer_id"]
# In the files alone. Far timers are the rows with a record, and can be counted without reading the records.
_WITH_NULL_COUNTS = [*_WITH_STATISTICS, "record"]
_UNPLACED = np.iinfo(np.int64).min  # sorts rows without a due time before all others


@dataclass(frozen=True)
class OldRows:
    """Rows of a store that nothing reads any more: due before a time, and with entries below a limit."""

    store_id: str
    before_ms: int
    before_entry: int


@dataclass(frozen=True)
class Rewrite:
    """Files whose rows go to new files, without old rows. All of them are sorted, or they are sorted in memory."""

    paths: Sequence[str]
    are_sorted: bool
    limits: RewriteLimits
    old: Sequence[OldRows] = ()
    drops_unplaced: bool = False  # takers without a due time are left out too


@dataclass(frozen=True)
class WrittenFile:
    """A new data file, as the table's log describes it."""

    path: str
    size_bytes: int
    rows: int
    stats: str


def rewrite(root: Root, task: Rewrite) -> list[WrittenFile]:
    """Write the rows of these files to new files. Memory does not depend on how many files there are."""
    with file_errors(f"rewriting files of {root.timeline}"):
        if task.are_sorted:
            runs: Iterable[Iterable[pa.Table]] = [_merged(root, task)]
        else:
            runs = _sorted_runs(root, task)
        written = [file for run in runs for file in write_run(root, run, task.limits.file_bytes)]
    pa.default_memory_pool().release_unused()  # a worker of Spark lives on, idle
    return written


# Reading


def _row_groups(root: Root, path: str, task: Rewrite) -> Iterator[pa.Table]:
    """The rows of a file in its order, group by group, without those that are left out."""
    with root.files.open_input_file(root.at(TABLE, path)) as source:
        file = pq.ParquetFile(source)
        for number in range(file.num_row_groups):
            group = _held(file.read_row_group(number, columns=FILE_SCHEMA.names[:-1], use_threads=False))
            yield _kept(group, task)


def _held(group: pa.Table) -> pa.Table:
    due_ms = group.column("due_ms")
    due = pc.multiply(due_ms, 1_000).cast(FILE_SCHEMA.field("due").type)  # earlier releases wrote another type
    return group.append_column("due", due).select(FILE_SCHEMA.names).cast(_HELD_SCHEMA)


def _kept(group: pa.Table, task: Rewrite) -> pa.Table:
    due_ms, entries = _keys(group)
    gone = (due_ms == _UNPLACED) if task.drops_unplaced else np.zeros(len(group), np.bool_)
    for one in task.old:
        is_of_store = pc.equal(group.column("store_id"), one.store_id).to_numpy()
        gone |= is_of_store & (due_ms != _UNPLACED) & (due_ms < one.before_ms) & (entries < one.before_entry)
    return group.filter(pa.array(~gone)) if gone.any() else group


def _keys(rows: pa.Table) -> tuple[Ints, Ints]:
    due_ms = rows.column("due_ms").fill_null(int(_UNPLACED)).to_numpy()
    return due_ms, rows.column("entry_offset").to_numpy()


# Sorting in memory


def _sorted_runs(root: Root, task: Rewrite) -> Iterator[Iterator[pa.Table]]:
    """Runs of rows that fit in memory, each of one store."""
    held: list[pa.Table] = []
    held_bytes = 0
    for path in task.paths:
        for group in _row_groups(root, path, task):
            if held and held_bytes + group.nbytes > task.limits.held_bytes:
                yield from _runs_of(held)
                held_bytes = 0
            held.append(group)
            held_bytes += group.nbytes
    if held:
        yield from _runs_of(held)


def _runs_of(held: list[pa.Table]) -> Iterator[Iterator[pa.Table]]:
    """The held rows, sorted, store by store. Empties the list, so that they are not held twice."""
    rows = pa.concat_tables(held).combine_chunks()
    held.clear()
    stores = pc.unique(rows.column("store_id")).to_pylist()
    for store_id in stores:
        is_of_store = pc.is_in(rows.column("store_id"), pa.array([store_id], _HELD_SCHEMA.field("store_id").type))
        yield _sorted(rows if len(stores) == 1 else rows.filter(is_of_store))


def _sorted(rows: pa.Table) -> Iterator[pa.Table]:
    due_ms, entries = _keys(rows)
    order = np.lexsort((entries, due_ms))
    for start in range(0, len(order), GROUP_ROWS):
        yield rows.take(pa.array(order[start : start + GROUP_ROWS]))


# Merging


@dataclass
class _Head:
    """The next rows of a sorted file."""

    groups: Iterator[pa.Table]
    rows: pa.Table = field(default_factory=lambda: _HELD_SCHEMA.empty_table())
    due_ms: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    entries: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    end: tuple[int, int] = (int(_UNPLACED), -1)  # the key of the last row that was loaded

    def fill(self) -> bool:
        """Load the next group if all rows are taken. Returns whether there are rows."""
        while not len(self.rows):
            group = next(self.groups, None)
            if group is None:
                return False
            self._set(group)
            self._check_order()
        return True

    def _check_order(self) -> None:
        """Without it, `take_up_to` may take nothing forever from a file that another program has named as sorted."""
        if not len(self.rows):
            return
        later, entries = self.due_ms[1:] > self.due_ms[:-1], self.entries[1:] >= self.entries[:-1]
        is_sorted = (int(self.due_ms[0]), int(self.entries[0])) >= self.end and bool(
            (later | ((self.due_ms[1:] == self.due_ms[:-1]) & entries)).all()
        )
        assert is_sorted, "a file that is named as sorted is not"
        self.end = self.last

    @property
    def last(self) -> tuple[int, int]:
        return int(self.due_ms[-1]), int(self.entries[-1])

    def take_up_to(self, bound: tuple[int, int]) -> pa.Table:
        """The rows up to a key, which are then gone."""
        low, high = (int(np.searchsorted(self.due_ms, bound[0], side)) for side in ("left", "right"))
        count = low + int(np.searchsorted(self.entries[low:high], bound[1], "right"))
        taken = self.rows.slice(0, count)
        self._set(self.rows.slice(count))
        return taken

    def _set(self, rows: pa.Table) -> None:
        self.rows = rows
        self.due_ms, self.entries = _keys(rows)


def _merged(root: Root, task: Rewrite) -> Iterator[pa.Table]:
    """The rows of sorted files of one store, in order."""
    heads = [_Head(_row_groups(root, path, task)) for path in task.paths]
    while heads := [head for head in heads if head.fill()]:
        bound = min(head.last for head in heads)
        # Everything up to the bound is loaded: what a file has left sorts after its head.
        yield from _sorted(pa.concat_tables([head.take_up_to(bound) for head in heads]).combine_chunks())


# Writing


def write_run(root: Root, tables: Iterable[pa.Table], file_bytes: int) -> Iterator[WrittenFile]:
    """Write sorted rows of one store to files of about this size."""
    groups = _groups(tables)
    group = next(groups, None)
    while group is not None:
        path = f"{SORTED_PREFIX}{uuid.uuid4().hex}.parquet"
        statistics = _Statistics()
        with (
            root.files.open_output_stream(root.at(TABLE, path)) as sink,
            pq.ParquetWriter(
                sink,
                FILE_SCHEMA,
                compression="zstd",
                compression_level=1,
                use_dictionary=_REPEATED,
                column_encoding=_ENCODINGS,
                write_statistics=_WITH_NULL_COUNTS,
                write_page_index=True,
            ) as writer,
        ):
            while group is not None and sink.tell() < file_bytes:
                writer.write_table(group.cast(FILE_SCHEMA), row_group_size=GROUP_ROWS)
                statistics.add(group)
                group = next(groups, None)
        size_bytes = root.files.get_file_info(root.at(TABLE, path)).size
        yield WrittenFile(path, size_bytes, statistics.rows, statistics.to_json())


def _groups(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The same rows in tables of at most GROUP_ROWS rows and about GROUP_BYTES."""
    held: list[pa.Table] = []
    rows = size_bytes = 0
    for table in tables:
        step = max(1, min(GROUP_ROWS, len(table) * GROUP_BYTES // max(1, table.nbytes)))
        for start in range(0, len(table), step):
            piece = table.slice(start, step)
            if held and (rows + len(piece) > GROUP_ROWS or size_bytes + piece.nbytes > GROUP_BYTES):
                yield pa.concat_tables(held)
                held, rows, size_bytes = [], 0, 0
            held.append(piece)
            rows += len(piece)
            size_bytes += piece.nbytes
    if held:
        yield pa.concat_tables(held)


class _Statistics:
    """The statistics of a file in the form of Delta's log."""

    def __init__(self) -> None:
        self.rows = 0
        self._least: dict[str, Any] = {}
        self._most: dict[str, Any] = {}
        self._nulls = dict.fromkeys(_WITH_STATISTICS, 0)

    def add(self, group: pa.Table) -> None:
        self.rows += len(group)
        for name in _WITH_STATISTICS:
            column = group.column(name)
            self._nulls[name] += column.null_count
            ends = pc.min_max(column.cast(pa.int64()) if name == "due" else column).as_py()
            if ends["min"] is not None:
                self._least[name] = min(self._least.get(name, ends["min"]), ends["min"])
                self._most[name] = max(self._most.get(name, ends["max"]), ends["max"])

    def to_json(self) -> str:
        ends = {"minValues": self._least, "maxValues": self._most}
        for values in ends.values():
            if "due" in values:
                at = np.datetime64(values["due"] // 1_000, "ms")
                values["due"] = f"{np.datetime_as_string(at, unit='ms')}Z"
        return json.dumps({"numRecords": self.rows, **ends, "nullCount": self._nulls})
