"""Window reports for operators: the state of each window, and the error that blocks it."""

from collections.abc import Callable

from latermq.broker.broker import Broker
from latermq.protocol.remoting.pipeline import WindowReport, WindowReports
from latermq.server.windows.window_state import Care
from latermq.timer.far.windows import Window


def report_windows(broker: Broker, care_of: Callable[[int], Care]) -> WindowReports:
    """Reports of all unfinished windows and of those that were skipped recently."""
    windows = broker.far.windows.unfinished()
    numbers = {window.number for window in windows}
    reports = [_report(broker, window, care_of(window.number)) for window in windows]
    reports += [
        WindowReport(number=number, from_ms=0, until_ms=0, state="skipped", letters=note.letters, unread=note.unread)
        for number, note in broker.far.notes.skips().items()
        if number not in numbers and note.is_done
    ]
    reports.sort(key=lambda report: report.number)
    return WindowReports(broker.config.broker.name, broker.clock.now_ms(), reports)


def _report(broker: Broker, window: Window, care: Care) -> WindowReport:
    damaged = broker.far.notes.damaged(window.number)
    note = broker.far.notes.skip_of(window.number, window.cut_entry)
    return WindowReport(
        number=window.number,
        from_ms=window.from_ms,
        until_ms=window.until_ms,
        state=_state(window, care, is_offered=window.number in broker.far.offered, damaged=len(damaged)),
        attempt=window.attempt,
        attempts=care.attempts,
        damaged=damaged,
        rows=care.rows,
        error=care.error,
        letters=note.letters if note else 0,
        unread=note.unread if note else 0,
    )


def _state(window: Window, care: Care, *, is_offered: bool, damaged: int) -> str:
    if window.is_skipped:
        return "skipped" if window.is_loaded else "skipping"
    if window.is_loaded:
        return "played"
    if care.error:
        return "blocked"
    if window.attempt:
        return "playing" if window.pieces or window.rows else "checked"
    if is_offered or care.attempts > damaged:
        return "rolled"
    return "damaged" if damaged else "waiting"
