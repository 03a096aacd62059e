"""Far timers, which wait on the timeline: read on a thread, and checked with the brokers that hold their names."""

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from latermq.client import PendingTimer, Verdict
from latermq.config import Config
from latermq.errors import LaterMQError
from latermq.http.brokers import Brokers
from latermq.message.properties import KEYS, REAL_QUEUE_ID, TAGS
from latermq.message.record import decode_record
from latermq.model.pipeline_state import PipelineState
from latermq.redaction import MASK

if TYPE_CHECKING:
    from latermq.pipeline.timeline.pending_page import FarTimer

THREADS = 2
MAX_READS = 4  # of one request, if most of what is read is not pending any more
SAMPLE_BYTES = 64
NOWHERE = (0, "", -1)  # due time, store and entry before all others

Place = tuple[int, str, int]


class FarRow(NamedTuple):
    """A pending far timer, the broker that will deliver it, and its place in the order of all."""

    timer: PendingTimer
    broker: str
    place: Place


class FarPage(NamedTuple):
    """Far timers, and where the next page begins; None after the last one."""

    rows: list[FarRow]
    next: Place | None


class FarTimers:
    """Reads far timers. There are none without the pipeline's packages, or a timeline that this machine reaches."""

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
        """Return pending far timers of these brokers in the order of due times."""
        states = await self._states(holders)
        roots = {self._timeline or state.timeline for state in states.values()}
        root = roots.pop() if len(roots) == 1 else ""
        if not root or MASK in root:
            return FarPage([], None)
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

    async def _states(self, holders: Mapping[str, str]) -> dict[str, PipelineState]:
        """Return the state of each broker with a timeline. RocketMQ's brokers have none."""

        async def ask(address: str) -> PipelineState | None:
            try:
                return await self._brokers.pipeline_state(address)
            except LaterMQError:
                return None

        found = zip(holders, await asyncio.gather(*map(ask, holders.values())), strict=True)
        return {name: state for name, state in found if state is not None and (state.timeline or self._timeline)}

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
            try:
                from latermq.pipeline.timeline.pending_page import MAX_DUE_MS, FarPlace, FarSpan, read_far_timers
            except ImportError:  # installed without the extra `pipeline`
                return []
            if "://" not in root and not Path(root).is_dir():  # a folder of another machine
                return []
            span = FarSpan(topic, first_ms, until_ms - 1 if until_ms else MAX_DUE_MS)
            return read_far_timers(root, states, span, FarPlace(*after), limit)

        return await asyncio.get_running_loop().run_in_executor(self._threads, read)

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
