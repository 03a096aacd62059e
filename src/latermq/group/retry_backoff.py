"""The retry back-off of a group: the delay of a failed message before its next attempt, as a level or a duration.

This is RocketMQ's policy for messages, which operators set per group. Operations of LaterMQ that fail, such as an
append or a connect, use the doubling pauses of latermq/retry.py.
"""

from latermq.config import Duration
from latermq.errors import InvalidParameter
from latermq.message.entry_id import MAX_LEVELS
from latermq.message.properties import DELAY_LEVEL, TIMER_DELAY_MS
from latermq.model.group import Group

RETRY_LEVELS = "retry.levels"  # the group attribute with the group's own list
FIRST_LEVEL = 3  # RocketMQ's default: 10 s, then one level more after each failure
MAX_STEPS = 64


def parse_backoff(text: str) -> tuple[str, ...]:
    """Parse a list of delay levels and durations such as `3 4 5`, `3,4,5` or `500ms 30s 2h`."""
    steps = tuple(text.replace(",", " ").split())
    if not all(_is_level(step) or _is_duration(step) for step in steps):
        raise InvalidParameter(
            f"{text[:80]!r} is not a list of delay levels and durations",
            hint=f"Write levels from 1 to {MAX_LEVELS} or durations, such as: 3 4 5, or 500ms 30s 2h",
        )
    if not 1 <= len(steps) <= MAX_STEPS:
        raise InvalidParameter(
            f"a back-off has 1 to {MAX_STEPS} steps, not {len(steps)}",
            hint="The last step applies to all later attempts",
        )
    return steps


def _is_level(step: str) -> bool:
    return step.isascii() and step.isdigit() and len(step) < 4 and 1 <= int(step) <= MAX_LEVELS


def _is_duration(step: str) -> bool:
    try:
        return Duration.parse(step) > 0
    except ValueError:
        return False


def next_wait(group: Group, failures: int) -> tuple[str, str]:
    """Return the property (name, value) that delays the next attempt after `failures` earlier failures and this one."""
    own = group.attributes.get(RETRY_LEVELS)
    if own is None:
        return DELAY_LEVEL, str(FIRST_LEVEL + failures)
    steps = parse_backoff(own)
    step = steps[min(failures, len(steps) - 1)]
    return (DELAY_LEVEL, step) if _is_level(step) else (TIMER_DELAY_MS, str(Duration.parse(step)))
