"""Far timers, which wait on the timeline: read on a thread, and checked with the brokers that hold their names."""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import structlog

from latermq.client import PendingTimer, Verdict
from latermq.config import Config
from latermq.errors import LaterMQError, UnsupportedRequest
from latermq.http.brokers import Brokers
from latermq.http.problems import HttpError
from latermq.message.properties import KEYS, REAL_QUEUE_ID, TAGS
from latermq.message.record import decode_record
from latermq.model.pipeline_state import PipelineState
from latermq.redaction import MASK

if TYPE_CHECKING:
    from latermq.pipeline.timeline.commits import TimelineCommit
    from latermq.pipeline.timeline.pending_page import FarTimer

THREADS = 2
MAX_READS = 4  # of one request, if most of what is read is not pending any more
SAMPLE_BYTES = 64
NOWHERE = (0, "", -1)  # due time, store and entry before all others
_SET_IT = "Set pipeline.timeline of the console"

_log = structlog.get_logger(__name__)

Place = tuple[int, str, int]
Read = TypeVar("Read")


class FarRow(NamedTuple):
    """A pending far timer, the broker that will deliver it, and its place in the order of all."""

    timer: PendingTimer
    broker: str
    place: Place


class FarPage(NamedTuple):
    """Far timers, and where the next page begins; None after the last one."""

    rows: list[FarRow]
    next: Place | None


class TimelineUnavailable(HttpError):
    """The console cannot read the timeline of the brokers."""

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(HTTPStatus.SERVICE_UNAVAILABLE, message, hint=hint)


