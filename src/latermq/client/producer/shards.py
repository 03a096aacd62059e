"""The mapping from shards to queues, identical to that of Java's producers."""

from functools import lru_cache

from latermq.message.tags import java_string_hash


@lru_cache(maxsize=65_536)
def shard_hash(shard: str | int) -> int:
    """Return Java's `hashCode` of the same value, so that Java's producers choose the same queue."""
    if isinstance(shard, str):
        return java_string_hash(shard)
    folded = (shard ^ shard >> 32) & 0xFFFFFFFF if not -(1 << 31) <= shard < 1 << 31 else shard
    return folded - (1 << 32) if folded >= 1 << 31 else folded


def shard_index(shard: str | int, queues: int) -> int:
    """Return the index of a shard's queue among a topic's queues."""
    return abs(shard_hash(shard)) % queues
