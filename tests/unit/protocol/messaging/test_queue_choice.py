"""The queue of a message group is the one that RocketMQ's proxy chooses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latermq.protocol.messaging.queue_choice import consistent_hash, java_hash, queue_of_group


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", 0), ("a", 97), ("hello", 99162322), ("polygenelubricants", -(1 << 31)), ("日本", 835047), ("😀", 1772899)],
)
def test_hashes_are_javas(text: str, expected: int) -> None:
    assert java_hash(text) == expected


def test_buckets_are_guavas() -> None:
    expected = [0, 55, 62, 8, 45, 59, 86, 97, 82, 59, 73, 37, 17, 56, 86, 21, 90, 37, 38, 83]
    assert [consistent_hash(number, 100) for number in range(len(expected))] == expected
    assert consistent_hash(10863919174838991, 11) == 6
    assert consistent_hash(2016238256797177309, 11) == 3
    assert consistent_hash(1673758223894951030, 11) == 5
    assert [consistent_hash(number, 100_001) for number in (2, 2201, 2202)] == [80343, 22152, 15018]


@given(st.text(max_size=20), st.integers(1, 1000))
def test_one_more_queue_moves_a_group_to_that_queue_or_not_at_all(group: str, queues: int) -> None:
    before, after = queue_of_group(group, queues), queue_of_group(group, queues + 1)
    assert 0 <= before < queues
    assert after in (before, queues)
