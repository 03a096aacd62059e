"""The due times of the entries that a cancel or a move ends, as text in its property `LMQ_TAKES`.

They tell the pipeline where on the timeline those entries are, so that it need not search all of it.
"""

from collections.abc import Iterable

MAX_TAKES = 64  # nearly every name has one pending timer


def encode_takes(dues_ms: Iterable[int]) -> str:
    """The distinct due times, separated by commas; empty if there are none, or too many to be stored."""
    distinct = sorted(set(dues_ms))
    return ",".join(map(str, distinct)) if len(distinct) <= MAX_TAKES else ""
