"""Random lives of POP consumption over a store: no acknowledged message comes back, every other one does in its time.

A life pops, acknowledges, changes, lets time pass, resets and removes, and ends by a stop or a crash of the process or
the machine, at any moment. After each start the table must be exactly what the last journal record left behind,
according to a plain model. Every run is a seed. A failing one is named and replays exactly: `live(SEED)`.
"""

import contextlib
from collections import Counter
from dataclasses import dataclass, field
from random import Random

import pytest

from latermq.clock import SimulatedClock
from latermq.errors import StoreError
from latermq.group.pop.handles import pop_retry_topic
from latermq.group.pop.operations import HANDOVER_MS, InFlightFull, Limits, Outcome, PopOperations, attempt_hash
from latermq.group.pop.pop_journal import PopJournal
from latermq.group.pop.popped_queue import PoppedQueue
from latermq.group.pop.rows import windows_of
from latermq.group.pop.snapshot import PopSnapshot
from latermq.group.pop.snapshot_file import PATH as SNAPSHOT
from latermq.group.pop.table import Due, InFlightTable
from latermq.message.names import dead_letter_topic
from latermq.store.checkpoint import PATH as CHECKPOINT
from latermq.store.files.memory_disk import MemoryDisk, SimulatedCrash
from latermq.store.log_writer import Draft
from latermq.store.message_store import MessageStore
from tests.support.faults.naive_pop import HOLD_MS, LEASE_MS, Key, NaivePop, NaiveQueue
from tests.support.faults.seeds import run_seeds
from tests.support.needs import LONG
from tests.support.stores import HOST, SMALL

SEEDS = 5_000 if LONG else 200
SEEDS_A_TEST = 50
TOPICS = ("orders", "bills")
QUEUES = 2
GROUPS = ("shop", "audit")
IN_ORDER = "ledger"  # the group that pops in order
LEASES = (7, 8)
INVISIBLE_MS = (0, 1_000, 10_000, 60_000)
LIMITS = Limits(in_flight=300, in_flight_per_queue=120, queues=40)
TIMES_MS = (1, 500, 10_000, 61_000, HOLD_MS)


@dataclass
class Handle:
    """What a consumer got and has not acknowledged."""

    key: Key
    offset: int
    pop_ms: int


@dataclass
class World:
    """What outlives a broker: the states after each journal record, handles, and what the machine's crashes undid."""

    states: dict[int, NaivePop] = field(default_factory=lambda: {0: NaivePop()})
    handles: list[Handle] = field(default_factory=list)
    sent: int = 0
    answered: int = 0  # number of the last journal record that was answered
    is_exact: bool = True  # nothing happened that delivers a message twice
    has_lost_records: bool = False  # by a crash of the machine


