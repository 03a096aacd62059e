"""Random lives of a broker whose consumers pop: sends, pops, acknowledgements, changes, expiry, order and crashes.

Consumers know only what was answered, and an answer exists only after its journal record. No acknowledged message
comes back, no message comes back before its time or is lost, each has one dead letter at most, and a queue in order
stays in order. A client that lives does not hold messages of a lost answer longer than a lease. A crash
of the machine may undo what was not flushed, so after one a message may come twice.
Every run is a seed. A failing one is named and replays exactly: `live(SEED)`.
"""

import contextlib
from collections import Counter
from collections.abc import Container
from dataclasses import dataclass, field
from random import Random

import pytest

from latermq.broker.broker import Broker
from latermq.broker.pop.acknowledgements import Place
from latermq.clock import SimulatedClock
from latermq.errors import LaterMQError, StoreError
from latermq.group.pop.operations import HANDOVER_MS, LEASE_MS, Outcome
from latermq.model.group import Group
from latermq.model.topic import Topic
from latermq.store.files.memory_disk import MemoryDisk, SimulatedCrash
from tests.support.brokers_in_memory import bodies, open_broker, send
from tests.support.faults.seeds import run_seeds
from tests.support.needs import LONG
from tests.support.pop_parts import Held, ack, change, pop

LIVES = 5_000 if LONG else 200
LIVES_A_SEED = 4
SEEDS_A_TEST = 10
QUEUES = 2
GROUPS = ("shop", "ledger")
IN_ORDER = "ledger"
MAX_RETRIES = 3
INVISIBLE_MS = (0, 1_000, 60_000)
CLIENTS = (7, 8)  # their leases


@dataclass
class World:
    """What consumers know."""

    sent: list[bytes] = field(default_factory=list)
    acked: set[tuple[str, bytes]] = field(default_factory=set)
    doubtful: set[tuple[str, bytes]] = field(default_factory=set)  # requests without an answer
    held: dict[tuple[str, bytes], tuple[Held, int]] = field(default_factory=dict)  # and when it is visible
    is_exact: bool = True  # no crash of the machine yet
    latest_ms: int = 0  # the clock may step back after a message has become visible
    leased: dict[Place, int] = field(default_factory=dict)
    lost: dict[Place, int] = field(default_factory=dict)  # messages of lost answers, and the latest visible time
    unsure: set[Place] = field(default_factory=set)  # of these, those whose loss is not journalled


