"""Administration of pending timers: cancel, move, look up, list and count them on all brokers that may hold them."""

import asyncio
from collections.abc import Iterable, Sequence
from itertools import zip_longest

from latermq.client.session.cluster import ClusterClient
from latermq.client.session.failures import NoBroker
from latermq.client.session.retry import SAFE_TO_REPEAT, TRANSIENT, with_retries
from latermq.errors import LaterMQError
from latermq.message.recall_handle import decode_recall_handle
from latermq.model.timers import Density, Outcome, PendingTimer, Verdict
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.frames import Command
from latermq.protocol.remoting.json_body import decode_body
from latermq.protocol.remoting.timers import PendingCount, decode_density, decode_outcomes, decode_page

_PAGE_TIMERS = 1000
# Brokers may report different verdicts for one name, because a retried send may be stored on two of them. After a
# change, the change itself ranks first, and a pending timer ranks before a delivered one.
_CHANGE_PRECEDENCE = (
    Verdict.MOVED, Verdict.CANCELLED, Verdict.ACCEPTED, Verdict.PENDING, Verdict.DELIVERED, Verdict.NOT_FOUND,
)  # fmt: skip
_STATUS_PRECEDENCE = (
    Verdict.PENDING, Verdict.ACCEPTED, Verdict.MOVED, Verdict.CANCELLED, Verdict.DELIVERED, Verdict.NOT_FOUND,
)  # fmt: skip


class TimerAdmin(ClusterClient):
    """The timer methods of Admin. A unique key, a message key or a recall handle identifies a timer."""

    async def cancel_timer(self, topic: str, *, unique_key: str = "", key: str = "", handle: str = "") -> list[Outcome]:
        """Cancel timers and return what happened to each of them.

        A unique key or a handle gives one outcome. A message key gives one outcome per unique key that has it, and none
        if no timer with that key is known.
        """
        fields = _timer_fields(topic, unique_key, key, handle)
        responses = await self._call_all(await self._broker_addresses(topic, handle), Request.CANCEL_TIMER, fields)
        return merge_outcomes(_outcomes(responses), _CHANGE_PRECEDENCE)

    async def move_timer(
        self,
        topic: str,
        *,
        unique_key: str = "",
        key: str = "",
        handle: str = "",
        due_ms: int | None = None,
        delay_ms: int | None = None,
    ) -> list[Outcome]:
        """Move timers to a due time, or to a delay from now by the broker's clock. Outcomes are as for a cancel."""
        if (due_ms is None) == (delay_ms is None):
            raise ValueError("set exactly one of due_ms and delay_ms to move a timer")
        fields = _timer_fields(topic, unique_key, key, handle)
        fields |= {"dueMs": str(due_ms)} if due_ms is not None else {"delayMs": str(delay_ms)}
        # A repeated move could find its timer already delivered at the new time, and would then not report the move.
        responses = await self._call_all(
            await self._broker_addresses(topic, handle), Request.MOVE_TIMER, fields, SAFE_TO_REPEAT
        )
        return merge_outcomes(_outcomes(responses), _CHANGE_PRECEDENCE)

    async def timer_status(self, topic: str, *, unique_key: str = "", handle: str = "") -> Outcome:
        """Return the state of a timer: pending, cancelled, already delivered or not found."""
        fields = _timer_fields(topic, unique_key, "", handle)
        responses = await self._call_all(await self._broker_addresses(topic, handle), Request.TIMER_STATUS, fields)
        [outcome] = merge_outcomes(_outcomes(responses), _STATUS_PRECEDENCE)
        return outcome

    async def pending_timers(
        self, topic: str = "", *, key: str = "", from_ms: int = 0, until_ms: int = 0, limit: int = 100
    ) -> list[PendingTimer]:
        """Return the timers that are due next, optionally of one topic, with one message key, or in a range of time.

        If there are more than `limit`, call again with `from_ms` set to the due time of the last one.
        """
        fields = _filter_fields(topic, key, from_ms, until_ms)
        addresses = await self._broker_addresses(topic, "")
        lists = await asyncio.gather(*(self._list(address, fields, limit) for address in addresses))
        found = [timer for listed in lists for timer in listed]
        return sorted(found, key=lambda timer: (timer.due_ms, timer.topic, timer.timer_id))[:limit]

    async def count_timers(self, topic: str = "", *, key: str = "", from_ms: int = 0, until_ms: int = 0) -> int:
        """Return the number of pending timers, with the same filters as `pending_timers`."""
        fields = _filter_fields(topic, key, from_ms, until_ms)
        responses = await self._call_all(await self._broker_addresses(topic, ""), Request.COUNT_TIMERS, fields)
        return sum(decode_body(response.body, PendingCount).timers for response in responses)

    async def timer_density(self) -> Density:
        """Return how many timers of all topics are due in each second, minute and hour of the next two days.

        Each broker counts from its own current time. `start_ms` is the earliest of these times.
        """
        responses = await self._call_all(await self._broker_addresses("", ""), Request.TIMER_DENSITY, {})
        parts = [decode_density(response.body) for response in responses]
        return Density(
            start_ms=min(part.start_ms for part in parts),
            seconds=_column_sums(part.seconds for part in parts),
            minutes=_column_sums(part.minutes for part in parts),
            hours=_column_sums(part.hours for part in parts),
        )

    async def _list(self, address: str, fields: dict[str, str], limit: int) -> list[PendingTimer]:
        found: list[PendingTimer] = []
        cursor = ""
        while len(found) < limit:
            page_fields = {**fields, "limit": str(min(limit - len(found), _PAGE_TIMERS)), "cursor": cursor}
            page = decode_page((await self._call(address, Request.LIST_TIMERS, page_fields)).body)
            found += page.timers
            cursor = page.next
            if not cursor:
                break
        return found

    async def _broker_addresses(self, topic: str, handle: str) -> list[str]:
        """Return the brokers that may hold a timer: the one named in its handle, those of its topic, or all."""
        if handle:
            name = decode_recall_handle(handle).broker_name
            self._session.check_running()

            async def find(left_s: float) -> list[str]:
                address = (await self._session.routes.refresh(topic)).addresses.get(name)
                if address is None:
                    raise NoBroker(
                        f"topic {topic!r} is not on broker {name!r} from the handle",
                        hint="Check that the handle belongs to this topic and cluster",
                    )
                return [address]

            return await with_retries(self._session.request_timeout_s, find)
        return await self._topic_addresses(topic) if topic else sorted((await self._masters()).values())

    async def _call_all(
        self,
        addresses: Sequence[str],
        code: int,
        fields: dict[str, str],
        retry_on: tuple[type[LaterMQError], ...] = TRANSIENT,
    ) -> list[Command]:
        """Return the responses of all these brokers. Raises if any of them fails: a partial result is not valid."""
        results = await asyncio.gather(
            *(self._call(address, code, fields, retry_on=retry_on) for address in addresses), return_exceptions=True
        )
        responses: list[Command] = []
        failed: BaseException | None = None
        for result in results:
            if isinstance(result, BaseException):
                failed = failed or result
            else:
                responses.append(result)
        if isinstance(failed, LaterMQError) and responses:
            failed.hint = f"{len(responses)} of {len(addresses)} brokers have answered; repeat the call to reach all"
        if failed is not None:
            raise failed
        return responses


