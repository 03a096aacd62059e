"""The in-flight table: popped messages that are not acknowledged yet, and where each group continues.

Every method that changes it has the same effect in a running broker and in a replay of the journal. It checks no
handles and reads no clock; `operations.py` does.
"""

import heapq
from array import array
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from latermq.arrays import Ints, Octets, UInts32
from latermq.group.pop.leases import Leases
from latermq.group.pop.popped_queue import PoppedQueue
from latermq.group.pop.rows import IN_ORDER, MAX_ROWS, SINGLE, SUSPENDED, WINDOW, Rows, offsets_of

MAX_QUEUES = MAX_ROWS
MAX_VISIBLE_MS = (1 << 42) - 1  # an entry of the heap fits in 64 bits, for numpy
_ID_BITS = 21  # of a row, or of a queue with the highest bit set
_QUEUE_BIT = 1 << (_ID_BITS - 1)
_ID = (1 << _ID_BITS) - 1
_MIN_HEAP = 1_024  # entries before the heap is worth rebuilding
_ENTRIES_AT_ONCE = 4_096  # of the heap that one call takes: 2 ms
_ALL = (1 << WINDOW) - 1
_NO_OFFSET = np.iinfo(np.int64).max


class Due(NamedTuple):
    """Messages of one row that are visible again, or that leave the table for another reason."""

    queue: PoppedQueue
    first: int
    mask: int
    pop_ms: int
    is_suspended: bool  # the consumer sent them back without an attempt
    deliveries: int  # earlier ones in order, for a message popped in order

    @property
    def offsets(self) -> list[int]:
        return offsets_of(self.first, self.mask)


class Positions:
    """One row per queue, as columns."""

    def __init__(self) -> None:
        self.next = array("q")  # the first offset that was never popped
        self.fence_ms = array("q")  # no pop time before it: older ones are in handles of deliveries before a reset
        self.order_pop_ms = array("q")  # the last pop in order
        self.attempt = array("Q")  # its attempt id, hashed; 0 if it had none


