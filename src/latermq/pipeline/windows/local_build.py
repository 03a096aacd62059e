"""The window build without a JVM, from the timeline's newest version and the entries not yet ingested.

The read order makes the window complete, whatever ingest does in the meantime. First comes the broker's state with its
ingest offset, then the newest version of the table, then the broker's entries from there to the cut.
"""

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from latermq.arrays import Bools, Ints
from latermq.config import PipelineConfig
from latermq.errors import CorruptStore, ServiceUnavailable, StoreError
from latermq.handover.window import Window, is_in_window
from latermq.message.timer_code import CANCEL, cancels
from latermq.model.pipeline_state import PipelineState
from latermq.pipeline.source.records import RecordBlock
from latermq.pipeline.timeline.local_timeline import LocalTimeline, open_local_timeline
from latermq.pipeline.timeline.ownership import far_timers, ownership_of
from latermq.pipeline.timeline.root import Root
from latermq.pipeline.timeline.torn_commits import newest_intact_version
from latermq.pipeline.windows.attempt_writer import write_attempt
from latermq.pipeline.windows.attempts import SCHEMA, Attempt

MADE_BY = "local"
# The bytes of records held in memory at once. Some of them are held twice during the sort.
HELD_BYTES = 256 << 20
_BATCH_ROWS = 10_000

# The timers of a window, and the cancels and moves that are not ingested, each: their keys and names are all in memory.
MAX_ROWS = PipelineConfig().roll_local_rows

# Returns the records of the timer topic in [start, until), end to end, in any number of pieces.
Pull = Callable[[int, int], Iterable[bytes | bytearray]]


class TooManyRows(StoreError):
    """A window is too large to be built without Spark."""

    def __init__(self, window: Window, max_rows: int) -> None:
        super().__init__(
            f"window {window.number} has more than {max_rows} rows, too many to be built without Spark",
            hint="Start a driver, which builds it on Spark, or raise pipeline.roll_local_rows. A row takes about 150 "
            "bytes of memory",
        )


@dataclass
class _Rows:
    """Rows of a window in any order. `records` is None if they are too large to be held at once."""

    due_ms: Ints
    entry_offset: Ints
    timer_id: Ints
    names: pa.ChunkedArray
    size_bytes: Ints
    records: pa.ChunkedArray | None

    def __len__(self) -> int:
        return len(self.due_ms)

    def filter(self, kept: Bools) -> "_Rows":
        mask = pa.array(kept)
        return _Rows(
            self.due_ms[kept],
            self.entry_offset[kept],
            self.timer_id[kept],
            self.names.filter(mask),
            self.size_bytes[kept],
            None if self.records is None else self.records.filter(mask),
        )


@dataclass
class _RowCollector:
    """Collects rows batch by batch. Records that exceed the limit are dropped, or moved to a file and mapped."""

    window: Window
    held_bytes: int
    max_rows: int
    spills: bool = False
    row_count: int = 0
    keys: list[tuple[Ints, Ints, Ints]] = field(default_factory=list)
    names: list[pa.Array] = field(default_factory=list)
    sizes: list[Ints] = field(default_factory=list)
    records: list[pa.Array] = field(default_factory=list)
    total_bytes: int = 0
    spill: "_Spill | None" = None

    def add(self, batch: pa.RecordBatch) -> None:
        self.row_count += len(batch)
        if self.row_count > self.max_rows:
            raise TooManyRows(self.window, self.max_rows)
        self.keys.append(tuple(batch.column(name).to_numpy() for name in ("due_ms", "entry_offset", "timer_id")))
        self.names.append(batch.column("name"))
        record = batch.column("record")
        self.sizes.append(pc.binary_length(record).to_numpy(zero_copy_only=False).astype(np.int64))
        self.total_bytes += int(self.sizes[-1].sum())
        self.records.append(record)
        if self.total_bytes > self.held_bytes:
            if self.spills:
                self.spill = self.spill or _Spill()
                self.spill.write(self.records)
            self.records.clear()

    def rows(self) -> _Rows:
        due_ms, entry_offset, timer_id = (np.concatenate([_EMPTY, *column]) for column in _columns(self.keys, 3))
        records = None
        if self.spill is not None:
            records = self.spill.read()
        elif self.total_bytes <= self.held_bytes:
            records = pa.chunked_array(self.records, pa.large_binary())
        return _Rows(
            due_ms,
            entry_offset,
            timer_id,
            pa.chunked_array(self.names, pa.large_string()),
            np.concatenate([_EMPTY, *self.sizes]),
            records,
        )


