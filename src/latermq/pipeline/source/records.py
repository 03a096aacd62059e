"""CommitLog records as Arrow columns: each field is read from all pulled records at once, not record by record."""

from collections.abc import Callable, Iterable, Sequence
from functools import cache, cached_property

import numpy as np
import pyarrow as pa

from latermq.arrays import Bools, Ints, Ints8
from latermq.errors import CorruptStore
from latermq.message.compression import UnreadableBody, decompress
from latermq.message.entry_id import decode_entry_ids
from latermq.message.properties import (
    CUT,
    DUE_MS,
    KEYS,
    MOVE,
    REAL_TOPIC,
    TAGS,
    TAKES,
    TIMER_DELETE_KEY,
    TIMER_ID,
    TIMER_OUT_MS,
    UNIQUE_KEY,
    well_formed,
)
from latermq.message.property_spans import PADDING_BYTES, WORD_BYTES, Properties, Spans, numbers
from latermq.message.record_fields import (
    BODY_CRC_AT,
    BORN_TIMESTAMP_AT,
    MIN_RECORD_BYTES,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    SYSFLAG_AT,
    SYSFLAG_COMPRESSED,
    U32,
    body_crc32,
    u32_at_any_byte,
)
from latermq.message.record_layouts import Numbers, lay_out
from latermq.message.slots import SLOT_MS
from latermq.message.timer_code import CANCEL, MAX_DUE_DIGITS, MOVED, TIMER, UNKNOWN_DUE_MS
from latermq.message.timer_code import CUT as CUT_KIND

MESSAGE = 4  # the kind of a record outside the timer topic, next to those of timer_code.py
KINDS = ("timer", "cancel", "move", "cut", "message")
MAX_MOMENT_MS = 253_402_300_799_999  # the end of the year 9999, the last that Spark and Python know
_LONGEST_RUN, _SHORT_RUN, _SINGLE_STEPS = 512, 20, 200
_unpack_size = U32.unpack_from

TEXT_MAP = pa.map_(pa.string(), pa.string())
# Every column of a record; docs/pipeline.md explains them.
COLUMN_TYPES: dict[str, pa.DataType] = {
    "broker": pa.string(),
    "topic": pa.string(),
    "queue_id": pa.int32(),
    "queue_offset": pa.int64(),
    "kind": pa.string(),
    "timer_id": pa.int64(),
    "due_ms": pa.int64(),
    "unique_key": pa.string(),
    "keys": pa.string(),
    "tags": pa.string(),
    "takes": pa.string(),
    "born_ms": pa.int64(),
    "store_ms": pa.int64(),
    "replaces_level": pa.int32(),
    "replaces_entry": pa.int64(),
    "properties": TEXT_MAP,
    "body": pa.binary(),
    "record": pa.binary(),
    "due": pa.timestamp("us", "UTC"),
    "body_text": pa.string(),
}


