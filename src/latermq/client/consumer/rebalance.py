"""Who of a group reads which queue: every member computes the same answer by itself, Java's members included."""

from collections.abc import Iterable, Sequence

from latermq.protocol.remoting.queues import MessageQueue


def allocate_averagely(queues: Sequence[MessageQueue], members: Sequence[str], me: str) -> list[MessageQueue]:
    """The queues of `me`: neighbours, as many as everyone else has, one more for the first members if it does not fit.

    Both lists must be sorted. A member that its broker does not list yet gets nothing.
    """
    if me not in members:
        return []
    index = members.index(me)
    share, rest = divmod(len(queues), len(members))
    start = index * share + min(index, rest)
    return list(queues[start : start + share + (1 if index < rest else 0)])


def changes(
    held: Iterable[MessageQueue], allocated: Iterable[MessageQueue]
) -> tuple[list[MessageQueue], list[MessageQueue]]:
    """(queues to give up, queues to take)."""
    old, new = set(held), set(allocated)
    return sorted(old - new), sorted(new - old)
