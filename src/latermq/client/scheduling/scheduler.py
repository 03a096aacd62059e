"""Schedules timers through the brokers' bulk request: in large requests, each timer once, with a result for each."""

import asyncio
import hashlib
import re
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from latermq.client.scheduling.brokers import Place, SchedulingAdmin
from latermq.client.scheduling.rows import Row, batch_of, split_rows
from latermq.errors import LaterMQError

REQUESTS_AT_ONCE = 4  # of one batch: the broker works on one while this process prepares the next
TOPICS_AT_ONCE = 32  # routes that are fetched at the same time
MAX_REFUSED = 50  # rows of one request that a broker may refuse one by one; then the others are refused, too
_OF_TOPIC = (16, 17)  # refused because of the topic, so all rows of the topic are
_REFUSED_ROW = re.compile(r"row (\d+): (.*)", re.DOTALL).fullmatch
_ANSWERED = re.compile(r" \([^ ]+ answered \d+\)$")

_PLACE_BYTES = 8


class Scheduled(NamedTuple):
    """A timer that a broker has."""

    broker: str
    due_ms: int  # 0: scheduled before with a delay, so its due time is not known
    is_known: bool  # whether it was scheduled before


Result = Scheduled | LaterMQError


class TimerScheduler:
    """Sends rows to the brokers of their topics."""

    def __init__(self, brokers: SchedulingAdmin) -> None:
        self._brokers = brokers

    async def schedule(self, rows: Sequence[Row]) -> list[Result]:
        """Schedule timers. Returns the result of each: where it is, or why it was refused."""
        results: list[Result | None] = [None] * len(rows)
        places = await self._places_of({row.topic for row in rows})
        by_place: dict[Place, list[int]] = defaultdict(list)
        for number, row in enumerate(rows):
            found = places[row.topic]
            if isinstance(found, LaterMQError):
                results[number] = found
            else:
                by_place[found[0] if len(found) == 1 else _choose(row.unique_key, found)].append(number)
        turns = asyncio.Semaphore(REQUESTS_AT_ONCE)

        async def send(place: Place, numbers: list[int]) -> None:
            async with turns:
                await self._send(place, rows, numbers, results)

        async with asyncio.TaskGroup() as tasks:
            for place, numbers in by_place.items():
                for part in split_rows(rows, numbers):
                    tasks.create_task(send(place, part))
        assert all(result is not None for result in results)
        return results  # type: ignore[return-value]

    async def _places_of(self, topics: set[str]) -> dict[str, list[Place] | LaterMQError]:
        """Return the brokers of each topic, or why there is none."""
        turns = asyncio.Semaphore(TOPICS_AT_ONCE)

        async def find(topic: str) -> list[Place] | LaterMQError:
            async with turns:
                try:
                    return await self._brokers.places_of(topic)
                except LaterMQError as error:
                    return error

        ordered = sorted(topics)
        return dict(zip(ordered, await asyncio.gather(*map(find, ordered)), strict=True))

    async def _send(self, place: Place, rows: Sequence[Row], numbers: list[int], results: list[Result | None]) -> None:
        """Send rows to one broker. It accepts all or names one that it refuses; then the others are sent again."""
        for _ in range(MAX_REFUSED):
            try:
                reply = await self._brokers.schedule_rows(place.address, batch_of([rows[number] for number in numbers]))
            except LaterMQError as error:
                refused = _REFUSED_ROW(error.message)
                at = int(refused[1]) if refused is not None else len(numbers)
                if refused is None or at >= len(numbers):
                    break_off = error
                    break
                error.message = _ANSWERED.sub("", refused[2])
                topic = rows[numbers[at]].topic
                taken = {n for n in numbers if rows[n].topic == topic} if error.code in _OF_TOPIC else {numbers[at]}
                for number in taken:
                    results[number] = error
                numbers = [number for number in numbers if number not in taken]
                if not numbers:
                    return
                break_off = error
                continue
            for number, is_known in zip(numbers, reply.known, strict=True):
                row = rows[number]
                due_ms = max(reply.now_ms, row.time_ms + reply.now_ms * row.is_delay)
                results[number] = Scheduled(place.broker, 0 if is_known and row.is_delay else due_ms, bool(is_known))
            return
        for number in numbers:
            results[number] = break_off


def _choose(unique_key: str, places: Sequence[Place]) -> Place:
    """Return the broker of a name. It depends only on the name, so a repeated request reaches the same one."""
    digest = hashlib.blake2b(unique_key.encode(), digest_size=_PLACE_BYTES).digest()
    return places[int.from_bytes(digest, "big") % len(places)]
