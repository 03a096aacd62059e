"""Distributions of times: what lies at or below each bound, a batch at a time."""

from random import Random

import numpy as np

from latermq.timer.delivery.lateness import DELAY_BOUNDS_MS, LATENESS_BOUNDS_MS, Distribution


def times(*values: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    return np.array(values, np.int64)


def test_a_time_counts_at_every_bound_that_it_does_not_exceed() -> None:
    lateness = Distribution((1, 5, 10))
    lateness.add(times(0, 1, 2, 5, 6, 10, 11, 1_000_000))
    counts = lateness.counts()
    assert counts.bounds_ms == (1, 5, 10)
    assert counts.upto == [2, 4, 6]
    assert counts.total == 8
    assert counts.sum_ms == 1_000_035


def test_an_early_one_counts_as_such_and_at_every_bound() -> None:
    lateness = Distribution((1, 5))
    lateness.add(times(3, -1, 0, -200))
    assert lateness.negative == 2
    assert lateness.counts().upto == [3, 4]
    lateness.add(times(-7))
    assert lateness.negative == 3


def test_no_times_change_nothing() -> None:
    lateness = Distribution(LATENESS_BOUNDS_MS)
    lateness.add(times())
    assert lateness.counts() == Distribution(LATENESS_BOUNDS_MS).counts()
    assert lateness.negative == 0


def test_batches_add_up_to_what_counting_one_by_one_gives() -> None:
    chance = Random(4711)
    everything: list[int] = []
    lateness = Distribution(DELAY_BOUNDS_MS)
    for _ in range(50):
        batch = [chance.randint(-5, 2 * DELAY_BOUNDS_MS[-1]) for _ in range(chance.randint(0, 200))]
        everything += batch
        lateness.add(times(*batch))
    counts = lateness.counts()
    assert counts.upto == [sum(value <= bound for value in everything) for bound in DELAY_BOUNDS_MS]
    assert (counts.total, counts.sum_ms) == (len(everything), sum(everything))
    assert lateness.negative == sum(value < 0 for value in everything)


def test_what_was_read_does_not_change_any_more() -> None:
    lateness = Distribution((1,))
    lateness.add(times(0))
    before = lateness.counts()
    lateness.add(times(0, 0))
    assert before.upto == [1]
