"""The queue of a message group: RocketMQ's proxy chooses it by the same numbers, so the order survives a move.

It is Java's hash of the group's name, then jump consistent hashing as in Guava.
"""

from functools import lru_cache

_MASK = (1 << 64) - 1
_MULTIPLIER = 2862933555777941757
_CACHED_GROUPS = 4096


def java_hash(text: str) -> int:
    """Return Java's `String.hashCode` of a text, a signed 32-bit number."""
    units = text.encode("utf-16-be")
    value = 0
    for at in range(0, len(units), 2):
        value = value * 31 + (units[at] << 8 | units[at + 1]) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


@lru_cache(_CACHED_GROUPS)
def queue_of_group(group: str, queues: int) -> int:
    """Return the place of a message group's queue among the writable queues of its topic."""
    return consistent_hash(java_hash(group), queues)


def consistent_hash(number: int, buckets: int) -> int:
    """Return a bucket for a number. One more bucket moves only the numbers that belong into it."""
    state = number & _MASK
    chosen = 0
    while True:
        state = _MULTIPLIER * state + 1 & _MASK
        candidate = int((chosen + 1) / (((state >> 33) + 1) / (1 << 31)))
        if candidate >= buckets:
            return chosen
        chosen = candidate
