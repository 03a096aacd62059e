"""Names of Spark's timers whose records have left the log, for look-ups that the key index can no longer answer.

While a record is in the log, the key index finds it (directory.py). Before a segment is removed, its timers that are
still pending are added here, and timers that its cancels and moves end are deleted. So a timer that is due before its
segment ages out costs nothing. All rows are in one RocksDB database, with strings separated by a zero byte:

    n topic, unique key              →  entry (8), due (8), timer id (8), more (1)   the first timer
    x topic, unique key, entry (8)   →  due (8), timer id (8)    a further one; `more` is 1 if there are any
    i period (4), topic, message key, unique key →  (empty)      the message key that finds it
    c topic, unique key              →  due (8), forget at (8)   a cancelled name, kept for a second cancel
    m                                →  entry (8)                all entries of the timer topic below are here

The period is that of the due time (message_keys.py).

Nothing is written to RocksDB's write-ahead log, so that each name is written once. Rows are in memory until they are
saved, and their records stay in the log until then. A crash loses the last rows, mark included, and they are added
again from the log.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from threading import Lock
from typing import Any, NamedTuple

from rocksdict import (
    BlockBasedOptions,
    DBCompactionStyle,
    DBCompressionType,
    Options,
    Rdict,
    UniversalCompactOptions,
    WriteBatch,
    WriteOptions,
)

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
from latermq.timer.far.message_keys import message_key_row, period_of
from latermq.timer.far.old_names import convert, convert_message_keys

FOLDER = "timerfarnames"
MARKER = "latermq.farnames"  # exists if the database does, and holds the number of its format
_FORMAT = b"3\n"
_FIRST_FORMAT, _SECOND_FORMAT = b"1\n", b"2\n"
# Rows in memory that are saved together. The more, the less often RocksDB merges what it has saved.
SAVED_AT_ONCE_BYTES = 16 << 20
# RocksDB saves by itself what exceeds this, while a write waits and keeps all threads from running. A row takes
# less than twice its bytes in memory.
_WRITE_BUFFER_BYTES = 3 * SAVED_AT_ONCE_BYTES
_BLOCK_BYTES = 16 << 10  # compressed together: names of a topic are alike
_MERGED_FILES = 8
SWEEP_ROWS = 1_000
_DAMAGED = (
    f"Restore {FOLDER} and {MARKER} from a backup, or remove both: far timers are then still delivered, but those "
    "whose records have left the log cannot be cancelled or moved"
)
_FIRST = struct.Struct(">qqq?")
_TWO = struct.Struct(">qq")
_ONE = struct.Struct(">q")
_MARK = b"m"
_SWEPT = (b"c", b"n", b"x")  # the kinds of rows that are removed one by one


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


@dataclass
class _Name:
    """A name's pending timers while it is changed."""

    first: FarName | None = None
    has_more: bool = False
    # The further ones, by entry: all of them once they are read, until then those that were added.
    more: dict[int, FarName] = field(default_factory=dict)
    is_read: bool = False

    def encode(self) -> bytes:
        assert self.first is not None
        return _FIRST.pack(self.first.entry, self.first.due_ms, self.first.timer_id, self.has_more)