class FarTimers:
    """Reads far timers, with the pipeline's packages, from a timeline that this machine reaches."""

    def __init__(self, brokers: Brokers, config: Config) -> None:
        self._brokers = brokers
        self._timeline = config.pipeline.timeline
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="latermq-timeline")

    def close(self) -> None:
        """Release the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def page(
        self, holders: Mapping[str, str], topic: str, from_ms: int, until_ms: int, after: Place, limit: int
    ) -> FarPage:
        """Return pending far timers of these brokers in the order of due times. May raise TimelineUnavailable."""
        states = await self._states(holders)
        if not states:
            return FarPage([], None)
        root = self._root_of(states)
        by_store = {state.store_id: name for name, state in states.items()}
        first_ms = max(from_ms, *(state.now_ms for state in states.values()))
        rows: list[FarRow] = []
        for _ in range(MAX_READS):
            wanted = limit - len(rows)
            found = await self._read(root, list(states.values()), topic, first_ms, until_ms, after, wanted)
            checked = await asyncio.gather(*(self._check(one, by_store, holders) for one in found))
            rows += [row for row in checked if row is not None]
            if len(found) < wanted:
                return FarPage(rows, None)
            after = _place_of(found[-1])
            if len(rows) >= limit:
                break
        return FarPage(rows, after)

    async def counts(self, holders: Mapping[str, str], from_ms: int, span_ms: int, count: int) -> dict[int, int]:
        """Return how many far timers are due in each span from a time on, by its number. Empty spans are left out."""
        states = await self._states(holders)
        if not states:
            return {}
        root = self._root_of(states)
        first_ms = max(from_ms, *(state.now_ms for state in states.values()))

        def read() -> dict[int, int]:
            from latermq.pipeline.timeline.pending_counts import Spans, count_far_timers

            found = count_far_timers(root, list(states.values()), Spans(first_ms, from_ms, span_ms, count))
            return {number: timers for number, timers in enumerate(found.tolist()) if timers > 0}

        return await self._read_timeline(root, read)

    async def busiest_seconds(
        self, holders: Mapping[str, str], from_ms: int, until_ms: int, limit: int
    ) -> list[tuple[int, int]]:
        """Return the seconds with the most far timers, and how many they have."""
        states = await self._states(holders)
        if not states:
            return []
        root = self._root_of(states)
        first_ms = max(from_ms, *(state.now_ms for state in states.values()))

        def count() -> list[tuple[int, int]]:
            from latermq.pipeline.timeline.pending_counts import busiest_far_seconds

            return busiest_far_seconds(root, list(states.values()), first_ms, until_ms - 1, limit)

        return await self._read_timeline(root, count)

    async def commits(self, holders: Mapping[str, str], limit: int) -> "list[TimelineCommit]":
        """Return the latest changes of the timeline, the last one first; none without a driver."""
        states = await self._states(holders)
        if not states:
            return []
        root = self._root_of(states)

        def read() -> "list[TimelineCommit]":
            from latermq.pipeline.timeline.commits import last_commits

            return last_commits(root, limit)

        return await self._read_timeline(root, read)

    def _root_of(self, states: Mapping[str, PipelineState]) -> str:
        roots = {self._timeline or state.timeline for state in states.values()}
        if len(roots) > 1:
            raise TimelineUnavailable("the brokers use different timelines", hint=_SET_IT)
        root = roots.pop()
        if MASK in root:
            raise TimelineUnavailable("brokers do not show the credentials of the timeline", hint=_SET_IT)
        return root

    async def _states(self, holders: Mapping[str, str]) -> dict[str, PipelineState]:
        """Return the state of each broker that has ever had a driver, which alone writes to the timeline."""

        async def ask(address: str) -> PipelineState | None:
            try:
                return await self._brokers.pipeline_state(address)
            except UnsupportedRequest:  # RocketMQ's broker
                return None

        found = zip(holders, await asyncio.gather(*map(ask, holders.values())), strict=True)
        return {
            name: state
            for name, state in found
            if state is not None and state.epoch and (state.timeline or self._timeline)
        }

    async def _read(
        self,
        root: str,
        states: list[PipelineState],
        topic: str,
        first_ms: int,
        until_ms: int,
        after: Place,
        limit: int,
    ) -> "list[FarTimer]":
        def read() -> "list[FarTimer]":
            from latermq.pipeline.timeline.pending_page import MAX_DUE_MS, FarPlace, FarSpan, read_far_timers

            span = FarSpan(topic, first_ms, until_ms - 1 if until_ms else MAX_DUE_MS)
            return read_far_timers(root, states, span, FarPlace(*after), limit)

        return await self._read_timeline(root, read)

    async def _read_timeline(self, root: str, read: Callable[[], Read]) -> Read:
        """Read on a thread. May raise TimelineUnavailable."""

        def attempt() -> Read:
            if "://" not in root and not Path(root).is_dir():
                raise TimelineUnavailable(
                    "the timeline's folder is not on the machine of the console", hint=f"{_SET_IT}, or run it there"
                )
            try:
                return read()
            except ImportError:
                raise TimelineUnavailable(
                    "the console has no packages to read the timeline", hint="Install latermq[pipeline] there"
                ) from None
            except LaterMQError as error:  # it may name files, and an address with credentials
                _log.warning("the timeline cannot be read", error=error.message, hint=error.hint)
                raise TimelineUnavailable(
                    "the timeline cannot be read", hint="See the log of the console, and try again"
                ) from None

        return await asyncio.get_running_loop().run_in_executor(self._threads, attempt)

    async def _check(self, far: "FarTimer", by_store: Mapping[str, str], holders: Mapping[str, str]) -> FarRow | None:
        """Return a timer unless its broker knows better: the timeline lags behind cancels, moves and deliveries."""
        broker = by_store[far.place.store_id]
        outcome = await self._brokers.status_at(holders[broker], far.topic, far.unique_key)
        if outcome.verdict != Verdict.PENDING or (outcome.timers == 1 and outcome.due_ms != far.place.due_ms):
            return None
        message = decode_record(far.record)
        properties = message.properties
        sample = message.body[:SAMPLE_BYTES].decode(errors="replace")
        timer = PendingTimer(
            far.timer_id,
            far.topic,
            far.unique_key,
            properties.get(KEYS, ""),
            properties.get(TAGS, ""),
            far.place.due_ms,
            int(properties.get(REAL_QUEUE_ID, "0")),
            message.store_timestamp_ms,
            len(message.body),
            "".join(letter if letter.isprintable() else "." for letter in sample),
        )
        return FarRow(timer, broker, _place_of(far))


def _place_of(far: "FarTimer") -> Place:
    return far.place.due_ms, far.place.store_id, far.place.entry
