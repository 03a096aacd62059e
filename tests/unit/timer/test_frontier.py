"""The frontier: whose a timer is, for any order of sends and cuts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latermq.errors import CorruptStore
from latermq.handover.cut import FOREVER_MS, Cut, cut_properties, decode_cut
from latermq.handover.ownership import Ownership
from latermq.handover.window import Window, is_in_window
from latermq.message.properties import decode_properties, encode_properties
from latermq.message.timer_code import CANCEL, CUT, MOVED, TIMER, kind_and_due, timer_code_of
from latermq.timer.far.frontier import Frontier

WINDOW_MS = 10


def cut(
    number: int, entry: int, frontier_ms: int, handback_ms: int, last: Cut | None = None, far_until: int = 0
) -> Cut:
    return Cut(
        number,
        entry,
        frontier_ms,
        handback_ms,
        last.frontier_ms if last else FOREVER_MS,
        last.handback_ms if last else handback_ms,
        far_until,
    )


def near(frontier: Frontier, *timers: tuple[int, int]) -> list[bool]:
    entries, dues = (np.array(column, np.int64) for column in zip(*timers, strict=True))
    owned: list[bool] = frontier.is_near(entries, dues).tolist()
    return owned


def test_before_the_first_cut_everything_is_the_brokers() -> None:
    assert near(Frontier(), (0, 5), (9, FOREVER_MS - 1)) == [True, True]
    frontier = Frontier()
    frontier.add(cut(1, 4, 100, 100))
    assert near(frontier, (3, 5_000), (5, 5_000)) == [True, False]


def test_the_last_cut_before_a_timer_decides() -> None:
    first = cut(1, 10, 100, 100)
    frontier = Frontier([first, cut(2, 20, 200, 110, first)])
    assert near(frontier, (11, 99), (11, 100), (19, 150), (21, 150), (21, 200)) == [True, False, False, True, False]


def test_a_forgotten_cut_decides_about_what_is_still_in_the_log() -> None:
    first = cut(1, 10, 100, 100)
    second = cut(2, 20, 200, 110, first)
    third = cut(3, 30, 300, 120, second)
    frontier = Frontier([first, second, third])
    frontier.forget(below_entry=15, wake_ms=130)
    assert frontier.cuts() == [third]
    assert near(frontier, (15, 99), (15, 100), (25, 199), (25, 200)) == [True, False, True, False]


def test_the_owner_of_an_entry_before_the_known_cuts_is_an_error() -> None:
    frontier = Frontier([cut(1, 10, 100, 100)])
    frontier.forget(below_entry=15, wake_ms=105)
    with pytest.raises(CorruptStore, match="known from entry 15"):
        near(frontier, (14, 50))


def test_the_first_cut_found_contains_the_frontier_before_it() -> None:
    lost = cut(6, 10, 100, 100)
    frontier = Frontier()
    frontier.add(cut(7, 20, 200, 110, lost))
    assert near(frontier, (15, 99), (15, 100), (21, 100)) == [True, False, True]


def test_what_a_checkpoint_does_not_know_is_learnt_from_the_log() -> None:
    """As older checkpoints have it, and as it is where a segment that was let go of is there again."""
    first = cut(1, 10, 100, 100)
    second = cut(2, 20, 200, 110, first)
    third = cut(3, 30, 300, 120, second)
    for frontier in (Frontier([third]), Frontier([third], rows=[(25, 200), (31, 300)])):
        frontier.learn_before(15, [second])
        assert near(frontier, (15, 99), (15, 100), (22, 199), (29, 200), (31, 299)) == [True, False, True, False, True]


def test_idle_times_and_frontiers_that_stay_take_no_room() -> None:
    frontier = Frontier()
    last: Cut | None = None
    for number in range(1, 1_000):
        last = cut(number, 100 + number, 5_000 + number, 5_000 + number, last)
        frontier.add(last)
    for number in range(1_000, 2_000):
        last = cut(number, 5_000 + number * 3, FOREVER_MS, 5_000 + number, last)
        frontier.add(last)
    assert frontier.ownership.rows == [(0, FOREVER_MS), (1_100, 5_999), (8_001, FOREVER_MS)]


def test_a_cut_with_a_window_that_is_not_done_is_kept() -> None:
    first = cut(1, 10, 100, 100)
    second = cut(2, 20, 110, 110, first, far_until=500)
    third = cut(3, 30, 120, 120, second, far_until=500)
    frontier = Frontier([first, second, third])
    frontier.forget(below_entry=1_000, wake_ms=105)
    assert frontier.cuts() == [second, third]
    assert frontier.windows_after(105) == [second, third]
    assert frontier.windows_after(110) == [third]


def test_a_window_exists_only_where_spark_may_hold_something() -> None:
    first = cut(1, 10, 100, 100)
    assert not cut(2, 20, 110, 110, first, far_until=99).has_window
    assert cut(2, 20, 110, 110, first, far_until=100).has_window
    assert not cut(2, 20, FOREVER_MS, 100, first, far_until=500).has_window


def test_a_cut_survives_its_record() -> None:
    made = cut(7, 33, FOREVER_MS, 1_800_000_000_000, cut(6, 20, 110, 110), far_until=42)
    encoded = encode_properties(cut_properties(made))
    assert decode_cut(decode_properties(encoded), 33) == made
    assert kind_and_due(timer_code_of(encoded.encode(), 1_000)) == (CUT, made.handback_ms)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, 200)),
        st.tuples(st.just("cut"), st.integers(0, WINDOW_MS), st.integers(0, 60)),
        st.tuples(st.just("restart")),
    ),
    max_size=60,
)


@given(STEPS)
def test_every_timer_has_exactly_one_owner(steps: list[tuple[str, int]]) -> None:
    """The broker's wheel and Spark's windows together hold each timer once, however sends, cuts and restarts fall."""
    frontier = Frontier()
    timers: list[tuple[int, int]] = []
    entry = 0
    for kind, *values in steps:
        if kind == "send":
            timers.append((entry, values[0]))
            entry += 1
        elif kind == "cut":
            last = frontier.last
            grown_ms, beyond_ms = values
            handback_ms = (last.handback_ms if last else 0) + grown_ms
            owned = zip(timers, _owners(frontier, timers), strict=True)
            far = [due_ms for (_, due_ms), is_near in owned if not is_near]
            frontier.note_far(np.array(far, np.int64))
            made = cut(last.number + 1 if last else 1, entry, handback_ms + beyond_ms, handback_ms, last)
            frontier.add(made._replace(far_until_ms=frontier.far_until_ms))
            entry += 1
        else:
            rows = [(start, frontier_ms) for start, frontier_ms in frontier.ownership.rows]
            frontier = Frontier([Cut(*one) for one in frontier.cuts()], frontier.far_until_ms, rows)
    owners = _owners(frontier, timers)
    for (number, due_ms), is_near in zip(timers, owners, strict=True):
        held = [
            one.number
            for one in frontier.cuts()
            if not is_near and number < one.entry and one.last_handback_ms <= due_ms < one.handback_ms
        ]
        waits = not is_near and due_ms >= frontier.handback_ms
        assert is_near + len(held) + waits == 1, f"entry {number} due {due_ms} is held {held}, near {is_near}"
        assert all(one.has_window for one in frontier.cuts() if one.number in held)


def _owners(frontier: Frontier, timers: list[tuple[int, int]]) -> list[bool]:
    return near(frontier, *timers) if timers else []


def test_only_timers_and_moves_behind_the_frontier_are_far_timers() -> None:
    ownership = Ownership([(0, FOREVER_MS), (5, 100)])
    kinds = np.array([TIMER, TIMER, MOVED, CANCEL, CUT, TIMER], np.int64)
    entries = np.array([4, 5, 6, 7, 8, 9], np.int64)
    dues = np.array([500, 100, 101, 500, 500, 99], np.int64)
    assert ownership.far_timers(kinds, entries, dues).tolist() == [False, True, True, False, False, False]


def test_a_window_holds_dues_from_its_start_up_to_its_end_of_entries_before_its_cut() -> None:
    window = Window("store", 1, cut_entry=10, from_ms=100, until_ms=200)
    entries = np.array([9, 9, 9, 9, 10], np.int64)
    dues = np.array([99, 100, 199, 200, 150], np.int64)
    assert is_in_window(window, entries, dues).tolist() == [False, True, True, False, False]
