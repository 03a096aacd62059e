"""How a pull ended."""

from enum import IntEnum


class PullStatus(IntEnum):
    """What a pull found. The numbers are places in a table of response codes: a look-up by name would cost 0.1 µs."""

    FOUND = 0
    NO_NEW_MESSAGE = 1
    NO_MATCHED_MESSAGE = 2  # nothing of what was looked at is wanted; there may be more
    OFFSET_MOVED = 3  # the queue does not have that offset
