"""Random work on a store, then a death of the process or of the machine: nothing safe is lost, nothing is invented.

Every run is a seed. A failing one is named in the test's id and replays exactly.
"""

from random import Random

import pytest

from latermq.clock import SimulatedClock
from latermq.config import Config, StoreConfig
from latermq.errors import StoreError
from latermq.store.files.memory_disk import MemoryDisk
from latermq.store.log_writer import Draft
from latermq.store.message_store import MessageStore
from tests.support.faults.crashed_starts import after_crashed_starts
from tests.support.faults.seeds import run_seeds
from tests.support.needs import LONG
from tests.support.stores import HOST, SMALL, append, bodies, open_store

SEEDS = 5_000 if LONG else 200
SEEDS_A_TEST = 50


class Model:
    """What the store was given, in order: (log end, topic, queue, body)."""

    def __init__(self) -> None:
        self.given: list[tuple[int, str, int, bytes]] = []

    def bodies(self, topic: str, queue_id: int, upto: int) -> list[bytes]:
        return [body for end, name, queue, body in self.given if (name, queue) == (topic, queue_id) and end <= upto]


def work(store: MessageStore, model: Model, chance: Random, clock: SimulatedClock, run: int) -> None:
    """A few steps of anything that can happen to a store."""
    for step in range(chance.randrange(1, 60)):
        clock.advance(chance.randrange(50))
        kind = chance.random()
        topic, queue_id = chance.choice(["orders", "bills"]), chance.randrange(2)
        body = b"%d/%d " % (run, step) + b"x" * chance.choice([0, 10, 300, 3_000])
        try:
            if kind < 0.7:
                appended = append(store, body, topic=topic, queue_id=queue_id, key=f"k{step}")
                model.given.append((appended.end_offset, topic, queue_id, body))
            elif kind < 0.8:
                drafts = [Draft(topic, queue_id, body + b"%d" % index, b"", 1, HOST) for index in range(5)]
                for draft, appended in zip(drafts, store.writer.append_all(drafts), strict=True):
                    model.given.append((appended.end_offset, topic, queue_id, draft.body))
            elif kind < 0.9:
                store.flush()
            else:
                store.save(store.plan_checkpoint())
        except StoreError:
            pass  # an injected failure: the message was refused, so the model does not have it


def check(store: MessageStore, model: Model, safe: int) -> None:
    """The store holds a prefix of what it was given, at least up to `safe`, in every queue and without holes."""
    end = store.log.end
    assert end >= safe
    assert [entry for entry in model.given if entry[0] <= end] or not model.given or end < model.given[0][0]
    for topic in ("orders", "bills"):
        for queue_id in range(2):
            assert bodies(store, topic, queue_id) == model.bodies(topic, queue_id, end)
    model.given = [entry for entry in model.given if entry[0] <= end]


def live(seed: int) -> None:
    """Several lives of one store, each ended by another death; odd seeds have a disk that fails at times."""
    chance = Random(seed)
    clock = SimulatedClock()
    disk = MemoryDisk()
    model = Model()
    safe = 0
    for run in range(4):
        disk = after_crashed_starts(disk, lambda dying: open_store(dying, SMALL, clock), chance)
        store = open_store(disk, SMALL, clock)
        check(store, model, safe)
        if seed % 2:
            disk.before_step = lambda operation, path: fail_sometimes(chance, operation, path)
        work(store, model, chance, clock, run)
        disk.before_step = lambda operation, path: None
        ending = chance.random()
        if ending < 0.2:
            store.close()
            safe = store.log.end
            disk = disk.after_process_crash()
        elif ending < 0.6:
            safe = store.log.end
            disk = disk.after_process_crash()
        else:
            safe = store.log.flushed
            disk = disk.after_machine_crash(chance)
    check(open_store(disk, SMALL, clock), model, safe)


def fail_sometimes(chance: Random, operation: str, path: str) -> None:
    if operation in ("reserve", "map") and chance.random() < 0.2:
        raise StoreError(f"injected failure of {operation} on {path}")


@pytest.mark.parametrize("first_seed", range(0, SEEDS, SEEDS_A_TEST))
def test_no_death_loses_what_was_safe_or_leaves_a_hole(first_seed: int) -> None:
    run_seeds(live, first_seed, SEEDS_A_TEST)


def test_a_torn_record_ends_the_log_and_its_bytes_are_never_read_again() -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    first = append(store, b"whole")
    second = append(store, b"y" * 500)
    store.release()
    after = disk.after_process_crash()
    torn = open_torn(after, second.physical_offset + 90)
    assert torn.log.end == first.end_offset
    assert bodies(torn) == [b"whole"]
    append(torn, b"next")
    assert bodies(torn) == [b"whole", b"next"]


def open_torn(disk: MemoryDisk, damage_at: int) -> MessageStore:
    """Open a store one byte of whose log was changed behind its back, and whose checkpoint is from the start."""
    file = disk.map_file("commitlog/00000000000000000000", SMALL.segment)
    file.map[damage_at] ^= 0xFF
    return open_store(disk)


@pytest.mark.parametrize("field", ["size", "magic", "physical offset", "body", "topic length", "properties"])
def test_damage_in_any_part_of_a_record_is_seen(field: str) -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    append(store, b"whole")
    record = append(store, b"body")
    start = record.physical_offset
    at = {
        "size": start + 3,
        "magic": start + 5,
        "physical offset": start + 33,
        "body": start + 89,
        "topic length": start + 92,
        "properties": record.end_offset - 3,
    }[field]
    file = disk.map_file("commitlog/00000000000000000000", SMALL.segment)
    file.map[at] = 0 if field == "properties" else file.map[at] ^ 0x55
    reopened = open_store(disk.after_process_crash())
    assert bodies(reopened) == [b"whole"]


def test_consumer_offsets_never_lie_beyond_their_queue_after_a_lost_tail() -> None:
    from latermq.broker.broker import Broker

    def open_broker(disk: MemoryDisk) -> Broker:
        config = Config(store=StoreConfig(**{name: getattr(SMALL, name) for name in SMALL.__struct_fields__}))
        return Broker(config, disk, SimulatedClock(), host="127.0.0.1", port=10911, new_store_id="s")

    lost = kept = 0
    for seed in range(30):
        disk = MemoryDisk()
        broker = open_broker(disk)
        for number in range(40):
            broker.writer.send("orders", 0, b"%d" % number + b"x" * 2_000, "", 1, HOST)
            if number == 20:
                broker.store.flush()
        broker.progress.commit("readers", "orders", 0, 40)
        broker.tables.save()
        after = open_broker(disk.after_machine_crash(Random(seed)))
        queue = after.store.queues.find("orders", 0)
        assert queue is not None
        committed = after.progress.committed("readers", "orders", 0)
        # What was stored while only 21 messages were safe must not skip those that come after them.
        assert committed <= 21 <= queue.next_offset
        lost += queue.next_offset < 40
        kept += queue.next_offset >= 21
    assert lost > 0
    assert kept == 30
