"""DataFrame rows as timers to schedule: Arrow columns, checked as a whole, named by job and key, and encoded."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from latermq.arrays import Bools, Indices, Ints, Octets, UInts16
from latermq.errors import ConfigError, IllegalMessage, NoPermission
from latermq.message.names import check_sendable_topic
from latermq.message.properties import (
    MAX_PROPERTIES_BYTES,
)
from latermq.model.rows import RESERVED_PREFIXES, RESERVED_PROPERTIES, Column, RowBatch
from latermq.pipeline.bulk.due_times import UnreadableTime, due_times_ms
from latermq.protocol.remoting.rows import (
    KEY_SEPARATOR,
    MAX_KEYS,
    ROWS_AT_ONCE,
    UNIQUE_KEY_BYTES,
    encode_rows,
    unique_keys_of,
)

COLUMNS = ("topic", "body", "due_ms", "delay_ms", "due", "key", "tag", "properties")
TIMES = ("due_ms", "delay_ms", "due")
REQUEST_BYTES = 4 << 20  # limit of a request, unless a single row is larger
# Upper bound of what the broker adds to a timer's properties, including names and moves.
_ADDED_BYTES = 640


@dataclass(frozen=True)
class Target:
    """The destination of a job's rows, and the limits of the brokers."""

    job: str
    brokers: tuple[str, ...]
    topic: str = ""  # for rows that name none
    max_body_bytes: int = 4 << 20
    max_delay_ms: int = 3650 * 86_400_000
    now_ms: int = 0
    time_zone: str = "UTC"  # of due times without one; empty: that of the Spark session


@dataclass(frozen=True)
class Request:
    """The body of one SCHEDULE_ROWS request."""

    broker: str
    body: bytes
    rows: int
    topics: tuple[str, ...]
    share: int = 0  # of the job's keys


class BadRow(IllegalMessage):
    """A row that no broker would schedule."""


def check_column_names(names: Iterable[str]) -> None:
    """Refuse names that no column of a timer has."""
    unknown = [name for name in names if name not in COLUMNS]
    if unknown:
        raise ConfigError(f"unknown column: {', '.join(unknown)}", hint=f"A timer has {', '.join(COLUMNS)}")


def check_columns(names: dict[str, pa.DataType], *, has_topic: bool) -> None:
    """Refuse a frame whose columns cannot be timers, whatever its rows contain."""
    unknown = [name for name in names if name not in COLUMNS]
    if unknown:
        raise ConfigError(
            f"unknown column: {', '.join(unknown)}",
            hint=f"Rename it or leave it out. Columns: {', '.join(COLUMNS)}",
        )
    if "key" not in names:
        raise ConfigError("there is no column key", hint="Add one: LaterMQ schedules each key of a job only once")
    if "topic" not in names and not has_topic:
        raise ConfigError("there is no column topic", hint="Add one, or set the option topic for all rows")
    if not any(name in names for name in TIMES):
        raise ConfigError("there is no column with a due time", hint="Add due_ms, delay_ms or due (a timestamp)")
    for name, type_ in names.items():
        if not _has_valid_type(name, type_):
            raise ConfigError(f"column {name} has type {type_}", hint=_TYPE_HINTS[name])


_TYPE_HINTS = {
    "topic": "It must be a string",
    "body": "It must be binary or a string",
    "due_ms": "It must be an integer: milliseconds since 1970",
    "delay_ms": "It must be an integer: milliseconds",
    "due": "It must be a timestamp, a date or an ISO 8601 string; cast it, or use due_ms",
    "key": "It must be a string or an integer",
    "tag": "It must be a string",
    "properties": "It must be a map of strings to strings",
}


def _has_valid_type(name: str, type_: pa.DataType) -> bool:
    is_text = pa.types.is_string(type_) or pa.types.is_large_string(type_)
    if name in ("due_ms", "delay_ms"):
        return bool(pa.types.is_integer(type_))
    if name == "due":
        return bool(is_text or pa.types.is_timestamp(type_) or pa.types.is_date(type_))
    if name == "properties":
        return bool(pa.types.is_map(type_) and type_.key_type == pa.string() and type_.item_type == pa.string())
    if name == "body":
        return bool(is_text or pa.types.is_binary(type_) or pa.types.is_large_binary(type_))
    return bool(is_text or (name == "key" and pa.types.is_integer(type_)))


