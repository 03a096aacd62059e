"""How late delayed messages are stored: read from the broker's own log, whose format both brokers share."""

import contextlib
import mmap
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from latermq.message.names import SCHEDULE_TOPIC
from latermq.message.properties import decode_properties
from latermq.message.record import Layout, layout, record_store_timestamp_ms
from latermq.timer.levels import LevelTable
from tests.bench.contenders import LEVELS, Contender
from tests.bench.load import Figures, Load, SendShape
from tests.interop.waiting import wait_until

_TABLE = LevelTable(LEVELS)
_DELAYS_MS = tuple(_TABLE.delay_ms(level) for level in range(1, len(_TABLE) + 1))
# What a cold broker takes a second. All must be sent before they are due.
_SLOWEST_PER_S = 12_000
_LEAD_MS = 2_000
# A backlog of deliveries may take its time; what it took is in the figures.
_STORED_TIMEOUT_S = 300


class Stored(NamedTuple):
    """What the log says of a message."""

    topic: str
    unique_key: str
    stored_ms: int
    level: int


def due_together(shape: SendShape, count: int) -> SendShape:
    """Sends over half a minute that fall due within about a second: the later one is sent, the shorter its level."""
    lead_ms = _LEAD_MS + count * 1_000 // _SLOWEST_PER_S
    return replace(shape, delays_ms=_DELAYS_MS, due_at_ms=int(time.time() * 1000) + lead_ms)


def measure_levels(load: Load, contender: Contender, name: str, count: int, shape: SendShape) -> Figures:
    """Send delayed messages, wait until all are stored in their topic, and tell how late they were."""
    topic = f"bench-{name}"
    load.make_topic(contender, topic, shape.size)
    before = log_end(contender.log_folder)
    sent = load.send(contender, topic, count, shape)
    taken = count - int(sent["failed sends"])

    last_due_ms = (
        shape.due_at_ms + 1_000 if shape.delays_ms else time.time() * 1000 + _TABLE.delay_ms(shape.delay_level)
    )
    # Nobody asks the broker before then: that would be work of its own.
    wait_until(lambda: time.time() * 1000 > last_due_ms, _STORED_TIMEOUT_S, "the last message is due")

    def all_stored() -> bool:
        return load.stored(contender, topic) > taken

    wait_until(all_stored, _STORED_TIMEOUT_S, f"{contender.name} has stored {taken} messages of {topic}")
    return lateness(contender.log_folder, before, topic)


def lateness(folder: Path, start: int, topic: str) -> Figures:
    """Store time of each delivered message minus its due time: the store time of its waiting record and the level."""
    due_ms: dict[str, int] = {}
    stored_ms: list[int] = []
    late_ms: list[int] = []
    times: Counter[str] = Counter()
    for record in read_log(folder, start, topic):
        if record.topic == SCHEDULE_TOPIC:
            due_ms[record.unique_key] = record.stored_ms + _TABLE.delay_ms(record.level)
        elif record.unique_key in due_ms:
            stored_ms.append(record.stored_ms)
            late_ms.append(record.stored_ms - due_ms[record.unique_key])
            times[record.unique_key] += 1
    if not late_ms:
        raise RuntimeError(f"no message of {topic} was delivered")
    late = np.sort(np.array(late_ms))
    dues = np.array(list(due_ms.values()))
    return {
        "lateness p50 (ms)": float(late[len(late) // 2]),
        "lateness p99 (ms)": float(late[min(len(late) - 1, len(late) * 99 // 100)]),
        "lateness max (ms)": float(late[-1]),
        "due within (ms)": float(dues.max() - dues.min()),
        "last due to last stored (ms)": float(max(stored_ms) - dues.max()),
        "first due to last stored (ms)": float(max(stored_ms) - dues.min()),
        "delivered": float(len(times)),
        "stored early": float(np.count_nonzero(late < 0)),
        "never stored": float(len(due_ms) - len(times)),
        "stored twice": float(sum(count > 1 for count in times.values())),
    }


def read_log(folder: Path, start: int, topic: str) -> Iterator[Stored]:
    """The delayed messages for a topic, waiting and delivered, from a log offset on."""
    wanted = topic.encode()
    for file in sorted(folder.iterdir()):
        with mapped(file) as data:
            for at, parts in records(data, max(0, start - int(file.name))):
                name = data[at + parts.topic_at : at + parts.topic_at + parts.topic_bytes]
                raw = data[at + parts.properties_at : at + parts.size]
                if name == wanted or (name == SCHEDULE_TOPIC.encode() and wanted in raw):
                    properties = decode_properties(raw.decode())
                    level = int(properties.get("DELAY", "0"))
                    yield Stored(name.decode(), properties["UNIQ_KEY"], record_store_timestamp_ms(data, at), level)


def log_end(folder: Path) -> int:
    """Where the last record of a log ends."""
    for file in sorted(folder.iterdir(), reverse=True):
        with mapped(file) as data:
            end = max((at + parts.size for at, parts in records(data, 0)), default=0)
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
