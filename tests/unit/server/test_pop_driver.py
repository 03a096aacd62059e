"""The POP driver: topics for retries that cannot be saved."""

import asyncio
from collections.abc import Callable
from typing import cast

from structlog.testing import capture_logs

from latermq.broker.broker import Broker
from latermq.clock import SimulatedClock
from latermq.errors import StoreError
from latermq.model.topic import Topic
from latermq.server.broker.pop_driver import PopDriver
from latermq.server.handlers.async_replies import WhenDone
from latermq.server.handlers.pop_replies import PopReplies
from latermq.store.files.memory_disk import MemoryDisk
from tests.support.brokers_in_memory import bodies, open_broker, send
from tests.support.pop_parts import GROUP, pop

MINUTE_MS = 60_000


class Loop:
    """An event loop of one callback, on a simulated clock."""

    def __init__(self, clock: SimulatedClock) -> None:
        self._clock = clock
        self._next: tuple[int, Callable[[], None]] | None = None

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> "Loop":
        self._next = self._clock.now_ms() + max(1, round(delay_s * 1_000)), callback
        return self

    def cancel(self) -> None:
        self._next = None

    def run_for(self, time_ms: int) -> None:
        end_ms = self._clock.now_ms() + time_ms
        while self._next is not None and self._next[0] <= end_ms:
            at_ms, callback = self._next
            self._next = None
            self._clock.advance(max(0, at_ms - self._clock.now_ms()))
            callback()
        self._clock.advance(end_ms - self._clock.now_ms())


class Replies:
    """No reply waits."""

    def settle(self) -> None:
        """Do nothing."""


class Scene:
    """A driver of a broker with a message whose time is up, and a disk for tables that can fail."""

    def __init__(self) -> None:
        self.clock = SimulatedClock()
        self.loop = Loop(self.clock)
        self.error: StoreError | None = StoreError("the disk has failed")
        self.saves_ms: list[int] = []
        self.failures: list[BaseException] = []

    def save(self, when_done: WhenDone) -> None:
        self.saves_ms.append(self.clock.now_ms())
        if self.error is None:
            self.broker.tables.save()
        when_done(self.error)

    def open(self) -> None:
        self.broker: Broker = open_broker(MemoryDisk(), self.clock, defers_topic_saves=True)
        self.broker.topics.put(Topic(name="orders"))
        self.broker.groups.require(GROUP, b"")
        self.broker.tables.save()
        send(self.broker, b"once")
        pop(self.broker, invisible_ms=1_000)
        self.clock.advance(1_000)

    async def drive(self) -> None:
        self.open()
        driver = PopDriver(
            self.broker.pop_expiry,
            self.broker.pop_operations,
            self.broker.waiting_pops,
            self.broker.waiting,
            cast(PopReplies, Replies()),
            self.clock,
            self.clock,
            self.save,
            on_failed=self.failures.append,
        )
        driver._loop = cast(asyncio.AbstractEventLoop, self.loop)
        driver.start()
        self.loop.run_for(MINUTE_MS)


def test_a_save_that_fails_is_tried_again_after_growing_pauses_and_logged_once() -> None:
    scene = Scene()
    with capture_logs() as logs:
        asyncio.run(scene.drive())
        assert 5 <= len(scene.saves_ms) <= 8, "0.5, 1, 2, ... up to 30 s"
        assert [(one["event"], one["reason"]) for one in logs] == [
            ("retries of popped messages stalled", "the disk has failed")
        ]
        scene.error = None
        scene.loop.run_for(MINUTE_MS // 2 + 1_000)
    assert bodies(scene.broker, f"%RETRY%{GROUP}_orders") == [b"once"]
    assert [one["event"] for one in logs][1:] == ["retries of popped messages resumed"]
    assert not scene.failures
