"""Operations with the handle of a popped message: acknowledge it, change its invisible time, bury it."""

from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from latermq.broker.pop.expiry import PopExpiry
from latermq.broker.pop.positions import PopPositions
from latermq.broker.pop.waiting_pops import WaitingPops
from latermq.broker.tables.topics import Topics
from latermq.clock import Clock
from latermq.errors import IllegalMessage
from latermq.group.pop.handles import Windows
from latermq.group.pop.operations import Changed, Outcome, PopOperations
from latermq.group.pop.popped_queue import PoppedQueue
from latermq.store.queues.queue_table import QueueTable

_KEY = itemgetter(0, 1, 2)  # of a place
_OFFSET_AND_TIME = itemgetter(3, 4)


class Place(NamedTuple):
    """A message as its handle names it: group, the topic that it was popped from, queue, offset and pop time."""

    group: str
    topic: str
    queue_id: int
    offset: int
    pop_ms: int


class Acknowledgements:
    """Serves handles. The caller journals what changed before it answers."""

    def __init__(
        self,
        operations: PopOperations,
        positions: PopPositions,
        expiry: PopExpiry,
        waiting_pops: WaitingPops,
        topics: Topics,
        queues: QueueTable,
        clock: Clock,
    ) -> None:
        self._operations = operations
        self._by_key = operations.table.queues
        self._positions = positions
        self._expiry = expiry
        self._waiting_pops = waiting_pops
        self._topics = topics
        self._queues = queues
        self._clock = clock
        # Acknowledgements since the start. A member of an enum takes 0.5 µs to look up, so one has its own count.
        self.done = 0
        self.outcomes = dict.fromkeys(Outcome, 0)

    def find(self, place: Place) -> PoppedQueue | None:
        """Return the queue of a handle, or None if its offset is outside of the queue. Raises if there is no queue."""
        queue = self._by_key.get((place.group, place.topic, place.queue_id))
        if queue is None:
            config = self._topics.require(place.topic)
            if not 0 <= place.queue_id < config.read_queues:
                raise IllegalMessage(
                    f"topic {place.topic!r} has no queue {place.queue_id}",
                    hint=f"Its queues are 0 to {config.read_queues - 1}",
                )
        return queue

    def is_stored(self, place: Place) -> bool:
        """Whether the queue has this offset, or had it before retention removed it while it was in flight."""
        stored = self._queues.find(place.topic, place.queue_id)
        return stored is not None and stored.min_offset <= place.offset <= stored.next_offset

    def ack(self, place: Place) -> Outcome:
        """Acknowledge one message."""
        queue = self._by_key.get(place[:3])
        if queue is None:
            outcome = Outcome.UNKNOWN
        else:
            was_ordered = bool(queue.ordered)
            outcome = self._operations.ack(queue, place.offset, place.pop_ms)
            if outcome is Outcome.DONE:
                self._note_done(queue, 1, was_ordered=was_ordered)
                return outcome
        self.outcomes[outcome] += 1
        return outcome

    def ack_each(self, places: Iterable[tuple[str, str, int, int, int]]) -> list[Outcome]:
        """Acknowledge messages that are named as in `Place`, and return the outcome of each."""
        outcomes: list[Outcome] = []
        for key, own in groupby(places, _KEY):
            queue = self._by_key.get(key)
            if queue is None:
                found = [Outcome.UNKNOWN for _ in own]
            else:
                was_ordered = bool(queue.ordered)
                found = self._operations.ack_each(queue, map(_OFFSET_AND_TIME, own))
            count = found.count(Outcome.DONE)
            if count and queue is not None:
                self._note_done(queue, count, was_ordered=was_ordered)
            if count < len(found):
                for outcome in found:
                    if outcome is not Outcome.DONE:
                        self.outcomes[outcome] += 1
            outcomes += found
        return outcomes

    def ack_all(self, key: tuple[str, str, int], start: int, pop_ms: int, windows: Windows) -> int:
        """Acknowledge messages of one pop: pairs of a distance from its start and a mask. Return how many were held.

        The key is that of the queue: group, the topic that the messages were popped from, queue id.
        """
        queue = self._by_key.get(key)
        if queue is None:
            return 0
        was_ordered = bool(queue.ordered)
        count = self._operations.ack_all(queue, windows, pop_ms, start)
        if count:
            self._note_done(queue, count, was_ordered=was_ordered)
        return count

    def _note_done(self, queue: PoppedQueue, count: int, *, was_ordered: bool) -> None:
        self.done += count
        self._positions.note(queue)
        if was_ordered:
            self._note_ordered(queue)

    def change(self, place: Place, invisible_ms: int, *, is_suspended: bool) -> Changed:
        """Let a message become visible at another time."""
        queue = self._by_key.get(place[:3])
        if queue is None:
            return Changed(Outcome.UNKNOWN)
        changed = self._operations.change(
            queue, place.offset, place.pop_ms, self._clock.now_ms(), invisible_ms, is_suspended=is_suspended
        )
        if changed.outcome is Outcome.DONE and queue.ordered:
            self._note_ordered(queue)
        return changed

    def bury(self, place: Place, reason: str) -> Outcome:
        """Write a message to the dead letters of its group."""
        queue = self._by_key.get(place[:3])
        if queue is None:
            return Outcome.UNKNOWN
        outcome, due = self._operations.check(queue, place.offset, place.pop_ms)
        if due is not None:
            self._expiry.bury(due, reason)
            self._note_ordered(queue)
        return outcome

    def _note_ordered(self, queue: PoppedQueue) -> None:
        """Wake pops of a queue that is not blocked any more."""
        if self._operations.table.blocked_until_ms(queue) <= self._clock.now_ms():
            self._waiting_pops.mark_group(queue.group, queue.topic)

    def statistics(self) -> dict[str, int]:
        """Acknowledgements by outcome, since the start."""
        counts = {f"acks_{outcome.name.lower()}": count for outcome, count in self.outcomes.items()}
        return counts | {"acks_done": self.done}
