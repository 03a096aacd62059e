"""Where each group continues in the queues that it pops, and what changes that from outside: resets and deletions."""

from latermq.clock import Clock
from latermq.errors import StoreError
from latermq.group.offsets import ConsumerOffsets
from latermq.group.pop.operations import PopOperations
from latermq.group.pop.pop_journal import PopJournal
from latermq.group.pop.popped_queue import PoppedQueue
from latermq.store.queues.consume_queue import ConsumeQueue


class PopPositions:
    """Journals the operations of a turn, and keeps the consumer offsets of popped queues at their floor.

    The floor is the first message that is not acknowledged: operators and pulling consumers see it as the group's
    offset.
    """

    def __init__(self, operations: PopOperations, journal: PopJournal, offsets: ConsumerOffsets, clock: Clock) -> None:
        self._operations = operations
        self._journal = journal
        self._offsets = offsets
        self._clock = clock
        self._moved: dict[PoppedQueue, None] = {}
        for queue in operations.table.queues.values():  # the journal is newer than the file with the offsets
            self.note(queue)
        self._store_floors()

    def open(self, group: str, topic: str, queue_id: int, start: int) -> PoppedQueue:
        """Return a queue, which begins at `start` if the group has not popped from it yet."""
        queue = self._operations.find(group, topic, queue_id)
        if queue is None:
            # The offset takes its place in the table now: a later turn must not fail because the table is full.
            self._offsets.put(group, topic, queue_id, start)
            queue = self._operations.open_queue(group, topic, queue_id, start)
            self.note(queue)
        return queue

    def note(self, queue: PoppedQueue) -> None:
        """Note that the floor of a queue may have moved."""
        self._moved[queue] = None

    def commit(self) -> None:
        """Journal the operations so far. Their answers may be sent then. Raises StoreError if there is no space."""
        self._journal.append(now_ms=self._clock.now_ms())
        if self._moved:
            self._store_floors()

    def _store_floors(self) -> None:
        table, offsets = self._operations.table, self._offsets
        moved, self._moved = self._moved, {}
        for queue in moved:
            if table.by_number.get(queue.number) is queue:
                offsets.put(queue.group, queue.topic, queue.queue_id, table.floor(queue))

    # Changes from outside

    def committed(self, group: str, topic: str, queue_id: int, offset: int, *, is_reset: bool) -> int:
        """Return the offset to store when a consumer that pulls, or an operator, commits one.

        A pull's commit moves a popped queue ahead, never past messages in flight and never back. An operator's
        resets it.
        """
        queue = self._operations.find(group, topic, queue_id)
        if queue is None:
            return offset
        table = self._operations.table
        if is_reset and offset < table.floor(queue):
            self._operations.reset(queue, offset)
        else:
            self._operations.advance(queue, offset)
        self.commit()
        return table.floor(queue)

    def delivered_offset(self, group: str, topic: str, queue_id: int) -> int:
        """Return the offset up to which a group has popped a queue, 0 if it has not."""
        queue = self._operations.find(group, topic, queue_id)
        return self._operations.table.next_of(queue) if queue is not None else 0

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Continue at an offset that an operator chose. What is in flight is forgotten, and its handles are stale."""
        queue = self._operations.find(group, topic, queue_id)
        if queue is not None:
            self._operations.reset(queue, offset)
            self.note(queue)
            self.commit()

    def remove_topic(self, topic: str) -> None:
        """Forget a deleted topic: if it comes back, it has other messages at the same offsets."""
        if self._operations.remove_topic(topic):
            self.commit()

    def remove_group(self, group: str) -> None:
        """Forget a deleted group."""
        if self._operations.remove_group(group):
            self.commit()

    def skip_lost(self, queue: PoppedQueue, stored: ConsumeQueue) -> int:
        """Return where to read next, inside the queue: retention may have removed what comes next."""
        offset = self._operations.table.next_of(queue)
        self.note(queue)
        if offset < stored.min_offset:
            self._operations.advance(queue, stored.min_offset)
            return stored.min_offset
        if offset > stored.next_offset:
            self._operations.reset(queue, stored.next_offset)
            return stored.next_offset
        return offset

    def try_commit(self) -> StoreError | None:
        """Do the same as `commit`, and return the error if there is no space. The operations are then kept."""
        try:
            self.commit()
        except StoreError as error:
            return error
        return None
