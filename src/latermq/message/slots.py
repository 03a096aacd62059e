"""Slots: the second in which a timer is due, rounded as RocketMQ does at its default precision."""

from latermq.arrays import Ints

SLOT_MS = 1_000  # slot s contains the timers due in (s, s + 1000]


def slot_of(time_ms: int) -> int:
    """The slot of one time: the largest full second below it."""
    return (time_ms - 1) // SLOT_MS * SLOT_MS


def slots_of(times_ms: Ints) -> Ints:
    """The slots of many times."""
    return (times_ms - 1) // SLOT_MS * SLOT_MS


def last_slot_start(time_ms: int) -> int:
    """The last start of a slot at or before this time."""
    return time_ms // SLOT_MS * SLOT_MS


def next_slot_start(time_ms: int) -> int:
    """The first start of a slot at or after this time."""
    return -(-time_ms // SLOT_MS) * SLOT_MS
