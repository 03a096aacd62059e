"""Look-ups in steps. Each `yield` marks about 20 µs of work: one record read, or a stretch of a hash chain.

The caller decides how many steps to run at once, so that other requests are served in between, and how many to allow in
total. The data may change between steps. The steps themselves make sure that the result is correct when they return it.
"""

from collections.abc import Generator
from typing import TypeVar

from latermq.errors import InvalidParameter

Result = TypeVar("Result")
Steps = Generator[None, None, Result]


def at_once(steps: Steps[Result], limit: int = 0) -> Result:
    """Run all steps; raise if there are more than the limit. 0 means no limit, for callers that block no client."""
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: Result = stop.value
            return result
        count += 1
        if count == limit:
            steps.close()
            raise too_many_steps(limit)


def merge_first(steps: Steps[Result], count: int) -> Steps[Result]:
    """Run the first `count` steps as one, and the rest one by one."""
    for _ in range(count):
        try:
            next(steps)
        except StopIteration as stop:
            result: Result = stop.value
            return result
    return (yield from steps)


def spend(steps: int) -> Steps[None]:
    """Yield for work that was done at once, so that other requests can run."""
    for _ in range(steps):
        yield


def too_many_steps(limit: int) -> InvalidParameter:
    """Return the error for a look-up that reached its limit."""
    return InvalidParameter(
        f"the lookup stopped after {limit} records with this key or name, or with the same hash",
        hint="Identify timers by unique key or handle, list them by time, or raise timer.max_lookup",
    )
