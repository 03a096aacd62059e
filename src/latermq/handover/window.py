"""A window: the slice of due time that one cut hands back, and when the broker is done with it."""

from dataclasses import dataclass

from latermq.model.pipeline_state import PipelineState, WindowState


@dataclass(frozen=True, slots=True)
class Window:
    """What Spark holds of one store that is due in [from, until) and was scheduled before the cut's entry."""

    store_id: str
    number: int
    cut_entry: int
    from_ms: int
    until_ms: int

    @classmethod
    def of(cls, store_id: str, state: WindowState) -> "Window":
        """The window that a broker tells of."""
        return cls(store_id, state.number, state.cut_entry, state.from_ms, state.until_ms)


def unfinished_windows(state: PipelineState) -> list[Window]:
    """The windows that the broker still plays or waits for, in order."""
    return sorted((Window.of(state.store_id, one) for one in state.windows), key=lambda one: one.number)


def is_behind(window: Window, state: PipelineState) -> bool:
    """Whether every row of the window is delivered or taken, so that its files may go."""
    return (
        window.until_ms <= state.done_wake_ms
        and window.cut_entry <= state.done_upto
        and all(one.number != window.number for one in state.windows)
    )
