"""What a runner of jobs asks of each kind of work: what matches, row by row, and to change some rows."""

from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple, Protocol

from latermq.http.jobs.job import Job, JobPreview, Order

Row = list[Any]  # of a plan: what JSON has


class Done(NamedTuple):
    """What became of one row."""

    outcome: str
    id: str
    topic: str
    detail: str = ""


class Work(Protocol):
    """One kind of work."""

    @property
    def rows_at_once(self) -> int:
        """How many rows one step changes at most."""
        ...

    async def preview(self, order: Order) -> JobPreview:
        """Count what matches."""
        ...

    def plan(self, order: Order) -> AsyncIterator[list[Row]]:
        """Yield what matches, part by part."""
        ...

    async def change(self, job: Job, rows: Sequence[Row]) -> list[Done]:
        """Change some rows. Repeated, it has the same effect. Raises if it must be repeated as a whole."""
        ...

    def merged(self, rows: Sequence[Row]) -> list[Row]:
        """Merge rows that stand for the same name, of which each alone was `replaced`."""
        ...