class Life:
    """One broker, and the steps that chance chooses for it."""

    def __init__(self, disk: MemoryDisk, clock: SimulatedClock, chance: Random, world: World) -> None:
        self._clock = clock
        self._chance = chance
        self._world = world
        self.broker = open_broker(disk, clock, random_fraction=chance.random)
        if self.broker.topics.find("orders") is None:
            self.broker.topics.put(Topic(name="orders", read_queues=QUEUES, write_queues=QUEUES))
            for name in GROUPS:
                self.broker.groups.put(Group(name=name, is_ordered=name == IN_ORDER, max_retries=MAX_RETRIES))
            self.broker.tables.save()
        world.latest_ms = max(world.latest_ms, clock.now_ms())
        # What an earlier start or report let go keeps its time, also if the clock was set back since.
        until_ms = clock.now_ms() + LEASE_MS
        world.lost |= {place: max(world.lost[place], until_ms) for place in world.unsure & world.lost.keys()}
        self._expect_after_lease(world.leased)
        self._check_lost()

    def _expect_after_lease(self, places: Container[Place]) -> None:
        """Expect messages after the time of a lease from now on. The clock may have stepped back since the pop."""
        until_ms, held = self._clock.now_ms() + LEASE_MS, self._world.held
        for key, (one, visible_ms) in held.items():
            if one.place in places:
                held[key] = one, min(visible_ms, until_ms)

    def work(self) -> None:
        steps = (
            self._send,
            self._pop,
            self._pop,
            self._ack,
            self._ack,
            self._change,
            self._lose,
            self._expire,
            self._wait,
            self._save,
        )
        for _ in range(self._chance.randrange(5, 40)):
            self._chance.choice(steps)()

    def _send(self) -> None:
        for _ in range(self._chance.choice((1, 5, 20))):
            body = b"%d" % (len(self._world.sent))
            # In doubt until it is found in the log: the disk may fail after the write.
            self._world.sent.append(body)
            with contextlib.suppress(LaterMQError):
                send(self.broker, body, queue_id=self._chance.randrange(QUEUES))

    def _wait(self) -> None:
        self._clock.advance(self._chance.choice((1, 500, 1_000, 61_000)))
        if self._chance.random() < 0.1:
            self._step(self._chance.choice((-3_000, 2_000)))
        self.broker.pop_operations.renew(CLIENTS, self.broker.pop_clock.now_ms())

    def _step(self, step_ms: int) -> None:
        """Set the clock. Times in flight follow, but after a restart those of earlier pops are as they were."""
        self._clock.step(step_ms)
        world = self._world
        world.held = {key: (one, visible_ms + min(0, step_ms)) for key, (one, visible_ms) in world.held.items()}
        world.lost = {place: latest_ms + max(0, step_ms) for place, latest_ms in world.lost.items()}

    def _save(self) -> None:
        with contextlib.suppress(LaterMQError):
            if self._chance.random() < 0.5:
                self.broker.store.flush()
            else:
                self.broker.store.save(self.broker.store.plan_checkpoint())

    def _expire(self) -> None:
        self._world.latest_ms = max(self._world.latest_ms, self._clock.now_ms())
        self.broker.pop_expiry.run()
        self._check_lost()

    def _check_lost(self) -> None:
        """No live client holds a message that it may not have got, also after a crash."""
        operations, rows = self.broker.pop_operations, self.broker.in_flight.rows
        for place, latest_ms in self._world.lost.items():
            queue = operations.find(*place[:3])
            row = self.broker.in_flight.locate(queue, place.offset) if queue is not None else -1
            if row >= 0 and rows.pop_ms[row] == place.pop_ms:
                assert not rows.lease[row], f"{place} is held by a client that may not have it"
                assert rows.visible_ms[row] <= latest_ms, f"{place} is held for too long"

    def _lose(self) -> None:
        """Lose the last answers of a client that lives. They are on their way for a moment only."""
        world, now_ms, client = self._world, self._clock.now_ms(), self._chance.choice(CLIENTS)
        lost = {
            place
            for place, lease in world.leased.items()
            if lease == client and place.pop_ms >= max(now_ms, self.broker.in_flight.last_pop_ms) - HANDOVER_MS
        }
        self.broker.pop_operations.lose(client, {place.pop_ms for place in lost}, now_ms)
        world.latest_ms = max(
            world.latest_ms, now_ms
        )  # some of it was lost by the start, before the clock stepped back
        world.lost = dict.fromkeys(lost, world.latest_ms + LEASE_MS) | world.lost
        world.unsure |= lost
        self._expect_after_lease(lost)
        if self.broker.pop_positions.try_commit() is None:
            world.unsure -= lost

    def _pop(self) -> None:
        group, chance = self._chance.choice(GROUPS), self._chance
        self._world.latest_ms = max(self._world.latest_ms, self._clock.now_ms())
        lease = chance.choice((0, *CLIENTS))
        invisible_ms = LEASE_MS if lease else chance.choice(INVISIBLE_MS)
        try:
            popped = pop(
                self.broker, group=group, count=chance.choice((1, 8, 32)), invisible_ms=invisible_ms,
                attempt=chance.choice(("", "a", "b")), lease=lease,
            )  # fmt: skip
        except StoreError:
            # Not answered: the messages come back by themselves. The same attempt may have made older handles stale.
            own = {key: held for key, (held, _) in self._world.held.items() if key[0] == group == IN_ORDER}
            self._world.held |= {key: (held, 0) for key, held in own.items()}
            return
        if lease:
            self._world.leased |= dict.fromkeys([one.place for one in popped], lease)
        self.deliver(group, popped, self._clock.now_ms() + invisible_ms)

    def deliver(self, group: str, popped: list[Held], visible_ms: int) -> None:
        world, now_ms = self._world, self._world.latest_ms
        assert len({one.body for one in popped}) == len(popped) or not world.is_exact, "a message is twice in one pop"
        for one in popped:
            key = group, one.body
            assert one.body in world.sent
            if world.is_exact:
                assert key not in world.acked, f"{key} was acknowledged and came back"
                known = world.held.get(key)
                is_repeat = known is not None and known[0].place[:4] == one.place[:4] and group == IN_ORDER
                assert known is None or known[1] <= now_ms or is_repeat, f"{key} came back before its time"
            assert one.message.reconsume_times <= MAX_RETRIES
            world.held[key] = one, visible_ms
        if group == IN_ORDER and world.is_exact:
            self._check_order(popped)

    def _check_order(self, popped: list[Held]) -> None:
        """Everything before a batch in its queue is done: acknowledged, in doubt or dead."""
        dead = set(bodies(self.broker, f"%DLQ%{IN_ORDER}"))
        for queue_id in {one.place.queue_id for one in popped}:
            batch = {one.body for one in popped if one.place.queue_id == queue_id}
            for body in bodies(self.broker, queue_id=queue_id):
                if body in batch:
                    batch.discard(body)
                    if not batch:
                        break
                    continue
                key = IN_ORDER, body
                is_done = key in self._world.acked or key in self._world.doubtful or body in dead
                assert is_done, f"{body!r} was skipped in queue {queue_id}"

    def _any_held(self) -> tuple[tuple[str, bytes], Held, int] | None:
        if not self._world.held:
            return None
        key = self._chance.choice(list(self._world.held))
        return key, *self._world.held[key]

    def _ack(self) -> None:
        found = self._any_held()
        if found is None:
            return
        key, held, visible_ms = found
        was_doubtful = key in self._world.doubtful
        self._world.doubtful.add(key)
        try:
            outcome = ack(self.broker, held)
        except StoreError:
            return  # it is done when the journal can be written, or forgotten by a crash
        if outcome is Outcome.DONE:
            self._world.acked.add(key)
        elif self._world.is_exact:
            assert key in self._world.acked or visible_ms <= self._world.latest_ms or was_doubtful
        if outcome is not Outcome.REPEATED:
            self._world.doubtful.discard(key)

    def _change(self) -> None:
        found = self._any_held()
        if found is None or found[0] in self._world.acked:
            return
        key, held, _ = found
        for places in (self._world.leased, self._world.lost):
            places.pop(held.place, None)  # a change shows that the message arrived
        invisible_ms = self._chance.choice(INVISIBLE_MS)
        try:
            changed = change(self.broker, held, invisible_ms, is_suspended=self._chance.random() < 0.3)
        except StoreError:
            self._world.held[key] = held, 0  # its time is in doubt
            return
        if changed.outcome is Outcome.DONE:
            place = held.place._replace(pop_ms=changed.pop_ms)
            self._world.held[key] = Held(held.message, place), changed.visible_ms

    # The end

    def drain(self) -> None:
        """Consume everything that is left. Nothing may be missing."""
        world, broker, now = self._world, self.broker, self._clock
        for _ in range(400):
            now.advance(61_000)
            world.latest_ms = max(world.latest_ms, now.now_ms())
            while broker.pop_expiry.run() == 0:
                pass
            assert not broker.pop_expiry.failure
            found = 0
            for group in GROUPS:
                popped = pop(broker, group=group, invisible_ms=0)
                self.deliver(group, popped, now.now_ms())
                found += len(popped)
                for one in popped:
                    assert ack(broker, one) is Outcome.DONE
                    world.acked.add((group, one.body))
            if not found and not broker.in_flight.held:
                break
        stored = [body for queue_id in range(QUEUES) for body in bodies(broker, queue_id=queue_id)]
        for group in GROUPS:
            dead = Counter(bodies(broker, f"%DLQ%{group}"))
            for body in stored:
                is_done = (group, body) in world.acked or (group, body) in world.doubtful
                assert is_done or body in dead, f"{group} never got {body!r}"
            if world.is_exact:
                assert max(dead.values(), default=1) == 1, "a message has two dead letters"
                twice = [body for body in dead if (group, body) in world.acked]
                assert not twice, f"{twice} are acknowledged and dead"


