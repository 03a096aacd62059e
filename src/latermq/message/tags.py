"""Tags codes: Java's String.hashCode, which queue entries and key indexes are made of."""

from functools import lru_cache


def java_string_hash(text: str) -> int:
    """What `String.hashCode()` returns in Java, as a signed 32-bit number."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        value = (value * 31 + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


@lru_cache(maxsize=8192)
def tags_code(tag: str) -> int:
    """The number a queue entry carries for a tag; 0 for no tag. Tags are few, so the hash is remembered."""
    return java_string_hash(tag) if tag else 0
