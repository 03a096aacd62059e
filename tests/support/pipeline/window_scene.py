"""A broker in memory with a real window loader, with attempts and builds that block and fail on demand.

The clock is simulated. Only threads take real time, and each step waits for those that are not blocked.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from random import Random

from latermq.broker.broker import Broker
from latermq.clock import SimulatedClock
from latermq.config import StoreConfig
from latermq.errors import CorruptStore, StoreError
from latermq.message.names import TIMER_DEAD_LETTER_TOPIC
from latermq.message.properties import DEAD_LETTER_REASON
from latermq.server.broker.composition import window_loader
from latermq.server.windows.local_builds import BuildTimedOut, Report
from latermq.server.windows.window_loader import WindowLoader
from latermq.store.files.memory_disk import MemoryDisk
from latermq.timer.far.windows import Window, WindowRows
from tests.support.brokers_in_memory import STORE, messages, open_broker, pass_time, send
from tests.support.pipeline.far_broker import PIPELINE
from tests.support.pipeline.spark_twin import Row, SparkTwin, piece_of

TOPIC = "orders"


class Files:
    """Attempts in memory. They outlive the broker."""

    def __init__(self, twin: SparkTwin) -> None:
        self._twin = twin
        self.by_window: dict[int, list[str]] = {}
        self.damaged: dict[str, int] = {}  # attempt → number of intact pieces
        self.failures: Counter[str] = Counter()  # operation → remaining failures
        self.held: dict[tuple[str, int], threading.Event] = {}  # (operation, window) → event that it waits for
        self.reads: Counter[str] = Counter()
        self.unverified_rows: list[Row] = []  # rows without a checksum
        self.timeline: list[Row] = []  # rows that can be read one by one

    def names(self, window: Window) -> list[str]:
        self._on_access(f"list {window.number}", window)
        return list(self.by_window.get(window.number, []))

    def check(self, window: Window, name: str) -> tuple[int, int | None]:
        self._on_access(f"check {name}", window)
        if self.damaged.get(name) == 0:
            raise CorruptStore(f"the checksum of {name} is wrong")
        return len(self._twin.attempts[name]), None

    def pieces(self, window: Window, name: str, *, was_checked: bool) -> tuple[int, Iterator[WindowRows]]:
        return len(self._twin.attempts[name]), self._pieces(window, name)

    def _pieces(self, window: Window, name: str) -> Iterator[WindowRows]:
        for number, row in enumerate(self._twin.attempts[name]):
            self._on_access(f"read {name}", window)
            if number >= self.damaged.get(name, 1 << 30):
                raise CorruptStore(f"a page of {name} is wrong")
            yield piece_of([row])

    def proven(self, window: Window, name: str) -> Iterator[WindowRows]:
        if self.damaged.get(name) == 0:
            raise CorruptStore(f"the checksum of {name} is wrong")
        yield from self._pieces(window, name)

    def salvaged(self, window: Window, troubles: list[str]) -> Iterator[WindowRows]:
        """The rows of the timeline and the unverified rows."""
        for row in [*self.unverified_rows, *self.timeline]:
            try:
                self._on_access("salvage", window)
            except StoreError as error:
                troubles.append(error.message)
            else:
                yield piece_of([row])

    def _on_access(self, operation: str, window: Window) -> None:
        self.reads[operation] += 1
        held = self.held.get((operation.split()[0], window.number))
        if held is not None:
            held.wait(60)
        if self.failures[operation] > 0:
            self.failures[operation] -= 1
            raise StoreError(f"{operation}: Input/output error")


class Builds:
    """Builds without Spark. Windows can be made to fail, or to hang until their time limit."""

    def __init__(self, scene: "Scene") -> None:
        self._scene = scene
        self.failing: dict[int, str] = {}
        self.hanging: set[int] = set()
        self.damaging: set[int] = set()  # windows whose attempts are built damaged
        self.running: set[int] = set()  # build processes, by their first window
        self.hung: set[int] = set()  # build processes that hang now
        self.limits_s: list[tuple[int, float]] = []
        self.most_at_once = 0

    async def build(self, numbers: Sequence[int], limit_s: float, report: Report) -> None:
        self.running.add(numbers[0])
        self.most_at_once = max(self.most_at_once, len(self.running))
        try:
            for number in numbers:
                self.limits_s.append((number, limit_s))
                await asyncio.sleep(0)
                if number in self.hanging:
                    await self._hang(numbers[0], limit_s)
                elif number in self.failing:
                    report(number, self.failing[number])
                else:
                    self._scene.make_attempt(number, is_damaged=number in self.damaging)
                    report(number, "")
        finally:
            self.running.remove(numbers[0])

    async def _hang(self, process: int, limit_s: float) -> None:
        clock = self._scene.clock
        end_s = clock.monotonic_s() + limit_s
        self.hung.add(process)
        while clock.monotonic_s() < end_s:  # noqa: ASYNC110 -- the clock is simulated
            await asyncio.sleep(0.0005)
        self.hung.remove(process)
        raise BuildTimedOut(f"the build took longer than {limit_s:g} s")


class Scene:
    """One store across restarts, with its files and builds. Use it in a running event loop."""

    def __init__(self, store: StoreConfig = STORE, seed: int = 7) -> None:
        self._store = store
        self.disk, self.clock = MemoryDisk(), SimulatedClock()
        self.twin = SparkTwin(Random(seed))
        self.files, self.builds = Files(self.twin), Builds(self)
        self.broker = self._open()
        self.loader = self._start_loader()
        self.twin.begin(self.broker)

    def _open(self) -> Broker:
        return open_broker(self.disk, self.clock, store=self._store, pipeline=PIPELINE)

    def _start_loader(self) -> WindowLoader:
        return window_loader(
            self.broker, root_uri="", address="", on_loaded=lambda: None, files=self.files, builds=self.builds
        )

    async def crash(self, power_cut: Random | None = None) -> None:
        """Crash and start again. A power cut loses a random part of the unsynced data."""
        disk = self.disk
        self.disk = disk.after_process_crash() if power_cut is None else disk.after_machine_crash(power_cut)
        await self.stop()
        self.broker = self._open()
        self.loader = self._start_loader()

    async def stop(self) -> None:
        for held in self.files.held.values():
            held.set()
        await self.loader.stop()
        self.broker.timers.engine.close()
        self.broker.far_names.close()

    def make_attempt(self, number: int, *, is_damaged: bool = False) -> str:
        window = self.broker.far.windows.find(number)
        assert window is not None
        name = self.twin.build(self.broker, window)
        self.files.by_window.setdefault(number, []).append(name)
        if is_damaged:
            self.files.damaged[name] = 0
        return name

    def schedule(self, name: str, delay_ms: int) -> None:
        send(self.broker, name.encode(), UNIQ_KEY=name, TIMER_DELAY_MS=str(delay_ms))

    async def pass_time(self, by_ms: int, step_ms: int = 1_000) -> None:
        for _ in range(0, by_ms, step_ms):
            self.broker.store.flush()
            self.broker.far.run()
            await self.settle()
            pass_time(self.broker, self.clock, step_ms)
            # A build that has timed out notices it.
            await asyncio.sleep(0.002 if self.builds.running else 0)

    async def settle(self) -> None:
        """Run the loader until only blocked or hanging work is left."""
        for _ in range(2_000):
            self.loader.tick()
            tasks = [
                task for (lane, number), task in self.loader._lanes.tasks.items() if not self._is_held(lane, number)
            ]
            if not tasks:
                return
            await asyncio.wait(tasks, timeout=0.01)
        raise AssertionError("the loader does not settle")

    def _is_held(self, lane: str, number: int) -> bool:
        if lane == "build":
            return number in self.builds.hung
        steps = {"load": ("read",), "check": ("list", "check")}.get(lane, ())
        held = (self.files.held.get((step, number)) for step in steps)
        return any(one is not None and not one.is_set() for one in held)

    async def window_of(self, due_ms: int) -> int:
        """The number of the window that contains this time, once it is cut."""
        for _ in range(400):
            for window in self.broker.far.unfinished_windows():
                if window.from_ms <= due_ms < window.until_ms:
                    return window.number
            await self.pass_time(1_000)
        raise AssertionError("the window was not cut")

    async def offer_attempt(self, number: int) -> str:
        """Build an attempt as soon as the window is cut, and offer it to the broker."""
        while self.broker.far.windows.find(number) is None:
            await self.pass_time(1_000)
        name = self.make_attempt(number)
        self.broker.far.report_ready(number, name)
        return name

    def dead_letters(self) -> dict[str, str]:
        """The bodies of all dead letters by unique key. None occurs twice."""
        found = messages(self.broker, TIMER_DEAD_LETTER_TOPIC)
        assert all("was skipped by an operator" in one.properties[DEAD_LETTER_REASON] for one in found)
        keys = {one.properties["UNIQ_KEY"]: one.body.decode() for one in found}
        assert len(keys) == len(found)
        return keys

    def lateness(self) -> dict[str, int]:
        """The lateness of each timer. None arrived twice."""
        found = messages(self.broker, TOPIC)
        late = {one.body.decode(): one.store_timestamp_ms - int(one.properties["LMQ_DUE_MS"]) for one in found}
        assert len(late) == len(found)
        return late
