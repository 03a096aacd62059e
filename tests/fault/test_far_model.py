"""Random lives of a broker whose far timers wait on Spark: each is delivered once, none early, whoever owned it.

The lives are those of test_timer_model.py, with a twin of Spark beside them that ingests, builds and dies as chance has
it, and leaves some windows out for whole lives. The pipeline is switched off and on between lives, with timers pending
on both sides.
"""

from dataclasses import dataclass
from random import Random

import pytest

from latermq.broker.broker import Broker
from latermq.clock import SimulatedClock
from latermq.config import Duration, PipelineConfig, TimerConfig
from latermq.store.files.memory_disk import MemoryDisk
from tests.fault.test_level_model import end_life, fail_sometimes
from tests.fault.test_timer_model import ROLLING_STORE, Life, Model, lose_files
from tests.support.brokers_in_memory import open_broker, pass_time
from tests.support.faults.seeds import run_seeds
from tests.support.needs import LONG
from tests.support.pipeline.spark_twin import SparkTwin

SEEDS = 2_000 if LONG else 150
SEEDS_A_TEST = 25
TURN_MS = 1_000
MAX_ROUNDS = 1_000


def pipeline(*, enabled: bool) -> PipelineConfig:
    return PipelineConfig(
        enabled=enabled,
        near_horizon=Duration.parse("12s"),
        window=Duration.parse("4s"),
        ingest_every=Duration.parse("1s"),
        roll_deadline=Duration.parse("2s"),
    )


@dataclass
class LameTwin(SparkTwin):
    """A Spark that does not build some windows, in one life or in several."""

    withheld: frozenset[int] = frozenset()  # numbers modulo 8

    def turn(self, broker: Broker) -> None:
        held = [one for one in broker.far.windows.waiting() if not one.attempt and one.number % 8 in self.withheld]
        for window in held:
            window.attempt, window.is_skipped = "withheld", True
        try:
            super().turn(broker)
        finally:
            for window in held:
                window.attempt, window.is_skipped = "", False


class FarLife(Life):
    """A life with Spark beside it."""

    def __init__(
        self, disk: MemoryDisk, clock: SimulatedClock, chance: Random, model: Model, number: int, twin: LameTwin
    ) -> None:
        super().__init__(disk, clock, chance, model, number)
        self.twin = twin

    def _open(self, config: TimerConfig) -> Broker:
        return open_broker(
            self._disk, self._clock, config, ROLLING_STORE, pipeline(enabled=self._chance.random() < 0.7)
        )

    def begin(self) -> None:
        """Spark is there, or away for all of this life; without it the broker builds by itself."""
        self.spark_is_there = self._chance.random() < 0.8
        if self.spark_is_there:
            self.twin.begin(self.broker)
        self.twin.withheld = frozenset(one for one in range(8) if self._chance.random() < 0.2)

    def _pass(self, by_ms: int) -> None:
        while by_ms > 0:
            self._turn()
            step_ms = min(by_ms, TURN_MS)
            pass_time(self.broker, self._clock, step_ms)
            by_ms -= step_ms
        self._turn()
        pass_time(self.broker, self._clock, 1)

    def _turn(self) -> None:
        self._try(self.broker.store.flush)
        if self.spark_is_there and self._chance.random() < 0.5:
            self._try(lambda: self.twin.ingest(self.broker))
        self._try(lambda: self.twin.turn(self.broker))

    def _check_punctual(self) -> None:
        """A disk that fails keeps cuts from being flushed, and what is not flushed cannot be built."""
        waiting = self.broker.far.windows.waiting()
        if not waiting or waiting[0].unread_from_ms > self._clock.now_ms():
            super()._check_punctual()

    def check_listing(self) -> None:
        """What Spark holds is not in the broker's list."""
        self.check()

    def run_out(self) -> None:
        """Let all that waits come due; a clock that was set back may have left some far ahead."""
        self.twin.withheld = frozenset()
        for _ in range(MAX_ROUNDS):
            dues = [due_ms for waiting in self.check().values() for due_ms in waiting.values()]
            if not dues:
                return
            self._clock.advance(max(0, min(60_000, max(dues) - self._clock.now_ms() - 30_000)))
            self._pass(5 * TURN_MS)
            self.broker.store.save(self.broker.store.plan_checkpoint())


def live(seed: int) -> None:
    """Several lives of one store beside one Spark; odd seeds have a disk that fails at times."""
    chance = Random(seed)
    clock, disk, model, twin = SimulatedClock(), MemoryDisk(), Model(), LameTwin(chance)
    for number in range(4):
        life = FarLife(disk, clock, chance, model, number, twin)
        model.forget_behind(life.broker.store.log.end)
        life.begin()
        life.check_listing()
        if seed % 2:
            disk.before_step = lambda operation, path: fail_sometimes(chance, operation, path)
        life.work()
        disk.before_step = lambda operation, path: None
        life.check_listing()
        _, disk = end_life(life.broker, disk, chance)
        life.broker.timers.engine.close()
        lose_files(disk, chance)
        clock.advance(chance.choice((0, 500, 20_000, 100_000)))
    last = FarLife(disk, clock, chance, model, 4, twin)
    model.forget_behind(last.broker.store.log.end)
    last.begin()
    last.run_out()
    missing = last.check()
    last.broker.timers.engine.close()
    assert not missing, f"never came: {missing}"


@pytest.mark.parametrize("first_seed", range(0, SEEDS, SEEDS_A_TEST))
def test_every_timer_has_one_owner_and_comes_once(first_seed: int) -> None:
    run_seeds(live, first_seed, SEEDS_A_TEST)
