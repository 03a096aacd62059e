"""The key index: hash files that find records by message key and unique key (docs/formats/index-file.md)."""

import struct
from collections.abc import Iterator
from datetime import UTC, datetime

import numpy as np

from latermq.arrays import Ints, Ints32
from latermq.store.dispatch import IndexKeys, key_hash
from latermq.store.files.disk import Disk

FOLDER = "index"
HEADER = struct.Struct(">qqqqii")  # first and last store time, first and last log offset, used slots, entries + 1
ENTRY = struct.Struct(">iqii")  # hash, log offset, seconds since the file's first record, previous entry
ENTRY_DTYPE = np.dtype([("hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
ENTRY_BYTES = ENTRY_DTYPE.itemsize
SLOT_BYTES = 4
RESERVE_STEP_BYTES = 1 << 20
# After this many steps without a hit a search yields NO_HIT, so that the caller can pause in a long chain of other
# keys.
STEPS_AT_ONCE = 64
NO_HIT = -1
# A search for many keys follows their chains for this many steps, and then scans the whole file.
MAX_STEPS_TOGETHER = 256
# The number of entries checked when a file is opened, each in a separate page.
SAMPLED = 64

_NONE: Ints = np.empty(0, np.int64)


def file_bytes(slots: int, max_entries: int) -> int:
    """Return the size of an index file."""
    return HEADER.size + slots * SLOT_BYTES + max_entries * ENTRY_BYTES


class IndexFile:
    """One hash file. A slot holds the newest entry of its chain, and each entry holds the previous one."""

    def __init__(self, disk: Disk, name: str, *, slots: int, max_entries: int) -> None:
        self.name = name
        self.max_entries = max_entries
        self.is_closed = False
        self._entries_at = HEADER.size + slots * SLOT_BYTES
        self.file = disk.map_file(f"{FOLDER}/{name}", file_bytes(slots, max_entries))
        self._slots: Ints32 = np.frombuffer(self.file.map, ">i4", slots, HEADER.size)
        self._entries = np.frombuffer(self.file.map, ENTRY_DTYPE, max_entries, self._entries_at)
        (
            self.first_timestamp_ms,
            self.last_timestamp_ms,
            self.first_offset,
            self.last_offset,
            self._used_slots,
            next_entry,
        ) = HEADER.unpack(self.file.read(0, HEADER.size))
        self.next_entry: int = max(1, next_entry)  # entry 0 is never used: a slot value of 0 means an empty chain

    @property
    def is_full(self) -> bool:
        return self.next_entry >= self.max_entries

    def put(self, keys: IndexKeys) -> int:
        """Add as many of these keys as fit, and return their number."""
        count = min(len(keys.hashes), self.max_entries - self.next_entry)
        if count <= 0:
            return 0
        hashes, offsets, timestamps_ms = keys.hashes[:count], keys.offsets[:count], keys.timestamps_ms[:count]
        entries_end = self._entries_at + (self.next_entry + count) * ENTRY_BYTES
        self.file.reserve(-(-entries_end // RESERVE_STEP_BYTES) * RESERVE_STEP_BYTES)
        if self.next_entry == 1:
            self.first_timestamp_ms, self.first_offset = int(timestamps_ms[0]), int(offsets[0])
        slots = hashes % len(self._slots)
        numbers = np.arange(self.next_entry, self.next_entry + count, dtype=np.int64)
        new = self._entries[self.next_entry : self.next_entry + count]
        new["hash"] = hashes
        new["offset"] = offsets
        new["seconds"] = np.clip((timestamps_ms - self.first_timestamp_ms) // 1000, 0, 0x7FFFFFFF)
        new["previous"] = self._link(slots, numbers)
        self.next_entry += count
        self.last_timestamp_ms, self.last_offset = int(timestamps_ms[-1]), int(offsets[-1])
        self._write_header()
        return count

    def _link(self, slots: Ints32, numbers: Ints) -> Ints:
        """Link new entries into the chains of their slots. Return the previous entry of each."""
        order = np.argsort(slots, kind="stable")
        sorted_slots = slots[order]
        sorted_numbers = numbers[order]
        previous = np.empty(len(slots), np.int64)
        starts = np.ones(len(slots), bool)
        starts[1:] = sorted_slots[1:] != sorted_slots[:-1]
        chained = np.empty(len(slots), np.int64)
        chained[1:] = sorted_numbers[:-1]
        heads = self._slots[sorted_slots[starts]]
        chained[starts] = heads
        previous[order] = chained
        self._used_slots += int(np.count_nonzero(heads == 0))
        ends = np.ones(len(slots), bool)
        ends[:-1] = starts[1:]
        self._slots[sorted_slots[ends]] = sorted_numbers[ends]
        return previous

    def _header(self) -> bytes:
        return HEADER.pack(
            self.first_timestamp_ms, self.last_timestamp_ms,
            self.first_offset, self.last_offset, self._used_slots, self.next_entry,
        )  # fmt: skip

    def _write_header(self) -> None:
        self.file.map[: HEADER.size] = self._header()

    def find(self, wanted: int, begin_ms: int, end_ms: int, start: int = 0) -> Iterator[int]:
        """Yield log offsets from `start` with this hash and a store time that may be in [begin, end], newest first.

        Yields NO_HIT after every STEPS_AT_ONCE steps. The file may be closed while the search is paused.
        """
        number = int(self._slots[wanted % len(self._slots)])
        steps = 0
        while 0 < number < self.next_entry:
            steps += 1
            found, offset, seconds, previous = ENTRY.unpack_from(self.file.map, self._entries_at + number * ENTRY_BYTES)
            stored_ms = self.first_timestamp_ms + seconds * 1000
            # A chain only leads back; anything else is corruption.
            number = previous if previous < number and offset >= start else 0
            if found == wanted and offset >= start and stored_ms <= end_ms and stored_ms + 999 >= begin_ms:
                yield offset
            if steps % STEPS_AT_ONCE == 0:
                yield NO_HIT
            if self.is_closed:
                return

    def find_all(self, wanted: Ints) -> tuple[Ints, Ints]:
        """Find all entries of many hashes: return the row of the hash and the log offset for each.

        All chains are followed together, one step at a time. If a chain is very long, for example that of a key which
        many messages share, the whole file is scanned instead, at 3 ns per entry.
        """
        rows = np.arange(len(wanted))
        numbers = self._slots[wanted % len(self._slots)].astype(np.int64)
        found_rows: list[Ints] = []
        found_offsets: list[Ints] = []
        for _ in range(MAX_STEPS_TOGETHER):
            alive = (numbers > 0) & (numbers < self.next_entry)
            if not alive.any():
                break
            rows, numbers = rows[alive], numbers[alive]
            entries = self._entries[numbers]
            hits = entries["hash"] == wanted[rows]
            found_rows.append(rows[hits])
            found_offsets.append(entries["offset"][hits].astype(np.int64))
            previous = entries["previous"].astype(np.int64)
            numbers = np.where(previous < numbers, previous, 0)  # a chain only leads back; anything else is corruption
        else:
            left = rows[(numbers > 0) & (numbers < self.next_entry)]
            return self._scan_for(wanted, left, found_rows, found_offsets)
        return np.concatenate([*found_rows, _NONE]), np.concatenate([*found_offsets, _NONE])

    def _scan_for(
        self, wanted: Ints, left: Ints, found_rows: list[Ints], found_offsets: list[Ints]
    ) -> tuple[Ints, Ints]:
        """Add the entries of hashes whose chains were too long. Some of them may already be in the result."""
        hashes = self._entries["hash"][1 : self.next_entry]
        if len(left):
            order = left[np.argsort(wanted[left], kind="stable")]
            ordered = wanted[order]
            hits = np.flatnonzero(np.isin(hashes, ordered))
            # Several rows may search for the same hash.
            starts = np.searchsorted(ordered, hashes[hits], side="left")
            counts = np.searchsorted(ordered, hashes[hits], side="right") - starts
            firsts = np.cumsum(counts) - counts
            places = np.arange(int(counts.sum())) - np.repeat(firsts, counts) + np.repeat(starts, counts)
            found_rows.append(order[places])
            found_offsets.append(np.repeat(self._entries["offset"][1:][hits].astype(np.int64), counts))
        return np.concatenate([*found_rows, _NONE]), np.concatenate([*found_offsets, _NONE])

    def is_sound(self, upto: int) -> bool:
        """Whether header, slots and a sample of the entries below `upto` are consistent.

        The caller knows that the entries below `upto` exist.
        """
        if not 1 <= upto <= self.next_entry <= self.max_entries:
            return False
        if upto == 1:
            return True
        numbers = np.unique(np.linspace(1, upto - 1, SAMPLED).astype(np.int64))
        entries = self._entries[numbers]
        hashes, offsets = entries["hash"].astype(np.int64), entries["offset"].astype(np.int64)
        previous = entries["previous"].astype(np.int64)
        in_order = (np.diff(offsets) >= 0).all() and offsets[0] == self.first_offset and offsets[-1] <= self.last_offset
        linked = (previous >= 0).all() and (previous < numbers).all() and (hashes >= 0).all()
        if not (in_order and linked):
            return False
        if not self.is_full:
            return True  # its slots are rebuilt from the entries
        heads = self._slots[hashes % len(self._slots)]
        return bool((heads >= numbers).all() and (heads < self.next_entry).all() and offsets[-1] == self.last_offset)

    def reserve_slots(self) -> None:
        """Reserve the space of the slots before the first key is added."""
        self.file.reserve(self._entries_at + RESERVE_STEP_BYTES)

    def cut(self, log_end: int) -> None:
        """Discard the entries of records at or after `log_end`, and rebuild the slots from the remaining entries.

        After a power failure a slot may point to a lost entry, but all entries below the checkpoint exist. Data that is
        already correct is not written again.
        """
        offsets = self._entries["offset"][1 : self.next_entry]
        self.next_entry = 1 + int(np.searchsorted(offsets, log_end))
        slots = self._entries["hash"][1 : self.next_entry].astype(np.int64) % len(self._slots)
        right_slots = np.zeros_like(self._slots)
        right_slots[slots] = np.arange(1, self.next_entry)
        self._used_slots = int(np.count_nonzero(right_slots))
        if self.next_entry > 1:
            last = self._entries[self.next_entry - 1]
            if self.last_offset != int(last["offset"]):
                self.last_offset = int(last["offset"])
                self.last_timestamp_ms = self.first_timestamp_ms + int(last["seconds"]) * 1000 + 999
        if not np.array_equal(self._slots, right_slots):
            self.reserve_slots()
            self.file.write(HEADER.size, memoryview(right_slots.tobytes()))
        if self.file.map[: HEADER.size] != self._header():
            self.reserve_slots()
            self.file.write(0, memoryview(self._header()))

    def close(self) -> None:
        """Unmap the file."""
        self.is_closed = True
        del self._slots, self._entries
        self.file.close()


class KeyIndex:
    """All hash files, oldest first. Keys are collected and added in batches."""

    def __init__(self, disk: Disk, *, slots: int, max_entries: int) -> None:
        self._disk = disk
        self._slots = slots
        self._max_entries = max_entries
        self.file_bytes = file_bytes(slots, max_entries)
        sizes = {name: disk.file_size(f"{FOLDER}/{name}") for name in disk.list_names(FOLDER) if name.isdigit()}
        # Files of the wrong size, which are unusable.
        self.misfits = {name: size for name, size in sizes.items() if size not in (0, self.file_bytes)}
        self._files = [
            IndexFile(disk, name, slots=slots, max_entries=max_entries) for name in sizes if name not in self.misfits
        ]
        self._synced = ("", 0)  # the newest synced file, and its next entry at that time

    @property
    def files(self) -> list[IndexFile]:
        """The files, oldest first."""
        return list(self._files)

    def put(self, keys: IndexKeys) -> None:
        """Add keys, in the order of their records."""
        while len(keys.hashes):
            if not self._files or self._files[-1].is_full:
                self._add_file(int(keys.timestamps_ms[0]))
            done = self._files[-1].put(keys)
            keys = IndexKeys(keys.hashes[done:], keys.offsets[done:], keys.timestamps_ms[done:])

    def _add_file(self, timestamp_ms: int) -> None:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
        name = moment.strftime("%Y%m%d%H%M%S") + f"{timestamp_ms % 1000:03d}"
        if self._files and name <= self._files[-1].name:  # two files within a millisecond, or the clock went back
            name = str(int(self._files[-1].name) + 1)
        file = IndexFile(self._disk, name, slots=self._slots, max_entries=self._max_entries)
        file.reserve_slots()
        self._files.append(file)

    def find(self, topic: str, key: str, begin_ms: int, end_ms: int, start: int = 0) -> Iterator[int]:
        """Yield log offsets from `start` that may hold this key, newest first. Hashes can collide, so check the record.

        Yields NO_HIT after many steps without a hit.
        """
        wanted = key_hash(topic, key)
        for file in self._files[::-1]:
            if not file.is_closed and file.last_offset >= start and file.first_timestamp_ms <= end_ms:
                yield from file.find(wanted, begin_ms, end_ms, start)

    def find_all(self, wanted: Ints) -> tuple[Ints, Ints]:
        """For many hashes at once, return the rows of the hashes and the log offsets that may hold their keys.

        The result is unordered and may contain duplicates. Hashes can collide, so the caller checks the record.
        """
        found = [file.find_all(wanted) for file in self._files]
        rows, offsets = zip(*found, strict=True) if found else ((), ())
        return np.concatenate([*rows, _NONE]), np.concatenate([*offsets, _NONE])

    def sync(self) -> None:
        """Sync everything added since the last sync. Blocks; may run concurrently with the writer."""
        for file in list(self._files):
            state = (file.name, file.next_entry)
            if state > self._synced:
                file.file.sync()
                self._synced = state

    @property
    def mark(self) -> tuple[str, int]:
        """The index's end for the checkpoint: its newest file and the next entry in it."""
        return (self._files[-1].name, self._files[-1].next_entry) if self._files else ("", 1)

    @property
    def newest(self) -> tuple[int, int]:
        """The store time and log offset of the newest record with a key."""
        return (self._files[-1].last_timestamp_ms, self._files[-1].last_offset) if self._files else (0, 0)

    def restore(self, mark: tuple[str, int], log_end: int) -> None:
        """Return to a checkpoint: remove later files and discard later entries."""
        name, next_entry = mark
        while self._files and self._files[-1].name > name:
            self._remove(self._files.pop())
        if self._files and self._files[-1].name == name:
            self._files[-1].next_entry = next_entry
            self._files[-1].cut(log_end)

    def drop_below(self, log_start: int) -> list[str]:
        """Drop the files whose records are all gone, and return the paths to remove."""
        paths = []
        while len(self._files) > 1 and self._files[0].last_offset < log_start:
            file = self._files.pop(0)
            file.close()
            paths.append(f"{FOLDER}/{file.name}")
        return paths

    def clear(self) -> None:
        """Remove everything before a rebuild."""
        while self._files:
            self._remove(self._files.pop())
        for name in self.misfits:
            self._disk.remove(f"{FOLDER}/{name}")
        self.misfits = {}

    def _remove(self, file: IndexFile) -> None:
        file.close()
        self._disk.remove(f"{FOLDER}/{file.name}")

    def close(self) -> None:
        """Unmap all files."""
        for file in self._files:
            file.close()
        self._files.clear()
