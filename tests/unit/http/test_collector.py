"""One collector for all readers: each gets the newest state when it reads, however slowly."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from latermq.http import collector as collecting
from latermq.http.collector import Collector

EVERY_S = 0.002
READERS = 50


class State(msgspec.Struct):
    number: int
    text: str = "x" * 10_000


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "EVERY_S", EVERY_S)


def number_of(event: bytes) -> int:
    found: int = msgspec.json.decode(event.partition(b"data: ")[2].strip(), type=State).number
    return found


def open_collector() -> Collector:
    asked = 0

    async def collect() -> State:
        nonlocal asked
        asked += 1
        return State(asked)

    return Collector(collect, READERS + 1)


def test_a_reader_that_is_slow_skips_states_and_delays_nobody() -> None:
    async def scenario() -> None:
        collector = open_collector()
        slow: AsyncIterator[bytes] = collector.stream()
        seen = [number_of(await anext(slow))]
        async for event in collector.stream():
            if number_of(event) >= 20:  # the slow one has read nothing meanwhile
                break
        seen.append(number_of(await anext(slow)))
        assert seen[1] >= 20, "it continues with the newest state"
        seen.append(number_of(await anext(slow)))
        assert seen[2] > seen[1]
        collector.close()

    asyncio.run(scenario())


def test_all_readers_share_one_question_and_one_answer() -> None:
    async def scenario() -> None:
        collector = open_collector()
        streams = [collector.stream() for _ in range(READERS)]
        first = await asyncio.gather(*(anext(stream) for stream in streams))
        assert len({id(event) for event in first}) == 1, "one encoded state for all of them"
        assert collector.streams == READERS
        assert collector.collected <= number_of(first[0]) + 1
        for stream in streams:
            await stream.aclose()
        assert collector.streams == 0
        collector.close()

    asyncio.run(scenario())