class Life:
    """One opening of the store, and the steps that chance chooses for it."""

    def __init__(self, disk: MemoryDisk, clock: SimulatedClock, chance: Random, world: World) -> None:
        self._clock = clock
        self._chance = chance
        self._world = world
        table = InFlightTable()
        snapshot = PopSnapshot(disk, table, chance.choice((0, 300, 2_000, 1 << 20)), chance.choice((3_000, 1 << 30)))
        self.store = MessageStore(disk, SMALL, clock, store_host=HOST, new_store_id="a" * 32, participants=[snapshot])
        self.operations = PopOperations(table, LIMITS)
        self.journal = PopJournal(self.store, self.operations, snapshot, born_host=HOST)
        self.operations.begin(clock.now_ms())
        self.model = world.states[self.journal.next_record].copy()
        self.model.start(clock.now_ms(), table.last_pop_ms - HANDOVER_MS)
        world.states = {number: state for number, state in world.states.items() if number <= self.journal.next_record}
        world.answered = self.journal.next_record
        self.unanswered: list[Handle] = []

    # Turns

    def work(self) -> None:
        for _ in range(self._chance.randrange(1, 25)):
            kind = self._chance.random()
            if kind < 0.15:
                self._send()
            elif kind < 0.25:
                self._clock.advance(self._chance.choice(TIMES_MS))
            elif kind < 0.28:
                self._clock.step(self._chance.choice((-5_000, -1, 3_000)))
            elif kind < 0.33:
                with contextlib.suppress(StoreError):
                    self.store.flush()
            elif kind < 0.4:
                self._save()
            elif kind < 0.42:
                self._remove_topic()
            else:
                self._turn()
            self.model.compare(self.operations)

    def _save(self) -> None:
        with contextlib.suppress(StoreError):
            self.store.save(self.store.plan_checkpoint())

    def _send(self) -> None:
        for _ in range(self._chance.choice((1, 5, 40))):
            place = self._chance.choice(TOPICS), self._chance.randrange(QUEUES)
            with contextlib.suppress(StoreError):
                self.store.writer.append(*place, b"%d" % self._world.sent, b"", 1, HOST)
                self._world.sent += 1

    def _turn(self) -> None:
        """Do several operations, revive what is due after them, and journal all before anything is answered."""
        chance = self._chance
        for _ in range(chance.randrange(1, 5)):
            operation = chance.choice((
                self._pop, self._pop, self._pop_in_order, self._ack, self._ack, self._ack, self._ack_many,
                self._change, self._advance, self._reset, self._lease, self._remove_group,
            ))  # fmt: skip
            operation()
        if chance.random() < 0.05:  # as when a topic is deleted in the same turn
            self._save()
        if chance.random() < 0.5:
            self._revive()
        elif chance.random() < 0.2:
            self._bury()
        self.commit()

    def commit(
        self, drafts: list[Draft] | None = None, after: NaivePop | None = None, gone: tuple[Due, ...] = ()
    ) -> None:
        """Append what this turn did. Answers exist only afterwards; without them nobody knows the handles."""
        world, number = self._world, self.journal.next_record
        after = after or self.model
        if not self.operations.journal.is_empty or gone:
            world.states[number + 1] = after.copy()
        try:
            self.journal.append(drafts or (), gone)
        except StoreError:
            self.unanswered = []
            return
        if after is not self.model:
            self.model = after
        world.answered = self.journal.next_record
        world.handles += self.unanswered
        self.unanswered = []

    # Operations

    def _open(self, group: str, topic: str, queue_id: int) -> Key:
        key = group, topic, queue_id
        queue = self.store.queues.find(topic, queue_id)
        start = queue.min_offset if queue is not None else 0
        if key not in self.model.queues:
            self.operations.open_queue(*key, start)
            self.model.queues[key] = NaiveQueue(start)
        return key

    def _queue(self, key: Key) -> PoppedQueue:
        queue = self.operations.find(*key)
        assert queue is not None
        return queue

    def _any_key(self, group: str) -> Key:
        topic, queue_id = self._chance.choice(TOPICS), self._chance.randrange(QUEUES)
        if self._chance.random() < 0.3 and group != IN_ORDER:
            topic, queue_id = pop_retry_topic(group, topic), 0
        return self._open(group, topic, queue_id)

    def _available(self, key: Key, from_offset: int, count: int) -> tuple[list[int], int]:
        """Offsets that a pop takes, and where the next one continues: some messages are filtered."""
        queue = self.store.queues.find(key[1], key[2])
        end = queue.next_offset if queue is not None else 0
        is_filtered = self._chance.random() < 0.3
        taken: list[int] = []
        at = from_offset
        while at < end and len(taken) < count:
            if not is_filtered or at % 3:
                taken.append(at)
            at += 1
        return taken, at

    def _pop(self, key: Key | None = None, count: int = 0) -> None:
        chance, operations, now_ms = self._chance, self.operations, self._clock.now_ms()
        key = key or self._any_key(chance.choice(GROUPS))
        queue = self._queue(key)
        offsets, next_offset = self._available(key, self.model.queues[key].next, count or chance.choice((1, 8, 32)))
        lease = chance.choice((0, 0, *LEASES))
        invisible_ms = chance.choice(INVISIBLE_MS)
        held = sum(len(one.held) for one in self.model.queues.values())
        is_full = len(offsets) > min(LIMITS.in_flight - held, LIMITS.in_flight_per_queue - queue.held)
        try:
            pop_ms = operations.pop(queue, offsets, next_offset, now_ms, invisible_ms, lease)
        except InFlightFull:
            assert is_full
            return
        assert not is_full or not offsets
        self.model.pop(key, offsets, next_offset, pop_ms, now_ms + (HOLD_MS if lease else invisible_ms), lease)
        self.model.renew(lease, now_ms)
        self._deliver(key, offsets, pop_ms)

    def _pop_in_order(self, key: Key | None = None) -> None:
        chance, operations, now_ms = self._chance, self.operations, self._clock.now_ms()
        key = key or self._any_key(IN_ORDER)
        queue = self._queue(key)
        attempt = attempt_hash(chance.choice(("", "a", "b", "c")))
        first = operations.redelivery(queue, now_ms, attempt)
        assert (first and tuple(first)) == self.model.redelivery(key, now_ms, attempt)
        if first is None:
            return
        count = chance.choice((1, 8, 32))
        offsets, next_offset = first.offsets, self.model.queues[key].next
        if not first.is_repeat:
            offsets = offsets[:count]
            if len(offsets) < count and len(offsets) == len(first.offsets):
                new, next_offset = self._available(key, next_offset, count - len(offsets))
                offsets = offsets + new
        lease, invisible_ms = chance.choice((0, 0, *LEASES)), chance.choice(INVISIBLE_MS)
        try:
            popped = operations.pop_in_order(queue, offsets, next_offset, now_ms, invisible_ms, attempt, lease)
        except InFlightFull:
            return
        visible_ms = now_ms + (HOLD_MS if lease else invisible_ms)
        counts = self.model.pop_in_order(
            key, offsets, next_offset, popped.pop_ms, visible_ms, lease, attempt, is_repeat=first.is_repeat
        )
        assert popped.counts == counts
        self.model.renew(lease, now_ms)
        self._deliver(key, offsets, popped.pop_ms)

    def _deliver(self, key: Key, offsets: list[int], pop_ms: int) -> None:
        """Hand out messages. None of them may be one that was acknowledged, or one that another consumer holds."""
        acked = {place for group, place in self.model.acked if group == key[0]}
        assert not {(key[1], key[2], offset) for offset in offsets} & acked, "an acknowledged message came back"
        new = [Handle(key, offset, pop_ms) for offset in offsets]
        old = {(one.key, one.offset, one.pop_ms) for one in self._world.handles + self.unanswered}
        if not self._world.has_lost_records:
            assert not {(one.key, one.offset, one.pop_ms) for one in new} & old, "two deliveries have one handle"
        self.unanswered += new

    def _handle(self) -> Handle | None:
        return self._chance.choice(self._world.handles) if self._world.handles else None

    def _ack(self) -> None:
        handle = self._handle()
        if handle is None:
            return
        queue = self.operations.find(*handle.key)
        if queue is None:
            assert handle.key not in self.model.queues
            return
        outcome = self.operations.ack(queue, handle.offset, handle.pop_ms)
        self._check_outcome(outcome, handle)
        if outcome is Outcome.DONE:
            self.model.ack(handle.key, handle.offset)

    def _check_outcome(self, outcome: Outcome, handle: Handle) -> None:
        own = self.model.queues[handle.key]
        if self.model.matches(handle.key, handle.offset, handle.pop_ms):
            assert outcome is Outcome.DONE
        elif handle.offset >= own.next:
            assert outcome is Outcome.UNKNOWN
        elif handle.offset in own.held:
            assert outcome is Outcome.STALE
        else:
            assert outcome in (Outcome.REPEATED, Outcome.STALE)

    def _ack_many(self) -> None:
        handle = self._handle()
        queue = self.operations.find(*handle.key) if handle is not None else None
        if handle is None or queue is None:
            return
        offsets = [handle.offset + distance for distance in range(-40, 41) if self._chance.random() < 0.7]
        good = [offset for offset in offsets if self.model.matches(handle.key, offset, handle.pop_ms)]
        if self._chance.random() < 0.5:
            assert self.operations.ack_all(queue, windows_of(offsets), handle.pop_ms) == len(good)
        else:
            outcomes = self.operations.ack_each(queue, [(offset, handle.pop_ms) for offset in offsets])
            pairs = zip(offsets, outcomes, strict=True)
            assert [offset for offset, outcome in pairs if outcome is Outcome.DONE] == good
        for offset in good:
            self.model.ack(handle.key, offset)

    def _change(self) -> None:
        handle = self._handle()
        queue = self.operations.find(*handle.key) if handle is not None else None
        if handle is None or queue is None:
            return
        now_ms, invisible_ms = self._clock.now_ms(), self._chance.choice(INVISIBLE_MS)
        is_suspended = self._chance.random() < 0.3
        changed = self.operations.change(
            queue, handle.offset, handle.pop_ms, now_ms, invisible_ms, is_suspended=is_suspended
        )
        self._check_outcome(changed.outcome, handle)
        if changed.outcome is Outcome.DONE:
            assert changed.visible_ms == now_ms + invisible_ms
            is_ordered = self.model.queues[handle.key].held[handle.offset].is_ordered
            assert changed.pop_ms == handle.pop_ms if is_ordered else changed.pop_ms > handle.pop_ms
            self.model.change(handle.key, handle.offset, changed.pop_ms, changed.visible_ms, is_suspended=is_suspended)
            self.unanswered.append(Handle(handle.key, handle.offset, changed.pop_ms))

    def _advance(self) -> None:
        if self._chance.random() < 0.2:
            key = self._any_key(self._chance.choice(GROUPS))
            queue = self.store.queues.find(key[1], key[2])
            to = min(self.model.queues[key].next + 2, queue.next_offset if queue is not None else 0)
            self.operations.advance(self._queue(key), to)
            self.model.skip(key, to, set())

    def _reset(self) -> None:
        if self._chance.random() < 0.15:
            key = self._any_key(self._chance.choice((*GROUPS, IN_ORDER)))
            queue = self.store.queues.find(key[1], key[2])
            to = self._chance.randint(0, queue.next_offset) if queue is not None else 0
            self.operations.reset(self._queue(key), to)
            self.model.reset(key, to)
            self.model.acked = [one for one in self.model.acked if not is_from(one, key, to)]
            self._world.is_exact = False

    def _lease(self) -> None:
        lease, now_ms, kind = self._chance.choice(LEASES), self._clock.now_ms(), self._chance.random()
        if kind < 0.5:
            self.operations.renew([lease], now_ms)
            self.model.renew(lease, now_ms)
        elif kind < 0.6:
            self.operations.end_lease(lease, now_ms + 1_000)
            self.model.end_lease(lease, now_ms + 1_000)
        else:
            held = {held.pop_ms for held in self.model.leased(lease)}
            lost = {pop_ms for pop_ms in held if self._chance.random() < 0.5} | {12_345}
            assert self.operations.lose(lease, lost, now_ms) == self.model.lose(lease, lost, now_ms + LEASE_MS)

    def _remove_group(self) -> None:
        if self._chance.random() < 0.04:
            group = self._chance.choice((*GROUPS, IN_ORDER))
            keys = [key for key in self.model.queues if key[0] == group]
            assert self.operations.remove_group(group) == len(keys)
            self.model.remove(keys)
            self.model.acked = [one for one in self.model.acked if one[0] != group]
            self.model.skipped = {one for one in self.model.skipped if one[0] != group}
            self._world.is_exact = False

    def _remove_topic(self) -> None:
        topic = self._chance.choice(TOPICS)
        self._world.is_exact = False
        self.operations.remove_topic(topic)
        self.model.remove([key for key in self.model.queues if key[1] == topic])
        self.model.forget_places(topic)
        self.commit()
        if self.operations.journal.is_empty:
            with contextlib.suppress(StoreError):
                self.store.remove_topic(topic)()

    # Time

    def _revive(self) -> None:
        """Copy what is due to the retry topics, in one block with the journal's record."""
        now_ms = self._clock.now_ms()
        max_messages = self._chance.choice((3, 1_000))
        due, unblocked = self.operations.due(now_ms, max_messages)
        self.model.pass_time(now_ms)
        found = [(one.queue.key, offset) for one in due for offset in one.offsets]
        expected = self.model.due(now_ms)
        assert set(found) <= expected, "a message came back before its time"
        assert len(found) >= min(max_messages, len(expected)), "a message did not come back in its time"
        assert len(found) == len(set(found))
        for queue in unblocked:
            assert self.model.redelivery(queue.key, now_ms, 0) is not None
        after = self.model.copy()
        drafts = []
        for key, offset in found:
            group, topic, queue_id = key
            retry = topic if topic.startswith("%RETRY%") else pop_retry_topic(group, topic)
            drafts.append(Draft(retry, 0, self._body(topic, queue_id, offset), b"", 1, HOST))
            after.gone(key, offset)
        if due:
            self.commit(drafts, after, tuple(due))

    def _bury(self) -> None:
        handle = self._handle()
        queue = self.operations.find(*handle.key) if handle is not None else None
        if handle is None or queue is None:
            return
        outcome, due = self.operations.check(queue, handle.offset, handle.pop_ms)
        self._check_outcome(outcome, handle)
        if due is not None:
            after = self.model.copy()
            after.ack(handle.key, handle.offset)
            body = self._body(handle.key[1], handle.key[2], handle.offset)
            draft = Draft(dead_letter_topic(handle.key[0]), 0, body, b"", 1, HOST)
            self.commit([draft], after, (due,))

    def _body(self, topic: str, queue_id: int, offset: int) -> bytes:
        queue = self.store.queues.find(topic, queue_id)
        entry = queue.entry(offset) if queue is not None else None
        message = self.store.reader.read_message(entry[0]) if entry is not None else None
        assert message is not None
        return message.body

    # The end

    def drain(self) -> None:
        """Consume everything there is. What is in flight comes back once its time is up."""
        for _ in range(60):
            self._clock.advance(2 * HOLD_MS)
            self._revive()
            for group in GROUPS:
                for topic in TOPICS:
                    for place in [
                        *((topic, queue_id) for queue_id in range(QUEUES)),
                        (pop_retry_topic(group, topic), 0),
                    ]:
                        self._pop(self._open(group, *place), 32)
            for topic in TOPICS:
                for queue_id in range(QUEUES):
                    self._pop_in_order(self._open(IN_ORDER, topic, queue_id))
            self.commit()
            for handle in self._world.handles[-2_000:]:
                if self.model.matches(handle.key, handle.offset, handle.pop_ms):
                    queue = self._queue(handle.key)
                    assert self.operations.ack(queue, handle.offset, handle.pop_ms) is Outcome.DONE
                    self.model.ack(handle.key, handle.offset)
            self.commit()
            self.model.compare(self.operations)
            if all(self._is_done(key) for key in self.model.queues):
                break
        self._check_consumed()

    def _is_done(self, key: Key) -> bool:
        queue = self.store.queues.find(key[1], key[2])
        own = self.model.queues[key]
        return not own.held and own.next >= (queue.next_offset if queue is not None else 0)

    def _check_consumed(self) -> None:
        for group in (*GROUPS, IN_ORDER):
            done = [self._body(*place) for owner, place in self.model.acked if owner == group]
            skipped = {self._body(*place) for owner, place in self.model.skipped if owner == group}
            for topic in TOPICS:
                for queue_id in range(QUEUES):
                    queue = self.store.queues.find(topic, queue_id)
                    for offset in range(queue.next_offset if queue is not None else 0):
                        body = self._body(topic, queue_id, offset)
                        assert body in skipped or body in done, f"{group} never got {body!r}"
            if self._world.is_exact:
                twice = [body for body, count in Counter(done).items() if count > 1]
                assert not twice, f"{group} consumed {twice} twice"