def merge_outcomes(outcomes: Iterable[Outcome], order: Sequence[Verdict]) -> list[Outcome]:
    """Merge the outcomes of several brokers into one per name. The verdict that comes first in `order` wins."""
    combined: dict[tuple[str, str], Outcome] = {}
    for outcome in outcomes:
        name = (outcome.topic, outcome.unique_key)
        previous = combined.get(name)
        if previous is None:
            combined[name] = outcome
            continue
        first, second = sorted((previous, outcome), key=lambda either: order.index(either.verdict))
        timers = first.timers + (second.timers if second.verdict == first.verdict else 0)
        combined[name] = Outcome(first.verdict, first.topic, first.unique_key, first.due_ms, timers)
    return list(combined.values())


def _outcomes(responses: Iterable[Command]) -> list[Outcome]:
    return [outcome for response in responses for outcome in decode_outcomes(response.body)]


def _timer_fields(topic: str, unique_key: str, key: str, handle: str) -> dict[str, str]:
    names = {"uniqueKey": unique_key, "key": key, "recallHandle": handle}
    given = {name: value for name, value in names.items() if value}
    if len(given) != 1:
        raise ValueError("identify a timer by exactly one of unique key, message key and handle")
    return {"topic": topic, **given}


def _filter_fields(topic: str, key: str, from_ms: int, until_ms: int) -> dict[str, str]:
    return {"topic": topic, "key": key, "fromMs": str(from_ms), "untilMs": str(until_ms)}


def _column_sums(counts: Iterable[list[int]]) -> list[int]:
    return [sum(column) for column in zip_longest(*counts, fillvalue=0)]