class FarNames:
    """Written by one thread at a time; read by the serving thread, which also sweeps.

    The database does not exist until the first name has left the log.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._how = WriteOptions()
        self._how.disable_wal = True  # type: ignore[method-assign,assignment] # the stub is wrong
        self._how.no_slowdown = True  # a write that waits keeps all threads from running, so it is refused instead
        self._unsaved_bytes = 0
        self._changing = Lock()  # held while rows are read and written back
        self._swept: bytes = b""
        self._removed_period = 0  # the message keys of periods before it are removed
        self._db = self._open_existing()
        mark = self._db.get(_MARK) if self._db is not None else None
        self.upto: int = _ONE.unpack(mark)[0] if mark else 0
        self.saved_upto = self.upto  # the same as of the rows on disk

    def _open_existing(self) -> Rdict | None:
        found = self._disk.read(MARKER)
        if found is None:
            return None
        if found not in (_FIRST_FORMAT, _SECOND_FORMAT, _FORMAT):
            raise StoreError(
                f"{MARKER} names a format of {FOLDER} that this release does not know: {found[:20]!r}",
                hint="Start the release that wrote it, or a newer one",
            )
        if not (self._disk.library_folder(FOLDER) / "CURRENT").exists():
            raise StoreError(f"{MARKER} exists, but {FOLDER} is missing or incomplete", hint=_DAMAGED)
        db = _open(self._disk)
        if found != _FORMAT:
            self._convert(db, is_first=found == _FIRST_FORMAT)
        return db

    def _convert(self, db: Rdict, *, is_first: bool) -> None:
        how = WriteOptions()
        how.disable_wal = True  # type: ignore[method-assign,assignment] # the stub is wrong
        try:
            if is_first:
                convert(db, how)
            convert_message_keys(db, how)
        except Exception as error:
            db.close()
            raise _refused("convert", error) from None
        self._disk.replace(MARKER, _FORMAT)

    @property
    def _writable(self) -> Rdict:
        if self._db is None:
            db = _open(self._disk)
            self._disk.replace(MARKER, _FORMAT)  # last: if it exists, the database must exist
            self._db = db
        return self._db

    # Adding

    def adopt(self, waiting: list[Waiting], upto: int, *, retention_ms: int) -> None:
        """Add these entries, in order; all are below entry `upto`. A repeated call changes nothing. Blocks."""
        with self._changing:
            rows = self._rows_for(waiting, retention_ms)
            rows.put(_MARK, _ONE.pack(upto))
            self._unsaved_bytes += rows.size_in_bytes()
            self._write(rows)
        self.upto = upto
        if self._unsaved_bytes >= SAVED_AT_ONCE_BYTES:
            self.save()

    def _rows_for(self, waiting: list[Waiting], retention_ms: int) -> WriteBatch:
        rows = WriteBatch(raw_mode=True)
        named = [(one, _names_of(one)) for one in waiting]
        found = self._find({name for _, names in named for name in names})
        before = {name: (row.first, row.has_more) for name, row in found.items()}
        for one, names in named:
            for name in names:
                is_ended = one.kind in (CANCEL, MOVED) and self._end(rows, name, found[name], one.entry)
                if is_ended and one.kind == CANCEL and retention_ms:
                    rows.put(b"c" + name, _TWO.pack(one.due_ms, one.due_ms + retention_ms))
                if one.is_far:
                    _add(rows, name, found[name], one)
        for name, row in found.items():
            if (row.first, row.has_more) == before[name]:
                continue
            if row.first is None:
                rows.delete(b"n" + name)
            else:
                rows.put(b"n" + name, row.encode())
        return rows

    def save(self) -> None:
        """Save what was added. Blocks, while other threads run."""
        upto = self.upto
        if self.saved_upto == upto:
            return
        try:
            self._writable.flush()
        except Exception as error:
            raise _refused("save", error) from None
        self.saved_upto, self._unsaved_bytes = upto, 0

    def _write(self, rows: WriteBatch) -> None:
        try:
            self._writable.write(rows, self._how)
        except Exception as error:
            raise _refused("write", error) from None

    def _find(self, names: Iterable[bytes]) -> dict[bytes, _Name]:
        """Return what is known of each name. Most are new, which costs no read from disk."""
        keys = list(names)
        values = self._get([b"n" + name for name in keys])
        return dict(zip(keys, map(_decode, values), strict=True))

    def _get(self, keys: list[Any]) -> list[Any]:
        if self._db is None:
            return [None] * len(keys)
        try:
            values: Any = self._db.get(keys)
        except Exception as error:
            raise _refused("read", error) from None
        return list(values)

    def _further(self, name: bytes) -> Iterator[FarName]:
        start = b"x" + name + b"\0"
        for key, value in self._rows(start):
            if len(key) != len(start) + _ONE.size:
                continue  # of a name that continues after a zero byte
            due_ms, timer_id = _TWO.unpack(value)
            yield FarName(_ONE.unpack(key[-8:])[0], timer_id, due_ms)

    def _end(self, rows: WriteBatch, name: bytes, row: _Name, by_entry: int) -> bool:
        """Remove the timers before a cancel or a move. Return whether there were any."""
        if row.has_more and not row.is_read:
            row.more = {one.entry: one for one in self._further(name)} | row.more
        row.is_read = True
        ended = [entry for entry in row.more if entry < by_entry]
        for entry in ended:
            del row.more[entry]
            rows.delete(b"x" + name + b"\0" + _ONE.pack(entry))
        if row.first is not None and row.first.entry < by_entry:
            ended.append(row.first.entry)
            _promote(rows, name, row)
        row.has_more = bool(row.more)
        return bool(ended)

    # Look-ups

    def pending(self, topic: str, unique_key: str, from_ms: int) -> Iterator[FarName]:
        """Yield the timers of this name that are due at `from_ms` or later."""
        [(name, row)] = self._find([_plain(topic.encode(), unique_key.encode())]).items()
        timers = chain([row.first] if row.first else [], self._further(name) if row.has_more else [])
        yield from (one for one in timers if one.due_ms >= from_ms)

    def waiting(self, below: int, from_ms: int) -> Iterator[tuple[str, int]]:
        """Yield topic and entry of all timers due at `from_ms` or later whose entry is below `below`."""
        for key, value in chain(self._rows(b"n"), self._rows(b"x")):
            _, one = _decode_timer(key, value)
            if one.entry < below and one.due_ms >= from_ms:
                yield key[1 : key.index(b"\0")].decode(errors="replace"), one.entry

    def known(self, names: Sequence[tuple[str, bytes]], from_ms: int) -> list[bool]:
        """Whether each name has a timer due at `from_ms` or later, or a cancelled one."""
        if self._db is None or not names:
            return [False] * len(names)
        plain = [_plain(topic.encode(), unique_key) for topic, unique_key in names]
        waiting = self._find(plain)
        cancelled = self._get([b"c" + name for name in plain])
        return [
            one is not None or self._is_pending(name, waiting[name], from_ms)
            for name, one in zip(plain, cancelled, strict=True)
        ]

    def _is_pending(self, name: bytes, row: _Name, from_ms: int) -> bool:
        if row.first is None:
            return False
        return row.first.due_ms >= from_ms or (
            row.has_more and any(one.due_ms >= from_ms for one in self._further(name))
        )

    def cancelled_due_ms(self, topic: str, unique_key: str) -> int | None:
        """Return when the cancelled timer of this name was due; None if unknown."""
        [value] = self._get([b"c" + _plain(topic.encode(), unique_key.encode())])
        return _TWO.unpack(value)[0] if value else None

    def unique_keys(self, topic: str, key: str) -> Iterator[str | None]:
        """Yield the unique keys of pending and cancelled timers with this message key; one in two periods twice.

        None stands for a timer that was delivered in a period that is not over, so that a look-up can pause there.
        """
        wanted = topic.encode() + b"\0" + key.encode() + b"\0"
        period = self._period_from(0)
        while period is not None:
            start = message_key_row(period, wanted)
            for found, _ in self._rows(start):
                unique_key = found[len(start) :]
                name = _plain(topic.encode(), unique_key)
                is_known = any(value is not None for value in self._get([b"n" + name, b"c" + name]))
                yield unique_key.decode(errors="replace") if is_known else None
            period = self._period_from(period + 1)

    def _period_from(self, period: int) -> int | None:
        """The first period from this one on that has message keys."""
        row = next(self._rows_from(message_key_row(period, b""), b"i"), None)
        return int.from_bytes(row[0][1:5], "big") if row else None

    def due_between(
        self, from_ms: int, until_ms: int, start: bytes, most: int
    ) -> tuple[list[tuple[str, str, FarName]], bytes | None]:
        """Return topic, unique key and place of timers due in [from, until), out of `most` rows from `start` on.

        `start` is empty at first, then the key that the previous call returned. That key is None after the last row.
        """
        found: list[tuple[str, str, FarName]] = []
        rows = chain(*(self._rows_from(max(start, prefix), prefix) for prefix in (b"n", b"x") if start[:1] <= prefix))
        for seen, (key, value) in enumerate(rows):
            if seen >= most:
                return found, key
            name, one = _decode_timer(key, value)
            if from_ms <= one.due_ms < until_ms:
                topic, unique_key = (part.decode(errors="replace") for part in name.split(b"\0", 1))
                found.append((topic, unique_key, one))
        return found, None

    def _rows_from(self, start: bytes, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        for key, value in self._from(start):
            if not key.startswith(prefix):
                return
            yield key, value

    def _rows(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        yield from self._rows_from(start, start)

    def _from(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        if self._db is None:
            return
        try:
            rows = self._db.iter()
            rows.seek(start)
            while rows.valid():
                yield rows.key(), rows.value()
                rows.next()
            rows.status()  # raises if the rows ended because a file is damaged
        except Exception as error:
            raise _refused("read", error) from None

    # Removal

    def sweep(self, wake_ms: int, now_ms: int) -> None:
        """Scan some rows; delete those of delivered timers, and cancelled names that are no longer needed.

        Does nothing while names are being added.
        """
        if not self._changing.acquire(blocking=False):
            return
        try:
            self._sweep(wake_ms, now_ms)
        finally:
            self._changing.release()

    def _sweep(self, wake_ms: int, now_ms: int) -> None:
        gone = WriteBatch(raw_mode=True)
        self._remove_periods(gone, wake_ms)
        stopped_at = b""
        rows = chain(*(self._rows_from(max(self._swept, kind), kind) for kind in _SWEPT if self._swept[:1] <= kind))
        for seen, (key, value) in enumerate(rows):
            if seen >= SWEEP_ROWS:
                stopped_at = key
                break
            self._sweep_row(gone, key, value, wake_ms, now_ms)
        if len(gone):
            self._write(gone)
        self._swept = stopped_at

    def _remove_periods(self, gone: WriteBatch, wake_ms: int) -> None:
        """Remove the message keys of periods whose timers were all due before this time."""
        current = period_of(wake_ms)
        if current <= self._removed_period:
            return
        first = self._period_from(0)
        if first is not None and first < current:
            gone.delete_range(message_key_row(0, b""), message_key_row(current, b""))
        self._removed_period = current

    def _sweep_row(self, gone: WriteBatch, key: bytes, value: bytes, wake_ms: int, now_ms: int) -> None:
        match key[:1]:
            case b"n":
                # A look-up or a list in progress would miss a row that moves here from the further ones.
                row = _decode(value)
                if row.first is not None and row.first.due_ms < wake_ms and not self._has_further(key[1:], row):
                    gone.delete(key)
            case b"x":
                if _TWO.unpack(value)[0] < wake_ms:
                    gone.delete(key)
            case b"c":
                if _TWO.unpack(value)[1] < now_ms:
                    gone.delete(key)

    def _has_further(self, name: bytes, row: _Name) -> bool:
        return row.has_more and next(self._further(name), None) is not None

    def close(self) -> None:
        if self._db is not None:
            # A full disk refuses what is not saved yet. It is added again from the log.
            with suppress(Exception):
                self._db.close()


def _plain(topic: bytes, unique_key: bytes) -> bytes:
    return topic + b"\0" + unique_key


def _names_of(one: Waiting) -> list[bytes]:
    """Return the name of a timer, or those that a cancel ends."""
    if one.kind == CANCEL:
        ended = find_property(one.properties, TIMER_DELETE_KEY.encode()) or b""
        return [_plain(topic.encode(), key.encode()) for topic, key in names_of(ended.decode(errors="replace"))]
    topic, unique_key = (find_property(one.properties, name.encode()) or b"" for name in (REAL_TOPIC, UNIQUE_KEY))
    return [_plain(topic, unique_key)]


def _decode(value: bytes | None) -> _Name:
    if value is None:
        return _Name()
    entry, due_ms, timer_id, has_more = _FIRST.unpack(value)
    return _Name(FarName(entry, timer_id, due_ms), has_more)


def _decode_timer(key: bytes, value: bytes) -> tuple[bytes, FarName]:
    """Decode a row of either kind into its name and its timer."""
    if key[:1] == b"n":
        entry, due_ms, timer_id, _ = _FIRST.unpack(value)
        return key[1:], FarName(entry, timer_id, due_ms)
    due_ms, timer_id = _TWO.unpack(value)
    return key[1:-9], FarName(_ONE.unpack(key[-8:])[0], timer_id, due_ms)


def _promote(rows: WriteBatch, name: bytes, row: _Name) -> None:
    """Replace the first timer of a name by the next of the further ones, which are read."""
    row.first = row.more.pop(min(row.more)) if row.more else None
    row.has_more = bool(row.more)
    if row.first is not None:
        rows.delete(b"x" + name + b"\0" + _ONE.pack(row.first.entry))


def _add(rows: WriteBatch, name: bytes, row: _Name, one: Waiting) -> None:
    timer_id = timer_id_of(find_property(one.properties, TIMER_ID.encode()) or b"", one.entry)
    timer = FarName(one.entry, timer_id, one.due_ms)
    if row.first is None or row.first.entry == one.entry:
        row.first = timer
    else:
        rows.put(b"x" + name + b"\0" + _ONE.pack(one.entry), _TWO.pack(one.due_ms, timer_id))
        row.has_more = True
        row.more[one.entry] = timer
    topic, _, unique_key = name.partition(b"\0")
    for message_key in (find_property(one.properties, KEYS.encode()) or b"").split(KEY_SEPARATOR.encode()):
        if message_key:
            name_of_key = topic + b"\0" + message_key + b"\0" + unique_key
            rows.put(message_key_row(period_of(one.due_ms), name_of_key), b"")


def _open(disk: Disk) -> Rdict:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(_WRITE_BUFFER_BYTES)
    options.set_compression_type(DBCompressionType.zstd())
    # Files are merged when there are this many of similar size, so a row is written once for each such factor by which
    # the database grows. Look-ups find most names in none of them, without a read.
    options.set_compaction_style(DBCompactionStyle.universal())
    options.set_level_zero_file_num_compaction_trigger(_MERGED_FILES)
    merges = UniversalCompactOptions()
    merges.min_merge_width = _MERGED_FILES
    options.set_universal_compaction_options(merges)
    options.set_max_background_jobs(1)
    options.set_keep_log_file_num(2)
    table = BlockBasedOptions()
    table.set_block_size(_BLOCK_BYTES)
    table.set_bloom_filter(10, False)  # most names looked up are not here
    options.set_block_based_table_factory(table)
    folder = disk.library_folder(FOLDER)
    try:
        return Rdict(str(folder), options)
    except Exception as error:
        raise _refused(f"open {folder.name}, which holds", error) from None


def _refused(action: str, error: Exception) -> StoreError:
    is_damaged = "Corruption" in str(error)
    return StoreError(
        f"RocksDB cannot {action} the names of far timers: {error}", hint=_DAMAGED if is_damaged else "Free disk space"
    )
