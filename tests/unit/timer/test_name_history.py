"""What a look-up by name costs: records that are read, whatever happened under that name before."""

from collections.abc import Callable, Iterator

import pytest

from latermq.model.timers import Verdict
from tests.support.brokers_in_memory import bodies, send
from tests.support.pipeline.far_broker import FAR_MS, FarBroker
from tests.unit.message.test_timer_names import Work
from tests.unit.timer.test_timers import Scene

CYCLES = 120


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene("wheel")
    yield scene
    scene.broker.timers.engine.close()


def schedule(scene: Scene, number: int) -> None:
    scene.send(b"%d" % number, 60_000 + number, UNIQ_KEY="u")


def cancel(scene: Scene) -> None:
    assert scene.broker.pending.cancel("orders", "u").timers == 1


def cancel_by_property(scene: Scene) -> None:
    scene.send(b"cancel", 60_000, TIMER_DEL_UNIQKEY="orders+u", UNIQ_KEY="c")


def cancel_in_vain(scene: Scene) -> None:
    cancel_by_property(scene)
    cancel_by_property(scene)


def move(scene: Scene) -> None:
    due_ms = scene.broker.pending.status("orders", "u").due_ms + 1_000
    assert scene.broker.pending.move("orders", "u", due_ms).verdict == Verdict.MOVED


@pytest.mark.parametrize("end", [cancel, cancel_by_property, cancel_in_vain, move])
def test_a_look_up_reads_as_much_after_many_cycles_as_after_one(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, end: Callable[[Scene], None]
) -> None:
    work = Work(scene.broker, monkeypatch)
    costs = []
    for number in range(CYCLES):
        before = work.records
        schedule(scene, number)
        end(scene)
        scene.broker.pending.status("orders", "u")
        costs.append(work.records - before)
    assert max(costs) <= 16, costs[-1]


@pytest.mark.parametrize("end", [cancel, cancel_by_property, cancel_in_vain, move])
def test_a_start_reads_each_record_of_a_name_once_and_not_for_each_cancel(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, end: Callable[[Scene], None]
) -> None:
    for number in range(CYCLES):
        schedule(scene, number)
        end(scene)
    records = scene.broker.store.queues.ensure("rmq_sys_wheel_timer", 0).next_offset
    scene.broker.timers.engine.close()
    scene.restart()
    work = Work(scene.broker, monkeypatch)
    scene.broker.replay.run()
    assert work.records <= 4 * records, (work.records, records)


@pytest.mark.parametrize("end", [cancel, cancel_by_property, cancel_in_vain, move])
def test_what_was_taken_in_many_cycles_stays_taken_after_a_start(scene: Scene, end: Callable[[Scene], None]) -> None:
    for number in range(12):
        schedule(scene, number)
        end(scene)
        if number == 5:
            scene.checkpoint()
    scene.send(b"last", 70_000, UNIQ_KEY="u")
    scene.broker.timers.engine.close()
    scene.restart()
    waiting = 2 if end is move else 1
    assert scene.broker.pending.status("orders", "u").timers == waiting
    assert scene.broker.pending.count() == waiting
    scene.pass_time(3_600_000)
    assert bodies(scene.broker)[-1] == b"last" or end is move
    assert len(bodies(scene.broker)) == waiting
    assert scene.broker.pending.status("orders", "u").verdict == Verdict.DELIVERED
    assert scene.broker.pending.count() == 0


def test_the_last_thing_that_happened_is_told(scene: Scene) -> None:
    def verdict() -> Verdict:
        return scene.broker.pending.status("orders", "u").verdict

    assert verdict() == Verdict.NOT_FOUND
    cancel_by_property(scene)
    assert verdict() == Verdict.NOT_FOUND
    scene.send(b"1", 1_000, UNIQ_KEY="u")
    scene.send(b"2", 9_000, UNIQ_KEY="u")
    scene.pass_time(2_000)
    assert verdict() == Verdict.PENDING
    cancel_by_property(scene)
    assert verdict() == Verdict.CANCELLED
    scene.send(b"3", 1_000, UNIQ_KEY="u")
    scene.pass_time(2_000)
    assert verdict() == Verdict.DELIVERED
    cancel_by_property(scene)  # in vain
    assert verdict() == Verdict.DELIVERED
    scene.restart()
    assert verdict() == Verdict.DELIVERED
    scene.pass_time(20_000)
    assert bodies(scene.broker) == [b"1", b"3"]


def test_a_cancel_is_remembered_after_its_timers_record_is_gone() -> None:
    far = FarBroker()
    far.schedule("a")
    far.lose_log()
    assert far.broker.pending.cancel("orders", "a").verdict == Verdict.CANCELLED
    far.crash()
    outcome = far.broker.pending.cancel("orders", "a")
    assert outcome.verdict == Verdict.CANCELLED
    assert outcome.due_ms > far.clock.now_ms()
    send(far.broker, b"again", UNIQ_KEY="a", TIMER_DELAY_MS=str(FAR_MS))
    assert far.broker.pending.status("orders", "a").verdict == Verdict.PENDING
    far.close()