class RecordBlock:
    """Whole records that lie end to end, and the fields read from them. Only requested columns are built."""

    def __init__(
        self,
        pieces: Iterable[bytes | bytearray],
        *,
        broker: str = "",
        is_timer_topic: bool = False,
        precision_ms: int = SLOT_MS,
    ) -> None:
        """`is_timer_topic`: these are timer topic entries. RocketMQ's own are due up to `precision_ms` later."""
        self._raw = b"".join((*pieces, bytes(PADDING_BYTES)))
        self._broker = broker
        self._is_timer_topic = is_timer_topic
        self._precision_ms = precision_ms
        self._octets = np.frombuffer(self._raw, np.uint8)
        self._read = Numbers(self._raw, len(self._raw))
        self._starts, self._ends = _walk(self._raw, len(self._raw) - PADDING_BYTES)
        self._locate_parts()

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def size_bytes(self) -> int:
        return len(self._raw) - PADDING_BYTES

    @property
    def sizes(self) -> Ints:
        return self._ends - self._starts

    def check_parts(self) -> None:
        """Raise if a record would fail recovery's checks. The constructor checks only lengths."""
        made = [body_crc32(body) for body in self._views(self._bodies)]
        if not np.array_equal(self._read.u32(self._starts + BODY_CRC_AT), np.array(made, np.int64)):
            raise CorruptStore("the checksum of a body is wrong")
        if not well_formed(b"".join(self._views(self._regions))):
            raise CorruptStore("the properties of a record are not valid text")

    def are_in(self, topic: bytes) -> bool:
        """Whether all records are stored in this topic, whatever their target topic."""
        begins, ends = self._own_topics
        if (ends - begins != len(topic)).any():
            return False
        at = begins[:, None] + np.arange(len(topic))
        return bool((self._octets[at] == np.frombuffer(topic, np.uint8)).all())

    def _views(self, spans: Spans) -> list[memoryview]:
        view = memoryview(self._raw)
        return [view[begin:end] for begin, end in zip(spans.begins.tolist(), spans.ends.tolist(), strict=True)]

    @cached_property
    def queue_offsets(self) -> Ints:
        return self._read.i64(self._starts + QUEUE_OFFSET_AT)

    @cached_property
    def kinds(self) -> Ints8:
        """The kind of each record, as an index into KINDS."""
        if not self._is_timer_topic:
            return np.full(len(self), MESSAGE, np.int8)
        kinds = np.full(len(self), TIMER, np.int8)
        kinds[self._find(MOVE).present] = MOVED
        is_cancel = self._find(TIMER_DELETE_KEY).present
        kinds[is_cancel] = CANCEL
        kinds[is_cancel & self._find(CUT).present] = CUT_KIND
        return kinds

    @cached_property
    def dues(self) -> tuple[Ints, Bools]:
        """The due time of each record, and which records have one."""
        due_ms, exact = numbers(self._octets, self._find(DUE_MS), MAX_DUE_DIGITS)
        if not self._is_timer_topic or exact.all():
            return due_ms, exact
        # The same rule as timer_code.py applies to one record, because ownership depends on the due time.
        rounded_ms, is_rounded = numbers(self._octets, self._find(TIMER_OUT_MS), MAX_DUE_DIGITS)
        rounded_ms = np.where(is_rounded, rounded_ms + self._precision_ms, UNKNOWN_DUE_MS)
        return np.where(exact, due_ms, rounded_ms), np.ones(len(self), np.bool_)

    @cached_property
    def timer_ids(self) -> tuple[Ints, Bools]:
        """The entry that first scheduled each timer, and which records are timers or deliveries of one."""
        given, is_given = numbers(self._octets, self._find(TIMER_ID))
        if self._is_timer_topic:
            return np.where(is_given, given, self.queue_offsets), np.ones(len(self), np.bool_)
        levels, entries, replaces = self._replaced
        delivered = replaces & (levels == 0)
        return np.where(is_given, given, entries), delivered

    def batch(
        self, columns: Sequence[str], rows: Ints | None = None, without_record: Bools | None = None
    ) -> pa.RecordBatch:
        """These columns of all rows, or of `rows` in that order.

        `without_record` marks the rows whose record becomes NULL.
        """
        selected = np.arange(len(self)) if rows is None else rows
        arrays = []
        for name in columns:
            if name == "record" and without_record is not None:
                arrays.append(self._texts(self._records, selected, pa.binary(), ~without_record))
            else:
                arrays.append(self._builders[name](selected))
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([(name, COLUMN_TYPES[name]) for name in columns]))

    @property
    def _builders(self) -> dict[str, Callable[[Ints], pa.Array]]:
        return {
            "broker": lambda rows: pa.repeat(pa.scalar(self._broker), len(rows)),
            "topic": lambda rows: self._texts(self._topics, rows),
            "queue_id": lambda rows: pa.array(self._read.u32(self._starts + QUEUE_ID_AT)[rows].astype(np.int32)),
            "queue_offset": lambda rows: pa.array(self.queue_offsets[rows]),
            "kind": lambda rows: _kind_texts().take(pa.array(self.kinds[rows])),
            "timer_id": lambda rows: _longs_of(self.timer_ids, rows),
            "due_ms": lambda rows: _longs_of(self.dues, rows),
            "unique_key": lambda rows: self._texts(self._names, rows),
            "keys": lambda rows: self._texts(self._find(KEYS), rows),
            "tags": lambda rows: self._texts(self._find(TAGS), rows),
            "takes": lambda rows: self._texts(self._find(TAKES), rows),
            "born_ms": lambda rows: pa.array(self._read.i64(self._starts + BORN_TIMESTAMP_AT)[rows]),
            "store_ms": lambda rows: pa.array(self._read.i64(self._store_timestamps_at)[rows]),
            "replaces_level": lambda rows: pa.array(
                self._replaced[0][rows].astype(np.int32), mask=~self._replaced[2][rows]
            ),
            "replaces_entry": lambda rows: _longs_of(self._replaced[1:], rows),
            "properties": self._maps,
            "body": self._clear_bodies,
            "record": lambda rows: self._texts(self._records, rows, pa.binary()),
            "due": lambda rows: _moments_of(self.dues, rows),
            "body_text": lambda rows: _decoded(self._clear_bodies(rows)),
        }

    def _clear_bodies(self, rows: Ints) -> pa.Array:
        """Bodies as consumers receive them. Compressed ones are decompressed one by one, at about 20 µs each."""
        stored = self._texts(self._bodies, rows, pa.binary(), np.ones(len(self), np.bool_))
        sysflags = self._read.u32(self._starts + SYSFLAG_AT)[rows]
        compressed = sysflags & SYSFLAG_COMPRESSED != 0
        if not compressed.any():
            return stored
        bodies = stored.to_pylist()
        for at in np.flatnonzero(compressed).tolist():
            try:
                bodies[at] = decompress(bodies[at], int(sysflags[at]))
            except UnreadableBody as error:
                offset = int(self.queue_offsets[rows[at]])
                raise UnreadableBody(f"{error.message} (queue offset {offset})", hint=error.hint) from None
        return pa.array(bodies, pa.binary())

    def _locate_parts(self) -> None:
        """Locate the parts of each record, and refuse records with inconsistent lengths."""
        parts = lay_out(self._read, self._starts, self._ends)
        if not parts.fits.all():
            at = int(self._starts[np.argmin(parts.fits)])
            raise CorruptStore(f"no complete record at byte {at} of the {self.size_bytes} bytes pulled")
        self._store_timestamps_at = parts.store_timestamps_at
        self._prepared_at = parts.prepared_at
        self._records = Spans(self._starts, self._ends)
        self._bodies = Spans(parts.bodies_at, parts.bodies_end)
        self._own_topics = Spans(parts.topics_at, parts.topics_end)
        self._regions = Spans(parts.properties_at, self._ends)

    @cached_property
    def _properties(self) -> Properties:
        words = np.ndarray((len(self._raw) - WORD_BYTES + 1,), "<u8", self._raw, strides=(1,))  # a word at every byte
        return Properties(self._octets, words, self._regions)

    @cached_property
    def _found(self) -> dict[str, Spans]:
        return {}

    def _find(self, name: str) -> Spans:
        spans = self._found.get(name)
        if spans is None:
            spans = self._found[name] = self._properties.find(name)
        return spans

    @property
    def _topics(self) -> Spans:
        """The topic of each record; for a pending timer, its target topic."""
        return self._find(REAL_TOPIC).else_(self._own_topics) if self._is_timer_topic else self._own_topics

    @property
    def _names(self) -> Spans:
        """Unique keys; for a cancellation, the full name of the timer that it cancels."""
        unique_keys = self._find(UNIQUE_KEY)
        return self._find(TIMER_DELETE_KEY).else_(unique_keys) if self._is_timer_topic else unique_keys

    @cached_property
    def _replaced(self) -> tuple[Ints, Ints, Bools]:
        """Level and offset of the entry that each record replaces, and which records replace one."""
        prepared = self._read.i64(self._prepared_at)
        levels, entries = decode_entry_ids(prepared)
        return levels, entries, levels >= 0

    def _texts(
        self, spans: Spans, rows: Ints, type_: pa.DataType | None = None, present: Bools | None = None
    ) -> pa.Array:
        """Spans as one Arrow array, NULL where a span is empty or excluded."""
        kept = spans.present if present is None else present
        slots = self._slots(np.column_stack(spans).ravel(), type_ or pa.string())
        return slots.take(pa.array(rows * 2, mask=~kept[rows]))

    def _maps(self, rows: Ints) -> pa.Array:
        counts, names, values = self._properties.split()
        slots = self._slots(np.column_stack((*names, *values)).ravel(), pa.string())
        at = np.arange(len(names.begins)) * 4
        ends = np.cumsum(counts)
        offsets = pa.array(np.concatenate(([0], ends)), pa.int32())
        maps = pa.MapArray.from_arrays(offsets, slots.take(pa.array(at)), slots.take(pa.array(at + 2)))
        return maps if len(rows) == len(self) and (rows == np.arange(len(self))).all() else maps.take(pa.array(rows))

    def _slots(self, bounds: Ints, type_: pa.DataType) -> pa.Array:
        """A zero-copy array over the buffer. Each slot lies between two bounds, so every second slot is a gap."""
        offsets = np.append(bounds, bounds[-1:] if len(bounds) else 0).astype(np.int32)
        return pa.Array.from_buffers(type_, len(bounds), [None, pa.py_buffer(offsets), pa.py_buffer(self._raw)])


