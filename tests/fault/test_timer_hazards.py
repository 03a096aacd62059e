"""Timers when something is short or wrong: a full disk, a full engine, a flood, topics that go, clocks that are set."""

import contextlib
import resource
from collections.abc import Callable, Iterator
from itertools import pairwise

import msgspec
import pytest

from latermq.broker.broker import Broker
from latermq.clock import SimulatedClock
from latermq.config import Size, TimerConfig
from latermq.errors import FlowControl, StoreError
from latermq.message.batch import BatchMember, encode_batch
from latermq.message.names import TIMER_DEAD_LETTER_TOPIC, TIMER_TOPIC
from latermq.message.properties import DEAD_LETTER_REASON
from latermq.message.record import Message
from latermq.protocol.remoting.timer_bodies import Verdict
from latermq.store.memory_disk import MemoryDisk
from latermq.timer.delivery import LONGEST_PAUSE_MS
from latermq.timer.timers import READ_AT_ONCE, RETRY_MS
from tests.brokers_in_memory import HOST, STORE, bodies, messages, open_broker, pass_time, run_until_quiet, send
from tests.needs import LONG
from tests.unit.test_timers import ENGINES, Scene

MAX_STEP_MS = 3_600_000
HOLD_MS = 60_000
FLUSH_EVERY_MS = 500


@pytest.fixture(params=ENGINES)
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    scene = Scene(request.param)
    yield scene
    scene.broker.timers.engine.close()


def fail(scene: Scene, *paths: str) -> None:
    """From now on there is no space for files whose paths begin so."""

    def refuse(operation: str, path: str) -> None:
        if operation in ("reserve", "map") and path.startswith(paths):
            raise StoreError(f"no space for {path}")

    scene.disk.before_step = refuse


def heal(scene: Scene) -> None:
    scene.disk.before_step = lambda operation, path: None


def due_of(message: Message) -> int:
    return int(message.properties["LMQ_DUE_MS"])


def check_punctual(found: list[Message], count: int, late_until_ms: int = 0) -> None:
    """All are there once and to the millisecond; those due by a time may be late, but not early."""
    assert sorted(int(message.body.split()[0]) for message in found) == list(range(count))
    for message in found:
        if due_of(message) > late_until_ms:
            assert message.store_timestamp_ms == due_of(message)
        assert message.store_timestamp_ms >= due_of(message)


# A disk without space


@pytest.mark.parametrize("full", ["commitlog", "consumequeue/orders", "index", ""])
@pytest.mark.parametrize("ending", ["goes on", "dies", "dies and the disk stays full"])
def test_a_disk_that_is_full_for_a_while_makes_timers_late_and_loses_none(scene: Scene, full: str, ending: str) -> None:
    count = 200
    keys = " ".join(f"key{number}" for number in range(20))  # so many that the index needs a second file
    for number in range(count):
        scene.send(b"%d " % number + b"x" * 1_000, 5_000 + 100 * number, KEYS=keys)
    scene.checkpoint()
    scene.pass_time(7_000)
    before = bodies(scene.broker)
    assert len(before) == 21
    fail(scene, full)
    scene.pass_time(8_000)
    during = bodies(scene.broker)
    assert len(during) < 101, "what was reserved before has lasted"
    assert during[:21] == before
    assert scene.broker.delivery.failure.startswith("no space")
    assert scene.broker.delivery.statistics()["kept_back"]
    if ending != "goes on":
        refuse = scene.disk.before_step
        scene.restart()
        if ending != "dies":
            scene.disk.before_step = refuse
            scene.pass_time(1_000)
    heal(scene)
    tried_again_ms = scene.clock.now_ms() + LONGEST_PAUSE_MS
    scene.pass_time(30_000)
    found = messages(scene.broker)
    check_punctual(found, count, late_until_ms=tried_again_ms)
    assert all(message.store_timestamp_ms <= max(due_of(message), tried_again_ms) for message in found)
    if ending == "goes on":
        assert all(due_of(one) <= due_of(other) for one, other in pairwise(found)), "one overtook another"
    assert scene.broker.delivery.failure == ""
    assert scene.broker.pending.count() == 0