class _Spill:
    """Records in a temporary file, which has no name and vanishes with the last array that refers to it."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 -- closed with this object
        self._writer = pa.ipc.new_file(self._file, _RECORDS)

    def write(self, records: list[pa.Array]) -> None:
        for record in records:
            self._writer.write(pa.record_batch([record], schema=_RECORDS))

    def read(self) -> pa.ChunkedArray:
        self._writer.close()
        self._file.flush()
        mapped = pa.memory_map(f"/proc/self/fd/{self._file.fileno()}")
        return pa.ipc.open_file(mapped).read_all().column("record")

    def __del__(self) -> None:
        self._file.close()  # the arrays have mapped it


_EMPTY = np.empty(0, np.int64)
_RECORDS = pa.schema([("record", pa.large_binary())])
_SEPARATOR = pa.scalar("+", pa.large_string())


def _columns(rows: list[tuple[Ints, Ints, Ints]], width: int) -> list[list[Ints]]:
    return [[row[at] for row in rows] for at in range(width)]


@dataclass
class Tail:
    """The entries that a window needs and the table does not hold yet."""

    rows: _Rows
    change_names: pa.ChunkedArray
    change_entries: Ints


def build_locally(
    root: Root,
    state: PipelineState,
    window: Window,
    pull: Pull,
    *,
    now_ms: int,
    held_bytes: int = HELD_BYTES,
    max_rows: int = MAX_ROWS,
    made_by: str = MADE_BY,
    fence: Callable[[], None] = lambda: None,
) -> Attempt:
    """Build an attempt of a window. The caller must fetch `state` before anything else is read.

    `fence` is called before the attempt is published, and may raise.

    After a power cut the table's last commits may be torn, and no driver may have removed them yet. The build then uses
    the last version before them, and the log holds the rest. Otherwise an empty commit would read as one that did
    nothing.
    """
    began_s = time.monotonic()
    timeline = open_local_timeline(root, state.store_id, newest_intact_version(root, root.timeline))
    start = tail_start(root, state, timeline)
    tail = read_tail(state, window, start, pull, held_bytes=held_bytes, max_rows=max_rows)
    return write_attempt(
        root,
        window,
        window_batches(timeline, window, tail, held_bytes=held_bytes, max_rows=max_rows),
        made_by=made_by,
        table_version=-1 if timeline is None else timeline.version,
        ingest_offset=start,
        now_ms=now_ms,
        fence=fence,
        began_s=began_s,
    )


def tail_start(root: Root, state: PipelineState, timeline: LocalTimeline | None) -> int:
    """The first entry that the table does not hold.

    It may be below the ingest offset: ingest may have found only cuts since, or a power cut may have removed the
    table's last commits. Entries that the log still holds are read from there. If more is missing, this is another
    table or an old backup of it, and without an error the window would silently lack timers.
    """
    ingested = 0 if timeline is None else timeline.ingested
    if ingested < min(state.ingest_offset, state.min_entry):
        raise _missing_entries(root, state, ingested)
    return max(ingested, state.min_entry)


def read_tail(
    state: PipelineState,
    window: Window,
    start: int,
    pull: Pull,
    *,
    held_bytes: int = HELD_BYTES,
    max_rows: int = MAX_ROWS,
) -> Tail:
    """The window's timers, and all cancels and moves that may end them, from entry `start` to the cut."""
    collector = _RowCollector(window, held_bytes, max_rows, spills=True)
    change_count = 0
    names: list[pa.Array] = []
    entries: list[Ints] = []
    position = start
    ownership = ownership_of(state)
    for piece in pull(start, window.cut_entry) if start < window.cut_entry else ():
        block = RecordBlock([piece], is_timer_topic=True)
        offsets = block.queue_offsets
        if not np.array_equal(offsets, np.arange(position, position + len(offsets))):
            raise CorruptStore(
                f"the broker did not send the entries from {position}",
                hint="It may have deleted them; the build is retried",
            )
        position += len(offsets)
        before_cut = offsets < window.cut_entry
        changes = _changes_in(block, np.flatnonzero(before_cut & cancels(block.kinds)), window)
        change_count += len(changes)
        if change_count > max_rows:
            raise TooManyRows(window, max_rows)
        if len(changes):
            names.append(_names(block, changes))
            entries.append(offsets[changes])
        in_window = np.flatnonzero(is_in_window(window, offsets, block.dues[0]) & far_timers(block, ownership))
        if len(in_window):
            collector.add(_window_batch(block, in_window))
    if position < window.cut_entry:
        raise ServiceUnavailable(
            f"the entries from {position} to {window.cut_entry} cannot be read yet", hint="The build is retried"
        )
    return Tail(collector.rows(), pa.chunked_array(names, pa.large_string()), np.concatenate([_EMPTY, *entries]))


