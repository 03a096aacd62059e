"""A crash of the broker right after an answer to a leased pop was lost: no live client holds its messages for hours."""

from collections.abc import Callable
from random import Random

import pytest

from latermq.broker.broker import Broker
from latermq.clock import SimulatedClock
from latermq.group.pop.operations import LEASE_MS, Outcome
from latermq.model.topic import Topic
from latermq.store.files.memory_disk import MemoryDisk
from tests.support.brokers_in_memory import open_broker, send
from tests.support.pop_parts import GROUP, Held, ack, expire, pop

CLIENT = 7  # its lease
EARLIER_MS = 60_000  # long enough for an answer to have arrived
DOWN_MS = 20_000


def machine_crash(disk: MemoryDisk) -> MemoryDisk:
    return disk.after_machine_crash(Random(1))


class Scene:
    """A client that got one message a minute ago, which it still holds, and has just been sent another one."""

    def __init__(self) -> None:
        self.clock, self.disk = SimulatedClock(), MemoryDisk()
        self.broker = open_broker(self.disk, self.clock)
        self.broker.topics.put(Topic(name="orders", read_queues=1, write_queues=1))
        self.broker.groups.require(GROUP, b"")
        self.broker.tables.save()
        self.received = self._popped(b"received")
        for _ in range(EARLIER_MS // 5_000):
            self.clock.advance(5_000)
            self.broker.pop_operations.renew([CLIENT], self.clock.now_ms())
        self.lost = self._popped(b"lost")
        self.broker.store.flush()

    def _popped(self, body: bytes) -> Held:
        send(self.broker, body)
        (held,) = pop(self.broker, lease=CLIENT)
        return held

    def lose(self) -> None:
        assert self.broker.pop_operations.lose(CLIENT, {self.lost.place.pop_ms}, self.clock.now_ms()) == 1

    def restart(self, after_crash: Callable[[MemoryDisk], MemoryDisk]) -> None:
        self.clock.advance(DOWN_MS)
        self.broker = open_broker(after_crash(self.disk), self.clock)

    def back_after_ms(self) -> int:
        """Report the client until its message comes back, and return after how long that is."""
        start_ms = self.clock.now_ms()
        while self.clock.now_ms() - start_ms < 10 * LEASE_MS:
            self.broker.pop_operations.renew([CLIENT], self.clock.now_ms())
            expire(self.broker)
            if found := pop(self.broker):
                assert [one.body for one in found] == [b"lost"]
                return self.clock.now_ms() - start_ms
            self.clock.advance(5_000)
        return -1


CRASHES: dict[str, tuple[Callable[[Broker], object], Callable[[MemoryDisk], MemoryDisk], int]] = {
    "of the process, before the record": (lambda broker: None, MemoryDisk.after_process_crash, LEASE_MS),
    "of the process, after the record": (
        lambda broker: broker.pop_positions.commit(),
        MemoryDisk.after_process_crash,
        LEASE_MS - DOWN_MS,
    ),
    "of the machine, before the record": (lambda broker: None, machine_crash, LEASE_MS),
    "of the machine, before the sync": (lambda broker: broker.pop_positions.commit(), machine_crash, LEASE_MS),
    "of the machine, after the sync": (
        lambda broker: (broker.pop_positions.try_commit(), broker.store.flush()),
        machine_crash,
        LEASE_MS - DOWN_MS,
    ),
}


@pytest.mark.parametrize("crash", CRASHES)
def test_what_a_client_may_not_have_got_comes_back_after_a_crash_although_the_client_lives(crash: str) -> None:
    journal, after_crash, back_after_ms = CRASHES[crash]
    scene = Scene()
    scene.lose()
    journal(scene.broker)
    scene.restart(after_crash)
    assert scene.back_after_ms() == back_after_ms
    assert ack(scene.broker, scene.received) is Outcome.DONE, "it is held, and its handle is valid"


def test_pops_of_others_since_the_loss_do_not_prolong_the_hold_after_a_crash() -> None:
    scene = Scene()
    scene.lose()
    scene.broker.pop_positions.commit()
    scene.clock.advance(10_000)  # so the start does not take the lost answer for one that is on its way
    send(scene.broker, b"another")
    (another,) = pop(scene.broker, lease=CLIENT + 1)
    assert ack(scene.broker, another) is Outcome.DONE
    scene.restart(MemoryDisk.after_process_crash)
    assert scene.back_after_ms() == LEASE_MS - DOWN_MS - 10_000


def test_what_was_received_before_the_crash_can_be_acknowledged_although_its_answer_seemed_lost() -> None:
    scene = Scene()
    scene.lose()
    scene.broker.pop_positions.commit()
    scene.restart(MemoryDisk.after_process_crash)
    assert ack(scene.broker, scene.lost) is Outcome.DONE
    assert scene.back_after_ms() == -1
