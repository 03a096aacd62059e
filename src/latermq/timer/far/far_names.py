"""Names of Spark's timers whose records have left the log, for look-ups that the key index can no longer answer.

While a record is in the log, the key index finds it (directory.py). Before a segment is removed, its timers that are
still pending are added here, and timers that its cancels and moves end are deleted. So a timer that is due before its
segment ages out costs nothing. All rows are in one RocksDB database, with strings separated by a zero byte:

    n topic, unique key, entry (8)   →  due (8), timer id (8)       a pending timer
    p topic, unique key              →  due (8)                     the same, for one look-up of many names
    k topic, message key, unique key →  due (8)                     the message key that finds it
    c topic, unique key              →  due (8), forget at (8)      a cancelled name, kept for a second cancel
    m                                →  entry (8)                   all entries of the timer topic below are here
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from rocksdict import BlockBasedOptions, Options, Rdict, WriteBatch, WriteOptions

from latermq.errors import StoreError
from latermq.message.properties import (
    KEY_SEPARATOR,
    KEYS,
    REAL_TOPIC,
    TIMER_DELETE_KEY,
    TIMER_ID,
    UNIQUE_KEY,
    find_property,
)
from latermq.message.timer_code import CANCEL, MOVED, timer_id_of
from latermq.message.timer_name import names_of
from latermq.store.files.disk import Disk

FOLDER = "timerfarnames"
MARKER = "latermq.farnames"  # exists if the database does
WRITE_BUFFER_BYTES = 8 << 20
SWEEP_ROWS = 1_000
_TWO = struct.Struct(">qq")
_ONE = struct.Struct(">q")
_MARK = b"m"


class FarName(NamedTuple):
    """A timer whose record exists only in the timeline."""

    entry: int
    timer_id: int
    due_ms: int


class Waiting(NamedTuple):
    """An entry of the timer topic to be added: its offset, kind, due time and properties, and whether it is Spark's."""

    entry: int
    kind: int
    due_ms: int
    is_far: bool
    properties: bytes


class _Batch:
    """Rows to be written, and the state of their names after the write."""

    def __init__(self) -> None:
        self.rows = WriteBatch(raw_mode=True)
        self.names: dict[bytes, set[int]] = {}  # the entries of each name
        self.read: set[bytes] = set()  # names whose database rows are included in `names`


