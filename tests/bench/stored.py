"""Stored messages and their store times, read from the log files, whose format both brokers share."""

import contextlib
import mmap
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from latermq.message.properties import REAL_TOPIC, UNIQUE_KEY, decode_properties, find_property
from latermq.message.record import Layout, layout, record_store_timestamp_ms
from latermq.message.record_fields import MAGIC, MAGIC_LONG_TOPIC
from tests.bench.load import Figures

_REAL_TOPIC = REAL_TOPIC.encode()
_SIZE_AND_MAGIC = struct.Struct(">II")  # the start of a record


class Stored(NamedTuple):
    """A message in the log."""

    is_waiting: bool
    stored_ms: int
    properties: dict[str, str]

    @property
    def unique_key(self) -> str:
        return self.properties[UNIQUE_KEY]


class Lateness(NamedTuple):
    """The due times of messages of one topic, and the store times of those that waited."""

    due_ms: dict[str, int]
    stored: list[tuple[str, int]]
    immediate: int  # already due when they arrived, so they never waited

    def figures(self) -> Figures:
        times = Counter(key for key, _ in self.stored)
        stored_ms = np.array([at_ms for _, at_ms in self.stored])
        late = np.sort(stored_ms - np.array([self.due_ms[key] for key, _ in self.stored]))
        dues = np.array(list(self.due_ms.values()))
        return {
            "lateness p50 (ms)": float(late[len(late) // 2]),
            "lateness p99 (ms)": float(late[min(len(late) - 1, len(late) * 99 // 100)]),
            "lateness max (ms)": float(late[-1]),
            "due within (ms)": float(dues.max() - dues.min()),
            "last due to last stored (ms)": float(stored_ms.max() - dues.max()),
            "first due to last stored (ms)": float(stored_ms.max() - dues.min()),
            "delivered": float(len(times)),
            "stored early": float(np.count_nonzero(late < 0)),
            "never stored": float(len(self.due_ms) - len(times)),
            "stored twice": float(sum(count > 1 for count in times.values())),
            "sent too late": float(self.immediate),
        }


def read_lateness(
    folder: Path, start: int, topic: str, waiting_topic: str, due_ms_of: Callable[[Stored], int]
) -> Lateness:
    """Join waiting and delivered messages of a topic by unique key. `due_ms_of` gets each waiting one."""
    due_ms: dict[str, int] = {}
    stored: list[tuple[str, int]] = []
    immediate = 0
    for record in read_log(folder, start, topic, waiting_topic):
        if record.is_waiting:
            due_ms[record.unique_key] = due_ms_of(record)
        elif record.unique_key in due_ms:
            stored.append((record.unique_key, record.stored_ms))
        else:
            immediate += 1
    if not stored:
        raise RuntimeError(f"no message of {topic} was delivered")
    return Lateness(due_ms, stored, immediate)


def read_log(folder: Path, start: int, topic: str, waiting_topic: str) -> Iterator[Stored]:
    """The messages for a topic, waiting and delivered, from a log offset on."""
    topic_name, waiting_name = topic.encode(), waiting_topic.encode()
    for file in sorted(folder.iterdir()):
        with mapped(file) as data:
            for at, parts in records(data, max(0, start - int(file.name))):
                name = data[at + parts.topic_at : at + parts.topic_at + parts.topic_bytes]
                if name not in (topic_name, waiting_name):
                    continue
                raw = data[at + parts.properties_at : at + parts.size]
                if name == topic_name or find_property(raw, _REAL_TOPIC) == topic_name:
                    yield Stored(
                        name == waiting_name, record_store_timestamp_ms(data, at), decode_properties(raw.decode())
                    )


def log_end(folder: Path) -> int:
    """The end of the last record of a log. This reads only lengths and takes a second per gigabyte."""
    for file in sorted(folder.iterdir(), reverse=True):
        with mapped(file) as data:
            end = 0
            while end + _SIZE_AND_MAGIC.size <= len(data):
                size, magic = _SIZE_AND_MAGIC.unpack_from(data, end)
                if magic not in (MAGIC, MAGIC_LONG_TOPIC) or not size:
                    break
                end += size
        if end:
            return int(file.name) + end
    return 0


def records(data: mmap.mmap, at: int) -> Iterator[tuple[int, Layout]]:
    while (parts := layout(data, at, len(data))) is not None:
        yield at, parts
        at += parts.size


@contextlib.contextmanager
def mapped(file: Path) -> Iterator[mmap.mmap]:
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        yield data
