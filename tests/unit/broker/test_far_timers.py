"""The broker's cuts: when they are made, where the frontier is while Spark lags or is disabled, what is durable."""

from random import Random

import pytest

from latermq.broker.broker import Broker
from latermq.broker.timers.far_timers import LAST_WINDOWS
from latermq.clock import SimulatedClock
from latermq.config import Duration, PipelineConfig
from latermq.errors import CorruptStore, InvalidParameter
from latermq.handover.cut import FOREVER_MS
from latermq.store.files.memory_disk import MemoryDisk
from tests.support.brokers_in_memory import STORE, bodies, open_broker, pass_time, send
from tests.support.pipeline.spark_twin import SparkTwin

WINDOW_MS = 4_000


def pipeline(*, enabled: bool = True) -> PipelineConfig:
    return PipelineConfig(
        enabled=enabled,
        near_horizon=Duration.parse("12s"),
        window=Duration(WINDOW_MS),
        ingest_every=Duration.parse("1s"),
        roll_deadline=Duration.parse("2s"),
    )


class Scene:
    def __init__(self) -> None:
        self.disk, self.clock, self.twin = MemoryDisk(), SimulatedClock(), SparkTwin(Random(7))
        self.broker = self.open()

    def open(self, *, enabled: bool = True) -> Broker:
        self.broker = open_broker(self.disk, self.clock, store=STORE, pipeline=pipeline(enabled=enabled))
        return self.broker

    def reopen(self, *, enabled: bool) -> None:
        self.broker.close()
        self.open(enabled=enabled)

    def crash(self) -> None:
        self.disk = self.disk.after_process_crash()
        self.broker.timers.engine.close()
        self.open()

    def pass_time(self, by_ms: int, *, ingest: bool = True) -> None:
        for _ in range(0, by_ms, 1_000):
            self.broker.store.flush()
            if ingest:
                self.twin.ingest(self.broker)
            self.twin.turn(self.broker)
            pass_time(self.broker, self.clock, 1_000)

    def schedule(self, body: bytes, delay_ms: int) -> None:
        send(self.broker, body, UNIQ_KEY=body.decode(), TIMER_DELAY_MS=str(delay_ms))

    def keeps_far_timers(self) -> bool:
        return self.broker.far.keeps_far_timers

    def is_near(self) -> int:
        """Return the number of timers that the broker owns."""
        self.broker.timers.intake.read_all()
        self.broker.store.flush()
        self.broker.timers.run()
        return sum(len(units.entries) for units in self.broker.timers.slots.waiting_from(0, 0))


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_no_cut_is_made_before_a_driver_has_begun(scene: Scene) -> None:
    scene.pass_time(5_000)
    assert scene.broker.far.frontier.last is None
    scene.twin.begin(scene.broker)
    scene.pass_time(1_000)
    assert scene.broker.far.frontier.last is not None


def test_a_cut_is_made_whenever_a_window_has_passed(scene: Scene) -> None:
    scene.twin.begin(scene.broker)
    scene.pass_time(9 * WINDOW_MS)
    cuts = scene.broker.far.frontier.cuts()
    last = cuts[-1]
    assert last.frontier_ms == last.handback_ms
    assert 12_000 - WINDOW_MS <= last.handback_ms - scene.clock.now_ms() <= 12_000
    assert 9 <= last.number <= 11


def test_far_timers_leave_the_engine_alone_and_come_back(scene: Scene) -> None:
    scene.twin.begin(scene.broker)
    scene.pass_time(1_000)
    scene.schedule(b"near", 6_000)
    scene.schedule(b"far", 60_000)
    assert scene.is_near() == 1
    assert scene.broker.pending.count() == 2
    scene.pass_time(61_000)
    assert bodies(scene.broker) == [b"near", b"far"]
    assert scene.broker.pending.count() == 0


def test_when_spark_lags_new_timers_stay_near(scene: Scene) -> None:
    scene.twin.begin(scene.broker)
    scene.pass_time(1_000)
    scene.schedule(b"not ingested", 200_000)
    scene.pass_time(3 * WINDOW_MS, ingest=False)
    last = scene.broker.far.frontier.last
    assert last is not None
    assert last.frontier_ms > scene.clock.now_ms() + 86_400_000
    assert scene.keeps_far_timers()
    scene.schedule(b"later", 100_000)
    assert scene.is_near() == 1
    scene.twin.chance = Random(1)
    scene.pass_time(3 * WINDOW_MS)
    last = scene.broker.far.frontier.last
    assert last is not None
    assert last.frontier_ms == last.handback_ms
    assert not scene.keeps_far_timers()
    scene.pass_time(201_000)
    assert sorted(bodies(scene.broker)) == [b"later", b"not ingested"]


