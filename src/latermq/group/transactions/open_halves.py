"""The table of open halves: messages that are neither committed nor rolled back, and when their producers are asked."""

import heapq
import sys
from collections import OrderedDict
from typing import NamedTuple

from latermq.config import Duration
from latermq.errors import Busy
from latermq.message.properties import PRODUCER_GROUP, REAL_TOPIC, UNIQUE_KEY, find_property

CHECK_IMMUNITY_S = "CHECK_IMMUNITY_TIME_IN_SECONDS"
# Open halves with one unique key: a producer that gets no answer sends its message again, usually twice at most. All of
# them end in one block, so it must stay short (`limits.GROWTH_BYTES`).
MAX_SAME_KEY = 6
_MAX_RECONNECTED = 1_000  # halves that one call of `due` moves forward because their producers have connected


class TooManyHalves(Busy):
    """Too many transactions are open. The same send is accepted when others have ended."""


class CheckSchedule(NamedTuple):
    """When and how often a producer is asked for its decision. The defaults are Apache's."""

    first_after_ms: int = 6_000
    every_ms: int = 30_000
    times: int = 15
    max_age_ms: int = int(Duration.parse("72h"))  # a half that is older is given up, asked or not


class Half(NamedTuple):
    """A half message that is open."""

    physical_offset: int
    queue_offset: int
    size: int
    stored_ms: int
    unique_key: str
    producer_group: str
    topic: str  # the real one
    first_after_ms: int  # of its own property, or of the schedule

    @property
    def reference(self) -> int:
        """The value of the prepared-transaction field in the record that ends this half."""
        return reference_to(self.physical_offset)


def reference_to(physical_offset: int) -> int:
    """Return the value that names a half in the prepared-transaction field.

    It is the half's physical offset, as in Apache. In the field 0 means that there is no half, so -1 is the half at
    the beginning of the log.
    """
    return physical_offset or -1


def half_of(
    physical_offset: int, queue_offset: int, size: int, stored_ms: int, properties: bytes, schedule: CheckSchedule
) -> Half:
    """Return the half of a stored record."""
    key = find_property(properties, UNIQUE_KEY.encode()) or b""
    group = find_property(properties, PRODUCER_GROUP.encode()) or b""
    immunity = find_property(properties, CHECK_IMMUNITY_S.encode()) or b""
    topic = find_property(properties, REAL_TOPIC.encode()) or b""
    is_number = immunity.isdigit() and len(immunity) <= 9
    # Not later than the age at which it is given up: until then, it keeps the log from being deleted.
    after_ms = min(int(immunity) * 1_000, schedule.max_age_ms) if is_number else schedule.first_after_ms
    return Half(
        physical_offset,
        queue_offset,
        size,
        stored_ms,
        key.decode(),
        sys.intern(group.decode()),
        sys.intern(topic.decode()),
        after_ms,
    )


