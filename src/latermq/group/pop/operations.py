"""The operations of POP consumption: each checks its handle, changes the in-flight table, and is journalled.

The caller reads messages and writes answers. It journals the operations of a turn before it writes the turn's answers
(`pop_journal.py`). Acknowledgements of a turn come before `due`: then no acknowledged message becomes visible.
"""

from collections.abc import Callable, Container, Iterable, Sequence
from enum import Enum, auto
from hashlib import blake2b
from itertools import groupby
from typing import NamedTuple

from latermq.errors import PollingFull
from latermq.group.pop.journal import JournalWriter
from latermq.group.pop.popped_queue import PoppedQueue
from latermq.group.pop.rows import IN_ORDER, MAX_ROWS, WINDOW, windows_of
from latermq.group.pop.table import MAX_QUEUES, MAX_VISIBLE_MS, Due, InFlightTable

LEASE_MS = 60_000
MAX_HOLD_MS = 3 * 3_600_000
HANDOVER_MS = 5_000  # how long an answer may be on its way to its client when a process between them ends


class InFlightFull(PollingFull):
    """Too many messages are in flight. Clients get code 209 and pop again later."""


class Outcome(Enum):
    """The result of an operation with a handle."""

    DONE = auto()
    REPEATED = auto()  # the message is not in flight: it was acknowledged before
    STALE = auto()  # the message was delivered again since, or goes to its next delivery
    UNKNOWN = auto()  # the message was never popped


class Changed(NamedTuple):
    """The result of a change, and the times of the new handle."""

    outcome: Outcome
    pop_ms: int = 0
    visible_ms: int = 0


class Redelivery(NamedTuple):
    """What a pop in order must deliver before new messages."""

    offsets: list[int]
    is_repeat: bool  # the same attempt: exactly these messages, and the attempt does not count


class OrderedPop(NamedTuple):
    """The result of a pop in order."""

    pop_ms: int
    counts: list[tuple[int, int]]  # (offset, earlier deliveries) of each message


class Limits(NamedTuple):
    """Bounds. Pops beyond them are refused, all other operations are not."""

    in_flight: int = 200_000
    in_flight_per_queue: int = 10_000
    queues: int = 200_000


def attempt_hash(attempt_id: str) -> int:
    """Return the number that stands for an attempt id in the table and in the journal, 0 if there is none."""
    return int.from_bytes(blake2b(attempt_id.encode(), digest_size=8).digest(), "big") if attempt_id else 0


