"""The journal of POP consumption: the operations of one turn as the body of one record, and their replay.

docs/formats/pop-journal.md describes the bytes.
"""

import zlib
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from struct import Struct
from struct import error as StructError
from typing import Final

from latermq.errors import CorruptStore
from latermq.group.pop.popped_queue import PoppedQueue
from latermq.group.pop.rows import WINDOW
from latermq.group.pop.table import MAX_QUEUES, MAX_VISIBLE_MS, Due, InFlightTable

VERSION = 1
HEAD = Struct(">BII")  # version, number of operations, CRC-32 of the operations

OPEN: Final = 1
POP: Final = 2
POP_LEASED: Final = 3
POP_IN_ORDER: Final = 4
ACK: Final = 5
GONE: Final = 6
CHANGE: Final = 7
ADVANCE: Final = 8
RESET: Final = 9
REMOVE: Final = 10
END_LEASE_SINCE: Final = 11  # only read: versions that wrote no last pop time
END_LEASE: Final = 12
FOLLOW_CLOCK: Final = 13

_OPEN = Struct(">BIIqHH")  # kind, queue number, queue id, next offset, bytes of group and of topic
_POP = Struct(">BIqIqq")  # kind, queue number, first offset, mask, pop time, visible time
_POP_LEASED = Struct(">BIqIqqQ")  # and lease
_POP_IN_ORDER = Struct(">BIqIqqQQB")  # and lease, attempt id, whether the delivery counts
_TAKE = Struct(">BIqI")  # kind, queue number, first offset, mask
_CHANGE = Struct(">BIqqqB")  # kind, queue number, offset, pop time, visible time, whether it is suspended
_MOVE = Struct(">BIq")  # kind, queue number, next offset
_REMOVE = Struct(">BI")
_END_LEASE_SINCE = Struct(">BQqq")  # kind, lease, first pop time, visible time
_END_LEASE = Struct(">BQqqq")  # kind, lease, first and last pop time, visible time
_FOLLOW_CLOCK = Struct(">BQqq")  # kind, boot, wall clock minus uptime, step


