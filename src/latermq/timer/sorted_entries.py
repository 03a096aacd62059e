"""Entries of the timer topic in sorted arrays."""

import numpy as np

from latermq.arrays import Bools, Ints


def contains(ordered: Ints, entries: Ints) -> Bools:
    """For each of these entries whether it is among the ordered ones, of which there is at least one."""
    at = np.minimum(np.searchsorted(ordered, entries), len(ordered) - 1)
    return np.equal(ordered[at], entries)
