"""Runs the asynchronous part of a command on uvloop's event loop."""

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from latermq.visible_text import visible

if TYPE_CHECKING:
    import logging

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    import asyncio
    import logging

    import uvloop

    # The client logs its retries; a command reports only the outcome.
    client_log = logging.getLogger("latermq.client")
    level = client_log.level
    client_log.setLevel(logging.ERROR)
    if logging.lastResort is not None:  # prints the remaining records, which may quote a server's remark
        logging.lastResort.format = _format_visibly  # type: ignore[method-assign]

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(work)
    finally:
        client_log.setLevel(level)  # a program that runs a command may want the logs of its own clients


def _format_visibly(record: "logging.LogRecord") -> str:
    import logging

    return "\n".join(map(visible, logging.Formatter().format(record).split("\n")))