def live(seed: int) -> None:
    """Several lives of one store. Odd seeds have a disk that fails at times, or a process that dies in a call."""
    chance = Random(seed)
    clock, disk, world = SimulatedClock(), MemoryDisk(), World()
    for _ in range(LIVES_A_SEED):
        life = Life(disk, clock, chance, world)
        if seed % 2:
            disk.before_step = lambda operation, path: fail_sometimes(chance, operation)
            disk.crash_after(chance.randrange(20, 600), halfway=chance.random() < 0.5)
        with contextlib.suppress(SimulatedCrash):
            life.work()
        disk.before_step = lambda operation, path: None
        disk.crash_after(None)
        disk = end_life(life.broker, disk, clock, chance, world)
        clock.advance(chance.choice((0, 500, 70_000)))
    Life(disk, clock, chance, world).drain()


def end_life(broker: Broker, disk: MemoryDisk, clock: SimulatedClock, chance: Random, world: World) -> MemoryDisk:
    ending = chance.random()
    if ending < 0.7:
        if ending < 0.3:
            with contextlib.suppress(SimulatedCrash, StoreError):
                broker.close()
        return disk.after_process_crash()
    world.is_exact = False
    world.unsure |= world.lost.keys()
    clock.advance(10_000)  # a machine takes time to start, so no new handle has the pop time of a lost one
    return disk.after_machine_crash(chance)


def fail_sometimes(chance: Random, operation: str) -> None:
    if operation in ("reserve", "map", "replace") and chance.random() < 0.05:
        raise StoreError(f"injected failure of {operation}")


@pytest.mark.parametrize("first_seed", range(0, LIVES // LIVES_A_SEED, SEEDS_A_TEST))
def test_consumers_that_pop_lose_nothing_and_get_nothing_twice(first_seed: int) -> None:
    run_seeds(live, first_seed, SEEDS_A_TEST)
