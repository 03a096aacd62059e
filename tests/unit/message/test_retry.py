"""The backoff between tries."""

import pytest

from latermq.retry import Backoff, pause_after


def test_a_pause_doubles_up_to_the_longest() -> None:
    backoff = Backoff(0.5, 3.0)
    assert [backoff.next_pause() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_after_a_success_the_first_pause_applies_again() -> None:
    backoff = Backoff(1.0, 30.0)
    assert [backoff.next_pause(), backoff.next_pause()] == [1.0, 2.0]
    backoff.reset()
    assert backoff.next_pause() == 1.0


@pytest.mark.parametrize("failures", [0, 3, 1_000_000])
def test_a_pause_is_never_longer_than_the_longest(failures: int) -> None:
    assert pause_after(failures, 5.0, 5.0) == 5.0


def test_whole_milliseconds_stay_whole() -> None:
    backoff = Backoff(100, 5_000)
    assert [backoff.next_pause() for _ in range(7)] == [100, 200, 400, 800, 1_600, 3_200, 5_000]
    assert isinstance(backoff.next_pause(), int)


def test_a_backoff_is_ready_when_its_pause_is_over() -> None:
    backoff = Backoff(1.0, 30.0)
    assert backoff.is_ready(0.0)
    backoff.record_failure("no answer", 100.0)
    backoff.record_failure("no route", 101.0)
    assert (backoff.failures, backoff.error) == (2, "no route")
    assert [backoff.is_ready(now_s) for now_s in (101.0, 102.9, 103.0)] == [False, False, True]
    backoff.reset()
    assert (backoff.failures, backoff.error, backoff.is_ready(0.0)) == (0, "", True)


def test_a_clock_that_is_set_back_does_not_prolong_a_pause() -> None:
    backoff = Backoff(1_000, 1_000)
    backoff.record_failure("disk full", 100_000)
    assert backoff.wait(100_400) == 600
    assert backoff.is_ready(50_000)


def test_a_longest_pause_is_not_skipped_because_of_rounding() -> None:
    now_s = 16_382.601
    assert (now_s + 5.0) - now_s > 5.0
    backoff = Backoff(5.0, 5.0)
    backoff.record_failure("no answer", now_s)
    assert not backoff.is_ready(now_s)
    assert backoff.wait(now_s) > 0
