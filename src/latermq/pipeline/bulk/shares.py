"""Shares of a job: its rows and its known keys, divided by key, so that no process needs memory for all of them.

A key is a hash, so its first bytes divide keys evenly. The number of shares is a power of two: when a job has grown,
each share is divided, so a file of keys holds whole shares, or is a part of one.
"""

from typing import NamedTuple

import numpy as np

from latermq.arrays import Bools, Ints, Texts
from latermq.errors import IllegalMessage

KEY_BYTES = 16
# Rows and known keys per share: their keys take 8 MB, and several times that while they are sorted.
SHARE_ROWS = 500_000
# So that a process can hold a file of each share open. A job can have as many rows as fit, 128 million, and can have
# scheduled as many before.
MAX_SHARES = 256
HEADS = 1 << 32


class Share(NamedTuple):
    """The keys whose first four bytes, as a number, are in [first, end)."""

    first: int = 0
    end: int = HEADS

    def of(self, keys: Texts) -> Bools:
        """Which of these keys are in this share."""
        heads = heads_of(keys)
        inside: Bools = (heads >= self.first) & (heads < self.end)
        return inside

    def overlaps(self, other: "Share") -> bool:
        return self.first < other.end and other.first < self.end

    def contains(self, other: "Share") -> bool:
        return self.first <= other.first and other.end <= self.end


def heads_of(keys: Texts) -> Ints:
    """The first four bytes of keys, as numbers."""
    return np.frombuffer(keys.tobytes(), ">u4")[:: KEY_BYTES // 4].astype(np.int64)


def shares_for(rows: int, known: int, job: str) -> list[Share]:
    """The shares of so many rows and known keys. The rows may be the known ones, if a job is run again."""
    limit = MAX_SHARES * SHARE_ROWS
    if max(rows, known) > limit:
        raise IllegalMessage(
            f"job {job} has {rows} rows and {known} known keys; the limit is {limit} of each",
            hint="Divide the rows among several jobs. Each key must always be in the same one",
        )
    count = 1
    while count < MAX_SHARES and count * SHARE_ROWS < rows + known:
        count *= 2
    width = HEADS // count
    return [Share(number * width, (number + 1) * width) for number in range(count)]