def _missing_entries(root: Root, state: PipelineState, ingested: int) -> CorruptStore:
    return CorruptStore(
        f"the timeline {root.timeline} ends at entry {ingested} of store {state.store_id}, "
        f"but ingest has committed all entries below {state.ingest_offset}",
        hint="Set pipeline.timeline to the folder that was used before, or restore its newest backup",
    )


def window_batches(
    timeline: LocalTimeline | None,
    window: Window,
    tail: Tail,
    *,
    held_bytes: int = HELD_BYTES,
    max_rows: int = MAX_ROWS,
) -> Iterator[pa.RecordBatch]:
    """The rows of an attempt of the window, sorted."""
    collector = _RowCollector(window, held_bytes, max_rows)
    for batch in timeline.surviving_rows(window) if timeline is not None else ():
        collector.add(batch)
    stored = collector.rows()
    stored = _without_cancelled(stored, tail.change_names, tail.change_entries)
    fresh = _without_cancelled(tail.rows, tail.change_names, tail.change_entries)
    order = _order(stored, fresh)
    due_ms, entries, timer_ids, sizes = (
        np.concatenate((getattr(stored, name), getattr(fresh, name)))[order]
        for name in ("due_ms", "entry_offset", "timer_id", "size_bytes")
    )
    ends = np.cumsum(sizes)
    start = 0
    while start < len(order):
        before = int(ends[start - 1]) if start else 0
        end = max(start + 1, int(np.searchsorted(ends, before + held_bytes, side="right")))
        chunk = slice(start, end)
        values, at = _records_of(timeline, window, stored, fresh, order[chunk], due_ms[chunk], entries[chunk])
        for first in range(0, end - start, _BATCH_ROWS):
            rows = slice(start + first, min(end, start + first + _BATCH_ROWS))
            record = values.take(pa.array(at[first : first + _BATCH_ROWS]))
            columns = [pa.array(column[rows]) for column in (due_ms, entries, timer_ids)]
            yield pa.RecordBatch.from_arrays([*columns, record.cast(pa.binary())], schema=SCHEMA)
        start = end


def _order(stored: _Rows, fresh: _Rows) -> Ints:
    """The sorted indexes, into `stored` followed by `fresh`, of the rows to keep: one per entry and one per timer."""
    due_ms = np.concatenate((stored.due_ms, fresh.due_ms))
    timer_ids = np.concatenate((stored.timer_id, fresh.timer_id))
    entries = np.concatenate((stored.entry_offset, fresh.entry_offset))
    # Sort by timer, newest entry first. Of a duplicate entry, the first copy comes first.
    newest = np.lexsort((np.arange(len(entries)), -entries, timer_ids))
    first = np.ones(len(newest), np.bool_)
    first[1:] = timer_ids[newest][1:] != timer_ids[newest][:-1]
    kept = newest[first]
    order: Ints = kept[np.lexsort((entries[kept], timer_ids[kept], due_ms[kept]))]
    return order


def _without_cancelled(rows: _Rows, change_names: pa.ChunkedArray, change_entries: Ints) -> _Rows:
    if not len(rows) or not len(change_names):
        return rows
    changes = pa.table({"name": change_names, "entry": pa.array(change_entries)})
    last = changes.group_by("name").aggregate([("entry", "max")])
    at = pc.index_in(rows.names, value_set=last.column("name").combine_chunks())
    last_change = last.column("entry_max").take(at.combine_chunks()).fill_null(-1).to_numpy()
    return rows.filter(rows.entry_offset >= last_change)  # a move does not cancel itself


