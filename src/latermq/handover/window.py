"""Windows: the span of due time that Spark hands back at one cut, and whether the broker has finished it."""

from dataclasses import dataclass
from typing import Protocol

from latermq.arrays import Bools, Ints
from latermq.model.pipeline_state import PipelineState, WindowState


@dataclass(frozen=True, slots=True)
class Window:
    """Spark's timers of one store that are due in [from, until) and were scheduled before the cut's entry."""

    store_id: str
    number: int
    cut_entry: int
    from_ms: int
    until_ms: int

    @classmethod
    def from_state(cls, store_id: str, state: WindowState) -> "Window":
        """The window in a state that a broker reported."""
        return cls(store_id, state.number, state.cut_entry, state.from_ms, state.until_ms)


class Bounds(Protocol):
    """Any window, here or in the broker."""

    @property
    def cut_entry(self) -> int: ...

    @property
    def from_ms(self) -> int: ...

    @property
    def until_ms(self) -> int: ...


def is_in_window(window: Bounds, entries: Ints, dues: Ints) -> Bools:
    """Which of Spark's timers, given by entry and due time, belong to a window (invariant 4)."""
    inside: Bools = (entries < window.cut_entry) & (dues >= window.from_ms) & (dues < window.until_ms)
    return inside


def pending_windows(state: PipelineState) -> list[Window]:
    """The windows that the broker still loads or waits for, in order."""
    return sorted((Window.from_state(state.store_id, one) for one in state.windows), key=lambda one: one.number)


def is_finished(window: Window, state: PipelineState) -> bool:
    """Whether every row of the window is delivered, cancelled or moved, so that its files can be deleted."""
    return (
        window.until_ms <= state.done_wake_ms
        and window.cut_entry <= state.done_upto
        and all(one.number != window.number for one in state.windows)
    )
