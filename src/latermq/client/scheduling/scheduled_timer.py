"""A timer in the hands of the program that scheduled it: looked up, moved and cancelled."""

import datetime

from latermq.client.scheduling.new_timer import due_of
from latermq.client.timers import TimerAdmin
from latermq.errors import IllegalOperation
from latermq.message.recall_handle import decode_recall_handle
from latermq.model.timers import Outcome, Verdict


class ScheduledTimer:
    """A timer. `str(timer)` is its handle, from which `Producer.timer` makes it again, in any process."""

    __slots__ = ("_brokers", "due_ms", "handle", "is_known", "topic", "unique_key")

    def __init__(self, brokers: TimerAdmin, handle: str, *, is_known: bool = False) -> None:
        topic, _, due_ms, unique_key = decode_recall_handle(handle)
        if due_ms < 0:
            raise IllegalOperation("the handle has no due time", hint="Pass it exactly as `str(timer)` returned it")
        self._brokers = brokers
        self.handle = handle
        self.topic = topic
        self.unique_key = unique_key
        self.due_ms = due_ms  # as scheduled, or as `move` or `status` found it
        self.is_known = is_known  # whether a timer with the same idempotency key was scheduled before

    async def cancel(self) -> Outcome:
        """Cancel it. `verdict` says what happened: CANCELLED, DELIVERED or NOT_FOUND. It is safe to repeat."""
        [outcome] = await self._brokers.cancel_timer(self.topic, handle=self.handle)
        return outcome

    async def move(
        self, *, at: datetime.datetime | None = None, delay: datetime.timedelta | str | None = None
    ) -> Outcome:
        """Move it to another time. `verdict` says what happened: MOVED, CANCELLED, DELIVERED or NOT_FOUND."""
        time_ms, is_delay = due_of(at, delay)
        [outcome] = await self._brokers.move_timer(
            self.topic,
            handle=self.handle,
            due_ms=None if is_delay else time_ms,
            delay_ms=time_ms if is_delay else None,
        )
        if outcome.verdict == Verdict.MOVED:
            self.due_ms = outcome.due_ms
        return outcome

    async def status(self) -> Outcome:
        """Look it up. `verdict` is PENDING, CANCELLED, DELIVERED or NOT_FOUND, and `due_ms` its due time."""
        outcome = await self._brokers.timer_status(self.topic, handle=self.handle)
        if outcome.verdict == Verdict.PENDING:
            self.due_ms = outcome.due_ms
        return outcome

    def __str__(self) -> str:
        return self.handle

    def __repr__(self) -> str:
        return f"ScheduledTimer({self.handle!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ScheduledTimer):
            return NotImplemented
        return (self.topic, self.unique_key) == (other.topic, other.unique_key)

    def __hash__(self) -> int:
        return hash((self.topic, self.unique_key))