class OpenHalves:
    """All open halves, by physical offset and by unique key, and one heap with the time of each one's next check."""

    def __init__(self, schedule: CheckSchedule = CheckSchedule(), max_open: int = 100_000) -> None:  # noqa: B008
        self.schedule = schedule
        self._max_open = max_open
        self._by_offset: OrderedDict[int, Half] = OrderedDict()  # in the order of the log
        self._by_key: dict[str, list[Half]] = {}
        self.checks: dict[int, int] = {}  # queue offset → checks that were sent, for those that have any
        self._heap: list[tuple[int, int]] = []  # (time, physical offset); outdated if the half has another time now
        self._next_ms: dict[int, int] = {}  # physical offset → time of the next check
        # Halves whose producers were not connected when they were to be asked: group → physical offsets.
        self._unreachable: dict[str, dict[int, None]] = {}
        self._reconnected: dict[str, int] = {}  # groups whose missed halves are to be asked for: group → time
        self._refused = 0

    def __len__(self) -> int:
        return len(self._by_offset)

    def __contains__(self, physical_offset: int) -> bool:
        return physical_offset in self._by_offset

    def check_room(self, unique_key: str = "") -> None:
        """Raise TooManyHalves if no other half, or no other one with this key, may be stored."""
        if len(self._by_key.get(unique_key, ())) >= MAX_SAME_KEY:
            self._refused += 1
            raise TooManyHalves(
                f"{MAX_SAME_KEY} transactions with the unique key {unique_key[:40]!r} are open",
                hint="Use a new unique key for each transaction",
            )
        if len(self._by_offset) >= self._max_open:
            self._refused += 1
            raise TooManyHalves(
                f"{len(self._by_offset)} transactions are open, the limit is {self._max_open}",
                hint="Check that producers commit or roll back their transactions",
            )

    def add(self, half: Half, checks: int = 0, now_ms: int = 0, *, is_copy: bool = False) -> None:
        """Add a half. One that was checked before, or whose time passed while the broker was down, is not asked early.

        The time of the next check follows from the store time and the number of checks, so it need not be stored.
        RocketMQ's broker stores a half again at each check (`is_copy`), so the store time of such a half is the time
        of the last check.
        """
        assert half.physical_offset not in self._by_offset, half
        self._by_offset[half.physical_offset] = half
        if half.unique_key:
            self._by_key.setdefault(half.unique_key, []).append(half)
        if checks:
            self.checks[half.queue_offset] = checks
        due_ms = half.stored_ms + half.first_after_ms + checks * self.schedule.every_ms
        if is_copy:
            due_ms = half.stored_ms + self.schedule.every_ms
        self._ask_at(half.physical_offset, max(due_ms, now_ms))

    def find(self, physical_offset: int, queue_offset: int) -> Half | None:
        """Return the half that a client names by both of its offsets, or None if it is not open."""
        half = self._by_offset.get(physical_offset)
        return half if half is not None and half.queue_offset == queue_offset else None

    def by_key(self, unique_key: str) -> list[Half]:
        """Return the open halves with a unique key, the oldest first.

        There are several if a producer sent the message again because it got no answer. The last one is to be
        committed, and the others are to be rolled back with it.
        """
        return list(self._by_key.get(unique_key, ()))

    def end(self, half: Half) -> None:
        """Remove a half. The record that ends it is in the log."""
        del self._by_offset[half.physical_offset], self._next_ms[half.physical_offset]
        self.checks.pop(half.queue_offset, None)
        self._forget_unreachable(half)
        if half.unique_key:
            halves = self._by_key[half.unique_key]
            halves.remove(half)
            if not halves:
                del self._by_key[half.unique_key]

    def first_offset(self) -> int | None:
        """Return the physical offset of the oldest open half, for retention."""
        return next(iter(self._by_offset), None)

    # Checks

    def due(self, now_ms: int, max_halves: int = 256) -> tuple[list[Half], list[Half]]:
        """Return halves whose producers are to be asked now, and halves to give up.

        The caller reports each one of the first list by `note_asked` or `note_unreachable`, and ends those of the
        second one. Otherwise the next call returns it again.
        """
        self._plan_reconnected()
        ask: list[Half] = []
        give_up: list[Half] = []
        heap, schedule = self._heap, self.schedule
        returned: list[tuple[int, int]] = []
        while heap and heap[0][0] <= now_ms and len(ask) + len(give_up) < max_halves:
            entry = heapq.heappop(heap)
            if self._next_ms.get(entry[1]) != entry[0] or (returned and returned[-1] == entry):
                continue  # outdated, or there twice
            returned.append(entry)
            half = self._by_offset[entry[1]]
            is_old = now_ms - half.stored_ms > schedule.max_age_ms
            is_exhausted = self.checks.get(half.queue_offset, 0) >= schedule.times
            (give_up if is_old or is_exhausted else ask).append(half)
        for entry in returned:
            heapq.heappush(heap, entry)
        return ask, give_up

    def note_asked(self, half: Half, now_ms: int) -> None:
        """Count a check, and plan the next one."""
        self._forget_unreachable(half)
        self.checks[half.queue_offset] = self.checks.get(half.queue_offset, 0) + 1
        self._ask_at(half.physical_offset, now_ms + self.schedule.every_ms)

    def note_unreachable(self, half: Half, now_ms: int) -> None:
        """Note that no producer of the group is connected. This does not count as a check."""
        self._unreachable.setdefault(half.producer_group, {})[half.physical_offset] = None
        self._ask_at(half.physical_offset, now_ms + self.schedule.every_ms)

    def postpone(self, half: Half, time_ms: int) -> None:
        """Ask at this time instead. This does not count as a check."""
        self._ask_at(half.physical_offset, time_ms)

    def note_connected(self, producer_group: str, now_ms: int) -> bool:
        """Ask a producer that has connected at once, if it was missed. Returns whether it was."""
        if producer_group not in self._unreachable:
            return False
        self._reconnected[producer_group] = now_ms
        return True

    def _plan_reconnected(self) -> None:
        """Plan some of the halves of connected producers. There may be 100,000, so the rest follows in later calls."""
        left = _MAX_RECONNECTED
        while self._reconnected and left:
            group = next(iter(self._reconnected))
            missed = self._unreachable.get(group, {})
            while missed and left:
                self._ask_at(missed.popitem()[0], self._reconnected[group])
                left -= 1
            if not missed:
                del self._reconnected[group]
                self._unreachable.pop(group, None)

    def next_check_ms(self) -> int | None:
        """Return a time before which `due` has nothing; None if nothing is planned."""
        if self._reconnected:
            return 0
        return self._heap[0][0] if self._heap else None

    def _ask_at(self, physical_offset: int, time_ms: int) -> None:
        if self._next_ms.get(physical_offset) != time_ms:
            self._next_ms[physical_offset] = time_ms
            heapq.heappush(self._heap, (time_ms, physical_offset))
        if len(self._heap) > 1_024 and len(self._heap) > 4 * len(self._next_ms):
            self._heap = sorted((ask_ms, offset) for offset, ask_ms in self._next_ms.items())

    def _forget_unreachable(self, half: Half) -> None:
        missed = self._unreachable.get(half.producer_group)
        if missed is not None:
            missed.pop(half.physical_offset, None)
            if not missed:
                del self._unreachable[half.producer_group]

    def statistics(self) -> dict[str, int]:
        """Sizes, for operators."""
        return {
            "open_halves": len(self._by_offset),
            "max_open_halves": self._max_open,
            "checked_halves": len(self.checks),
            "check_times": len(self._heap),
            "unreachable_groups": len(self._unreachable),
            "refused_halves": self._refused,
        }
