"""Whose a timer is: the broker's own (near) or Spark's (far), by the last cut before it."""

from collections.abc import Sequence

import numpy as np

from latermq.pipeline.spans import Bools, Ints
from latermq.protocol.remoting.pipeline_bodies import CutState


def far(entries: Ints, due_ms: Ints, cuts: Sequence[CutState]) -> Bools:
    """Which entries are Spark's: due at or after the frontier of the last cut before them. Before any cut none is.

    `cuts` are in the order of their entries, from the last one before the first of `entries` on.
    """
    cut_entries = np.array([cut.entry for cut in cuts], np.int64)
    frontiers_ms = np.array([0, *(cut.frontier_ms for cut in cuts)], np.int64)
    last = np.searchsorted(cut_entries, entries)  # how many cuts stand before the entry
    found: Bools = (last > 0) & (due_ms >= frontiers_ms[last])
    return found
