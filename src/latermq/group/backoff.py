"""A group's back-off: which delay level a failed message waits before its next attempt."""

from latermq.errors import InvalidParameter
from latermq.message.entry_id import MAX_LEVELS
from latermq.protocol.remoting.bodies import SubscriptionGroup

RETRY_LEVELS = "retry.levels"  # the group's attribute that holds its own list
FIRST_LEVEL = 3  # RocketMQ's ladder: 10 s, then a level more with each failure
MAX_STEPS = 64


def parse_levels(text: str) -> tuple[int, ...]:
    """The levels of a list such as `3 4 5` or `3,4,5`."""
    words = text.replace(",", " ").split()
    levels = tuple(int(word) for word in words if word.isascii() and word.isdigit() and len(word) < 4)
    if len(levels) != len(words) or not all(1 <= level <= MAX_LEVELS for level in levels):
        raise InvalidParameter(
            f"{text[:80]!r} is no list of delay levels", hint=f"Write numbers from 1 to {MAX_LEVELS}: 3 4 5"
        )
    if not 1 <= len(levels) <= MAX_STEPS:
        raise InvalidParameter(
            f"a back-off has 1 to {MAX_STEPS} levels, not {len(levels)}", hint="The last one counts for all that follow"
        )
    return levels


def format_levels(levels: tuple[int, ...]) -> str:
    """The list as the attribute holds it."""
    return " ".join(map(str, levels))


def next_level(group: SubscriptionGroup, failures: int) -> int:
    """The level that a message waits which had failed `failures` times before it failed now."""
    own = group.attributes.get(RETRY_LEVELS)
    if own is None:
        return FIRST_LEVEL + failures
    levels = parse_levels(own)
    return levels[min(failures, len(levels) - 1)]
