"""Rows of the message keys of far timers, by the period in which the timer is due.

The keys of a period are removed together: deleting them one by one would write each of them a second time.
"""

_PERIOD_SHIFT = 28  # a period is 3.1 days. A look-up reads the rows of its key in each period


def period_of(due_ms: int) -> int:
    """The period of a due time."""
    return max(0, due_ms) >> _PERIOD_SHIFT


def message_key_row(period: int, name: bytes) -> bytes:
    """The row of a key: `name` is topic, message key and unique key, each but the last with a zero byte behind it."""
    return b"i" + period.to_bytes(4, "big") + name
