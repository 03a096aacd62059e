"""The keys that a job has scheduled, stored next to the timeline for as long as the job's folder is kept.

Brokers know a name only while its timer is pending and for the retention time after that. A job may run again later.
"""

import hashlib
import secrets
import struct
import threading
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np

from latermq.arrays import Bools, Texts
from latermq.errors import CorruptStore, StoreError
from latermq.model.rows import RowBatch
from latermq.pipeline.bulk.bulk_job import files_in
from latermq.pipeline.timeline.root import Root, file_errors, write_file
from latermq.protocol.remoting.rows import decode_rows

FOLDER, ENDING = "scheduled", ".keys"
MAGIC = b"LMQKEYS1"
KEY_BYTES = 16
# With more files than this, the end of a run merges them into one.
MAX_FILES = 32
SAMPLE_KEYS = 5
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


class JobKeys:
    """All keys of one job. Senders query and add keys concurrently. Each file is written atomically."""

    def __init__(self, root: Root, folder: str) -> None:
        """`folder` is that of the job, or of a batch of a stream."""
        self._root = root
        self._folder = f"{folder}/{FOLDER}"
        self._files = files_in(root, self._folder, ENDING)
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
        """Merge many small files into one. A run that dies in between leaves duplicate keys, which do no harm."""
        if len(self._files) <= MAX_FILES:
            return
        known, old = self._read_all(), list(self._files)
        self._files = [self._write(known)]
        for name in old:
            with file_errors(name), suppress(FileNotFoundError):  # another run was faster
                self._root.files.delete_file(f"{self._folder}/{name}")

    def _read_all(self) -> Keys:
        """Read all keys. A concurrent run may be merging its files. If so, list them again."""
        while True:
            try:
                return _sorted(self._read(name) for name in self._files)
            except StoreError:
                listed = files_in(self._root, self._folder, ENDING)
                if listed == self._files:
                    raise
                self._files = listed

    def _write(self, keys: Keys) -> str:
        name = f"{secrets.token_hex(8)}{ENDING}"
        data = _HEAD.pack(MAGIC, len(keys)) + keys.tobytes()
        write_file(self._root, f"{self._folder}/{name}", data + _CHECKSUM.pack(zlib.crc32(data)))
        return name

    def _read(self, name: str) -> Keys:
        path = str(PurePosixPath(self._folder) / name)
        with file_errors(path), self._root.files.open_input_stream(path) as stream:
            data = bytes(stream.read())
        end = len(data) - _CHECKSUM.size
        is_intact = end >= _HEAD.size and data[end:] == _CHECKSUM.pack(zlib.crc32(data[:end]))
        if not is_intact or _HEAD.unpack_from(data) != (MAGIC, (end - _HEAD.size) // KEY_BYTES):
            raise CorruptStore(
                f"{path} is damaged: the rows that the job has scheduled are unknown",
                hint="Restore it from a backup. If you delete it, the job schedules rows again whose timers were "
                "delivered longer ago than the brokers' store.retention",
            )
        return np.frombuffer(data, _KEY, (end - _HEAD.size) // KEY_BYTES, _HEAD.size)


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