def requests_of(batch: pa.RecordBatch, target: Target, *, where: str = "", first_row: int = 0) -> Iterator[Request]:
    """The requests that schedule these rows. BadRow names the first invalid row, after the prefix `where`."""
    rows = _Rows(batch, target, where, first_row)
    checked = rows.checked()
    digests = np.frombuffer(unique_keys_of(target.job, checked.keys.values()), np.uint8)
    hex_keys = digests.tobytes().hex().upper().encode()
    checked.unique_keys = Column(hex_keys, np.arange(len(batch) + 1) * 2 * UNIQUE_KEY_BYTES)
    if len(target.brokers) == 1:
        yield from pieces_of(checked, target.brokers[0])
        return
    chosen = choose_brokers(digests, len(target.brokers))
    for number, broker in enumerate(target.brokers):
        yield from pieces_of(select_rows(checked, np.flatnonzero(chosen == number)), broker)


def choose_brokers(digests: Octets, brokers: int) -> Ints:
    """The index of the broker for each row. It depends only on the unique key, so a row always gets the same broker."""
    heads = digests.reshape(-1, UNIQUE_KEY_BYTES)[:, :8].copy().view(">u8").ravel()
    return (heads % np.uint64(brokers)).astype(np.int64)


class _Rows:
    """One batch during its check, column by column."""

    def __init__(self, batch: pa.RecordBatch, target: Target, where: str, first_row: int) -> None:
        self._batch = batch
        self._target = target
        self._where = where
        self._first_row = first_row

    def checked(self) -> RowBatch:
        rows = len(self._batch)
        keys = self._keys()
        topics, topic_of = self._topics()
        times_ms, from_now = self._times()
        tags = self._text("tag")
        properties = self._properties()
        bodies = self._text("body")
        self._check_bodies(bodies)
        self._check_sizes(keys, tags, properties)
        return RowBatch(topics, topic_of, times_ms, from_now, Column.empty(rows), bodies, keys, tags, properties)

    def _refuse(self, row: int, reason: str, hint: str = "") -> NoReturn:
        key = self._batch.column("key")[row].as_py() if "key" in self._batch.schema.names else None
        named = f" (key {str(key)[:80]!r})" if key is not None else ""
        raise BadRow(f"row {self._first_row + row}{self._where}{named}: {reason}", hint=hint)

    def _column(self, name: str) -> pa.Array | None:
        return self._batch.column(name) if name in self._batch.schema.names else None

    def _text(self, name: str) -> Column:
        array = self._column(name)
        if array is None:
            return Column.empty(len(self._batch))
        column = column_of(array)
        if name != "body":
            self._check_bytes(name, column)
        return column

    def _keys(self) -> Column:
        array = self._column("key")
        assert array is not None
        keys = column_of(array if not pa.types.is_integer(array.type) else array.cast(pa.string()))
        if (keys.sizes == 0).any():
            self._refuse(int(keys.sizes.argmin()), "it has no key", "Give every row its own key")
        self._check_bytes("key", keys)
        return keys

    def _check_bytes(self, name: str, column: Column) -> None:
        for byte in (0, 1, 2):
            at = column.data.find(byte)
            if at >= 0:
                self._refuse(
                    column.row_at(at), f"its {name} contains byte {byte}, which separates properties", "Remove it"
                )

    def _topics(self) -> tuple[list[str], UInts16]:
        array = self._column("topic")
        if array is None:
            array = pa.repeat(pa.scalar(self._target.topic), len(self._batch))
        encoded = pc.fill_null(array.cast(pa.string()), self._target.topic).dictionary_encode()
        indices = encoded.indices.to_numpy(zero_copy_only=False)
        topics: list[str] = encoded.dictionary.to_pylist()
        for number, topic in enumerate(topics):
            try:
                check_sendable_topic(topic)
            except (IllegalMessage, NoPermission) as error:
                self._refuse(
                    int((indices == number).argmax()), error.message if topic else "it has no topic", error.hint
                )
        return topics, indices.astype(np.uint16)

    def _times(self) -> tuple[Ints, Bools]:
        rows = len(self._batch)
        times, given, from_now = np.zeros(rows, np.int64), np.zeros(rows, np.int64), np.zeros(rows, np.bool_)
        for name in TIMES:
            array = self._column(name)
            if array is None:
                continue
            present = array.is_valid().to_numpy(zero_copy_only=False)
            values = self._moments(array) if name == "due" else pc.fill_null(array, 0).cast(pa.int64()).to_numpy()
            negative = present & (values < 0)
            if negative.any():
                row = int(negative.argmax())
                self._refuse(row, f"its {name} is {int(values[row])}", "It must not be negative")
            times = np.where(present, values, times)
            from_now |= present & (name == "delay_ms")
            given += present
        if (given != 1).any():
            row = int((given != 1).argmax())
            reason = "it has no due time" if not given[row] else "it has two due times"
            self._refuse(row, reason, "Give exactly one of due_ms, delay_ms and due")
        ahead = np.where(from_now, times, times - self._target.now_ms)
        if (ahead > self._target.max_delay_ms).any():
            row = int(ahead.argmax())
            limit = f"{self._target.max_delay_ms} ms"
            self._refuse(row, f"it is due in {int(ahead[row])} ms; the limit is {limit}", "Raise timer.max_delay")
        return times, from_now

    def _moments(self, array: pa.Array) -> Ints:
        try:
            return due_times_ms(array, self._target.time_zone)
        except UnreadableTime as error:
            self._refuse(error.row, f"its due is {error.text!r}", "Write it like 2027-01-31T09:00:00+01:00")

    def _properties(self) -> Column:
        maps = self._column("properties")
        if maps is None or not len(maps):
            return Column.empty(len(self._batch))
        filled = _without_null_maps(maps)
        bounds = np.asarray(filled.offsets.to_numpy(), np.int64)
        names, values = filled.keys, pc.fill_null(filled.items, "")
        self._check_properties(names, values, bounds)
        ended = pc.binary_join_element_wise(pc.binary_join_element_wise(names, values, "\x01"), "", "\x02")
        pairs = column_of(ended)
        offsets = pairs.offsets[bounds]
        return Column(pairs.data[int(offsets[0]) : int(offsets[-1])], offsets - offsets[0])

    def _check_properties(self, names: pa.Array, values: pa.Array, bounds: Ints) -> None:
        def row_of(pair: int) -> int:
            return int(np.searchsorted(bounds, pair, side="right")) - 1

        for what, array in (("name", names), ("value", values)):
            column = column_of(array)
            if (column.sizes == 0).any():
                self._refuse(row_of(int(column.sizes.argmin())), f"a property has no {what}", "Leave it out")
            for byte in (0, 1, 2):
                at = column.data.find(byte)
                if at >= 0:
                    self._refuse(
                        row_of(column.row_at(at)), f"the {what} of a property contains byte {byte}", "Remove it"
                    )
        encoded = names.dictionary_encode()
        for number, name in enumerate(encoded.dictionary.to_pylist()):
            if name in RESERVED_PROPERTIES or name.startswith(RESERVED_PREFIXES):
                pair = int((encoded.indices.to_numpy(zero_copy_only=False) == number).argmax())
                self._refuse(row_of(pair), f"property {name} is reserved", "Use another name")

    def _check_bodies(self, bodies: Column) -> None:
        limit = self._target.max_body_bytes
        if int(bodies.sizes.max(initial=0)) > limit:
            row = int((bodies.sizes > limit).argmax())
            reason = f"its body has {int(bodies.sizes[row])} bytes; the limit is {limit}"
            self._refuse(row, reason, "Send a smaller body, or raise broker.max_message")

    def _check_sizes(self, keys: Column, tags: Column, properties: Column) -> None:
        sizes = keys.sizes + tags.sizes + properties.sizes
        limit = MAX_PROPERTIES_BYTES - _ADDED_BYTES
        if int(sizes.max(initial=0)) > limit:
            row = int(sizes.argmax())
            reason = f"its key, tag and properties have {int(sizes[row])} bytes; the limit is {limit}"
            self._refuse(row, reason, "Move large values into the body")