def test_without_the_pipeline_everything_is_near_and_what_spark_holds_still_comes(scene: Scene) -> None:
    scene.twin.begin(scene.broker)
    scene.pass_time(1_000)
    scene.schedule(b"far", 60_000)
    scene.pass_time(2_000)
    scene.reopen(enabled=False)
    scene.pass_time(1_000)
    last = scene.broker.far.frontier.last
    assert last is not None
    assert last.frontier_ms == FOREVER_MS
    scene.schedule(b"kept", 50_000)
    assert scene.is_near() == 1
    scene.pass_time(70_000)
    assert bodies(scene.broker) == [b"kept", b"far"]
    count = scene.broker.far.frontier.last
    scene.pass_time(20_000)
    assert scene.broker.far.frontier.last == count, "nobody waits, so nothing is cut"


def test_the_pipeline_comes_back_with_timers_pending_on_both_sides(scene: Scene) -> None:
    scene.twin.begin(scene.broker)
    scene.pass_time(1_000)
    scene.schedule(b"a", 90_000)
    scene.pass_time(1_000)
    scene.reopen(enabled=False)
    scene.pass_time(1_000)
    scene.schedule(b"b", 80_000)
    scene.reopen(enabled=True)
    scene.pass_time(5_000)
    scene.schedule(b"c", 70_000)
    scene.pass_time(100_000)
    assert sorted(bodies(scene.broker)) == [b"a", b"b", b"c"]


def test_after_a_long_stop_windows_are_caught_up_with_one_by_one(scene: Scene) -> None:
    scene.twin.begin(scene.broker)
    scene.pass_time(1_000)
    for number in range(20):
        scene.schedule(b"%02d" % number, 30_000 + 10_000 * number)
    scene.pass_time(2_000)
    scene.broker.store.flush()
    scene.clock.advance(3_000_000)
    scene.crash()
    scene.pass_time(10_000)
    assert sorted(bodies(scene.broker)) == [b"%02d" % number for number in range(20)]
    steps = {one.handback_ms - one.last_handback_ms for one in scene.broker.far.frontier.cuts()[1:] if one.has_window}
    assert steps == {WINDOW_MS}


def test_the_chosen_attempt_is_known_after_a_crash(scene: Scene) -> None:
    scene.twin.begin(scene.broker)
    scene.pass_time(1_000)
    scene.schedule(b"a", 20_000)
    scene.pass_time(10_000)
    chosen = {one.number: one.attempt for one in scene.broker.far.unfinished_windows() if one.attempt}
    assert chosen
    scene.broker.store.flush()
    scene.crash()
    assert {one.number: one.attempt for one in scene.broker.far.unfinished_windows() if one.attempt} == chosen


def test_damaged_choices_are_refused_with_what_to_do(scene: Scene) -> None:
    scene.broker.close()
    scene.disk.replace("latermq.windows", b'{"3":"x"}\n00000000\n')
    with pytest.raises(CorruptStore, match=r"latermq\.windows is damaged"):
        scene.open()


@pytest.mark.parametrize("attempt", ["", "../x", ".hidden", "a\0b", "x" * 300])
def test_an_attempt_must_be_named_and_of_a_window_that_waits(scene: Scene, attempt: str) -> None:
    with pytest.raises(InvalidParameter, match="there is no window 5"):
        scene.broker.far.report_ready(5, "spark-1-a")
    scene.twin.begin(scene.broker)
    scene.pass_time(1_000)
    scene.schedule(b"a", 20_000)
    scene.pass_time(10_000)
    with pytest.raises(InvalidParameter, match="not a valid name of an attempt"):
        scene.broker.far.report_ready(scene.broker.far.unfinished_windows()[0].number, attempt)


def test_the_last_windows_are_listed_with_their_builders_even_when_they_are_finished(scene: Scene) -> None:
    scene.twin.begin(scene.broker)
    scene.pass_time(1_000)
    scene.schedule(b"first", 20_000)
    scene.schedule(b"second", 40_000)
    scene.pass_time(31_000)
    scene.broker.store.save(scene.broker.store.plan_checkpoint())  # a window is finished when that is on disk
    scene.pass_time(2_000)
    chosen = {one.number: one for one in scene.broker.far.last_windows()}
    unfinished = {one.number for one in scene.broker.far.unfinished_windows()}
    assert {one.number for one in chosen.values() if not one.is_finished} == unfinished & chosen.keys()
    assert any(one.is_finished for one in chosen.values())
    epoch = scene.broker.ingest.epoch
    for one in chosen.values():
        assert one.epoch == (None if one.built_by == "local" else epoch)
    scene.pass_time(LAST_WINDOWS * 2 * WINDOW_MS)
    assert len(scene.broker.far.last_windows()) <= LAST_WINDOWS


def test_after_a_start_the_unfinished_windows_are_listed_without_what_is_not_known(scene: Scene) -> None:
    scene.twin.begin(scene.broker)
    scene.pass_time(1_000)
    scene.schedule(b"a", 20_000)
    scene.pass_time(10_000)
    before = {one.number: one.attempt for one in scene.broker.far.last_windows() if not one.is_finished}
    assert before
    scene.broker.store.flush()
    scene.crash()
    after = scene.broker.far.last_windows()
    assert {one.number: one.attempt for one in after} == before
    assert all((one.epoch, one.rows) == (None, None) for one in after)
