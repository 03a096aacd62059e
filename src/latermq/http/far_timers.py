"""Far timers, which wait on the timeline: read by another process, and checked with brokers, which hold their names."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

from latermq.client import PendingTimer, Verdict
from latermq.config import Config
from latermq.errors import UnsupportedRequest
from latermq.http.brokers import Brokers
from latermq.http.timeline_process import TimelineProcess, TimelineUnavailable
from latermq.model.pipeline_state import PipelineState
from latermq.pipeline.timeline.far_reads import (
    MAX_DUE_MS,
    CountTimers,
    FarPlace,
    FarRead,
    FarSpan,
    FarTimer,
    FindBusiest,
    ListCommits,
    ReadPage,
    Request,
    Spans,
    TimelineCommit,
)
from latermq.redaction import MASK

MAX_READS = 4  # of one request, if most of what is read is not pending any more
NOWHERE = FarPlace(0, "", -1)  # before all others
_SET_IT = "Set pipeline.timeline of the console"

Result = TypeVar("Result")


class FarRow(NamedTuple):
    """A pending far timer, the broker that will deliver it, and its place in the order of all."""

    timer: PendingTimer
    broker: str
    place: FarPlace


class FarPage(NamedTuple):
    """Far timers, and where the next page begins; None after the last one."""

    rows: list[FarRow]
    next: FarPlace | None


class FarTimers:
    """Reads far timers, with the pipeline's packages, from a timeline that this machine reaches."""

    def __init__(self, brokers: Brokers, config: Config) -> None:
        self._brokers = brokers
        self._timeline = config.pipeline.timeline
        self.process = TimelineProcess(config.http)

    async def page(
        self, holders: Mapping[str, str], topic: str, from_ms: int, until_ms: int, after: FarPlace, limit: int
    ) -> FarPage:
        """Return pending far timers of these brokers in the order of due times. May raise TimelineUnavailable."""
        states = await self._states(holders)
        if not states:
            return FarPage([], None)
        by_store = {state.store_id: name for name, state in states.items()}
        span = FarSpan(topic, _first_ms(from_ms, states), until_ms - 1 if until_ms else MAX_DUE_MS)
        rows: list[FarRow] = []
        place: FarPlace | None = _bounded(after)
        for _ in range(MAX_READS):
            assert place is not None
            request = ReadPage(self._root_of(states), list(by_store), span, place, limit - len(rows))
            found = await self._read(request, FarRead)
            checked = await asyncio.gather(*(self._check(one, by_store, holders) for one in found.timers))
            rows += [row for row in checked if row is not None]
            place = found.next
            if place is None or len(rows) >= limit:
                break
        return FarPage(rows, place)

    async def counts(self, holders: Mapping[str, str], from_ms: int, span_ms: int, count: int) -> dict[int, int]:
        """Return how many far timers are due in each span from a time on, by its number. Empty spans are left out."""
        states = await self._states(holders)
        if not states:
            return {}
        spans = Spans(_first_ms(from_ms, states), from_ms, span_ms, count)
        return await self._read(CountTimers(self._root_of(states), _store_ids(states), spans), dict[int, int])

    async def busiest_seconds(
        self, holders: Mapping[str, str], from_ms: int, until_ms: int, limit: int
    ) -> list[tuple[int, int]]:
        """Return the seconds with the most far timers, and how many they have."""
        states = await self._states(holders)
        if not states:
            return []
        first_ms = _first_ms(from_ms, states)
        request = FindBusiest(self._root_of(states), _store_ids(states), first_ms, until_ms - 1, limit)
        return await self._read(request, list[tuple[int, int]])

    async def commits(self, holders: Mapping[str, str], limit: int) -> list[TimelineCommit]:
        """Return the latest changes of the timeline, the last one first; none without a driver."""
        states = await self._states(holders)
        if not states:
            return []
        return await self._read(ListCommits(self._root_of(states), limit), list[TimelineCommit])

    async def has_timeline(self, holders: Mapping[str, str]) -> bool:
        """Whether there may be far timers at all."""
        return bool(await self._states(holders))

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

    async def _read(self, request: Request, kind: type[Result]) -> Result:
        """Read in the other process. May raise TimelineUnavailable."""
        if "://" not in request.root and not await asyncio.to_thread(Path(request.root).is_dir):
            raise TimelineUnavailable(
                "the timeline's folder is not on the machine of the console", hint=f"{_SET_IT}, or run it there"
            )
        return await self.process.read(request, kind)

    async def _check(self, far: FarTimer, by_store: Mapping[str, str], holders: Mapping[str, str]) -> FarRow | None:
        """Return a timer unless its broker knows better: the timeline lags behind cancels, moves and deliveries."""
        broker = by_store[far.place.store_id]
        outcome = await self._brokers.status_at(holders[broker], far.timer.topic, far.timer.unique_key)
        if outcome.verdict != Verdict.PENDING or (outcome.timers == 1 and outcome.due_ms != far.place.due_ms):
            return None
        return FarRow(far.timer, broker, far.place)


def _first_ms(from_ms: int, states: Mapping[str, PipelineState]) -> int:
    """Return when the first timer may be due that is not late yet."""
    return max(from_ms, *(state.now_ms for state in states.values()))


def _bounded(place: FarPlace) -> FarPlace:
    """Return a place of a cursor, whose numbers may be of any size."""
    due_ms, store_id, entry = place
    return FarPlace(min(max(due_ms, 0), MAX_DUE_MS), store_id, min(max(entry, -1), MAX_DUE_MS))


def _store_ids(states: Mapping[str, PipelineState]) -> list[str]:
    return [state.store_id for state in states.values()]
