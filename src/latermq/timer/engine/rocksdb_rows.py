"""The database of the RocksDB engine: rows ordered by wake time, written and read in bulk.

A row has 29 bytes, 16 of key and 13 of value (docs/formats/timer-rocksdb.md). Rows are handled as numpy records, never
one by one.
"""

import contextlib
import os
import shutil
import threading
from collections import deque
from itertools import chain, islice, starmap
from pathlib import Path
from typing import Any

import numpy as np
from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from latermq.arrays import Bools, Ints, Structs
from latermq.errors import StoreError
from latermq.timer.engine.interface import Units

ROW = np.dtype([("wake", ">i8"), ("entry", ">i8"), ("physical_offset", ">i8"), ("size", ">i4"), ("renews", "u1")])
_KEY_AND_VALUE = np.dtype([("key", "V16"), ("value", "V13")])  # the same 29 bytes, in the form that RocksDB expects
KEY_BYTES = 16
Rows = Structs

GENERATION_KEY = b"\xffgeneration"  # sorts after every row: times are positive, so no row's key begins with this byte
WRITE_BUFFER_BYTES = 32 << 20
WRITE_BUFFERS = 3
BLOCK_CACHE_BYTES = 16 << 20
OPEN_FILES = 128
GARBAGE_SECONDS = 3_600  # older files are compacted, so that deleted rows free their space
_STALL = "Write stall"
# RocksDB's words for a database that can never be opened again, unlike "No space left" or "lock hold by".
_DAMAGE = ("Corruption", "Invalid argument", "No such file", "Not implemented")


def rows_of(units: Units) -> Rows:
    """Convert units to rows in key order: RocksDB writes sorted rows in half the time."""
    rows = np.empty(len(units.entries), ROW)
    for field, column in zip(ROW.names or (), (units.wakes, units.entries, *units[2:]), strict=True):
        rows[field] = column
    return rows[np.lexsort((units.entries, units.wakes))]


def units_of(rows: Rows) -> Units:
    """Convert rows to units."""
    entries, wakes, offsets, sizes = (
        rows[name].astype(np.int64) for name in ("entry", "wake", "physical_offset", "size")
    )
    return Units(entries, wakes, offsets, sizes, rows["renews"].astype(bool))


def key_from(wake_ms: int) -> bytes:
    """Return the lower key bound of rows that wake at this time or later."""
    return max(0, wake_ms).to_bytes(8, "big")


def _options() -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_max_write_buffer_number(WRITE_BUFFERS)
    options.set_target_file_size_base(WRITE_BUFFER_BYTES)
    options.set_max_background_jobs(2)
    options.set_max_subcompactions(1)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_max_open_files(OPEN_FILES)
    options.set_wal_recovery_mode(DBRecoveryMode.point_in_time())
    options.set_bytes_per_sync(1 << 20)  # continuous writeback, so that no fsync has to write everything
    options.set_wal_bytes_per_sync(1 << 20)
    options.set_avoid_unnecessary_blocking_io(True)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(1 << 20)
    options.set_stats_dump_period_sec(0)
    table = BlockBasedOptions()
    table.set_block_cache(Cache(BLOCK_CACHE_BYTES))
    options.set_block_based_table_factory(table)
    return options


