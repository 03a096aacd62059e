"""Window reports for operators: the state of each window, and the error that blocks it."""

from collections.abc import Callable

from latermq.broker.timers.far_timers import FarTimers
from latermq.protocol.remoting.pipeline import WindowReport
from latermq.server.windows.window_state import WindowState
from latermq.timer.far.windows import Window


def report_windows(far: FarTimers, state_of: Callable[[int], WindowState]) -> list[WindowReport]:
    """Reports of all unfinished windows and of those that were skipped recently."""
    windows = far.windows.unfinished()
    numbers = {window.number for window in windows}
    reports = [_report(far, window, state_of(window.number)) for window in windows]
    reports += [
        WindowReport(number=number, from_ms=0, until_ms=0, state="skipped", letters=note.letters, unread=note.unread)
        for number, note in far.notes.skips().items()
        if number not in numbers and note.is_done
    ]
    reports.sort(key=lambda report: report.number)
    return reports


def _report(far: FarTimers, window: Window, state: WindowState) -> WindowReport:
    damaged = far.notes.damaged_attempts(window.number)
    note = far.notes.skip_of(window.number, window.cut_entry)
    return WindowReport(
        number=window.number,
        from_ms=window.from_ms,
        until_ms=window.until_ms,
        state=_state_name(window, state, is_offered=window.number in far.reported, damaged=len(damaged)),
        attempt=window.attempt,
        attempts=state.attempts,
        damaged=damaged,
        rows=state.rows,
        error=state.error,
        letters=note.letters if note else 0,
        unread=note.unread if note else 0,
    )


def _state_name(window: Window, state: WindowState, *, is_offered: bool, damaged: int) -> str:
    if window.is_skipped:
        return "skipped" if window.is_loaded else "skipping"
    if window.is_loaded:
        return "loaded"
    if state.error:
        return "blocked"
    if window.attempt:
        return "loading" if window.pieces or window.rows else "checked"
    if is_offered or state.attempts > damaged:
        return "built"
    return "damaged" if damaged else "waiting"
