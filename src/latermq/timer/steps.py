"""Look-ups in steps: each `yield` is a piece of work of some 20 µs, a record read or a stretch of a hash chain.

Whoever runs them decides how many to take at once, so that others are served between, and how many at most. What was
looked up may have changed meanwhile: the steps see to it themselves that what they return is true when they return.
"""

from collections.abc import Generator
from typing import TypeVar

from latermq.errors import InvalidParameter

Result = TypeVar("Result")
Steps = Generator[None, None, Result]


def at_once(steps: Steps[Result], limit: int = 0) -> Result:
    """Take all steps; where there are more than the limit, refuse. 0 is no limit: nobody waits."""
    taken = 0
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: Result = stop.value
            return result
        taken += 1
        if taken == limit:
            steps.close()
            raise too_many_steps(limit)


def in_haste(steps: Steps[Result], count: int) -> Steps[Result]:
    """Take so many of the steps as one, and the rest as they are."""
    for _ in range(count):
        try:
            next(steps)
        except StopIteration as stop:
            result: Result = stop.value
            return result
    return (yield from steps)


def spend(steps: int) -> Steps[None]:
    """So much was done at once, and now others may come in between."""
    for _ in range(steps):
        yield


def too_many_steps(limit: int) -> InvalidParameter:
    """The error for a look-up that has come to its limit."""
    return InvalidParameter(
        f"the look-up was given up after {limit} records that have this key or name, or one that hashes like it",
        hint="Name timers by unique key or handle, list them by time, or raise timer.max_lookup",
    )
