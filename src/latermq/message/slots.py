"""The slot of a time: the second in which a timer is due, RocketMQ's own rounding at its default precision."""

from latermq.arrays import Ints

SLOT_MS = 1_000  # slot s holds what is due in (s, s + 1000]


def slot_of(time_ms: int) -> int:
    """The slot of one time: the largest multiple of a second below it."""
    return (time_ms - 1) // SLOT_MS * SLOT_MS


def slots_of(times_ms: Ints) -> Ints:
    """The same of many."""
    return (times_ms - 1) // SLOT_MS * SLOT_MS


def last_slot_start(time_ms: int) -> int:
    """The last moment up to then at which a slot begins."""
    return time_ms // SLOT_MS * SLOT_MS


def next_slot_start(time_ms: int) -> int:
    """The first moment from then on at which a slot begins."""
    return -(-time_ms // SLOT_MS) * SLOT_MS
