"""A window that cannot be had, beside those that can: later ones are played on time, and it is caught up with."""

from random import Random

import pytest

from latermq.broker.broker import Broker
from latermq.clock import SimulatedClock
from latermq.message.names import TIMER_TOPIC
from latermq.store.files.memory_disk import MemoryDisk
from tests.support.brokers_in_memory import STORE, messages, open_broker, pass_time, send
from tests.support.pipeline.far_broker import PIPELINE
from tests.support.pipeline.spark_twin import SparkTwin


class Scene:
    """A broker beside a Spark that does not build the windows in `withheld`."""

    def __init__(self) -> None:
        self.disk, self.clock, self.twin = MemoryDisk(), SimulatedClock(), SparkTwin(Random(7))
        self.withheld: set[int] = set()
        self.broker = self._open()
        self.twin.begin(self.broker)
        self.pass_time(1_000)

    def _open(self) -> Broker:
        return open_broker(self.disk, self.clock, store=STORE, pipeline=PIPELINE)

    def crash(self) -> None:
        self.disk = self.disk.after_process_crash()
        self.broker.timers.engine.close()
        self.broker = self._open()

    def schedule(self, name: str, delay_ms: int) -> None:
        send(self.broker, name.encode(), UNIQ_KEY=name, TIMER_DELAY_MS=str(delay_ms))

    def pass_time(self, by_ms: int) -> None:
        for _ in range(0, by_ms, 1_000):
            self.broker.store.flush()
            self.twin.ingest(self.broker)
            self.broker.far.run()
            self._roll()
            self.twin.feed(self.broker)
            pass_time(self.broker, self.clock, 1_000)

    def _roll(self) -> None:
        queue = self.broker.store.queues.find(TIMER_TOPIC, 0)
        for window in self.broker.far.windows.waiting():
            is_flushed = queue is not None and self.broker.store.reader.flushed_end(queue) > window.cut_entry
            if window.number not in self.withheld and not window.attempt and is_flushed:
                attempt = self.twin.build(self.broker, window)
                self.broker.far.choose(window, attempt)
                self.broker.far.windows.restart(window.number, attempt)

    def window_of(self, due_ms: int) -> int:
        """The number of the window that this time lies in, once it is cut."""
        for _ in range(200):
            for window in self.broker.far.unfinished_windows():
                if window.from_ms <= due_ms < window.until_ms:
                    return window.number
            self.withheld = set(range(1_000))
            self.pass_time(1_000)
        raise AssertionError("it was never cut")

    def lateness(self) -> dict[str, int]:
        """How late each timer arrived."""
        found = messages(self.broker)
        return {one.body.decode(): one.store_timestamp_ms - int(one.properties["LMQ_DUE_MS"]) for one in found}


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_later_windows_are_played_on_time_while_one_is_missing(scene: Scene) -> None:
    now_ms = scene.clock.now_ms()
    for number in range(6):
        scene.schedule(f"t{number}", 20_000 + 4_000 * number)
    missing = scene.window_of(now_ms + 24_000)
    scene.withheld = {missing}
    scene.pass_time(60_000 - (scene.clock.now_ms() - now_ms))
    late = scene.lateness()
    assert "t1" not in late
    assert late.keys() == {"t0", "t2", "t3", "t4", "t5"}
    assert max(late.values()) == 0
    # What was delivered beyond T is known by id: T stands where the missing window begins.
    assert scene.broker.timers.marks.all_wake_from_ms() <= now_ms + 24_000


@pytest.mark.parametrize("dies", [False, True])
def test_a_window_that_comes_late_is_caught_up_with_and_nothing_comes_twice(scene: Scene, dies: bool) -> None:
    now_ms = scene.clock.now_ms()
    for number in range(6):
        scene.schedule(f"t{number}", 20_000 + 4_000 * number)
    scene.withheld = {scene.window_of(now_ms + 24_000)}
    scene.pass_time(60_000)
    if dies:
        scene.broker.store.save(scene.broker.store.plan_checkpoint())
        scene.broker.store.flush()
        scene.crash()
    scene.withheld = set()
    scene.pass_time(10_000)
    arrived = [one.body.decode() for one in messages(scene.broker)]
    assert sorted(arrived) == [f"t{number}" for number in range(6)]
    assert scene.broker.pending.count() == 0
    assert scene.broker.timers.marks.all_wake_from_ms() >= scene.clock.now_ms() - 1_000


def test_a_cancel_reaches_a_timer_of_a_window_whose_time_has_passed(scene: Scene) -> None:
    now_ms = scene.clock.now_ms()
    scene.schedule("kept", 24_000)
    scene.schedule("taken", 24_000)
    scene.withheld = {scene.window_of(now_ms + 24_000)}
    scene.pass_time(60_000)
    assert scene.broker.pending.cancel("orders", "taken").timers == 1
    scene.withheld = set()
    scene.pass_time(5_000)
    assert scene.lateness().keys() == {"kept"}
