"""Allocation of queues: the same shares as from Java's AllocateMessageQueueAveragely, whose results are in a table."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latermq.client.consumer.rebalance import allocate_averagely, queue_changes
from latermq.protocol.remoting.queues import MessageQueue

# Queues, members, and for each member the indexes of its queues, as returned by the class in RocketMQ 5.5.0.
JAVA_SHARES = [
    (1, 1, [[0]]),
    (1, 2, [[0], []]),
    (3, 5, [[0], [1], [2], [], []]),
    (4, 1, [[0, 1, 2, 3]]),
    (4, 3, [[0, 1], [2], [3]]),
    (4, 4, [[0], [1], [2], [3]]),
    (5, 2, [[0, 1, 2], [3, 4]]),
    (7, 3, [[0, 1, 2], [3, 4], [5, 6]]),
    (8, 3, [[0, 1, 2], [3, 4, 5], [6, 7]]),
    (8, 8, [[0], [1], [2], [3], [4], [5], [6], [7]]),
    (8, 11, [[0], [1], [2], [3], [4], [5], [6], [7], [], [], []]),
    (10, 4, [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]),
    (16, 5, [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9], [10, 11, 12], [13, 14, 15]]),
    (17, 6, [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11], [12, 13, 14], [15, 16]]),
]


def queues_of(count: int) -> list[MessageQueue]:
    return sorted(MessageQueue("t", "ab"[index % 2], index) for index in range(count))


@pytest.mark.parametrize(("queues", "members", "shares"), JAVA_SHARES)
def test_every_member_gets_the_same_queues_as_in_java(queues: int, members: int, shares: list[list[int]]) -> None:
    listed = queues_of(queues)
    names = [f"m{chr(ord('a') + index)}" for index in range(members)]
    for name, share in zip(names, shares, strict=True):
        assert allocate_averagely(listed, names, name) == [listed[index] for index in share]


@given(queues=st.integers(0, 100), members=st.integers(1, 40))
def test_every_queue_has_exactly_one_reader(queues: int, members: int) -> None:
    listed = queues_of(queues)
    names = [f"m{index:03}" for index in range(members)]
    shares = [allocate_averagely(listed, names, name) for name in names]
    assert [queue for share in shares for queue in share] == listed
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_a_member_that_is_not_listed_yet_gets_no_queue() -> None:
    assert allocate_averagely(queues_of(4), ["a", "b"], "c") == []


def test_changes_are_the_queues_to_release_and_to_acquire() -> None:
    first, second, third = sorted(queues_of(3))
    assert queue_changes([first, second], [second, third]) == ([first], [third])
