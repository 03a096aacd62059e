"""Windows as a source of the stage: rows in due order, each once, whatever pieces and attempts they come in."""

from collections.abc import Callable

import numpy as np
import pytest

from latermq.arrays import Bools, Ints
from latermq.handover.cut import Cut
from latermq.timer.far.frontier import Frontier
from latermq.timer.far.windows import Window, WindowRows, Windows

FIRST = Cut(1, 100, 1_000, 1_000, 1 << 53, 1_000, 0)
SECOND = Cut(2, 200, 2_000, 2_000, 1_000, 1_000, 9_000)
THIRD = Cut(3, 300, 3_000, 3_000, 2_000, 2_000, 9_000)


def rows(*timers: tuple[int, int]) -> WindowRows:
    """Rows of (entry, due), each record ten times a letter of its entry."""
    records = [bytes([97 + entry % 26]) * 10 for entry, _ in timers]
    entries, dues = ([one[at] for one in timers] for at in (0, 1))
    return WindowRows(
        np.array(entries, np.int64), np.array(dues, np.int64), np.full(len(timers), 10, np.int64), b"".join(records)
    )


def all_wait(entries: Ints, dues: Ints) -> Bools:
    return np.ones(len(entries), bool)


def all_covered(due_ms: int) -> int:
    return 1 << 62


def open_windows(
    *,
    is_waiting: Callable[[Ints, Ints], Bools] = all_wait,
    covered_ms: Callable[[int], int] = all_covered,
) -> Windows:
    made = Windows(Frontier([FIRST, SECOND, THIRD]), is_waiting, covered_ms, max_bytes=100, ahead_ms=500)
    made.open_all([SECOND, THIRD], {2: "a"})
    return made


@pytest.fixture
def windows() -> Windows:
    return open_windows()


def head(windows: Windows) -> Window | None:
    """The window whose loaded rows come first."""
    heads = [window for window in windows.sources() if window.head_due_ms() is not None]
    return min(heads, key=lambda window: window.head_due_ms() or 0, default=None)


def taken(windows: Windows, until_ms: int = 10_000) -> list[int]:
    found: list[int] = []
    while (source := head(windows)) is not None:
        batch = source.pop(until_ms, 3, 1_000)
        assert batch.raw is not None
        assert len(batch.raw) == batch.sizes.sum()
        found += batch.offsets.tolist()
    return found


def test_rows_are_read_only_shortly_before_they_are_due(windows: Windows) -> None:
    assert windows.wants(400) is None
    found = windows.wants(500)
    assert found is not None
    assert found.number == 2


def test_rows_come_in_due_order_over_pieces_and_windows(windows: Windows) -> None:
    windows.feed(2, rows((1, 1_000), (5, 1_100)))
    windows.feed(2, rows((2, 1_100), (9, 1_900)))
    windows.feed(2, None)
    windows.restart(3, "b")
    windows.feed(3, rows((3, 2_000)))
    windows.feed(3, None)
    assert taken(windows) == [1, 5, 2, 9, 3]
    assert windows.waiting() == []


def test_a_window_that_is_not_there_keeps_no_later_one_from_being_read(windows: Windows) -> None:
    windows.restart(2, "")
    windows.restart(3, "b")
    found = windows.wants(1_900)
    assert found is not None
    assert found.number == 3
    windows.feed(3, rows((3, 2_000)))
    assert taken(windows) == [3]
    assert windows.all_wake_from_ms() == 1_000  # the mark stays where the missing one begins


def test_a_window_that_is_on_time_is_read_before_one_that_is_late(windows: Windows) -> None:
    windows.restart(3, "b")
    found = windows.wants(3_100)
    assert found is not None
    assert found.number == 3
    found = windows.wants(3_100, others={3})
    assert found is not None
    assert found.number == 2


def test_the_window_that_is_due_now_does_not_wait_for_those_that_are_over(windows: Windows) -> None:
    """As after a restart in the middle of a window, with others that were never played."""
    windows.restart(3, "b")
    found = windows.wants(2_999 + 1_000)
    assert found is not None
    assert found.number == 3


def test_what_is_late_gets_half_of_the_room(windows: Windows) -> None:
    windows.restart(3, "b")
    windows.feed(2, rows(*((entry, 1_000) for entry in range(5))))
    assert windows.wants(3_100, others={3}) is None
    found = windows.wants(3_100)
    assert found is not None
    assert found.number == 3


def test_few_late_windows_are_open_at_the_same_time() -> None:
    cuts = [Cut(n, 100 * n, 1_000 * n, 1_000 * n, 1_000 * n - 1_000, 1_000 * n - 1_000, 90_000) for n in range(2, 40)]
    windows = Windows(Frontier([FIRST, *cuts]), all_wait, all_covered, max_bytes=10_000, ahead_ms=500)
    windows.open_all(cuts, {cut.number: "a" for cut in cuts})
    fed = []
    while (window := windows.wants(80_000)) is not None:
        windows.feed(window.number, rows((window.number, window.from_ms)))
        windows.feed(window.number, None)
        fed.append(window.number)
    assert fed == list(range(2, 10))


def test_no_more_is_loaded_than_fits(windows: Windows) -> None:
    windows.feed(2, rows(*((entry, 1_000) for entry in range(10))))
    assert windows.wants(1_000) is None
    taken(windows)
    assert windows.wants(1_000) is not None


def test_another_attempt_in_other_pieces_repeats_nothing(windows: Windows) -> None:
    windows.feed(2, rows((1, 1_000), (5, 1_100), (2, 1_100)))
    windows.restart(2, "c")
    windows.feed(2, rows((1, 1_000), (5, 1_100)))
    windows.feed(2, rows((2, 1_100), (7, 1_100), (9, 1_500)))
    assert taken(windows) == [1, 5, 2, 7, 9]


def test_what_is_done_is_left_out() -> None:
    windows = open_windows(is_waiting=lambda entries, dues: np.not_equal(entries, 5))
    windows.feed(2, rows((1, 1_000), (5, 1_100), (2, 1_200)))
    assert taken(windows) == [1, 2]


def test_rows_wait_until_the_cancels_of_their_time_are_loaded() -> None:
    windows = open_windows(covered_ms=lambda due_ms: 1_100)
    windows.feed(2, rows((1, 1_000), (5, 1_200)))
    [window] = windows.sources()
    assert window.pop(5_000, 10, 1_000).offsets.tolist() == [1]
    assert window.head_due_ms() is None


def test_nothing_undelivered_is_due_before_the_mark(windows: Windows) -> None:
    assert windows.all_wake_from_ms() == 1_000  # nothing is loaded yet
    windows.feed(2, rows((1, 1_400), (5, 1_500)))
    assert windows.all_wake_from_ms() == 1_400
    taken(windows)
    assert windows.all_wake_from_ms() == 1_500  # the next piece may go on there
    windows.feed(2, None)
    assert windows.all_wake_from_ms() == 2_000
    windows.restart(3, "b")
    windows.feed(3, None)
    assert windows.all_wake_from_ms() == 3_000  # Spark holds what is due from there on


def test_a_window_is_forgotten_once_it_is_played_and_saved(windows: Windows) -> None:
    windows.feed(2, rows((1, 1_400)))
    windows.close_before(2_000)
    assert [window.number for window in windows.unfinished()] == [2, 3]
    windows.feed(2, None)
    windows.close_before(1_999)
    assert [window.number for window in windows.unfinished()] == [2, 3]
    windows.close_before(2_000)
    assert [window.number for window in windows.unfinished()] == [3]