class InFlightTable:
    """All rows, by queue, by visible time and by lease."""

    def __init__(self, max_revived: int = 20_000) -> None:
        """`max_revived` bounds the messages that are remembered after they left the table unacknowledged."""
        self.rows = Rows()
        self.leases = Leases()
        self.positions = Positions()
        self.queues: dict[tuple[str, str, int], PoppedQueue] = {}
        self.by_number: dict[int, PoppedQueue] = {}
        self.held = 0
        self.last_pop_ms = 0
        self.fence_ms = 0  # for queues that are opened later
        # The clock that visible times are times of: the boot of the machine, 0 if it is unknown, and the difference
        # between wall clock and uptime, which only setting the clock changes.
        self.boot = self.clock_offset_ms = 0
        self._free_numbers: set[int] = set()
        self._heap: list[int] = []  # visible time and id; an entry is outdated if its row has another time by now
        self._overdue: dict[int, None] = {}  # rows taken off the heap that are still in the table
        # Messages that became visible or were buried: (queue, offset) → pop time. Their handles are refused.
        self._revived: dict[tuple[int, int], int] = {}
        self._max_revived = max_revived

    # Queues

    def new_number(self) -> int:
        """Return a number for the next queue."""
        return next(iter(self._free_numbers)) if self._free_numbers else len(self.positions.next)

    def open_queue(self, number: int, group: str, topic: str, queue_id: int, next_offset: int) -> PoppedQueue:
        """Add a queue that begins at this offset, with nothing in flight."""
        assert number not in self.by_number, f"number {number} is taken"
        positions = self.positions
        for free in range(len(positions.next), number + 1):
            positions.next.append(0)
            positions.fence_ms.append(0)
            positions.order_pop_ms.append(0)
            positions.attempt.append(0)
            self._free_numbers.add(free)
        self._free_numbers.discard(number)
        positions.next[number] = next_offset
        positions.fence_ms[number] = self.fence_ms
        positions.order_pop_ms[number] = positions.attempt[number] = 0
        queue = PoppedQueue(number, group, topic, queue_id)
        self.queues[queue.key] = self.by_number[number] = queue
        return queue

    def remove_queue(self, queue: PoppedQueue) -> None:
        """Forget a queue. If it comes back, it has other messages at the same offsets."""
        self._clear(queue)
        self.fence_ms = self.last_pop_ms + 1
        del self.queues[queue.key], self.by_number[queue.number]
        self._free_numbers.add(queue.number)

    def advance(self, queue: PoppedQueue, next_offset: int) -> None:
        """Skip to an offset. Messages in flight before it stay in flight."""
        positions = self.positions
        positions.next[queue.number] = max(positions.next[queue.number], next_offset)

    def reset(self, queue: PoppedQueue, next_offset: int) -> None:
        """Continue at an offset, which may be lower. Nothing is in flight any more."""
        self._clear(queue)
        positions, number = self.positions, queue.number
        positions.next[number] = next_offset
        positions.fence_ms[number] = self.last_pop_ms + 1
        positions.attempt[number] = 0

    def _clear(self, queue: PoppedQueue) -> None:
        self.held -= queue.held
        for row in queue.all_rows():
            self._free(row)
        queue.clear()

    def next_of(self, queue: PoppedQueue) -> int:
        return self.positions.next[queue.number]

    def floor(self, queue: PoppedQueue) -> int:
        """Return the lowest offset that is not acknowledged: the group's consumer offset."""
        lowest = self.positions.next[queue.number]
        if queue.held:
            rows = self.rows
            for row in queue.first_rows():
                if row >= 0:
                    mask = rows.mask[row]
                    lowest = min(lowest, rows.first[row] + (mask & -mask).bit_length() - 1)
        return lowest

    # Messages

    def locate(self, queue: PoppedQueue, offset: int) -> int:
        """Return the row that holds the message at this offset, or -1 if it is not in flight."""
        row = queue.find(offset)
        if row >= 0:
            distance = offset - self.rows.first[row]
            if distance < WINDOW and self.rows.mask[row] >> distance & 1:
                return row
        return -1

    def holds(self, queue: PoppedQueue, offset: int) -> bool:
        """Whether the message at this offset is in flight, in a queue that may have been removed."""
        return self.by_number.get(queue.number) is queue and self.locate(queue, offset) >= 0

    def put_batch(
        self, queue: PoppedQueue, first: int, mask: int, pop_ms: int, visible_ms: int, lease: int = 0
    ) -> None:
        """Add popped messages. `_note_put` and `_push` are inlined: every pop comes here."""
        if queue.ordered:
            self._end_order(queue)
        assert visible_ms <= MAX_VISIBLE_MS, f"{visible_ms} is too late"
        number, rows, heap = queue.number, self.rows, self._heap
        row = rows.add(number, first, mask, pop_ms, visible_ms, lease)
        queue.add_batch(first, row)
        count = mask.bit_count()
        queue.held += count
        self.held += count
        if lease:
            self.leases.add(lease, row)
        end, next_offsets = first + mask.bit_length(), self.positions.next
        if end > next_offsets[number]:
            next_offsets[number] = end
        if pop_ms > self.last_pop_ms:
            self.last_pop_ms = pop_ms
        heapq.heappush(heap, visible_ms << _ID_BITS | row)
        if len(heap) > _MIN_HEAP and len(heap) > 4 * len(rows):
            self.rebuild_heap()

    def put_in_order(
        self, queue: PoppedQueue, first: int, mask: int, pop_ms: int, visible_ms: int, lease: int = 0,
        attempt: int = 0, *, is_counted: bool = True,
    ) -> None:  # fmt: skip
        """Add messages popped in order. Those that are in flight already are delivered again in place."""
        rows, number = self.rows, queue.number
        for offset in offsets_of(first, mask):
            row = queue.singles.get(offset, -1)
            if row < 0:
                row = rows.add(number, offset, 1, pop_ms, visible_ms, lease, SINGLE | IN_ORDER)
                queue.add_single(offset, row)
                queue.ordered += 1
                self._note_put(queue, row, 1, offset + 1, pop_ms)
                continue
            assert rows.flags[row] & IN_ORDER, f"{offset} is in flight, but not in order"
            self._end_hold(row)
            if is_counted and not rows.flags[row] & SUSPENDED:
                rows.count[row] += 1
            rows.flags[row] &= ~SUSPENDED
            rows.pop_ms[row], rows.visible_ms[row], rows.lease[row] = pop_ms, visible_ms, lease
            if lease:
                self.leases.add(lease, row)
        self.last_pop_ms = max(self.last_pop_ms, pop_ms)
        self.positions.order_pop_ms[number], self.positions.attempt[number] = pop_ms, attempt
        self._push(visible_ms, number | _QUEUE_BIT)

    def _note_put(self, queue: PoppedQueue, row: int, count: int, end: int, pop_ms: int) -> None:
        queue.held += count
        self.held += count
        if self.rows.lease[row]:
            self.leases.add(self.rows.lease[row], row)
        if end > self.positions.next[queue.number]:
            self.positions.next[queue.number] = end
        if pop_ms > self.last_pop_ms:
            self.last_pop_ms = pop_ms

    def _end_order(self, queue: PoppedQueue) -> None:
        """Treat what was popped in order as ordinary messages: the group is no longer an ordered one."""
        for row in queue.singles.values():
            if self.rows.flags[row] & IN_ORDER:
                self.rows.flags[row] &= ~IN_ORDER
                self._push(self.rows.visible_ms[row], row)
        queue.ordered = 0

    def clear_bits(self, queue: PoppedQueue, row: int, bits: int) -> None:
        """Remove messages of one row."""
        rows = self.rows
        left = rows.mask[row] & ~bits
        count = bits.bit_count()
        queue.held -= count
        self.held -= count
        if left:
            rows.mask[row] = left
            return
        flags, first = rows.flags[row], rows.first[row]
        if flags & SINGLE:
            queue.ordered -= bool(flags & IN_ORDER)
            queue.drop_single(first)
        else:
            queue.drop_batch(first)
        self._free(row)

    def take(self, queue: PoppedQueue, first: int, mask: int) -> int:
        """Remove messages, whichever rows hold them. Return those that were not in flight, as a mask."""
        rows, missing = self.rows, 0
        while mask:
            low = mask & -mask
            row = self.locate(queue, first + low.bit_length() - 1)
            if row < 0:
                missing |= low
                mask ^= low
                continue
            shift = rows.first[row] - first
            bits = rows.mask[row] & ((mask >> shift if shift >= 0 else mask << -shift) & _ALL)
            self.clear_bits(queue, row, bits)
            mask &= ~(bits << shift if shift >= 0 else bits >> -shift)
        return missing

    def take_unacknowledged(self, queue: PoppedQueue, first: int, mask: int) -> int:
        """Remove messages that were delivered again elsewhere or buried, and remember that for their handles."""
        for offset in offsets_of(first, mask):
            row = self.locate(queue, offset)
            if row >= 0:
                self._revived[queue.number, offset] = self.rows.pop_ms[row]
        while len(self._revived) > self._max_revived:
            del self._revived[next(iter(self._revived))]
        return self.take(queue, first, mask)

    def is_revived(self, queue: PoppedQueue, offset: int, pop_ms: int) -> bool:
        """Whether this delivery, or a later one, is known to have left the table without an acknowledgement.

        Each change of the invisible time gives the delivery a later pop time, and so does a pop after a reset.
        """
        return pop_ms <= self._revived.get((queue.number, offset), -1)

    def change(self, queue: PoppedQueue, offset: int, pop_ms: int, visible_ms: int, *, is_suspended: bool) -> bool:
        """Give a message another pop time and visible time. Return False if it is not in flight."""
        row = self.locate(queue, offset)
        if row < 0:
            return False
        rows = self.rows
        if rows.mask[row].bit_count() > 1:
            rows.mask[row] &= ~(1 << offset - rows.first[row])
            row = rows.add(queue.number, offset, 1, pop_ms, visible_ms, 0, SINGLE)
            queue.add_single(offset, row)
        else:
            self._end_hold(row)
            rows.pop_ms[row], rows.visible_ms[row] = pop_ms, visible_ms
        rows.flags[row] = rows.flags[row] & ~SUSPENDED | (SUSPENDED if is_suspended else 0)
        self.last_pop_ms = max(self.last_pop_ms, pop_ms)
        self._push(visible_ms, queue.number | _QUEUE_BIT if rows.flags[row] & IN_ORDER else row)
        return True

    def end_lease(self, lease: int, first_pop_ms: int, last_pop_ms: int, visible_ms: int) -> None:
        """Let messages of a lease with these pop times become visible at this time, unless they do so earlier."""
        rows = self.rows
        for row in self.leases.take(lease):
            if not first_pop_ms <= rows.pop_ms[row] <= last_pop_ms:
                self.leases.add(lease, row)
                continue
            rows.lease[row] = 0
            rows.visible_ms[row] = min(rows.visible_ms[row], visible_ms)
            self._push(rows.visible_ms[row], rows.queue[row] | _QUEUE_BIT if rows.flags[row] & IN_ORDER else row)

    def _end_hold(self, row: int) -> None:
        lease = self.rows.lease[row]
        if lease:
            self.leases.discard(lease, row)
            self.rows.lease[row] = 0

    def _free(self, row: int) -> None:
        if self.rows.lease[row]:
            self._end_hold(row)
        if row in self._overdue:
            del self._overdue[row]
        self.rows.free(row)

    # In order

    def ordered_rows(self, queue: PoppedQueue) -> list[tuple[int, int]]:
        """Return (offset, row) of the messages popped in order, sorted."""
        if not queue.ordered:
            return []
        flags = self.rows.flags
        return sorted((offset, row) for offset, row in queue.singles.items() if flags[row] & IN_ORDER)

    def blocked_until_ms(self, queue: PoppedQueue) -> int:
        """Return when the last message that was popped in order becomes visible, or 0 if there is none."""
        return max((self.rows.visible_ms[row] for _, row in self.ordered_rows(queue)), default=0)

    # Visible times

    def _push(self, visible_ms: int, id_: int) -> None:
        assert visible_ms <= MAX_VISIBLE_MS, f"{visible_ms} is too late"
        heapq.heappush(self._heap, visible_ms << _ID_BITS | id_)
        if len(self._heap) > _MIN_HEAP and len(self._heap) > 4 * len(self.rows):
            self.rebuild_heap()

    def rebuild_heap(self) -> None:
        """Keep one entry per row, or per queue for what was popped in order. Acknowledgements leave old ones behind."""
        visible, queues, masks, flags = self._columns()
        ids = np.flatnonzero(masks)
        times = visible[ids]
        is_ordered = (flags[ids] & IN_ORDER).astype(bool)
        ids = np.where(is_ordered, queues[ids].astype(np.int64) | _QUEUE_BIT, ids)
        self._heap = np.unique(times << _ID_BITS | ids).tolist()  # sorted, so it is a heap

    def follow_clock(self, boot: int, offset_ms: int, step_ms: int) -> None:
        """Move all visible times and the ends of all leases, and note the clock that they are times of."""
        self.boot, self.clock_offset_ms = boot, offset_ms
        if not step_ms:
            return
        times, limit_ms = np.array(self.rows.visible_ms, np.int64), MAX_VISIBLE_MS
        by_ms = max(-limit_ms, min(step_ms, limit_ms))
        self.rows.visible_ms[:] = array("q", np.clip(times + by_ms, 0, limit_ms).tobytes())
        self.rebuild_heap()
        self.leases.shift(by_ms)

    def _columns(self) -> tuple[Ints, UInts32, UInts32, Octets]:
        """Return copies: a view would prevent the columns from growing."""
        rows = self.rows
        return (
            np.array(rows.visible_ms, np.int64),
            np.array(rows.queue, np.uint32),
            np.array(rows.mask, np.uint32),
            np.array(rows.flags, np.uint8),
        )

    def next_visible_ms(self) -> int | None:
        """Return a time before which nothing becomes visible."""
        if self._overdue:
            return 0
        return self._heap[0] >> _ID_BITS if self._heap else None

    def due(self, now_ms: int, max_messages: int) -> tuple[list[Due], list[PoppedQueue]]:
        """Return visible messages, which stay in the table until they are taken, and queues that are not blocked now.

        A message is returned again by each call until it is taken, changed or acknowledged. If `next_visible_ms` is
        still in the past, another call returns more.
        """
        rows, left = self.rows, max_messages
        due: list[Due] = []
        # Messages that cannot be taken for long must not hold up others, so these get half of a call.
        has_others = bool(self._heap) and self._heap[0] >> _ID_BITS <= now_ms
        overdue = iter(list(self._overdue))
        left = self._overdue_rows(overdue, now_ms, due, left, max_messages // 2 if has_others else 0)
        unblocked: dict[int, PoppedQueue] = {}
        for id_, visible_ms in self._past_entries(now_ms):
            if id_ & _QUEUE_BIT:
                queue = self.by_number.get(id_ ^ _QUEUE_BIT)
                if queue is not None and queue.ordered and self.blocked_until_ms(queue) <= now_ms:
                    unblocked[queue.number] = queue
            elif self._is_waiting(id_, visible_ms):
                self._overdue[id_] = None
                due.append(self._as_due(id_))
                left -= rows.mask[id_].bit_count()
            if left <= 0:
                break
        self._overdue_rows(overdue, now_ms, due, left, 0)
        return due, list(unblocked.values())

    def _overdue_rows(self, overdue: Iterator[int], now_ms: int, due: list[Due], left: int, until: int) -> int:
        """Add messages that earlier calls returned, until only `until` more are wanted. Return how many that are."""
        rows = self.rows
        while left > until:
            row = next(overdue, -1)
            if row < 0:
                break
            if rows.visible_ms[row] > now_ms or rows.flags[row] & IN_ORDER:  # changed, or the clock stepped back
                del self._overdue[row]
                if not rows.flags[row] & IN_ORDER:
                    heapq.heappush(self._heap, rows.visible_ms[row] << _ID_BITS | row)
            else:
                due.append(self._as_due(row))
                left -= rows.mask[row].bit_count()
        return left

    def defer(self, due: list[Due]) -> None:
        """Let `due` return other messages before these, which cannot be taken now."""
        for one in due:
            for row in {self.locate(one.queue, offset) for offset in one.offsets}:
                if row in self._overdue:
                    del self._overdue[row]
                    self._overdue[row] = None

    def _is_waiting(self, row: int, visible_ms: int) -> bool:
        """Whether an entry of the heap is current. Its row may be in use for other messages, in order or not."""
        rows = self.rows
        is_current = rows.mask[row] and rows.visible_ms[row] == visible_ms and not rows.flags[row] & IN_ORDER
        return bool(is_current) and row not in self._overdue

    def _past_entries(self, now_ms: int) -> Iterator[tuple[int, int]]:
        """Take entries off the heap, as ids and times. Most may be outdated, so one call takes a bounded number."""
        heap, limit = self._heap, now_ms + 1 << _ID_BITS
        for _ in range(_ENTRIES_AT_ONCE):
            if not heap or heap[0] >= limit:
                return
            entry = heapq.heappop(heap)
            yield entry & _ID, entry >> _ID_BITS

    def _as_due(self, row: int) -> Due:
        rows = self.rows
        queue = self.by_number[rows.queue[row]]
        is_suspended = bool(rows.flags[row] & SUSPENDED)
        return Due(queue, rows.first[row], rows.mask[row], rows.pop_ms[row], is_suspended, rows.count[row])

    def one(self, queue: PoppedQueue, offset: int) -> Due:
        """Return a message in flight, to be taken."""
        row = self.locate(queue, offset)
        return self._as_due(row)._replace(first=offset, mask=1)

    # For retention

    def held_floors(self) -> dict[tuple[str, int], int]:
        """Return the lowest offset in flight of each (topic, queue id), for all groups together."""
        _, queues, masks, _ = self._columns()
        live = np.flatnonzero(masks)
        bits = masks[live].astype(np.int64)
        offsets = np.array(self.rows.first, np.int64)[live] + np.log2(bits & -bits).astype(np.int64)
        floors = np.full(len(self.positions.next), _NO_OFFSET)
        np.minimum.at(floors, queues[live], offsets)
        numbers = np.flatnonzero(floors < _NO_OFFSET)
        # The highest come first, so that the lowest of each place stays. 100,000 queues take 25 ms.
        numbers = numbers[np.argsort(-floors[numbers])]
        by_number = self.by_number
        places = [by_number[number].place for number in numbers.tolist()]
        return dict(zip(places, floors[numbers].tolist(), strict=True))

    def held_below(self, ends: Mapping[tuple[str, int], int]) -> Iterator[Due]:
        """Yield the messages of all groups in flight below the end of their (topic, queue id), if that has one.

        The table may change meanwhile: a message may be yielded that has left it, and one that was changed left out.
        """
        for queue in list(self.queues.values()):
            end = ends.get(queue.place, 0) if queue.held else 0
            for row in queue.all_rows() if end else ():
                if self.rows.queue[row] != queue.number or not self.rows.mask[row]:
                    continue  # freed meanwhile
                due = self._as_due(row)
                if due.first < end:
                    mask = due.mask & (1 << min(WINDOW, end - due.first)) - 1
                    if mask:
                        yield due._replace(mask=mask)

    def statistics(self) -> dict[str, int]:
        """Sizes, for operators."""
        return {
            "in_flight": self.held,
            "queue_in_flight": max((queue.held for queue in self.queues.values()), default=0),
            "rows": len(self.rows),
            "queues": len(self.queues),
            "leases": len(self.leases),
            "visible_times": len(self._heap),
            "overdue_rows": len(self._overdue),
            "revived": len(self._revived),
        }