def is_from(acked: tuple[str, tuple[str, int, int]], key: Key, offset: int) -> bool:
    group, (topic, queue_id, at) = acked
    return (group, topic, queue_id) == key and at >= offset


def live(seed: int) -> None:
    """Several lives of one store. Odd seeds have a disk that fails at times, or a process that dies in a call."""
    chance = Random(seed)
    clock, disk, world = SimulatedClock(), MemoryDisk(), World()
    safe = 0
    for _ in range(4):
        life = Life(disk, clock, chance, world)
        assert life.journal.next_record >= safe, f"record {safe} was answered, the journal ends earlier"
        life.model.compare(life.operations)
        if seed % 2:
            disk.before_step = lambda operation, path: fail_sometimes(chance, operation)
            disk.crash_after(chance.randrange(5, 400), halfway=chance.random() < 0.5)
        with contextlib.suppress(SimulatedCrash):
            life.work()
        disk.before_step = lambda operation, path: None
        disk.crash_after(None)
        safe, disk = end_life(life, disk, chance, world)
        lose_files(disk, chance)
        clock.advance(chance.choice((0, 500, 70_000)))
    last = Life(disk, clock, chance, world)
    last.model.compare(last.operations)
    last.drain()


def end_life(life: Life, disk: MemoryDisk, chance: Random, world: World) -> tuple[int, MemoryDisk]:
    """Up to which record the journal must be there in the next life, and the disk of that life."""
    ending = chance.random()
    if ending < 0.6:
        with contextlib.suppress(SimulatedCrash, StoreError):
            if ending < 0.2:
                life.store.close()
        return world.answered, disk.after_process_crash()
    # Copies of messages may survive while the record that says so does not: they are then delivered twice.
    world.is_exact, world.has_lost_records = False, True
    queue = life.store.queues.find("rmq_sys_latermq_pop", 0)
    return life.store.reader.flushed_end(queue) if queue is not None else 0, disk.after_machine_crash(chance)


def lose_files(disk: MemoryDisk, chance: Random) -> None:
    """The journal is whole in these lives, so a lost snapshot costs nothing but time."""
    for path in (CHECKPOINT, SNAPSHOT):
        if chance.random() < 0.1 and disk.read(path) is not None:
            disk.remove(path)


def fail_sometimes(chance: Random, operation: str) -> None:
    if operation in ("reserve", "map", "replace") and chance.random() < 0.1:
        raise StoreError(f"injected failure of {operation}")


@pytest.mark.parametrize("first_seed", range(0, SEEDS, SEEDS_A_TEST))
def test_no_life_forgets_an_acknowledgement_or_a_message(first_seed: int) -> None:
    run_seeds(live, first_seed, SEEDS_A_TEST)