def column_of(array: pa.Array) -> Column:
    """Strings or bytes as a column of raw bytes, with NULL as an empty value."""
    filled = array.cast(pa.large_string() if pa.types.is_string(array.type) else array.type)
    filled = filled.cast(pa.large_binary())
    filled = pc.fill_null(filled, b"") if filled.null_count else filled
    if isinstance(filled, pa.ChunkedArray):
        filled = filled.combine_chunks()
    _, offsets_buffer, data = filled.buffers()
    if not len(filled) or data is None:
        return Column.empty(len(filled))
    offsets = np.frombuffer(offsets_buffer, np.int64)[filled.offset : filled.offset + len(filled) + 1]
    return Column(bytes(memoryview(data)[int(offsets[0]) : int(offsets[-1])]), offsets - offsets[0])


def _without_null_maps(maps: pa.MapArray) -> pa.MapArray:
    """The same maps, contiguous from offset 0, with empty maps in place of NULL."""
    if maps.null_count:
        at = np.flatnonzero(maps.is_valid().to_numpy(zero_copy_only=False))
        counts = np.zeros(len(maps), np.int64)
        present = maps.take(pa.array(at))
        counts[at] = np.diff(present.offsets.to_numpy())
        offsets = pa.array(np.concatenate(([0], np.cumsum(counts))), pa.int32())
        return pa.MapArray.from_arrays(offsets, present.keys, present.items)
    return maps.take(pa.array(np.arange(len(maps)))) if maps.offset else maps


