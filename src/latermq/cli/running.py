"""Runs the asynchronous part of a command on uvloop's event loop."""

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from latermq.message.visible_text import visible

if TYPE_CHECKING:
    import logging

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    import asyncio
    import logging

    import uvloop

    # The client logs what it tries again; a command tells its outcome instead.
    logging.getLogger("latermq.client").setLevel(logging.ERROR)
    if logging.lastResort is not None:  # what prints the rest, which may quote what a server said
        logging.lastResort.format = _format_visibly  # type: ignore[method-assign]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def _format_visibly(record: "logging.LogRecord") -> str:
    import logging

    return "\n".join(map(visible, logging.Formatter().format(record).split("\n")))
