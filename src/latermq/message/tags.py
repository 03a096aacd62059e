"""Tags codes: Java's String.hashCode, which queue entries and key indexes use."""

from functools import lru_cache

import numpy as np

_LONG_BYTES = 512  # of UTF-16; above this size numpy is faster, 40 times for 32 KiB
# In characters. Longer tags are hashed every time, because senders choose them and the cache must stay small.
MAX_CACHED_CHARS = 256


def java_string_hash(text: str) -> int:
    """The result of Java's `String.hashCode()`, a signed 32-bit number."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    if len(units) > _LONG_BYTES:
        return _hash_long(units)
    for at in range(0, len(units), 2):
        value = (value * 31 + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


def _hash_long(units: bytes) -> int:
    numbers = np.frombuffer(units, ">u2").astype(np.uint32)
    powers = np.full(len(numbers), 31, np.uint32)
    powers[-1] = 1
    powers[::-1] = np.multiply.accumulate(powers[::-1])
    return int(np.sum(numbers * powers, dtype=np.uint32).astype(np.int32))


def tags_code(tag: str) -> int:
    """The code of a tag in a queue entry; 0 for no tag. There are few different tags, so codes are cached."""
    return _cached_code(tag) if len(tag) <= MAX_CACHED_CHARS else java_string_hash(tag)


@lru_cache(maxsize=8192)
def _cached_code(tag: str) -> int:
    return java_string_hash(tag) if tag else 0