class FarNames:
    """Written by one thread at a time, with each batch synced; read by the serving thread.

    The database does not exist until the first name has left the log.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._synced = WriteOptions()
        self._synced.sync = True
        self._swept: bytes = b""
        self._db = _open(disk) if disk.read(MARKER) is not None else None
        mark = self._db.get(_MARK) if self._db is not None else None
        self.upto: int = _ONE.unpack(mark)[0] if mark else 0

    @property
    def _writable(self) -> Rdict:
        if self._db is None:
            self._disk.replace(MARKER, b"1\n")
            self._db = _open(self._disk)
        return self._db

    # Adding

    def adopt(self, waiting: list[Waiting], upto: int, *, retention_ms: int) -> None:
        """Add these entries, in order; all are below entry `upto`. A repeated call changes nothing."""
        batch = _Batch()
        for one in waiting:
            if one.kind == CANCEL:
                name = find_property(one.properties, TIMER_DELETE_KEY.encode()) or b""
                self._cancel(batch, name, one, retention_ms)
                continue
            topic = find_property(one.properties, REAL_TOPIC.encode()) or b""
            unique_key = find_property(one.properties, UNIQUE_KEY.encode()) or b""
            if one.kind == MOVED:
                self._cancel(batch, topic + b"+" + unique_key, one, 0)
            if one.is_far:
                self._add(batch, topic, unique_key, one)
        batch.rows.put(_MARK, _ONE.pack(upto))
        try:
            self._writable.write(batch.rows, self._synced)
        except Exception as error:
            raise StoreError(f"RocksDB cannot write the names of far timers: {error}", hint="Free disk space") from None
        self.upto = upto

    def _add(self, batch: _Batch, topic: bytes, unique_key: bytes, one: Waiting) -> None:
        timer_id = timer_id_of(find_property(one.properties, TIMER_ID.encode()) or b"", one.entry)
        key = b"n" + topic + b"\0" + unique_key + b"\0"
        batch.rows.put(b"p" + key[1:-1], _ONE.pack(one.due_ms))
        batch.rows.put(key + _ONE.pack(one.entry), _TWO.pack(one.due_ms, timer_id))
        batch.names.setdefault(key, set()).add(one.entry)
        for message_key in (find_property(one.properties, KEYS.encode()) or b"").split(KEY_SEPARATOR.encode()):
            if message_key:
                batch.rows.put(b"k" + topic + b"\0" + message_key + b"\0" + unique_key, _ONE.pack(one.due_ms))

    def _cancel(self, batch: _Batch, name: bytes, by: Waiting, retention_ms: int) -> None:
        """Apply a cancel or a move: it ends all earlier entries of a name."""
        for topic, unique_key in names_of(name.decode(errors="replace")):
            plain = topic.encode() + b"\0" + unique_key.encode()
            key = b"n" + plain + b"\0"
            held = batch.names.setdefault(key, set())
            if key not in batch.read:  # read a name's rows once, however often it is cancelled
                batch.read.add(key)
                held.update(_ONE.unpack(row[-8:])[0] for row, _ in self._rows(key))
            cancelled = [entry for entry in held if entry < by.entry]
            for entry in cancelled:
                batch.rows.delete(key + _ONE.pack(entry))
            held.difference_update(cancelled)
            if cancelled and not held:
                batch.rows.delete(b"p" + plain)
            if retention_ms and cancelled:
                batch.rows.put(b"c" + plain, _TWO.pack(by.due_ms, by.due_ms + retention_ms))

    # Look-ups

    def pending(self, topic: str, unique_key: str, from_ms: int) -> Iterator[FarName]:
        """Yield the timers of this name that are due at `from_ms` or later."""
        for key, value in self._rows(b"n" + topic.encode() + b"\0" + unique_key.encode() + b"\0"):
            due_ms, timer_id = _TWO.unpack(value)
            if due_ms >= from_ms:
                yield FarName(_ONE.unpack(key[-8:])[0], timer_id, due_ms)

    def waiting(self, below: int, from_ms: int) -> Iterator[tuple[str, int]]:
        """Yield topic and entry of all timers due at `from_ms` or later whose entry is below `below`."""
        for key, value in self._rows(b"n"):
            entry = _ONE.unpack(key[-8:])[0]
            if entry < below and _TWO.unpack(value)[0] >= from_ms:
                yield key[1 : key.index(b"\0")].decode(errors="replace"), entry

    def known(self, names: Sequence[tuple[str, bytes]], from_ms: int) -> list[bool]:
        """Whether each name has a timer due at `from_ms` or later, or a cancelled one."""
        if self._db is None or not names:
            return [False] * len(names)
        plain = [topic.encode() + b"\0" + unique_key for topic, unique_key in names]
        waiting: Any = self._db.get([b"p" + one for one in plain])
        cancelled: Any = self._db.get([b"c" + one for one in plain])
        return [
            one is not None or (due is not None and _ONE.unpack(due)[0] >= from_ms)
            for one, due in zip(cancelled, waiting, strict=True)
        ]

    def cancelled_due_ms(self, topic: str, unique_key: str) -> int | None:
        """Return when the cancelled timer of this name was due; None if unknown."""
        value = self._db and self._db.get(b"c" + topic.encode() + b"\0" + unique_key.encode())
        return _TWO.unpack(value)[0] if value else None

    def unique_keys(self, topic: str, key: str) -> Iterator[str]:
        """Return the unique keys that were scheduled with this message key."""
        start = b"k" + topic.encode() + b"\0" + key.encode() + b"\0"
        return (found[len(start) :].decode(errors="replace") for found, _ in self._rows(start))

    def due_between(
        self, from_ms: int, until_ms: int, start: bytes, most: int
    ) -> tuple[list[tuple[str, str, FarName]], bytes | None]:
        """Return topic, unique key and place of timers due in [from, until), out of `most` rows from `start` on.

        `start` is empty at first, then the key that the previous call returned. That key is None after the last row.
        """
        found: list[tuple[str, str, FarName]] = []
        for seen, (key, value) in enumerate(self._rows_from(start or b"n", b"n")):
            if seen >= most:
                return found, key
            due_ms, timer_id = _TWO.unpack(value)
            if from_ms <= due_ms < until_ms:
                topic, _, unique_key = key[1:-9].partition(b"\0")
                name = FarName(_ONE.unpack(key[-8:])[0], timer_id, due_ms)
                found.append((topic.decode(errors="replace"), unique_key.decode(errors="replace"), name))
        return found, None

    def _rows_from(self, start: bytes, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        for key, value in self._from(start):
            if not key.startswith(prefix):
                return
            yield key, value

    def _rows(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        yield from self._rows_from(start, start)

    def _from(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        rows: Any = self._db.items(from_key=start) if self._db is not None else ()
        yield from rows

    # Removal

    def sweep(self, wake_ms: int, now_ms: int) -> None:
        """Scan some rows; delete those of delivered timers, and cancelled names that are no longer needed."""
        for seen, (key, value) in enumerate(self._from(self._swept)):
            if seen >= SWEEP_ROWS:
                self._swept = key
                return
            kind = key[:1]
            is_over = (kind in (b"n", b"p", b"k") and _ONE.unpack(value[:8])[0] < wake_ms) or (
                kind == b"c" and _TWO.unpack(value)[1] < now_ms
            )
            if is_over:
                self._writable.delete(key)
        self._swept = b""

    def close(self) -> None:
        if self._db is not None:
            self._db.close()


def _open(disk: Disk) -> Rdict:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_max_background_jobs(1)
    options.set_keep_log_file_num(2)
    table = BlockBasedOptions()
    table.set_bloom_filter(10, False)  # most names looked up are not here
    options.set_block_based_table_factory(table)
    folder = disk.library_folder(FOLDER)
    try:
        return Rdict(str(folder), options)
    except Exception as error:
        raise StoreError(
            f"RocksDB cannot open {folder.name}: {error}",
            hint="Free disk space: it holds the names of far timers whose records have left the log",
        ) from None
