"""Runs the asynchronous part of a command on uvloop's event loop."""

from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    import asyncio
    import logging

    import uvloop

    # The client logs what it tries again; a command tells its outcome instead.
    logging.getLogger("latermq.client").setLevel(logging.ERROR)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)