class RocksRows:
    """Rows in RocksDB. One thread makes all calls except `sync`. Every RocksDB error is raised as a StoreError."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._db: Rdict | None = None
        self._must_reopen = False
        # Held while the database is opened, closed or synced, because two threads may do so at once.
        self._open_lock = threading.RLock()
        self._how = WriteOptions()
        self._how.memtable_insert_hint_per_batch = True
        # A stalled write would sleep while it holds the GIL and block the whole process. RocksDB rejects it instead.
        self._how.no_slowdown = True
        self.stalls = 0
        self.was_damaged = False
        try:
            self._open()
        except StoreError as error:
            if not any(word in error.message for word in _DAMAGE):
                raise
            self.was_damaged = True
            self.recreate()

    # Opening and closing

    def _open(self) -> Rdict:
        options = _options()
        try:
            # If the column family is not named, RocksDB uses the options with which the folder was created.
            db = Rdict(str(self._folder), options, column_families={"default": options})
            db.set_options({"ttl": str(GARBAGE_SECONDS)})
        except Exception as error:
            raise self._refused("open", error) from None
        self._db = db
        return db

    @property
    def _database(self) -> Rdict:
        if self._db is None:
            with self._open_lock:
                return self._db or self._open()
        return self._db

    def _writable(self) -> Rdict:
        """Return the database for writing. After a failed write RocksDB stays read-only until it is reopened."""
        if self._must_reopen:
            status = os.statvfs(self._folder)
            if status.f_bavail * status.f_frsize < WRITE_BUFFER_BYTES * WRITE_BUFFERS:
                raise StoreError("no disk space for the timers' RocksDB", hint="Free disk space")
            before = self.sequence()
            with self._open_lock:
                self._shut()
                self._open()
            if self.sequence() < before:
                self._mark_damaged()
                raise StoreError(
                    "RocksDB lost timers after a failed write", hint="Restart the broker: it rebuilds them"
                )
            self._must_reopen = False
        return self._database

    def _shut(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            with contextlib.suppress(Exception):  # data that could not be flushed is in its log
                db.close()

    def close(self) -> None:
        with self._open_lock:
            self._shut()

    def recreate(self) -> None:
        """Start again with an empty folder."""
        with self._open_lock:
            self._shut()
            try:
                # CURRENT first: without it the rest is garbage rather than half a database.
                for path in sorted(self._folder.iterdir(), key=lambda path: path.name != "CURRENT"):
                    if path.is_dir() and not path.is_symlink():
                        shutil.rmtree(path)
                    else:
                        path.unlink()
            except OSError as error:
                raise StoreError(
                    f"cannot empty {self._folder.name}: {error.strerror}", hint="Check the permissions"
                ) from None
            self._must_reopen = False
            self._open()

    # Errors

    def _refused(self, action: str, error: Exception) -> StoreError:
        text = str(error)
        if "Corruption" in text:
            self._mark_damaged()
            hint = "Restart the broker: it rebuilds the timers' database from the timer topic"
        elif _STALL in text:
            hint = "RocksDB's compaction lags behind; the broker retries"
        else:
            hint = "Free disk space, and check permissions and limits of the data directory"
        return StoreError(f"RocksDB cannot {action} in {self._folder.name}: {text}", hint=hint)

    def _mark_damaged(self) -> None:
        """Delete the generation, so that the next open rebuilds the database."""
        if self._db is not None:
            with contextlib.suppress(Exception):
                self._db.delete(GENERATION_KEY)

    # Writing

    def put(self, rows: Rows) -> None:
        """Write these sorted rows, all or none."""
        batch = WriteBatch(raw_mode=True)
        deque(starmap(batch.put, rows.view(_KEY_AND_VALUE).tolist()), maxlen=0)
        self._write(batch)

    def delete(self, rows: Rows) -> None:
        """Delete these rows, all or none."""
        batch = WriteBatch(raw_mode=True)
        deque(map(batch.delete, self._keys(rows)), maxlen=0)
        self._write(batch)

    def delete_between(self, start_ms: int, stop_ms: int) -> None:
        """Delete all rows that wake in [start, stop)."""
        batch = WriteBatch(raw_mode=True)
        batch.delete_range(key_from(start_ms), key_from(stop_ms))
        self._write(batch)

    def _write(self, batch: WriteBatch) -> None:
        db = self._writable()
        try:
            db.write(batch, self._how)
        except Exception as error:
            if _STALL in str(error):
                self.stalls += 1
            else:
                self._must_reopen = True
            raise self._refused("write", error) from None

    @staticmethod
    def _keys(rows: Rows) -> list[Any]:
        keys: list[Any] = np.ascontiguousarray(rows.view(_KEY_AND_VALUE)["key"]).tolist()
        return keys

    def sync(self) -> None:
        with self._open_lock:
            db = self._database
            try:
                db.flush_wal(sync=True)
            except Exception as error:
                self._must_reopen = True
                raise self._refused("sync", error) from None

    # Reading

    def read(self, first: bytes, below: bytes, limit: int) -> Rows:
        """Return the first rows of a key range, at most `limit`."""
        return np.frombuffer(self._read(first, below, limit, keys_only=False), ROW)

    def read_keys(self, first: bytes, below: bytes, limit: int) -> Ints:
        """Return wake time and entry of the first rows of a range, side by side; at most `limit`."""
        return np.frombuffer(self._read(first, below, limit, keys_only=True), ">i8").reshape(-1, 2).astype(np.int64)

    def _read(self, first: bytes, below: bytes, limit: int, *, keys_only: bool) -> bytes:
        """Read a key range.

        Binds no iterator to a name: an error's traceback would keep it, and thus the database, open.
        """
        options = ReadOptions()
        options.set_iterate_upper_bound(below)
        db: Any = self._database
        try:
            if keys_only:
                found = b"".join(islice(db.keys(from_key=first, read_opt=options), limit))
            else:
                found = b"".join(chain.from_iterable(islice(db.items(from_key=first, read_opt=options), limit)))
            row_bytes = KEY_BYTES if keys_only else ROW.itemsize
            if len(found) < limit * row_bytes:
                self._prove_end(found[-row_bytes:][:KEY_BYTES] + b"\0" if found else first, options)
        except StoreError:
            raise
        except Exception as error:
            raise self._refused("read", error) from None
        return found

    def _prove_end(self, after: bytes, options: ReadOptions) -> None:
        """Raise unless the range really ends here: rocksdict's iterators treat a failed read as the end."""
        probe = self._database.iter(options)
        try:
            probe.seek(after)
            is_end = not probe.valid()
            probe.status()
        finally:
            del probe
        if not is_end:
            raise StoreError("RocksDB aborted a read", hint="The broker retries")

    def first_wake_ms(self, from_ms: int) -> int | None:
        """Return the wake time of the first row at or after this time."""
        keys = self.read_keys(key_from(from_ms), GENERATION_KEY, 1)
        return int(keys[0, 0]) if len(keys) else None

    def present(self, rows: Rows) -> Bools:
        """Which of these rows exist."""
        try:
            found: Any = self._database.get(self._keys(rows))
        except Exception as error:
            raise self._refused("read", error) from None
        return np.array([value is not None for value in found], bool)

    # The whole database

    def generation(self) -> int | None:
        """Return the number that the database got at its creation; None if it has none."""
        try:
            value: Any = self._database.get(GENERATION_KEY)
        except Exception as error:
            raise self._refused("read", error) from None
        return None if value is None else int.from_bytes(value, "big")

    def set_generation(self, generation: int) -> None:
        batch = WriteBatch(raw_mode=True)
        batch.put(GENERATION_KEY, generation.to_bytes(8, "big"))
        self._write(batch)
        self.sync()

    def sequence(self) -> int:
        """Return the number of the last write. It only grows, and synced writes keep their numbers."""
        return self._database.latest_sequence_number()

    def property(self, name: str) -> int:
        """Return one of RocksDB's own integer properties."""
        return self._database.property_int_value(f"rocksdb.{name}") or 0