def select_rows(batch: RowBatch, rows: Indices) -> RowBatch:
    """Some rows of a batch."""

    def select(column: Column) -> Column:
        if not column.data:
            return Column.empty(len(rows))
        data, offsets = pa.py_buffer(column.data), pa.py_buffer(np.ascontiguousarray(column.offsets))
        array = pa.Array.from_buffers(pa.large_binary(), len(column), [None, offsets, data])
        return column_of(array.take(pa.array(rows)))

    return RowBatch(
        batch.topics,
        batch.topic_of[rows],
        batch.times_ms[rows],
        batch.from_now[rows],
        select(batch.unique_keys),
        select(batch.bodies),
        select(batch.keys),
        select(batch.tags),
        select(batch.properties),
    )


def pieces_of(batch: RowBatch, broker: str, share: int = 0) -> Iterator[Request]:
    """Split the rows into requests of bounded size."""
    sizes = batch.bodies.sizes + batch.keys.sizes + batch.tags.sizes + batch.properties.sizes
    ends = np.cumsum(sizes)
    key_ends = _keys_until(batch.keys)
    start = 0
    while start < len(batch):
        before, keys_before = (int(ends[start - 1]), int(key_ends[start - 1])) if start else (0, 0)
        fit = int(np.searchsorted(ends, before + REQUEST_BYTES, side="right"))
        fit = min(fit, int(np.searchsorted(key_ends, keys_before + MAX_KEYS, side="right")))
        end = min(max(start + 1, fit), start + ROWS_AT_ONCE, len(batch))
        yield _request(batch, start, end, broker, share)
        start = end


def _keys_until(column: Column) -> Ints:
    """The cumulative number of message keys up to each row. A single row has fewer than a request may hold."""
    separators = np.flatnonzero(np.frombuffer(column.data, np.uint8) == KEY_SEPARATOR[0])
    until: Ints = np.searchsorted(separators, column.offsets[1:]) + np.arange(1, len(column) + 1)
    return until


def _request(batch: RowBatch, start: int, end: int, broker: str, share: int) -> Request:
    def part(column: Column) -> Column:
        offsets = column.offsets[start : end + 1]
        return Column(column.data[int(offsets[0]) : int(offsets[-1])], offsets - offsets[0])

    used, topic_of = np.unique(batch.topic_of[start:end], return_inverse=True)
    topics = [batch.topics[number] for number in used.tolist()]
    piece = RowBatch(
        topics,
        topic_of.astype(np.uint16),
        batch.times_ms[start:end],
        batch.from_now[start:end],
        *map(part, (batch.unique_keys, batch.bodies, batch.keys, batch.tags, batch.properties)),
    )
    return Request(broker, encode_rows(piece), end - start, tuple(topics), share)
