"""Reads of far timers as requests, and their answers: what the console asks the process of read_process.py for.

This module loads neither Arrow nor delta-rs, so that the console does not have to.
"""

import struct
from typing import NamedTuple

from msgspec import Raw, Struct

from latermq.arrays import Ints
from latermq.model.timers import PendingTimer

MAX_DUE_MS = (1 << 62) - 1
INGEST, COMPACTION = "ingest", "compaction"
MAX_FRAME_BYTES = 64 << 20  # a page of 1,000 timers with the longest properties is half of it
LENGTH = struct.Struct(">I")  # precedes each request and each answer


class FarPlace(NamedTuple):
    """A place in the order of all far timers: due time, store and entry."""

    due_ms: int
    store_id: str
    entry: int


class FarTimer(NamedTuple):
    """A far timer and its place."""

    place: FarPlace
    timer: PendingTimer


class FarRead(NamedTuple):
    """Far timers, and where the next ones begin; None after the last one."""

    timers: list[FarTimer]
    next: FarPlace | None


class FarSpan(NamedTuple):
    """Timers of a topic, or of all if it is empty, due from the first to the last time."""

    topic: str
    first_ms: int
    last_ms: int


class Spans(NamedTuple):
    """Spans of one length that follow one another. The first may have begun before the first time that counts."""

    first_ms: int
    start_ms: int
    length_ms: int
    spans: int

    @property
    def end_ms(self) -> int:
        """When the last one ends."""
        return self.start_ms + self.spans * self.length_ms

    def numbers(self, dues: Ints) -> Ints:
        """Return the number of the span of each due time."""
        numbers: Ints = (dues - self.start_ms) // self.length_ms
        return numbers


class TimelineCommit(NamedTuple):
    """A commit. What its writer did not note is None."""

    kind: str
    at_ms: int
    version: int
    rows: int | None
    files_added: int | None
    files_removed: int | None
    took_ms: int | None


class ReadPage(Struct, tag="page", array_like=True):
    """The first far timers of these stores after a place. The answer is a FarRead."""

    root: str
    store_ids: list[str]
    span: FarSpan
    after: FarPlace
    limit: int


class CountTimers(Struct, tag="counts", array_like=True):
    """How many far timers are due in each span. The answer is a dict of the spans that have some, by number."""

    root: str
    store_ids: list[str]
    spans: Spans


class FindBusiest(Struct, tag="busiest", array_like=True):
    """The seconds with the most far timers. The answer is a list of (second, timers)."""

    root: str
    store_ids: list[str]
    first_ms: int
    last_ms: int
    limit: int


class ListCommits(Struct, tag="commits", array_like=True):
    """The latest changes of the timeline. The answer is a list of TimelineCommit."""

    root: str
    limit: int


Request = ReadPage | CountTimers | FindBusiest | ListCommits


class Reply(Struct, array_like=True):
    """The answer to a request, or why there is none: an error of this package, or packages that are not installed."""

    answer: Raw = Raw(b"\xc0")  # nil
    error: str = ""
    hint: str = ""
    lacks_packages: bool = False
