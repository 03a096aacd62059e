"""Stores that earlier code made and left by `kill -9`, short files included, open with everything in them."""

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from latermq.broker.broker import Broker
from latermq.clock import SimulatedClock
from latermq.config import Config, Size, TimerConfig
from latermq.handover.checked_file import decode_checked
from latermq.store.checkpoint import PATH, Checkpoint
from latermq.store.files.disk import FileDisk
from tests.golden.files import unpack
from tests.support.brokers_in_memory import STORE, messages, pass_time

ARCHIVE = Path(__file__).resolve().parents[2] / "golden" / "before" / "store.tar.gz"
KILLED_MS = 1_800_000_001_600
SENT = 360
TOPICS, QUEUES = 3, 4


def as_it_was(folder: Path) -> None:
    """Nothing happened to it."""


def shorten_queue(folder: Path) -> None:
    os.truncate(folder / "consumequeue/topic-1/2" / ("0" * 20), 25 * 20)


def shorten_queues(folder: Path) -> None:
    """As a start left them that was killed while it cut one after the other, many times over."""
    data = (folder / PATH).read_bytes()
    ends = decode_checked(data, Checkpoint, PATH, "").queue_ends
    for topic, own in ends.items():
        for queue_id, end in own.items():
            os.truncate(folder / f"consumequeue/{topic}/{queue_id}" / ("0" * 20), end * 20)


def shorten_log(folder: Path) -> None:
    os.truncate(folder / "commitlog" / f"{262_144:020d}", 375_498 - 262_144)


def shorten_timer_log(folder: Path) -> None:
    os.truncate(folder / "timerlog" / ("0" * 20), 30 * 52)


def empty_wheel(folder: Path) -> None:
    os.truncate(folder / "timerwheel", 0)


def add_files_without_size(folder: Path) -> None:
    (folder / "commitlog" / f"{524_288:020d}").touch()
    (folder / "consumequeue/topic-1/2" / f"{1_280:020d}").touch()
    (folder / "consumequeue/topic-9/0").mkdir(parents=True)
    (folder / "consumequeue/topic-9/0" / ("0" * 20)).touch()
    (folder / "latermq.checkpoint.draft").write_bytes(b"half of")
    (folder / "removing-topic-8" / "0").mkdir(parents=True)


@pytest.mark.parametrize(
    "harm",
    [
        as_it_was,
        shorten_queue,
        shorten_queues,
        shorten_log,
        shorten_timer_log,
        empty_wheel,
        add_files_without_size,
    ],
)
def test_a_store_of_before_opens_with_everything_in_it(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    unpack(ARCHIVE, tmp_path)
    folder = tmp_path / "data"
    harm(folder)
    clock = SimulatedClock(KILLED_MS)
    config = Config(store=STORE, timer=TimerConfig(log_file=Size(1 << 20)))
    broker = Broker(config, FileDisk(folder), clock, host="127.0.0.1", port=10911, new_store_id="x" * 32)
    assert broker.store.store_id == "g" * 32
    pass_time(broker, clock, 10_000)
    broker.store.flush()
    pass_time(broker, clock, 490_000)
    found = Counter(
        int(message.body)
        for topic in range(TOPICS)
        for queue_id in range(QUEUES)
        for message in messages(broker, f"topic-{topic}", queue_id)
    )
    assert found == Counter(range(SENT))
    assert len(list(broker.store.reader.find_by_key("topic-1", "k1", 0, 1 << 62))) == 1
    assert not list(folder.glob("removing-*"))
    broker.close()
