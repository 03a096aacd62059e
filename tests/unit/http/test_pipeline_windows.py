"""The windows of a broker, as the console shows them."""

from latermq.http.api.pipeline import report_of, windows_of
from latermq.model.pipeline_state import ChosenWindow, PipelineState, WindowState

NOW_MS = 1_800_000_000_000
MINUTE_MS = 60_000


def state(windows: list[WindowState], last: list[ChosenWindow]) -> PipelineState:
    return PipelineState(
        "store", "broker-a", 3, 10, 0, 25, NOW_MS, 0, 0, windows=windows, last_windows=last, lag_ms=4_000
    )


def window(number: int, attempt: str = "") -> WindowState:
    from_ms = NOW_MS + (number - 10) * 10 * MINUTE_MS
    return WindowState(number, 0, from_ms, from_ms + 10 * MINUTE_MS, attempt)


def chosen(number: int, attempt: str, *, is_finished: bool, rows: int | None = 7) -> ChosenWindow:
    one = window(number)
    return ChosenWindow(number, one.from_ms, one.until_ms, attempt, 3, rows, is_finished)


def test_each_window_is_shown_once_with_its_state_and_its_builder() -> None:
    found = windows_of(
        state(
            [window(9, "spark-1"), window(10, "local-2"), window(11, "driver-1"), window(12)],
            [
                chosen(8, "spark-1", is_finished=True),
                chosen(9, "spark-1", is_finished=False),
                chosen(10, "local-2", is_finished=False, rows=None),
            ],
        )
    )
    assert [(one.number, one.state, one.built_by, one.timers) for one in found] == [
        (8, "delivered", "spark", 7),
        (9, "delivering", "spark", 7),
        (10, "delivering", "local", None),
        (11, "ready", "driver", None),
        (12, "waiting", "", None),
    ]


def test_the_lag_is_that_of_entries_that_are_flushed_and_not_ingested() -> None:
    report = report_of("broker-a", state([window(12)], []))
    assert (report.lag_entries, report.lag_ms, report.windows_ready, report.windows_waiting) == (15, 4_000, 0, 1)
