"""The queue of a shard: the same that Java's producers pick for the same value."""

from functools import lru_cache

from latermq.message.tags import java_string_hash


@lru_cache(maxsize=65_536)
def shard_hash(shard: str | int) -> int:
    """What Java's `hashCode` gives for the same value, so that Java's producers pick the same queue."""
    if isinstance(shard, str):
        return java_string_hash(shard)
    folded = (shard ^ shard >> 32) & 0xFFFFFFFF if not -(1 << 31) <= shard < 1 << 31 else shard
    return folded - (1 << 32) if folded >= 1 << 31 else folded


def shard_index(shard: str | int, queues: int) -> int:
    """The place of a shard's queue among a topic's queues."""
    return abs(shard_hash(shard)) % queues
