"""A table of fetched values: refreshed in the background, bounded, and cheap for unknown names."""

import asyncio
from collections.abc import Callable
from typing import Any

from latermq.errors import Busy, LaterMQError, TopicNotFound
from latermq.server.proxy.brokers.fetched_table import RETRY_S, Fetched, FetchedTable

FRESH_S = 30.0


class Source:
    """Counts fetches, and fails on request."""

    def __init__(self, max_entries: int = 100, max_fetches: int = 50) -> None:
        self.now_s = 1000.0
        self.fetched: list[str] = []
        self.error: Exception | None = None
        self.blocked = False
        self.last: list[str | None] = []
        self.table: FetchedTable[str] = FetchedTable(self.fetch, lambda: self.now_s, max_entries, max_fetches)

    async def fetch(self, name: str, last: str | None) -> Fetched[str]:
        self.fetched.append(name)
        self.last.append(last)
        await asyncio.sleep(3600 if self.blocked else 0)
        if self.error is not None:
            raise self.error
        return Fetched(f"{name}-{len(self.fetched)}", FRESH_S)

    async def get(self, name: str) -> str | LaterMQError:
        found: list[str | LaterMQError] = []
        self.table.get(name, found.append)
        for _ in range(10):
            await asyncio.sleep(0)
        return found[0]


def run(scenario: Callable[[Source], Any], **options: Any) -> None:
    async def begin() -> None:
        source = Source(**options)
        await scenario(source)
        await source.table.close()

    asyncio.run(begin())


def test_a_value_is_fetched_once_for_all_who_wait_for_it() -> None:
    async def scenario(source: Source) -> None:
        found: list[str | LaterMQError] = []
        for _ in range(3):
            source.table.get("t", found.append)
        for _ in range(10):
            await asyncio.sleep(0)
        assert (found, source.fetched) == (["t-1"] * 3, ["t"])
        source.table.get("t", found.append)
        assert found[-1] == "t-1", "at once"

    run(scenario)


def test_an_old_value_is_used_while_it_is_refreshed() -> None:
    async def scenario(source: Source) -> None:
        await source.get("t")
        source.now_s += FRESH_S
        assert source.table.cached("t") == "t-1"
        assert await source.get("t") == "t-1"
        assert source.table.cached("t") == "t-2"
        assert source.last == [None, "t-1"]

    run(scenario)


def test_an_error_is_remembered_for_a_second() -> None:
    async def scenario(source: Source) -> None:
        source.error = TopicNotFound("no")
        for _ in range(5):
            assert await source.get("t") is source.error
        assert source.fetched == ["t"]
        source.now_s += RETRY_S
        source.error = None
        assert await source.get("t") == "t-2"

    run(scenario)


def test_an_unexpected_error_is_an_answer_too() -> None:
    async def scenario(source: Source) -> None:
        source.error = ValueError("a defect")
        found = await source.get("t")
        assert isinstance(found, LaterMQError)
        assert found.message == "internal error"

    run(scenario)


def test_unknown_names_do_not_grow_the_table() -> None:
    async def scenario(source: Source) -> None:
        source.error = TopicNotFound("no")
        for number in range(50):
            await source.get(f"t{number}")
        assert source.table.statistics()["entries"] == 10
        await source.get("t49")
        assert len(source.fetched) == 50, "the newest are kept"

    run(scenario, max_entries=10)


def test_fetches_at_the_same_time_are_bounded() -> None:
    async def scenario(source: Source) -> None:
        source.blocked = True
        found: list[str | LaterMQError] = []
        for number in range(5):
            source.table.get(f"t{number}", found.append)
        assert [type(one) for one in found] == [Busy, Busy]
        assert source.table.statistics()["fetches"] == 3

    run(scenario, max_fetches=3)


def test_a_refresh_of_an_outdated_value_happens_once_per_second() -> None:
    async def scenario(source: Source) -> None:
        await source.get("t")
        source.table.refresh("t")
        await source.get("t")
        assert source.fetched == ["t"]
        source.now_s += RETRY_S
        await source.get("t")
        assert source.fetched == ["t", "t"]

    run(scenario)
