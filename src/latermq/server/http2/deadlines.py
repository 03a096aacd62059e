"""The deadlines of calls: one timer for all of them, because a timer per call costs more than the rest of a wait."""

import asyncio
from collections.abc import Callable
from typing import Protocol

TICK_S = 0.05  # a deadline is noticed up to two ticks late; clients watch theirs themselves


class Expiring(Protocol):
    """A call that can expire."""

    def expire(self) -> None: ...


class Deadlines:
    """Calls by the tick in which their deadline passes. The timer runs while there are any."""

    __slots__ = ("_monotonic_s", "_swept_tick", "_ticks", "_timer")

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._ticks: dict[int, dict[Expiring, None]] = {}
        self._swept_tick = 0  # everything up to this tick has expired
        self._timer: asyncio.TimerHandle | None = None

    def add(self, call: Expiring, deadline_s: float) -> int:
        """Let a call expire after its deadline. Returns the tick, which `discard` needs."""
        if self._timer is None:
            self._swept_tick = self._tick(self._monotonic_s())
            self._start()
        tick = max(self._tick(deadline_s), self._swept_tick) + 1
        calls = self._ticks.get(tick)
        if calls is None:
            calls = self._ticks[tick] = {}
        calls[call] = None
        return tick

    def discard(self, call: Expiring, tick: int) -> None:
        """Forget a call that has ended."""
        calls = self._ticks.get(tick)
        if calls is not None:
            calls.pop(call, None)
            if not calls:
                del self._ticks[tick]

    def statistics(self) -> dict[str, int]:
        return {"deadlines": sum(map(len, self._ticks.values()))}

    def _tick(self, time_s: float) -> int:
        return int(time_s / TICK_S)

    def _start(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._sweep)

    def _sweep(self) -> None:
        now_tick = self._tick(self._monotonic_s())
        if self._ticks:
            self._start()
            for tick in range(self._swept_tick + 1, now_tick + 1):
                self._swept_tick = tick
                for call in list(self._ticks.pop(tick, ())):
                    call.expire()
        else:
            self._timer = None
