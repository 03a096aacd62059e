"""Transactions on a full disk: a commit is refused, its half stays open, and with space the commit succeeds once."""

import contextlib
from collections import Counter

import pytest

from latermq.broker.broker import Broker
from latermq.clock import SimulatedClock
from latermq.errors import LaterMQError
from latermq.model.transaction import Decision
from latermq.store.files.memory_disk import MemoryDisk
from tests.support.brokers_in_memory import bodies, open_broker, send
from tests.support.producers import commit, connect, end_by_key, run_checks, send_half

QUEUES = 2


def fill(disk: MemoryDisk, broker: Broker) -> None:
    """Take all space, also what is reserved ahead of the log's end."""
    disk.capacity_bytes = disk.used_bytes
    for number in range(100_000):
        try:
            send(broker, b"." * 1_000, topic="filler", queue_id=number % QUEUES)
        except LaterMQError:
            return
    raise AssertionError("the disk does not get full")


@pytest.mark.parametrize("is_killed", [False, True], ids=["the broker runs on", "the broker is killed"])
@pytest.mark.parametrize("is_by_key", [False, True], ids=["by offsets", "by key"])
def test_a_commit_on_a_full_disk_is_refused_and_succeeds_later_once(is_by_key: bool, is_killed: bool) -> None:
    clock, disk = SimulatedClock(), MemoryDisk()
    broker = open_broker(disk, clock)
    halves = {
        body: send_half(broker, body, key=f"key{body[0]}") for body in (bytes([number]) * 2_000 for number in range(20))
    }

    def try_all() -> int:
        refused = 0
        for half in halves.values():
            try:
                end_by_key(broker, half.unique_key, Decision.COMMIT) if is_by_key else commit(broker, half)
            except LaterMQError:
                refused += 1
        return refused

    fill(disk, broker)
    refused = try_all()
    assert refused
    assert len(broker.open_halves) == refused == len(halves) - len(bodies(broker))
    connect(broker)
    clock.advance(7_000)
    with contextlib.suppress(LaterMQError):
        run_checks(broker)  # no check may end a half while its end cannot be stored
    assert len(broker.open_halves) == refused
    disk.capacity_bytes = 1 << 40
    if is_killed:
        disk = disk.after_process_crash()
        broker = open_broker(disk, clock)
        assert len(broker.open_halves) == refused
    assert try_all() == 0
    assert len(broker.open_halves) == 0
    assert Counter(bodies(broker)) == dict.fromkeys(halves, 1)
