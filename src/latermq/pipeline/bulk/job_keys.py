"""The keys that a job has scheduled, stored next to the timeline for as long as the job's folder is kept.

Brokers know a name only while its timer is pending and for the retention time after that. A job may run again later.
"""

import hashlib
import re
import secrets
import struct
import threading
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np
from pyarrow import fs

from latermq.arrays import Bools, Texts
from latermq.errors import CorruptStore, StoreError
from latermq.model.rows import RowBatch
from latermq.pipeline.bulk.bulk_job import files_in
from latermq.pipeline.bulk.shares import KEY_BYTES, Share
from latermq.pipeline.timeline.root import Root, file_errors, write_file
from latermq.protocol.remoting.rows import decode_rows

FOLDER, ENDING = "scheduled", ".keys"
MAGIC = b"LMQKEYS1"
# With more files than this, the end of a run merges them into one.
MAX_FILES = 32
SAMPLE_KEYS = 5
READ_KEYS = 1 << 20  # keys of a file that are in memory at once
_ALL = Share()
_NAME = re.compile(r"([0-9a-f]{8})-([0-9a-f]{8})-").match
_HEAD = struct.Struct("<8sQ")  # magic, number of keys
_CHECKSUM = struct.Struct("<I")  # CRC-32 of everything before it

# 16 bytes each. All have the same length, so numpy compares them as a whole.
Keys = Texts
_KEY = np.dtype(f"S{KEY_BYTES}")


def keys_of(batch: RowBatch) -> Keys:
    """The keys of a batch's rows, from unique key and topic. One unique key under two topics is two timers."""
    unique_keys = np.frombuffer(bytes.fromhex(batch.unique_keys.data.decode()), np.uint64).reshape(-1, 2)
    digests = [hashlib.blake2b(topic.encode(), digest_size=KEY_BYTES).digest() for topic in batch.topics]
    topics = np.frombuffer(b"".join(digests), np.uint64).reshape(-1, 2)
    return (unique_keys ^ topics[batch.topic_of]).view(_KEY).ravel()


def stored_keys(root: Root, folder: str) -> int:
    """How many keys the files of a job have; a key that is in several files counts several times."""
    path = f"{folder}/{FOLDER}"
    with file_errors(path):
        found = root.files.get_file_info(fs.FileSelector(path, allow_not_found=True))
    frame_bytes = _HEAD.size + _CHECKSUM.size
    return sum(
        max(0, info.size - frame_bytes) // KEY_BYTES
        for info in found
        if info.is_file and info.base_name.endswith(ENDING)
    )


