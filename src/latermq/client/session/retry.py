"""Retries of a call within its timeout, for example while a server restarts."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from latermq.client.session.failures import ConnectFailed, ConnectionLost, NoBroker, NoNameServer, RequestTimedOut
from latermq.errors import Busy, LaterMQError, ServiceUnavailable
from latermq.retry import Backoff

Result = TypeVar("Result")

# Transient failures, which end when a server is back. A timeout is not one of them: no time is left for a retry.
TRANSIENT: tuple[type[LaterMQError], ...] = (ConnectionLost, NoNameServer, NoBroker, ServiceUnavailable, Busy)
# The transient failures after which the server certainly did not execute the request, for non-idempotent requests.
SAFE_TO_REPEAT: tuple[type[LaterMQError], ...] = (ConnectFailed, NoNameServer, NoBroker, ServiceUnavailable, Busy)
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 0.5
GRACE_S = 0.1


async def with_retries(
    timeout_s: float, call: Callable[[float], Awaitable[Result]], retry_on: tuple[type[LaterMQError], ...] = TRANSIENT
) -> Result:
    """Return the result of `call`, which receives its remaining seconds. It is repeated after a transient failure.

    If an attempt loses its connection, it is unknown whether the server executed it. Unless `retry_on` excludes
    ConnectionLost, such a request may be executed twice.
    """
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_s
    backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
    failure: LaterMQError | None = None
    while True:
        try:
            # A request shared with other callers has its own timeout, so this one must enforce the deadline. The grace
            # period lets a call that does keep the deadline raise its more specific error first.
            async with asyncio.timeout_at(deadline_s + GRACE_S):
                return await call(max(0.0, deadline_s - loop.time()))
        except TimeoutError:
            raise failure or RequestTimedOut(f"no answer within {timeout_s:g} s", hint="Try again later") from None
        except retry_on as error:
            failure = error
            pause_s = backoff.next_pause()
            if loop.time() + pause_s >= deadline_s:
                raise
        await asyncio.sleep(pause_s)
