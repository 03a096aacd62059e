"""The slot of a time, for one and for many."""

import numpy as np
import pytest

from latermq.message.slots import SLOT_MS, last_slot_start, next_slot_start, slot_of, slots_of


@pytest.mark.parametrize(
    ("time_ms", "slot", "last", "next_"),
    [(1, 0, 0, 1_000), (999, 0, 0, 1_000), (1_000, 0, 1_000, 1_000), (1_001, 1_000, 1_000, 2_000), (0, -1_000, 0, 0)],
)
def test_a_slot_holds_the_second_that_ends_with_the_next(time_ms: int, slot: int, last: int, next_: int) -> None:
    assert (slot_of(time_ms), last_slot_start(time_ms), next_slot_start(time_ms)) == (slot, last, next_)


def test_many_times_have_the_slots_of_each() -> None:
    times = np.concatenate([np.arange(-3 * SLOT_MS, 3 * SLOT_MS), np.arange(1 << 50, (1 << 50) + SLOT_MS)])
    assert slots_of(times).tolist() == [slot_of(time) for time in times.tolist()]