class PopOperations:
    """Changes a table. The operations are in `journal` until the caller has appended them to the log."""

    def __init__(
        self,
        table: InFlightTable,
        limits: Limits = Limits(),  # noqa: B008
        *,
        lease_ms: int = LEASE_MS,
        max_hold_ms: int = MAX_HOLD_MS,
    ) -> None:
        """A lease ends `lease_ms` after the last report, and `max_hold_ms` after the pop."""
        assert limits.in_flight <= MAX_ROWS, limits
        assert limits.queues <= MAX_QUEUES, limits
        self.table = table
        self.journal = JournalWriter()
        self._limits = limits
        self._lease_ms = lease_ms
        self._max_hold_ms = max_hold_ms
        self._refused = 0

    # Queues

    def find(self, group: str, topic: str, queue_id: int) -> PoppedQueue | None:
        """Return a queue that the group has popped from."""
        return self.table.queues.get((group, topic, queue_id))

    def open_queue(self, group: str, topic: str, queue_id: int, next_offset: int) -> PoppedQueue:
        """Return a queue. If the group has not popped from it yet, it begins at this offset."""
        queue = self.table.queues.get((group, topic, queue_id))
        if queue is None:
            if len(self.table.queues) >= self._limits.queues:
                self._refused += 1
                raise InFlightFull(
                    f"{len(self.table.queues)} queues are popped, the limit is {self._limits.queues}",
                    hint="Delete groups that are not in use",
                )
            if self.table.boot and not self.table.queues:
                self.journal.follow_clock(self.table.boot, self.table.clock_offset_ms, 0)
            queue = self.table.open_queue(self.table.new_number(), group, topic, queue_id, next_offset)
            self.journal.open_queue(queue, next_offset)
        return queue

    def advance(self, queue: PoppedQueue, next_offset: int) -> None:
        """Skip to an offset: messages before it are filtered, expired, or consumed by a pull."""
        if next_offset > self.table.next_of(queue):
            self.table.advance(queue, next_offset)
            self.journal.advance(queue.number, next_offset)

    def reset(self, queue: PoppedQueue, next_offset: int) -> None:
        """Continue at an offset. Messages in flight are forgotten, and their handles are stale."""
        self.table.reset(queue, next_offset)
        self.journal.reset(queue.number, next_offset)

    def remove_topic(self, topic: str, from_queue_id: int = 0) -> int:
        """Forget the queues of a deleted topic, or those from a queue id on if it has fewer queues now."""
        return self._remove(lambda queue: queue.topic == topic and queue.queue_id >= from_queue_id)

    def remove_group(self, group: str) -> int:
        """Forget the queues of a deleted group."""
        return self._remove(lambda queue: queue.group == group)

    def _remove(self, is_gone: Callable[[PoppedQueue], bool]) -> int:
        gone = [queue for queue in self.table.queues.values() if is_gone(queue)]
        for queue in gone:
            self.table.remove_queue(queue)
            self.journal.remove(queue.number)
        return len(gone)

    def clamp(self, queue_end: Callable[[str, int], int]) -> int:
        """Reset queues whose messages are gone: they end before the group's position. Return how many there were."""
        beyond = []
        for queue in self.table.queues.values():
            end = queue_end(queue.topic, queue.queue_id)
            if self.table.next_of(queue) > end:
                beyond.append((queue, end))
        for queue, end in beyond:
            self.reset(queue, end)
        return len(beyond)

    # Pops

    def room(self, queue: PoppedQueue) -> int:
        """Return how many messages may be popped from a queue now."""
        limits = self._limits
        room, own = limits.in_flight - self.table.held, limits.in_flight_per_queue - queue.held
        if own < room:
            room = own
        return room if room > 0 else 0

    def _check_room(self, queue: PoppedQueue, count: int) -> None:
        limits = self._limits
        if self.table.held + count > limits.in_flight or queue.held + count > limits.in_flight_per_queue:
            self._refused += 1
            raise InFlightFull(
                f"{queue.held} messages of the queue and {self.table.held} of the broker are in flight",
                hint="Acknowledge messages, or wait until they are visible",
            )

    def pop(
        self, queue: PoppedQueue, offsets: Sequence[int], next_offset: int, now_ms: int, invisible_ms: int,
        lease: int = 0, not_before_ms: int = 0,
    ) -> int:  # fmt: skip
        """Note that these messages are delivered, and return the pop time of their handles.

        The offsets are sorted and not before `next_of`. The next pop continues at `next_offset`: other offsets before
        it were filtered. With a lease the messages are held while it lives, whatever the invisible time. The pop time
        is not before `not_before_ms`: a pop from several queues has one.
        """
        table, number, next_offsets = self.table, queue.number, self.table.positions.next
        if offsets:
            assert offsets[0] >= next_offsets[number], f"{offsets[0]} was popped before"
            self._check_room(queue, len(offsets))
            if table.held + len(offsets) + self.journal.late_acks > MAX_ROWS:
                self.journal.write_late_acks()  # in a replay, their rows are in use until then
        pop_ms = not_before_ms if not_before_ms > now_ms else now_ms
        fence_ms = table.positions.fence_ms[number]
        if fence_ms > pop_ms:
            pop_ms = fence_ms
        visible_ms = self._visible_ms(now_ms, invisible_ms, lease)
        for first, mask in windows_of(offsets):
            table.put_batch(queue, first, mask, pop_ms, visible_ms, lease)
            self.journal.pop(number, first, mask, pop_ms, visible_ms, lease)
        if next_offset > next_offsets[number]:
            self.advance(queue, next_offset)
        if lease:
            table.leases.renew((lease,), now_ms + self._lease_ms)
        return pop_ms

    def _visible_ms(self, now_ms: int, invisible_ms: int, lease: int) -> int:
        if lease:
            invisible_ms = self._max_hold_ms
        visible_ms = now_ms + invisible_ms if invisible_ms > 0 else now_ms
        return visible_ms if visible_ms < MAX_VISIBLE_MS else MAX_VISIBLE_MS

    def earliest_pop_ms(self, queue: PoppedQueue) -> int:
        """Return the earliest pop time that no older handle of the queue has."""
        positions, number = self.table.positions, queue.number
        fence_ms, after_ms = positions.fence_ms[number], positions.order_pop_ms[number] + 1
        return fence_ms if fence_ms > after_ms else after_ms

    def redelivery(self, queue: PoppedQueue, now_ms: int, attempt: int = 0) -> Redelivery | None:
        """Return what a pop in order delivers first, or None while the queue is blocked."""
        again = self._same_attempt(queue, attempt)
        if again:
            return Redelivery(again, is_repeat=True)
        visible_ms, flags = self.table.rows.visible_ms, self.table.rows.flags
        for row in queue.singles.values():  # nearly always the first one decides: a pop may look at 1,024 queues
            if visible_ms[row] > now_ms and flags[row] & IN_ORDER:
                return None
        return Redelivery([offset for offset, _ in self.table.ordered_rows(queue)], is_repeat=False)

    def _same_attempt(self, queue: PoppedQueue, attempt: int) -> list[int]:
        """Return what is left of the last pop if it had the same attempt id: its answer may have been lost."""
        positions, number = self.table.positions, queue.number
        if not attempt or positions.attempt[number] != attempt:
            return []
        pop_ms, rows = positions.order_pop_ms[number], self.table.rows
        return [offset for offset, row in self.table.ordered_rows(queue) if rows.pop_ms[row] == pop_ms]

    def pop_in_order(
        self, queue: PoppedQueue, offsets: Sequence[int], next_offset: int, now_ms: int, invisible_ms: int,
        attempt: int = 0, lease: int = 0, not_before_ms: int = 0,
    ) -> OrderedPop:  # fmt: skip
        """Note that these messages are delivered: first those of `redelivery`, then new ones.

        The queue is blocked until all of them are acknowledged or visible.
        """
        table, number, rows = self.table, queue.number, self.table.rows
        is_counted = not self._same_attempt(queue, attempt)
        known = dict(table.ordered_rows(queue))
        self._check_room(queue, sum(offset not in known for offset in offsets))
        pop_ms = max(now_ms, not_before_ms, self.earliest_pop_ms(queue))
        visible_ms = self._visible_ms(now_ms, invisible_ms, lease)
        for first, mask in windows_of(offsets):
            table.put_in_order(queue, first, mask, pop_ms, visible_ms, lease, attempt, is_counted=is_counted)
            self.journal.pop_in_order(number, first, mask, pop_ms, visible_ms, lease, attempt, is_counted=is_counted)
        self.advance(queue, next_offset)
        if lease:
            table.leases.renew((lease,), now_ms + self._lease_ms)
        return OrderedPop(pop_ms, [(offset, rows.count[queue.singles[offset]]) for offset in offsets])

    # Handles

    def ack(self, queue: PoppedQueue, offset: int, pop_ms: int) -> Outcome:
        """Acknowledge a message. The usual case, one of several messages of a row, is inlined to save 0.2 µs."""
        table, rows = self.table, self.table.rows
        row = queue.find(offset)
        if row >= 0 and rows.pop_ms[row] == pop_ms:
            first, mask = rows.first[row], rows.mask[row]
            distance = offset - first
            if distance < WINDOW and mask >> distance & 1:
                bit = 1 << distance
                if mask == bit:
                    table.clear_bits(queue, row, bit)
                else:
                    rows.mask[row] = mask ^ bit
                    queue.held -= 1
                    table.held -= 1
                self.journal.ack(queue.number, first, bit)
                return Outcome.DONE
        return self._refusal(queue, offset, pop_ms)

    def _refusal(self, queue: PoppedQueue, offset: int, pop_ms: int) -> Outcome:
        """Return why a handle does not match."""
        if offset >= self.table.next_of(queue):
            return Outcome.UNKNOWN
        is_held = self.table.locate(queue, offset) >= 0  # by another delivery
        return Outcome.STALE if is_held or self.table.is_revived(queue, offset, pop_ms) else Outcome.REPEATED

    def ack_each(self, queue: PoppedQueue, handles: Iterable[tuple[int, int]]) -> list[Outcome]:
        """Acknowledge messages by offset and pop time, and return the outcome of each.

        Consecutive messages of a row change it once, which takes 0.3 µs per message instead of 1 µs.
        """
        table, rows, done = self.table, self.table.rows, Outcome.DONE
        outcomes = []
        first = mask = row_pop_ms = taken = 0  # of the row that was found last, without the messages taken from it
        row = -1
        for offset, pop_ms in handles:
            distance = offset - first
            if not 0 <= distance < WINDOW or not mask >> distance & 1 or pop_ms != row_pop_ms:
                self._take(queue, row, taken)
                row, mask, taken = table.locate(queue, offset), 0, 0
                if row < 0 or rows.pop_ms[row] != pop_ms:
                    outcomes.append(self._refusal(queue, offset, pop_ms))
                    continue
                first, mask, row_pop_ms = rows.first[row], rows.mask[row], pop_ms
                distance = offset - first
            bit = 1 << distance
            mask ^= bit
            taken |= bit
            outcomes.append(done)
        self._take(queue, row, taken)
        return outcomes

    def ack_all(self, queue: PoppedQueue, windows: Iterable[tuple[int, int]], pop_ms: int, start: int = 0) -> int:
        """Acknowledge messages of one pop, as pairs of an offset and a mask. Return how many were in flight.

        The offsets of the pairs count from `start`.
        """
        table, rows, count = self.table, self.table.rows, 0
        for distance, mask in windows:
            at, left = start + distance, mask
            while left:
                low = left & -left
                row = table.locate(queue, at + low.bit_length() - 1)
                if row < 0 or rows.pop_ms[row] != pop_ms:
                    left ^= low
                    continue
                first = rows.first[row]
                shift = first - at
                own = rows.mask[row] & (left >> shift if shift >= 0 else left << -shift)
                left &= ~(own << shift if shift >= 0 else own >> -shift)
                count += own.bit_count()
                table.clear_bits(queue, row, own)
                self.journal.ack(queue.number, first, own)
        return count

    def _take(self, queue: PoppedQueue, row: int, bits: int) -> None:
        """Remove acknowledged messages of a row, if any."""
        if bits:
            first = self.table.rows.first[row]
            self.table.clear_bits(queue, row, bits)
            self.journal.ack(queue.number, first, bits)

    def change(
        self,
        queue: PoppedQueue,
        offset: int,
        pop_ms: int,
        now_ms: int,
        invisible_ms: int,
        *,
        is_suspended: bool = False,
    ) -> Changed:
        """Let a message become visible at another time. Its old handle is stale, unless it was popped in order.

        With `is_suspended` the next delivery does not count as an attempt.
        """
        table, rows = self.table, self.table.rows
        row = table.locate(queue, offset)
        if row < 0 or rows.pop_ms[row] != pop_ms:
            return Changed(self._refusal(queue, offset, pop_ms))
        # A batch that was popped in order keeps its pop time, as in Apache: it is one delivery.
        new_pop_ms = pop_ms if rows.flags[row] & IN_ORDER else max(now_ms, pop_ms + 1)
        visible_ms = self._visible_ms(now_ms, invisible_ms, 0)
        table.change(queue, offset, new_pop_ms, visible_ms, is_suspended=is_suspended)
        self.journal.change(queue.number, offset, new_pop_ms, visible_ms, is_suspended=is_suspended)
        return Changed(Outcome.DONE, new_pop_ms, visible_ms)

    def check(self, queue: PoppedQueue, offset: int, pop_ms: int) -> tuple[Outcome, Due | None]:
        """Check the handle of a message that is to leave the table, for example to the dead letters.

        The message is journalled as gone in one block with its copy.
        """
        row = self.table.locate(queue, offset)
        if row < 0 or self.table.rows.pop_ms[row] != pop_ms:
            return self._refusal(queue, offset, pop_ms), None
        return Outcome.DONE, self.table.one(queue, offset)

    # Time and leases

    def begin(self, now_ms: int) -> None:
        """Renew all leases at the start of the broker: their clients could not be reported while it was down.

        The last answers before its end may be lost.
        """
        leases = list(self.table.leases)
        self.table.leases.renew(leases, now_ms + self._lease_ms)
        on_their_way = range(self.table.last_pop_ms - HANDOVER_MS, self.table.last_pop_ms + 1)
        for lease in leases:
            self.lose(lease, on_their_way, now_ms)

    def renew(self, leases: Iterable[int], now_ms: int) -> None:
        """Note that these clients are alive. Nothing is journalled."""
        self.table.leases.renew(leases, now_ms + self._lease_ms)

    def lose(self, lease: int, pop_times_ms: Container[int], now_ms: int) -> int:
        """Note that the answers of these pops may be lost. Return from how many of them the client holds messages.

        A client that lives would hold the messages for hours without knowing them. So the lease does not hold them any
        more: they are visible after the time of a lease, however often the client is reported. Until then they can be
        acknowledged.
        """
        rows, lost = self.table.rows, 0
        held_ms = sorted({rows.pop_ms[row] for row in self.table.leases.rows_of(lease)})
        for is_lost, run in groupby(held_ms, pop_times_ms.__contains__):  # a run is one operation of the journal
            if is_lost:
                times_ms = list(run)
                self._end_lease(lease, times_ms[0], times_ms[-1], now_ms + self._lease_ms)
                lost += len(times_ms)
        return lost

    def end_lease(self, lease: int, visible_ms: int) -> None:
        """Let everything that a client holds become visible at this time."""
        if self.table.leases.rows_of(lease):
            self._end_lease(lease, 0, self.table.last_pop_ms, visible_ms)

    def _end_lease(self, lease: int, first_pop_ms: int, last_pop_ms: int, visible_ms: int) -> None:
        self.table.end_lease(lease, first_pop_ms, last_pop_ms, visible_ms)
        self.journal.end_lease(lease, first_pop_ms, last_pop_ms, visible_ms)

    def follow_clock(self, boot: int, offset_ms: int, step_ms: int) -> None:
        """Move all times in flight with the wall clock, which has been set.

        The journal has the clock too: a start finds out whether it was set while the broker was down. A broker from
        which nothing is popped has no journal.
        """
        self.table.follow_clock(boot, offset_ms, step_ms)
        if self.table.queues:
            self.journal.follow_clock(boot, offset_ms, step_ms)

    def due(self, now_ms: int, max_messages: int = 256) -> tuple[list[Due], list[PoppedQueue]]:
        """Return messages whose time is up, and queues whose block has ended.

        The caller copies the messages to their retry topic or dead letters, and journals them as gone in the same
        block. Until then each call returns them again.
        """
        for lease in self.table.leases.ended(now_ms):
            self.end_lease(lease, now_ms)
        return self.table.due(now_ms, max_messages)

    def next_due_ms(self) -> int | None:
        """Return a time before which `due` has nothing, or None if nothing is in flight."""
        visible_ms, end_ms = self.table.next_visible_ms(), self.table.leases.next_end_ms()
        if end_ms is None or (visible_ms is not None and visible_ms < end_ms):
            return visible_ms
        return end_ms

    # The journal

    def note_journalled(self, gone: Iterable[Due] = ()) -> None:
        """Note that the journal's body is in the log. Messages that are gone with it leave the table now."""
        self.journal.clear()
        for due in gone:
            missing = self.table.take_unacknowledged(due.queue, due.first, due.mask)
            assert not missing, f"messages of {due} left the table in between"

    def statistics(self) -> dict[str, int]:
        """Sizes and limits, for operators."""
        return {
            **self.table.statistics(),
            "max_in_flight": self._limits.in_flight,
            "max_in_flight_per_queue": self._limits.in_flight_per_queue,
            "max_queues": self._limits.queues,
            "refused_pops": self._refused,
            "pending_operations": self.journal.pending,
        }
