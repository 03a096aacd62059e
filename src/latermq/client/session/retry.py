"""Calls that are tried again while a server restarts, within the time that they have."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from latermq.client.session.failures import ConnectionLost, NoBroker, NoNameServer, NotConnected, RequestTimedOut
from latermq.errors import Busy, LaterMQError, ServiceUnavailable

Result = TypeVar("Result")

# What passes by itself when a server is back. A request that timed out has had all its time.
PASSING: tuple[type[LaterMQError], ...] = (ConnectionLost, NoNameServer, NoBroker, ServiceUnavailable, Busy)
# The same where a request must not be made twice: the server did not do it.
UNDONE: tuple[type[LaterMQError], ...] = (NotConnected, NoNameServer, NoBroker, ServiceUnavailable, Busy)
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 0.5
GRACE_S = 0.1


async def within(
    timeout_s: float, call: Callable[[float], Awaitable[Result]], passing: tuple[type[LaterMQError], ...] = PASSING
) -> Result:
    """The result of `call`, which is told how many seconds it has and is made again after a failure that passes.

    Whether an attempt that lost its connection was done is not known: unless `passing` leaves that out, it can be
    repeated.
    """
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_s
    pause_s = FIRST_PAUSE_S
    failure: LaterMQError | None = None
    while True:
        try:
            # A question that others asked already has a time of its own; who keeps to ours tells more about a failure.
            async with asyncio.timeout_at(deadline_s + GRACE_S):
                return await call(max(0.0, deadline_s - loop.time()))
        except TimeoutError:
            raise failure or RequestTimedOut(f"no answer within {timeout_s:g} s", hint="Ask again later") from None
        except passing as error:
            failure = error
            if loop.time() + pause_s >= deadline_s:
                raise
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
