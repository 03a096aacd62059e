"""Prints the steps of the demo as they happen, and the table at the end."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence

from rich.console import Console
from rich.table import Table

from latermq.cli.demo.deliveries import Figures

_SHOWN_EVERY_S = 0.5
_COLUMN_WIDTH = 20
_PRINTED_EVERY_S = 10.0  # where there is no terminal


class Progress:
    """The steps so far. A step that takes time shows a changing line."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started_s = time.monotonic()
        self.steps = 0

    @contextlib.asynccontextmanager
    async def step(self, name: str, state: Callable[[], str] = lambda: "") -> AsyncIterator[list[str]]:
        """A step of the story. The block appends its findings to the yielded list; `state` tells what happens now."""
        at_s = time.monotonic() - self._started_s
        self._console.print(f"[dim]{at_s:5.1f} s[/dim] [bold]{self.steps + 1}. {name}[/bold]", soft_wrap=True)
        findings = list[str]()
        ticker = asyncio.create_task(self._tick(state))
        try:
            yield findings
        finally:
            ticker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await ticker
            for line in findings:
                self._console.print(f"        {line}", markup=False, soft_wrap=True)
        self.steps += 1

    async def _tick(self, state: Callable[[], str]) -> None:
        if not self._console.is_terminal:
            while True:
                await asyncio.sleep(_PRINTED_EVERY_S)
                if text := state():
                    self._console.print(f"        … {text}", markup=False, soft_wrap=True)
        with self._console.status("working") as status:
            while True:
                status.update(state() or "working")
                await asyncio.sleep(_SHOWN_EVERY_S)

    def note(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)

    def print_figures(self, rows: Sequence[Figures]) -> None:
        table = Table(title="Timers, as the records in their topics show", title_justify="left")
        table.add_column("")
        for figures in rows:
            table.add_column(figures.name, justify="right", max_width=_COLUMN_WIDTH)
        for name in ("scheduled", "cancelled", "moved", "delivered", "missing", "early", "twice"):
            table.add_row(name, *(_count(getattr(figures, name)) for figures in rows))
        for name, share in (("late p50 (ms)", 0.5), ("late p99 (ms)", 0.99), ("latest (ms)", 1.0)):
            table.add_row(name, *(_count(figures.late_percentile_ms(share)) for figures in rows))
        self._console.print(table)


def _count(count: int | None) -> str:
    return "" if count is None else f"{count:,}"