def _records_of(
    timeline: LocalTimeline | None,
    window: Window,
    stored: _Rows,
    fresh: _Rows,
    order: Ints,
    due_ms: Ints,
    entries: Ints,
) -> tuple[pa.Array, Ints]:
    """The records of some rows: an array, and the index of each row's record in it."""
    assert fresh.records is not None
    is_fresh = order >= len(stored)
    at = np.empty(len(order), np.int64)
    if stored.records is not None:
        chunks = _take(stored.records, order[~is_fresh], at, ~is_fresh, 0)
    else:
        chunks = _read_records(timeline, window, entries, ~is_fresh, at, (int(due_ms[0]), int(due_ms[-1])))
    chunks += _take(fresh.records, order[is_fresh] - len(stored), at, is_fresh, sum(map(len, chunks)))
    return _concat(chunks), at


def _take(records: pa.ChunkedArray, indexes: Ints, at: Ints, rows: Bools, first: int) -> list[pa.Array]:
    """Some records, chunk by chunk, so that nothing else is copied. `at` gets the place of each, counted from `first`.

    `rows` are the rows of `at` to which these records belong, in order.
    """
    starts = np.cumsum([0, *map(len, records.chunks)])
    by_place = np.argsort(indexes, kind="stable")
    ordered = indexes[by_place]
    bounds = np.searchsorted(ordered, starts)
    chunks = [
        chunk.take(pa.array(ordered[low:high] - start))
        for chunk, start, low, high in zip(records.chunks, starts[:-1], bounds[:-1], bounds[1:], strict=True)
        if low < high
    ]
    places = np.empty(len(indexes), np.int64)
    places[by_place] = first + np.arange(len(indexes))
    at[rows] = places
    return chunks


def _read_records(
    timeline: LocalTimeline | None, window: Window, entries: Ints, rows: Bools, at: Ints, dues_ms: tuple[int, int]
) -> list[pa.Array]:
    """The records of some rows, from the table. `at` gets the place of each."""
    assert timeline is not None
    from_table = np.sort(entries[rows])
    chunks: list[pa.Array] = []
    found: list[Ints] = []
    for batch in timeline.records(window, *dues_ms):
        offsets = batch.column("entry_offset").to_numpy()
        nearest = np.minimum(np.searchsorted(from_table, offsets), max(len(from_table) - 1, 0))
        wanted = from_table[nearest] == offsets if len(from_table) else np.zeros(len(offsets), np.bool_)
        chunks.append(batch.column("record").filter(pa.array(wanted)))
        found.append(offsets[wanted])
    read = np.concatenate([_EMPTY, *found])
    places, first = np.unique(read, return_index=True)
    if len(places) != len(from_table):
        raise CorruptStore(f"rows of window {window.number} vanished from the timeline during the read")
    at[rows] = first[np.searchsorted(places, entries[rows])]
    return chunks


def _concat(chunks: list[pa.Array]) -> pa.Array:
    return pa.concat_arrays([pa.array([], pa.large_binary()), *chunks])


def _changes_in(block: RecordBlock, rows: Ints, window: Window) -> Ints:
    """Those of these cancels and moves that may end timers of the window: they state its span, or no span."""
    if not len(rows):
        return rows
    takes = block.batch(("takes",), rows).column("takes").to_pylist()
    return rows[[one is None or _is_any_in(one, window) for one in takes]]


def _is_any_in(takes: str, window: Window) -> bool:
    dues = takes.split(",")
    # Texts that are not numbers state no span, as in takers.py.
    return any(not due.isdecimal() or window.from_ms <= int(due) < window.until_ms for due in dues)


def _names(block: RecordBlock, rows: Ints) -> pa.Array:
    batch = block.batch(("topic", "unique_key"), rows)
    unique_key = batch.column("unique_key").cast(pa.large_string())
    whole = pc.binary_join_element_wise(batch.column("topic").cast(pa.large_string()), unique_key, _SEPARATOR)
    return pc.if_else(pa.array(block.kinds[rows] == CANCEL), unique_key, whole)


def _window_batch(block: RecordBlock, rows: Ints) -> pa.RecordBatch:
    due_ms, _ = block.dues
    timer_ids, _ = block.timer_ids
    record = block.batch(("record",), rows).column("record").cast(pa.large_binary())
    return pa.RecordBatch.from_arrays(
        [
            pa.array(due_ms[rows]),
            pa.array(block.queue_offsets[rows]),
            pa.array(timer_ids[rows]),
            _names(block, rows),
            record,
        ],
        names=["due_ms", "entry_offset", "timer_id", "name", "record"],
    )
