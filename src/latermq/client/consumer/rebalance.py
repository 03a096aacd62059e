"""Allocation of queues to group members. Every member, including Java clients, computes the same result locally."""

from collections.abc import Iterable, Sequence

from latermq.protocol.remoting.queues import MessageQueue


def allocate_averagely(queues: Sequence[MessageQueue], members: Sequence[str], me: str) -> list[MessageQueue]:
    """Return the queues of `me`: a contiguous, equal share. The first members get one more if there is a remainder.

    Both lists must be sorted. A member that the broker does not list yet gets no queues.
    """
    if me not in members:
        return []
    index = members.index(me)
    share, rest = divmod(len(queues), len(members))
    start = index * share + min(index, rest)
    return list(queues[start : start + share + (1 if index < rest else 0)])


def queue_changes(
    held: Iterable[MessageQueue], allocated: Iterable[MessageQueue]
) -> tuple[list[MessageQueue], list[MessageQueue]]:
    """Return (queues to release, queues to acquire)."""
    old, new = set(held), set(allocated)
    return sorted(old - new), sorted(new - old)