class JobKeys:
    """The keys of one share of a job. Senders query and add keys concurrently. Each file is written atomically."""

    def __init__(self, root: Root, folder: str, share: Share = _ALL) -> None:
        """`folder` is that of the job, or of a batch of a stream. Keys that are added must belong to the share."""
        self._root = root
        self._folder = f"{folder}/{FOLDER}"
        self._share = share
        self._files = self._list()
        self._known = self._read_all()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._known)

    def known(self, keys: Keys) -> Bools:
        """Which of these keys an earlier run has scheduled."""
        if not len(self._known):
            return np.zeros(len(keys), bool)
        at = np.minimum(np.searchsorted(self._known, keys), len(self._known) - 1)
        found: Bools = self._known[at] == keys
        return found

    def add(self, keys: Sequence[Keys]) -> None:
        """Remember keys whose timers are durable at their brokers."""
        if keys:
            name = self._write(_sorted(keys))
            with self._lock:
                self._files.append(name)

    def merge_files(self) -> None:
        """Merge many small files into one. A run that dies in between leaves duplicate keys, which do no harm.

        Files of an earlier run with fewer shares, which hold keys of other shares too, stay as they are.
        """
        own = [name for name in self._files if self._share.contains(_share_of(name))]
        if len(own) <= MAX_FILES:
            return
        known = self._read_all()
        merged = self._write(known)
        for name in own:
            with file_errors(name), suppress(FileNotFoundError):  # another run was faster
                self._root.files.delete_file(f"{self._folder}/{name}")
        self._files = [merged, *(name for name in self._files if name not in own)]

    def _list(self) -> list[str]:
        names = files_in(self._root, self._folder, ENDING)
        return [name for name in names if self._share.overlaps(_share_of(name))]

    def _read_all(self) -> Keys:
        """Read all keys. A concurrent run may be merging its files. If so, list them again."""
        while True:
            try:
                return _sorted(self._read(name) for name in self._files)
            except StoreError:
                listed = self._list()
                if listed == self._files:
                    raise
                self._files = listed

    def _write(self, keys: Keys) -> str:
        name = f"{self._share.first:08x}-{self._share.end - 1:08x}-{secrets.token_hex(8)}{ENDING}"
        data = _HEAD.pack(MAGIC, len(keys)) + keys.tobytes()
        write_file(self._root, f"{self._folder}/{name}", data + _CHECKSUM.pack(zlib.crc32(data)))
        return name

    def _read(self, name: str) -> Keys:
        """The share's keys in a file. Only these stay in memory: the file may have the keys of all shares."""
        path = str(PurePosixPath(self._folder) / name)
        kept: list[Keys] = []
        with file_errors(path), self._root.files.open_input_stream(path) as stream:
            head = bytes(stream.read(_HEAD.size))
            magic, left = _HEAD.unpack(head) if len(head) == _HEAD.size else (b"", 0)
            checksum, is_intact = zlib.crc32(head), magic == MAGIC
            while is_intact and left:
                data = bytes(stream.read(min(left, READ_KEYS) * KEY_BYTES))
                is_intact = bool(data) and len(data) % KEY_BYTES == 0
                checksum = zlib.crc32(data, checksum)
                left -= len(data) // KEY_BYTES
                if is_intact:
                    keys = np.frombuffer(data, _KEY)
                    kept.append(keys if self._share == _ALL else keys[self._share.of(keys)])
            end = bytes(stream.read(_CHECKSUM.size + 1)) if is_intact else b""
        if end != _CHECKSUM.pack(checksum):
            raise CorruptStore(
                f"{path} is damaged: the rows that the job has scheduled are unknown",
                hint="Restore it from a backup. If you delete it, the job schedules rows again whose timers were "
                "delivered longer ago than the brokers' store.retention",
            )
        return np.concatenate([np.empty(0, _KEY), *kept])


def _share_of(name: str) -> Share:
    """The share of a file's keys; all keys for a file of an earlier version."""
    found = _NAME(name)
    return Share(int(found[1], 16), int(found[2], 16) + 1) if found else _ALL


@dataclass(frozen=True)
class Repeated:
    """Rows whose key another row of the same run has. Only one of them becomes a timer."""

    rows: int = 0
    sample: tuple[str, ...] = ()  # some of their keys


def find_repeated(bodies: Iterable[bytes], again: Iterable[bytes]) -> Repeated:
    """Count repeated rows. `again` yields the same bodies for a second read, only needed if there are any.

    Holds 16 bytes per row.
    """
    columns = [keys_of(decode_rows(body)) for body in bodies]
    keys = np.concatenate([np.empty(0, _KEY), *columns])
    # Integers sort five times as fast as byte strings. If all integers differ, so do the keys.
    heads = np.sort(keys.view(np.uint64)[::2])
    if not (heads[1:] == heads[:-1]).any():
        return Repeated()
    distinct, counts = np.unique(keys, return_counts=True)
    repeated = distinct[counts > 1]
    sample: list[str] = []
    for unique_key, key in _keys_with_names(again if len(repeated) else ()):
        if len(sample) == SAMPLE_KEYS:
            break
        if repeated[min(int(np.searchsorted(repeated, unique_key)), len(repeated) - 1)] == unique_key:
            sample += [key] if key not in sample else []
    return Repeated(len(keys) - len(distinct), tuple(sample))


def _keys_with_names(bodies: Iterable[bytes]) -> Iterator[tuple[np.bytes_, str]]:
    for body in bodies:
        batch = decode_rows(body)
        names = (value.decode(errors="replace") for value in batch.keys.values())
        yield from zip(keys_of(batch), names, strict=True)


def _sorted(pieces: Iterable[Keys]) -> Keys:
    return np.unique(np.concatenate([np.empty(0, _KEY), *pieces]))
