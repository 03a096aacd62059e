"""The lives of test_lost_files_model.py with timers on Spark, which outlive their records and what is lost."""

from contextlib import suppress
from random import Random

import pytest
from rocksdict import DbClosedError

from latermq.broker.broker import Broker
from latermq.clock import SimulatedClock
from latermq.config import TimerConfig
from latermq.errors import ServiceUnavailable
from latermq.message.names import TIMER_TOPIC
from latermq.store.files.memory_disk import MemoryDisk
from tests.fault.test_far_model import FarLife, LameTwin, pipeline
from tests.fault.test_level_model import end_life
from tests.fault.test_lost_files_model import GROUP, STORE, Ledger, LossyLife, run_out
from tests.support.brokers_in_memory import open_broker
from tests.support.faults.lost_files import lose_one
from tests.support.faults.seeds import run_seeds
from tests.support.needs import LONG

SEEDS = 200 if LONG else 3
SEEDS_A_TEST = 3
LIVES_A_SEED = 4


class LossyFarLife(LossyLife, FarLife):
    """A life of both kinds. Spark is there at times; what it has not ingested stays in the log."""

    def _open(self, config: TimerConfig) -> Broker:
        broker = open_broker(self._disk, self._clock, config, STORE, pipeline(enabled=True))
        broker.groups.require(GROUP)
        return broker

    def _turn(self) -> None:
        queue = self.broker.store.queues.find(TIMER_TOPIC, 0)
        if queue is not None and self.broker.far.frontier.last is None:
            self.twin.ingested = queue.min_offset  # before the first cut nothing is kept for Spark
        super()._turn()

    def _move(self) -> None:
        with suppress(ServiceUnavailable):  # its record is in the timeline only
            super()._move()

    def _retain(self) -> None:
        far = self.broker.far
        far.sweep_names()
        while (names := far.expiring_entries()) is not None:
            far.save_names(names)
        super()._retain()


def live(seed: int) -> None:
    chance = Random(seed)
    clock, disk, ledger, twin = SimulatedClock(), MemoryDisk(), Ledger(), LameTwin(chance)
    lost: list[str] = []
    try:
        for number in range(LIVES_A_SEED):
            life = begin(chance, clock, disk, ledger, number, twin)
            life.work()
            life.note()
            life.check_listing()
            _, disk = end_life(life.broker, disk, chance)
            close(life.broker)
            if chance.random() < 0.8:
                lost.append(lose_one(disk, chance))
            clock.advance(chance.choice((0, 500, 20_000, 100_000)))
        last = begin(chance, clock, disk, ledger, LIVES_A_SEED, twin)
        last.spark_is_there = True
        last.run_out()
        run_out(last, clock)  # for delays, which the former does not look at
        last.check_end()
        close(last.broker)
    except BaseException as error:
        error.add_note(f"lost at the deaths: {lost}")
        raise


def begin(
    chance: Random, clock: SimulatedClock, disk: MemoryDisk, ledger: Ledger, number: int, twin: LameTwin
) -> LossyFarLife:
    life = LossyFarLife(disk, clock, chance, ledger, number, twin)
    ledger.forget_behind(life.broker.store.log.end)
    life.begin()
    life.note()
    life.check_listing()
    return life


def close(broker: Broker) -> None:
    broker.timers.engine.close()
    with suppress(DbClosedError):  # a clean stop did it
        broker.far_names.close()


@pytest.mark.parametrize("first_seed", range(0, SEEDS, SEEDS_A_TEST))
def test_far_timers_come_once_whatever_is_lost_at_a_death(first_seed: int) -> None:
    run_seeds(live, first_seed, SEEDS_A_TEST)
