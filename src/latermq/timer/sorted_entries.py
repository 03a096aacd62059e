"""Entries of the timer topic in sorted arrays."""

import numpy as np

from latermq.arrays import Bools, Ints


def contains(ordered: Ints, entries: Ints) -> Bools:
    """For each entry, whether `ordered`, which must not be empty, contains it."""
    at = np.minimum(np.searchsorted(ordered, entries), len(ordered) - 1)
    return np.equal(ordered[at], entries)
