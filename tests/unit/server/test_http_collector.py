"""The collector of the console: what slow readers get, and what happens when nobody reads."""

import asyncio
from collections.abc import Callable, Coroutine

import msgspec

from latermq.errors import ServiceUnavailable
from latermq.http import collector
from latermq.http.collector import Collector


class State(msgspec.Struct):
    number: int


class Source:
    """Numbers its states, and fails on request."""

    def __init__(self) -> None:
        self.asked = 0
        self.fails = False

    async def __call__(self) -> State:
        self.asked += 1
        if self.fails:
            raise ServiceUnavailable("the broker is away", hint="Wait")
        return State(self.asked)


def test_a_slow_reader_skips_states_and_delays_nobody() -> None:
    async def scenario() -> None:
        source = Source()
        hub = Collector(source, 10)
        fast, slow = hub.stream(), hub.stream()
        first = await anext(slow)
        assert b"id: 1\n" in first
        seen = [await anext(fast) for _ in range(5)]
        assert [event.split(b"\n")[0] for event in seen] == [b"id: %d" % number for number in range(1, 6)]
        assert b"id: 5\n" in await anext(slow)  # the newest; 2 to 4 are gone
        await fast.aclose()
        await slow.aclose()
        asked = source.asked
        await asyncio.sleep(0.05)
        assert (hub.streams, source.asked) == (0, asked)

    _run(scenario)


def test_a_failure_is_an_event_and_the_next_state_follows() -> None:
    async def scenario() -> None:
        source = Source()
        source.fails = True
        hub = Collector(source, 10)
        stream = hub.stream()
        event = await anext(stream)
        assert b"event: trouble" in event
        assert b"the broker is away" in event
        source.fails = False
        assert b"event: state" in await anext(stream)
        hub.close()
        assert [event async for event in stream] in ([], [b""])

    _run(scenario)


def _run(scenario: Callable[[], Coroutine[None, None, None]]) -> None:
    before, collector.EVERY_S = collector.EVERY_S, 0.001
    try:
        asyncio.run(scenario())
    finally:
        collector.EVERY_S = before