class JournalWriter:
    """Collects the operations of a turn. They are kept until their record is in the log."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        # Acknowledgements, as masks by queue and first offset of their row: a client that acknowledges a batch one by
        # one often does so in one turn. They may be written after pops, which never concern the same messages.
        self._acks: dict[tuple[int, int], int] = {}

    @property
    def is_empty(self) -> bool:
        return not self._pieces and not self._acks

    @property
    def pending(self) -> int:
        """The number of operations that are not in the log."""
        return len(self._pieces) + len(self._acks)

    @property
    def late_acks(self) -> int:
        """The most rows that acknowledgements which may be written after later pops can be of.

        A changed message and the rest of its pop can have the same first offset.
        """
        return 2 * len(self._acks)

    def write_late_acks(self) -> None:
        """Write the acknowledgements so far before what follows."""
        self._pieces += self._ack_pieces()
        self._acks = {}

    def open_queue(self, queue: PoppedQueue, next_offset: int) -> None:
        group, topic = queue.group.encode(), queue.topic.encode()
        head = _OPEN.pack(OPEN, queue.number, queue.queue_id, next_offset, len(group), len(topic))
        self._add(head + group + topic)

    def pop(self, number: int, first: int, mask: int, pop_ms: int, visible_ms: int, lease: int) -> None:
        if lease:
            self._pieces.append(_POP_LEASED.pack(POP_LEASED, number, first, mask, pop_ms, visible_ms, lease))
        else:
            self._pieces.append(_POP.pack(POP, number, first, mask, pop_ms, visible_ms))

    def pop_in_order(
        self, number: int, first: int, mask: int, pop_ms: int, visible_ms: int, lease: int, attempt: int,
        *, is_counted: bool,
    ) -> None:  # fmt: skip
        row = (number, first, mask, pop_ms, visible_ms, lease, attempt, is_counted)
        self._add(_POP_IN_ORDER.pack(POP_IN_ORDER, *row))

    def ack(self, number: int, first: int, bits: int) -> None:
        key = number, first
        self._acks[key] = self._acks.get(key, 0) | bits

    def change(self, number: int, offset: int, pop_ms: int, visible_ms: int, *, is_suspended: bool) -> None:
        self._add(_CHANGE.pack(CHANGE, number, offset, pop_ms, visible_ms, is_suspended))

    def advance(self, number: int, next_offset: int) -> None:
        self._pieces.append(_MOVE.pack(ADVANCE, number, next_offset))

    def reset(self, number: int, next_offset: int) -> None:
        self._add(_MOVE.pack(RESET, number, next_offset))

    def remove(self, number: int) -> None:
        self._add(_REMOVE.pack(REMOVE, number))

    def end_lease(self, lease: int, first_pop_ms: int, last_pop_ms: int, visible_ms: int) -> None:
        self._add(_END_LEASE.pack(END_LEASE, lease, first_pop_ms, last_pop_ms, visible_ms))

    def follow_clock(self, boot: int, offset_ms: int, step_ms: int) -> None:
        self._add(_FOLLOW_CLOCK.pack(FOLLOW_CLOCK, boot, offset_ms, step_ms))

    def _add(self, piece: bytes) -> None:
        if self._acks:
            self.write_late_acks()
        self._pieces.append(piece)

    def _ack_pieces(self) -> list[bytes]:
        return [_TAKE.pack(ACK, number, first, bits) for (number, first), bits in self._acks.items()]

    def body(self, gone: Sequence[Due] = ()) -> bytes:
        """Return the record's body: everything collected, then messages that leave the table with this record.

        The body is empty if there is no operation. Call `clear` when the record is in the log.
        """
        pieces = self._pieces + self._ack_pieces() if self._acks else self._pieces
        if gone:
            pieces = pieces + [_TAKE.pack(GONE, due.queue.number, due.first, due.mask) for due in gone]
        if not pieces:
            return b""
        operations = b"".join(pieces)
        return HEAD.pack(VERSION, len(pieces), zlib.crc32(operations)) + operations

    def clear(self) -> None:
        self._pieces, self._acks = [], {}

    def split(self, max_bytes: int) -> "JournalWriter":
        """Remove the first operations and return them, as many as a body of this size can have."""
        self.write_late_acks()
        ends = list(accumulate(map(len, self._pieces)))
        count = max(1, bisect_right(ends, max_bytes - HEAD.size))
        first = JournalWriter()
        first._pieces, self._pieces = self._pieces[:count], self._pieces[count:]
        return first

    def put_back(self, first: "JournalWriter") -> None:
        """Undo a `split`."""
        self._pieces = first._pieces + self._pieces


class JournalReader:
    """Replays bodies into a table.

    `is_partial` says that earlier records are missing. Operations on unknown queues and messages are then skipped.
    Otherwise they show that the journal is damaged.
    """

    def __init__(self, table: InFlightTable, *, is_partial: bool = False) -> None:
        self._table = table
        self._is_partial = is_partial
        self.skipped = 0
        self._appliers: dict[int, Callable[[bytes, int], int]] = {
            OPEN: self._open,
            POP: self._pop,
            POP_LEASED: self._pop,
            POP_IN_ORDER: self._pop_in_order,
            ACK: self._take,
            GONE: self._take,
            CHANGE: self._change,
            ADVANCE: self._move,
            RESET: self._move,
            REMOVE: self._remove,
            END_LEASE_SINCE: self._end_lease_since,
            END_LEASE: self._end_lease,
            FOLLOW_CLOCK: self._follow_clock,
        }

    def apply(self, body: bytes) -> None:
        """Replay one body. Raises CorruptStore if it is not valid."""
        if len(body) < HEAD.size:
            raise _corrupt("a body has no head")
        version, count, crc = HEAD.unpack_from(body)
        if version != VERSION:
            raise _corrupt(f"a body has version {version}, this broker reads {VERSION}")
        if zlib.crc32(memoryview(body)[HEAD.size :]) != crc:
            raise _corrupt("a body has a wrong checksum")
        at = HEAD.size
        try:
            for _ in range(count):
                applier = self._appliers.get(body[at])
                if applier is None:
                    raise _corrupt(f"operation {body[at]} is unknown")
                at = applier(body, at)
        except (StructError, IndexError, OverflowError, UnicodeDecodeError) as error:
            raise _corrupt(f"a body with {count} operations is not valid: {error}") from None
        if at != len(body):
            raise _corrupt(f"{len(body) - at} bytes follow the last operation")

    def _queue(self, number: int) -> PoppedQueue | None:
        queue = self._table.by_number.get(number)
        if queue is None:
            self._skip(f"queue {number} was never opened")
        return queue

    def _skip(self, what: str) -> None:
        if not self._is_partial:
            raise _corrupt(what)
        self.skipped += 1

    def _open(self, body: bytes, at: int) -> int:
        _, number, queue_id, next_offset, group_bytes, topic_bytes = _OPEN.unpack_from(body, at)
        at += _OPEN.size
        topic_at = at + group_bytes
        end = topic_at + topic_bytes
        if end > len(body) or number >= MAX_QUEUES:
            raise _corrupt(f"queue {number} has no valid name")
        group, topic = body[at:topic_at].decode(), body[topic_at:end].decode()
        if number in self._table.by_number or (group, topic, queue_id) in self._table.queues:
            self._skip(f"queue {number} is opened twice")
        else:
            self._table.open_queue(number, group, topic, queue_id, next_offset)
        return int(end)

    def _pop(self, body: bytes, at: int) -> int:
        is_leased = body[at] == POP_LEASED
        if is_leased:
            _, number, first, mask, pop_ms, visible_ms, lease = _POP_LEASED.unpack_from(body, at)
        else:
            _, number, first, mask, pop_ms, visible_ms = _POP.unpack_from(body, at)
            lease = 0
        queue = self._queue(number)
        if queue is not None:
            if first < self._table.next_of(queue) or not mask or visible_ms > MAX_VISIBLE_MS:
                self._skip(f"a pop of queue {number} at {first} is not valid")
            else:
                self._table.put_batch(queue, first, mask, pop_ms, visible_ms, lease)
        return at + (_POP_LEASED.size if is_leased else _POP.size)

    def _pop_in_order(self, body: bytes, at: int) -> int:
        _, number, first, mask, pop_ms, visible_ms, lease, attempt, is_counted = _POP_IN_ORDER.unpack_from(body, at)
        queue = self._queue(number)
        if queue is not None:
            known = {offset for offset, _ in self._table.ordered_rows(queue)}
            next_offset = self._table.next_of(queue)
            bits = [bit for bit in range(WINDOW) if mask >> bit & 1]
            if visible_ms > MAX_VISIBLE_MS or any(
                first + bit < next_offset and first + bit not in known for bit in bits
            ):
                self._skip(f"a pop of queue {number} at {first} is not valid")
            else:
                self._table.put_in_order(
                    queue, first, mask, pop_ms, visible_ms, lease, attempt, is_counted=bool(is_counted)
                )
        return at + _POP_IN_ORDER.size

    def _take(self, body: bytes, at: int) -> int:
        kind, number, first, mask = _TAKE.unpack_from(body, at)
        queue = self._queue(number)
        if queue is not None:
            take = self._table.take if kind == ACK else self._table.take_unacknowledged
            if take(queue, first, mask):
                self._skip(f"a message of queue {number} at {first} is not in flight")
        return at + _TAKE.size

    def _change(self, body: bytes, at: int) -> int:
        _, number, offset, pop_ms, visible_ms, is_suspended = _CHANGE.unpack_from(body, at)
        queue = self._queue(number)
        if queue is not None and (
            visible_ms > MAX_VISIBLE_MS
            or not self._table.change(queue, offset, pop_ms, visible_ms, is_suspended=bool(is_suspended))
        ):
            self._skip(f"a change of queue {number} at {offset} is not valid")
        return at + _CHANGE.size

    def _move(self, body: bytes, at: int) -> int:
        kind, number, next_offset = _MOVE.unpack_from(body, at)
        queue = self._queue(number)
        if queue is not None:
            (self._table.advance if kind == ADVANCE else self._table.reset)(queue, next_offset)
        return at + _MOVE.size

    def _remove(self, body: bytes, at: int) -> int:
        _, number = _REMOVE.unpack_from(body, at)
        queue = self._queue(number)
        if queue is not None:
            self._table.remove_queue(queue)
        return at + _REMOVE.size

    def _end_lease_since(self, body: bytes, at: int) -> int:
        _, lease, first_pop_ms, visible_ms = _END_LEASE_SINCE.unpack_from(body, at)
        self._apply_end_lease(lease, first_pop_ms, MAX_VISIBLE_MS, visible_ms)
        return at + _END_LEASE_SINCE.size

    def _end_lease(self, body: bytes, at: int) -> int:
        _, lease, first_pop_ms, last_pop_ms, visible_ms = _END_LEASE.unpack_from(body, at)
        self._apply_end_lease(lease, first_pop_ms, last_pop_ms, visible_ms)
        return at + _END_LEASE.size

    def _follow_clock(self, body: bytes, at: int) -> int:
        _, boot, offset_ms, step_ms = _FOLLOW_CLOCK.unpack_from(body, at)
        self._table.follow_clock(boot, offset_ms, step_ms)
        return at + _FOLLOW_CLOCK.size

    def _apply_end_lease(self, lease: int, first_pop_ms: int, last_pop_ms: int, visible_ms: int) -> None:
        if visible_ms > MAX_VISIBLE_MS:
            raise _corrupt(f"a lease ends at {visible_ms}")
        self._table.end_lease(lease, first_pop_ms, last_pop_ms, visible_ms)


def _corrupt(what: str) -> CorruptStore:
    return CorruptStore(f"the POP journal is damaged: {what}", hint="Restore the log from a copy")
