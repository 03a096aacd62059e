"""After a change of engines all cancels and moves in the log act again: in bulk, and nothing that they took comes."""

from collections import Counter
from random import Random
from typing import Any

import pytest

from latermq.clock import SimulatedClock
from latermq.config import TimerConfig
from latermq.model.timers import Verdict
from latermq.store.commit_log import CommitLog
from latermq.store.files.memory_disk import MemoryDisk
from latermq.store.index.key_index import KeyIndex
from tests.support.brokers_in_memory import bodies, open_broker, pass_time, send
from tests.support.pipeline.far_broker import FarBroker

CANCELS = 600
DELAY_MS = 30_000


def count_calls(monkeypatch: pytest.MonkeyPatch, calls: Counter[str], owner: type, name: str) -> None:
    called = getattr(owner, name)

    def counted(self: object, *values: Any, **named: Any) -> Any:
        calls[name] += 1
        return called(self, *values, **named)

    monkeypatch.setattr(owner, name, counted)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the index is asked for one key and for many, and how many records are read."""
    calls: Counter[str] = Counter()
    for name in ("find", "find_all"):
        count_calls(monkeypatch, calls, KeyIndex, name)
    for name in ("read", "read_record"):
        count_calls(monkeypatch, calls, CommitLog, name)
    return calls


def engine(name: str) -> TimerConfig:
    return TimerConfig(engine=name)  # type: ignore[arg-type]


@pytest.mark.parametrize("names", [["wheel", "rocksdb"], ["rocksdb", "wheel"]], ids=["to-rocksdb", "to-wheel"])
def test_each_cancel_costs_two_records_and_no_look_up_of_its_own(names: list[str], calls: Counter[str]) -> None:
    disk, clock = MemoryDisk(), SimulatedClock()
    broker = open_broker(disk, clock, engine(names[0]))
    for number in range(CANCELS + 50):
        send(broker, b"%d" % number, UNIQ_KEY=f"n{number}", TIMER_DELAY_MS=str(DELAY_MS))
    for number in range(CANCELS):
        assert broker.pending.cancel("orders", f"n{number}").verdict == Verdict.CANCELLED
    broker.store.flush()
    broker.store.save(broker.store.plan_checkpoint())
    broker.timers.engine.close()
    calls.clear()
    broker = open_broker(disk.after_process_crash(), clock, engine(names[1]))
    assert calls["find"] == 0, "no name is looked for by itself"
    assert calls["find_all"] <= 8
    assert calls["read"] + calls["read_record"] <= 3 * CANCELS + 100, dict(calls)
    assert broker.pending.count() == 50
    broker.store.flush()
    pass_time(broker, clock, DELAY_MS + 1_000)
    assert sorted(bodies(broker)) == sorted(b"%d" % number for number in range(CANCELS, CANCELS + 50))
    broker.timers.engine.close()


def test_a_name_that_was_cancelled_again_and_again_is_read_once(calls: Counter[str]) -> None:
    disk, clock = MemoryDisk(), SimulatedClock()
    broker = open_broker(disk, clock, engine("wheel"))
    for _ in range(200):
        send(broker, b"again", UNIQ_KEY="name", TIMER_DELAY_MS=str(DELAY_MS))
        broker.pending.cancel("orders", "name")
    send(broker, b"last", UNIQ_KEY="name", TIMER_DELAY_MS=str(DELAY_MS))
    broker.timers.engine.close()
    calls.clear()
    broker = open_broker(disk.after_process_crash(), clock, engine("rocksdb"))
    assert calls["read"] + calls["read_record"] <= 4 * 200 + 100, dict(calls)
    broker.store.flush()
    pass_time(broker, clock, DELAY_MS + 1_000)
    assert bodies(broker) == [b"last"]
    broker.timers.engine.close()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("checkpoint", ["kept", "lost"])
def test_what_waits_is_the_same_before_and_after(seed: int, checkpoint: str) -> None:
    """Names that are scheduled, cancelled, moved and delivered in any order, with some of it behind the checkpoint."""
    chance = Random(seed)
    disk, clock = MemoryDisk(), SimulatedClock()
    broker = open_broker(disk, clock, engine("wheel"))
    saved_at = chance.randrange(200)
    for step in range(200):
        name, delay_ms = f"n{chance.randrange(12)}", chance.choice((500, 3_000, 90_000))
        what = chance.random()
        if what < 0.5:
            send(broker, b"%d" % step, UNIQ_KEY=name, TIMER_DELAY_MS=str(delay_ms), KEYS="all")
        elif what < 0.65:
            broker.pending.cancel("orders", name)
        elif what < 0.7:
            send(broker, b"0", UNIQ_KEY="c", TIMER_DELAY_MS="5000", TIMER_DEL_UNIQKEY=f"orders+{name}")
        elif what < 0.85:
            broker.pending.move("orders", name, clock.now_ms() + delay_ms)
        else:
            broker.store.flush()
            pass_time(broker, clock, chance.choice((100, 1_000)))
        if step == saved_at:
            broker.store.save(broker.store.plan_checkpoint())
    before = broker.pending.list(limit=1_000).timers
    count = broker.pending.count()
    broker.timers.engine.close()
    disk = disk.after_process_crash()
    if checkpoint == "lost":
        disk.remove("latermq.checkpoint")
    broker = open_broker(disk, clock, engine("rocksdb"))
    assert broker.pending.list(limit=1_000).timers == before
    assert broker.pending.count() == count == len(before)
    broker.timers.engine.close()


def test_cancels_of_windows_that_are_handed_back_survive_a_change_of_engines() -> None:
    """Of timers in the log and of such that have left it."""
    far = FarBroker()
    far.schedule("gone-a", 60_000)
    far.schedule("gone-b", 60_000)
    far.lose_log()
    far.schedule("here-a", 20_000)
    far.schedule("here-b", 20_000)
    while far.broker.far.frontier.handback_ms <= far.clock.now_ms() + 9_000 or far.broker.pending.count() < 4:
        far.pass_time(1_000)
    far.pass_time(8_000)
    assert far.broker.far.frontier.handback_ms > far.clock.now_ms() + 8_000
    for name in ("gone-a", "here-a"):
        assert far.broker.pending.cancel("orders", name).verdict == Verdict.CANCELLED
    far.broker.store.flush()
    far.pass_time(1_000)
    far.broker.store.save(far.broker.store.plan_checkpoint())
    far.close()
    far.disk = far.disk.after_process_crash()
    far.timer = engine("rocksdb")
    far.broker = far.open()
    far.pass_time(60_000)
    assert sorted(far.arrived()) == [b"gone-b", b"here-b"]
    far.close()
