"""Allocation of queues to members, as RocketMQ's broker computes it."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latermq.group.allocation import ALL_QUEUES, STRATEGIES, allocate, allocate_shared

each_strategy = pytest.mark.parametrize("strategy", sorted(STRATEGIES))


def queues(count: int, broker: str = "a") -> list[tuple[str, int]]:
    return [(broker, queue_id) for queue_id in range(count)]


def ids(found: list[tuple[str, int]]) -> list[int]:
    return [queue_id for _, queue_id in found]


def test_the_first_members_get_one_more_queue_if_the_queues_cannot_be_divided_evenly() -> None:
    shares = [ids(allocate("AVG", queues(8), member, ["c2", "c0", "c1"])) for member in ("c0", "c1", "c2")]
    assert shares == [[0, 1, 2], [3, 4, 5], [6, 7]]


def test_queues_are_dealt_out_by_circle() -> None:
    shares = [ids(allocate("AVG_BY_CIRCLE", queues(8), member, ["c2", "c0", "c1"])) for member in ("c0", "c1", "c2")]
    assert shares == [[0, 3, 6], [1, 4, 7], [2, 5]]


@given(st.sampled_from(sorted(STRATEGIES)), st.integers(0, 40), st.integers(1, 20))
def test_every_queue_has_exactly_one_member_and_shares_differ_by_one_at_most(
    strategy: str, count: int, members: int
) -> None:
    names = [f"c{member}" for member in range(members)]
    shares = [allocate(strategy, queues(count), name, names) for name in names]
    assert sorted(queue for share in shares for queue in share) == queues(count)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@each_strategy
def test_a_client_that_is_not_a_member_gets_nothing(strategy: str) -> None:
    assert allocate(strategy, queues(4), "stranger", ["c0"]) == []
    assert allocate_shared(strategy, queues(8), "stranger", ["c0", "c1", "c2", "c3"], 1) == []


def test_members_that_pop_share_all_queues_of_each_broker_by_default() -> None:
    both = queues(4, "b") + queues(2, "a")
    for shared_with in (-1, 0, 2, 5):
        assert allocate_shared("AVG", both, "c0", ["c0", "c1", "c2"], shared_with) == [
            ("a", ALL_QUEUES),
            ("b", ALL_QUEUES),
        ]


def test_members_that_pop_share_the_queues_of_the_next_members() -> None:
    members = ["c0", "c1", "c2", "c3"]
    assert ids(allocate_shared("AVG", queues(8), "c0", members, 1)) == [0, 1, 2, 3]
    assert ids(allocate_shared("AVG", queues(8), "c3", members, 1)) == [6, 7, 0, 1]


@given(st.integers(1, 12), st.integers(3, 20), st.integers(1, 5))
def test_every_queue_has_a_member_that_pops_it(count: int, members: int, shared_with: int) -> None:
    names = [f"c{member:02}" for member in range(members)]
    found = Counter(
        queue for name in names for queue in allocate_shared("AVG", queues(count), name, names, shared_with)
    )
    assert set(found) in ({("a", ALL_QUEUES)}, set(queues(count)))
    assert all(allocate_shared("AVG", queues(count), name, names, shared_with) for name in names)