@cache
def _kind_texts() -> pa.Array:
    return pa.array(KINDS)  # not at import: Arrow loads pandas for this, which query planning does not need


def _moments_of(values: tuple[Ints, Bools], rows: Ints) -> pa.Array:
    """Due times as timestamps; NULL also for times after the year 9999."""
    due_ms, present = values
    fits = present & (due_ms <= MAX_MOMENT_MS)
    return pa.array(np.where(fits, due_ms, 0)[rows] * 1000, mask=~fits[rows]).cast(pa.timestamp("us", "UTC"))


def _decoded(bodies: pa.Array) -> pa.Array:
    """Bodies as text. Bytes that are not UTF-8 become U+FFFD, as one such body must not fail a whole query."""
    try:
        return bodies.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([body.decode(errors="replace") for body in bodies.to_pylist()], pa.string())


def _walk(raw: bytes, end: int) -> tuple[Ints, Ints]:
    """The start and end of each record. Each record states its own length, so this loops, at about 0.3 µs per record.

    Records of equal length often lie together. A run of them takes one step.
    """
    sizes = u32_at_any_byte(raw, len(raw))
    starts: list[Ints] = []
    singles: list[int] = []
    at = last = alone = 0
    while at < end:
        (size,) = _unpack_size(raw, at)
        if size < MIN_RECORD_BYTES or at + size > end:
            raise CorruptStore(f"no complete record at byte {at} of the {end} bytes pulled")
        if size != last or alone:
            singles.append(at)
            at, last, alone = at + size, size, max(0, alone - 1)
            continue
        run = at + size * np.arange(min(_LONGEST_RUN, (end - at) // size))
        differs = sizes[run] != size
        length = int(differs.argmax()) if differs.any() else len(run)
        starts += (np.array(singles, np.int64), run[:length])
        singles = []
        at += size * length
        # A look ahead costs as much as ten records, which does not pay where lengths vary.
        alone = _SINGLE_STEPS if length < _SHORT_RUN else 0
    bounds = np.concatenate([*starts, np.array([*singles, end], np.int64)])
    return bounds[:-1], bounds[1:]


def _longs_of(values: tuple[Ints, Bools], rows: Ints) -> pa.Array:
    numbers_, present = values
    return pa.array(numbers_[rows], mask=~present[rows])
