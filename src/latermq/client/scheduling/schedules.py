"""Schedules the timers of a producer: calls at the same time share requests, and a repeated name schedules nothing."""

import asyncio
from collections import deque
from typing import NamedTuple

from latermq.client.scheduling.brokers import SchedulingAdmin
from latermq.client.scheduling.rows import Row
from latermq.client.scheduling.scheduled_timer import ScheduledTimer
from latermq.client.scheduling.scheduler import MAX_REFUSED, Result, Scheduled, TimerScheduler
from latermq.client.session.failures import ClientClosed
from latermq.client.session.session import Session
from latermq.errors import LaterMQError, TopicNotFound
from latermq.message.recall_handle import encode_recall_handle
from latermq.model.timers import Outcome, Verdict
from latermq.protocol.remoting.rows import unique_key_of

MAX_WAITING = 10_000  # rows that wait for their request; further calls wait before their row does
# So few that a request with nothing but refused rows still gets a result for each of them.
ROWS_AT_ONCE = MAX_REFUSED
_REQUESTS_AT_ONCE = 4


class ProducerBrokers(SchedulingAdmin):
    """The administration of timers over the session of a producer."""

    def __init__(self, session: Session) -> None:
        self._session = session


class _Waiting(NamedTuple):
    row: Row
    result: "asyncio.Future[Scheduled]"


class Schedules:
    """The timers that a producer schedules."""

    def __init__(self, session: Session) -> None:
        self.brokers = ProducerBrokers(session)
        self._session = session
        self._scheduler = TimerScheduler(self.brokers)
        self._waiting: deque[_Waiting] = deque()
        self._room = asyncio.Semaphore(MAX_WAITING)
        self._senders: set[asyncio.Task[None]] = set()
        self._scheduled = 0

    async def schedule(self, row: Row, *, is_named: bool) -> ScheduledTimer:
        """Schedule a timer. If its name was chosen by the program, it may be known."""
        known = await self._known_elsewhere(row) if is_named else None
        if known is not None:
            return await self._as_known(row)
        async with self._room:
            self._session.check_running()
            waiting = _Waiting(row, asyncio.get_running_loop().create_future())
            self._waiting.append(waiting)
            if len(self._senders) < _REQUESTS_AT_ONCE:
                self._start_sender()
            result = await waiting.result
        self._scheduled += not result.is_known
        if result.is_known:
            return await self._as_known(row, result.broker)
        return self._timer(row, result.broker, result.due_ms)

    async def wait_idle(self, timeout_s: float) -> None:
        """Wait for requests in flight."""
        if self._senders:
            await asyncio.wait(self._senders, timeout=timeout_s)

    def fail_waiting(self) -> None:
        """Fail what was not sent."""
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.result.done():
                waiting.result.set_exception(
                    ClientClosed("the producer was closed before it knew whether the timer was scheduled")
                )

    def statistics(self) -> dict[str, int]:
        return {"scheduled": self._scheduled, "scheduling": len(self._waiting)}

    def _start_sender(self) -> None:
        task = self._session.spawn(self._send())
        self._senders.add(task)
        task.add_done_callback(self._senders.discard)

    async def _send(self) -> None:
        """Send the waiting rows, in requests that hold everything that came while the last one was under way."""
        while self._waiting:
            part = [self._waiting.popleft() for _ in range(min(len(self._waiting), ROWS_AT_ONCE))]
            try:
                results: list[Result] = await self._scheduler.schedule([waiting.row for waiting in part])
            except LaterMQError as error:
                results = [error] * len(part)
            except BaseException:  # such as the end of the session: without this, the callers would wait forever
                self._waiting.extendleft(reversed(part))
                self.fail_waiting()
                raise
            for waiting, result in zip(part, results, strict=True):
                if waiting.result.done():  # its caller was cancelled
                    continue
                if isinstance(result, LaterMQError):
                    waiting.result.set_exception(result)
                else:
                    waiting.result.set_result(result)

    async def _known_elsewhere(self, row: Row) -> Outcome | None:
        """Return the earlier timer of this name, if the brokers of the topic may have changed since.

        A name always goes to the same broker, which knows it, as long as the topic's brokers stay the same.
        """
        if not await self.brokers.offline() and len(await self.brokers.places_of(row.topic)) < 2:
            return None
        try:
            outcome = await self.brokers.timer_status(row.topic, unique_key=row.unique_key)
        except TopicNotFound:  # it may be auto-created
            outcome = Outcome(Verdict.NOT_FOUND, row.topic, row.unique_key)
        if outcome.verdict != Verdict.NOT_FOUND:
            return outcome
        await self.brokers.check_all_online()
        return None

    async def _as_known(self, row: Row, broker: str = "") -> ScheduledTimer:
        """Return a timer that was scheduled before."""
        found = broker, 0
        for place in await self.brokers.places_of(row.topic):
            if broker in ("", place.broker):
                outcome = await self.brokers.status_at(place.address, row.topic, row.unique_key)
                if outcome.verdict != Verdict.NOT_FOUND:
                    found = place.broker, outcome.due_ms
                    break
        if not found[0]:
            raise LaterMQError(
                "a timer with this idempotency key was scheduled before, and its broker has just gone",
                hint="Repeat the call",
            )
        return self._timer(row, *found, is_known=True)

    def _timer(self, row: Row, broker: str, due_ms: int, *, is_known: bool = False) -> ScheduledTimer:
        handle = encode_recall_handle(row.topic, broker, due_ms, row.unique_key)
        return ScheduledTimer(self.brokers, handle, is_known=is_known)


def name_of(topic: str, idempotency_key: str) -> str:
    """Return the unique key of a timer that the program names itself."""
    return unique_key_of(SchedulingAdmin.job, f"{topic} {idempotency_key}")
