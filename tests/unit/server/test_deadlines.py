"""The deadlines of calls, with one timer for all."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from latermq.server.http2.deadlines import TICK_S, Deadlines


class Scene:
    """Deadlines with a simulated clock and timer, and the calls that expired."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        self.timers: list[Callable[[], None]] = []
        self.expired: list[str] = []
        monkeypatch.setattr(asyncio, "get_running_loop", lambda: self)
        self.deadlines = Deadlines(lambda: self.now_s)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Any:
        self.timers.append(callback)
        return asyncio.TimerHandle

    def add(self, name: str, after_s: float) -> tuple["Call", int]:
        call = Call(self, name)
        return call, self.deadlines.add(call, self.now_s + after_s)

    def wait(self, duration_s: float) -> None:
        for _ in range(round(duration_s / TICK_S)):
            self.now_s += TICK_S
            timers, self.timers = self.timers, []
            for callback in timers:
                callback()


class Call:
    def __init__(self, scene: Scene, name: str) -> None:
        self._scene = scene
        self._name = name

    def expire(self) -> None:
        self._scene.expired.append(self._name)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(monkeypatch)


def test_calls_expire_in_the_order_of_their_deadlines_but_never_early(scene: Scene) -> None:
    scene.add("late", 2.0)
    scene.add("early", 1.0)
    scene.wait(1.0 - TICK_S)
    assert scene.expired == []
    scene.wait(3 * TICK_S)
    assert scene.expired == ["early"]
    scene.wait(1.0)
    assert scene.expired == ["early", "late"]


def test_a_deadline_in_the_past_expires_soon(scene: Scene) -> None:
    scene.add("first", 10.0)
    scene.wait(1.0)
    scene.add("past", -5.0)
    scene.wait(2 * TICK_S)
    assert scene.expired == ["past"]


def test_a_call_that_has_ended_does_not_expire(scene: Scene) -> None:
    call, tick = scene.add("ended", 0.5)
    scene.add("other", 0.5)
    scene.deadlines.discard(call, tick)
    scene.deadlines.discard(call, tick)
    scene.wait(1.0)
    assert scene.expired == ["other"]


def test_the_timer_runs_only_while_there_are_deadlines(scene: Scene) -> None:
    call, tick = scene.add("one", 5.0)
    assert len(scene.timers) == 1
    assert scene.deadlines.statistics() == {"deadlines": 1}
    scene.deadlines.discard(call, tick)
    assert scene.deadlines.statistics() == {"deadlines": 0}
    scene.wait(1.0)
    assert scene.timers == []
    scene.now_s += 1000.0  # nothing is swept for the idle time
    scene.add("two", 1.0)
    scene.wait(1.0 + 2 * TICK_S)
    assert scene.expired == ["two"]
    scene.wait(TICK_S)
    assert scene.timers == []


def test_no_deadline_is_missed_if_the_loop_was_busy(scene: Scene) -> None:
    for number in range(20):
        scene.add(str(number), number * TICK_S)
    scene.now_s += 3.0
    scene.wait(TICK_S)
    assert scene.expired == [str(number) for number in range(20)]
