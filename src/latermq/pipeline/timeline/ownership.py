"""Ownership of a broker's timer topic entries, derived from its state by the broker's own rule."""

from latermq.arrays import Bools
from latermq.handover.cut import FOREVER_MS
from latermq.handover.ownership import Ownership, frontier_row
from latermq.model.pipeline_state import PipelineState
from latermq.pipeline.source.records import RecordBlock


def ownership_of(state: PipelineState) -> Ownership:
    """The rule that the broker applies. A query for an entry that it does not cover raises an error.

    Brokers that do not report the first covered entry also omit the frontier before their first cut, unless that cut is
    the first ever.
    """
    known_from = state.owned_from
    if known_from is None and (not state.cuts or state.cuts[0].number == 1):
        known_from = 0
    base = [] if known_from is None else [(known_from, FOREVER_MS)]
    return Ownership([*base, *map(frontier_row, state.cuts)])


def far_timers(block: RecordBlock, ownership: Ownership) -> Bools:
    """Which records of the timer topic are far timers or moves, which the timeline keeps."""
    dues, _ = block.dues
    return ownership.far_timers(block.kinds, block.queue_offsets, dues)
