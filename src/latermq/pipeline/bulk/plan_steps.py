"""Single steps of a plan, for what a bulk request leaves: far timers to move, and brokers of older versions."""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from latermq.client.session.connection import Connections
from latermq.client.session.credentials import credentials_from_environment
from latermq.errors import LaterMQError
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.timers import decode_outcomes
from latermq.retry import Backoff
from latermq.tls.client import tls_from_environment

IN_FLIGHT = 64
TIMEOUT_S = 30.0
PATIENCE_S = 60.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0
REFUSED = "refused"


@dataclass(frozen=True)
class Step:
    """One name of a plan."""

    store_id: str
    timer_id: int
    topic: str
    unique_key: str
    new_due_ms: int | None
    timer_ids: Sequence[int] = ()
    scheduled_before: int | None = None

    def request(self) -> tuple[int, dict[str, str]]:
        """The request for this step. It acts only on the planned timers, not on later ones of the same name."""
        ids = ",".join(map(str, self.timer_ids or (self.timer_id,)))
        fields = {"topic": self.topic, "uniqueKey": self.unique_key, "timerIds": ids}
        if self.scheduled_before is not None:
            fields["scheduledBefore"] = str(self.scheduled_before)
        if self.new_due_ms is None:
            return Request.CANCEL_TIMER, fields
        return Request.MOVE_TIMER, {**fields, "dueMs": str(self.new_due_ms)}


def run_steps(steps: Sequence[Step], addresses: Mapping[str, str]) -> list[tuple[str, str]]:
    """The verdict and the detail of each step."""
    return asyncio.run(_run_steps(steps, addresses)) if steps else []


async def _run_steps(steps: Sequence[Step], addresses: Mapping[str, str]) -> list[tuple[str, str]]:
    connections = Connections(
        on_request=lambda connection, command: None,
        tls=tls_from_environment(),
        credentials=credentials_from_environment(),
    )
    try:
        return await _StepRunner(connections, addresses).run(steps)
    finally:
        await connections.close()


class _StepRunner:
    """Executes steps, up to IN_FLIGHT at once, and retries each until it gets an answer."""

    def __init__(self, connections: Connections, addresses: Mapping[str, str]) -> None:
        self._connections = connections
        self._addresses = addresses

    async def run(self, steps: Sequence[Step]) -> list[tuple[str, str]]:
        results = [("", "")] * len(steps)
        numbers = iter(range(len(steps)))
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(IN_FLIGHT, len(steps))):
                    group.create_task(self._work(steps, numbers, results))
        except* LaterMQError as failed:
            failure = failed.exceptions[0]
        else:
            return results
        raise failure

    async def _work(self, steps: Sequence[Step], numbers: Iterator[int], results: list[tuple[str, str]]) -> None:
        for number in numbers:
            results[number] = await self._request(steps[number])

    async def _request(self, step: Step) -> tuple[str, str]:
        """Send a step; returns verdict and detail.

        A repeated cancel has the same answer, a repeated move the same effect.
        """
        code, fields = step.request()
        give_up_s = time.monotonic() + PATIENCE_S
        backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        while True:
            try:
                reply = await self._connections.call(self._addresses[step.store_id], code, fields, timeout_s=TIMEOUT_S)
                (outcome,) = decode_outcomes(reply.body)
                return str(outcome.verdict), ""
            except LaterMQError as error:
                if not error.retriable:
                    return REFUSED, error.message
                pause_s = backoff.next_pause()
                if time.monotonic() + pause_s > give_up_s:
                    raise
            await asyncio.sleep(pause_s)


def steps_of(plan: pa.Table) -> list[Step]:
    """The steps for the rows of a plan."""
    names = ("store_id", "timer_id", "topic", "unique_key", "new_due_ms", "timer_ids", "scheduled_before")
    # Plans of older versions lack the last two columns. Such a step acts only if its timer is the only one of its name.
    return [Step(**row) for row in plan.select([name for name in names if name in plan.schema.names]).to_pylist()]
