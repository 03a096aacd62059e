"""Allocation of queues to the members of a group: the strategies that RocketMQ's broker computes for its clients.

All members must get matching results, so queues and members are sorted.
"""

from collections.abc import Sequence

Queue = tuple[str, int]  # broker name and queue id
ALL_QUEUES = -1  # as a queue id: all queues of a topic on one broker

# The names that RocketMQ's broker knows. With any other, its clients must allocate queues themselves.
STRATEGIES = frozenset({"AVG", "AVG_BY_CIRCLE"})


def allocate(strategy: str, queues: Sequence[Queue], client_id: str, members: Sequence[str]) -> list[Queue]:
    """Return the queues of a client that pulls. There are none if it is not a member."""
    in_order = sorted(members)
    if client_id not in in_order:
        return []
    return _share(strategy, sorted(queues), in_order.index(client_id), len(in_order))


def allocate_shared(
    strategy: str, queues: Sequence[Queue], client_id: str, members: Sequence[str], shared_with: int
) -> list[Queue]:
    """Return the queues of a client that pops: all of them, or its own and those of the next `shared_with` members.

    If there are more members than queues, each shares one queue with others.
    """
    count = len(members)
    if shared_with <= 0 or shared_with >= count - 1:
        return sorted({(broker, ALL_QUEUES) for broker, _ in queues})
    in_order, ordered = sorted(members), sorted(queues)
    if client_id not in in_order or not ordered:
        return []
    index = in_order.index(client_id)
    if count > len(ordered):
        return [ordered[index % len(ordered)]]
    found: list[Queue] = []
    for step in range(shared_with + 1):
        found += _share(strategy, ordered, (index + step) % count, count)
    return found


def _share(strategy: str, queues: Sequence[Queue], index: int, members: int) -> list[Queue]:
    """Return the queues of the member at this index."""
    assert strategy in STRATEGIES, strategy
    if strategy == "AVG_BY_CIRCLE":
        return list(queues[index::members])
    # Adjacent queues. The first members get one more if the queues cannot be divided evenly.
    share, more = divmod(len(queues), members)
    start = index * share + min(index, more)
    return list(queues[start : start + share + (index < more)])
