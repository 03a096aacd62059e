"""Recovery of the wheel from the units of the timer log, after a crash or the loss of its file."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from latermq.arrays import Bools, Ints
from latermq.message.slots import slots_of
from latermq.timer.engine.timer_log import DELETE, ROLL, UNIT_BYTES, TimerLog, UnitRows, is_unit, wakes_of
from latermq.timer.engine.timer_wheel import Slots, TimerWheel

CHUNK = 1 << 18  # units per chunk: about 60 MB of columns


class Forgotten(NamedTuple):
    """A time before which slots were forgotten, and the end of the log then. Later puts into them are not forgotten."""

    below_ms: int
    upto: int


def rebuild_wheel(
    log: TimerLog, wheel: TimerWheel, from_ms: int, forgotten: Sequence[Forgotten]
) -> dict[int, int] | None:
    """Fill the wheel with the lists of the slots from this time on; None if the log is damaged.

    Returns the latest slot of the units of each log file.
    """
    wheel.clear()
    wheel.reserve()
    lists_at = np.zeros(wheel.total, np.int64)
    latest: dict[int, int] = {}
    for start, units in log.chunks(CHUNK):
        if not is_unit(units).all():
            return None
        slots = slots_of(wakes_of(units))
        file = start // log.file_bytes
        latest[file] = max(latest.get(file, 0), int(slots.max()))
        live = slots >= from_ms
        for below_ms, upto in forgotten:
            if from_ms < below_ms:
                live &= (slots >= below_ms) | (start + UNIT_BYTES * np.arange(len(units)) >= upto)
        if not live.any():
            continue
        chunk = _chunk(start, units, slots, live)
        if chunk is None or not _add(wheel, chunk, lists_at):
            return None
    return latest


class _Chunk(NamedTuple):
    """The units of a piece of the log that are not forgotten."""

    positions: Ints
    slots: Ints
    deletes: Bools
    renews: Bools
    outward: Ints  # rows of units that link to no unit of the chunk
    links: Ints  # the link targets of these rows
    targets: Ints  # rows of units that a unit of the chunk links to


def _chunk(start: int, units: UnitRows, slots: Ints, live: Bools) -> _Chunk | None:
    """Check the units' links; None if they do not form valid lists.

    A unit links to an earlier unit of its slot to which no other unit links, or to a unit outside the chunk.
    """
    previous = units["previous"].astype(np.int64)
    deletes = (units["magic"] & DELETE) != 0
    renews = ((units["magic"] & ROLL) != 0) & (units["reserved"] != 0)  # RocketMQ does not count its own
    rows = np.arange(len(units))
    if not live.all():
        rows, slots, previous, deletes, renews = (one[live] for one in (rows, slots, previous, deletes, renews))
    positions = start + UNIT_BYTES * rows
    if (previous >= positions).any():
        return None
    inward = previous >= start
    targets = (previous[inward] - start) // UNIT_BYTES
    if len(rows) < len(units):
        # A link to a forgotten unit becomes a link to the last row. Its position differs, because no unit links that
        # far.
        targets = np.where(live, np.cumsum(live) - 1, -1)[targets]
    if (positions[targets] != previous[inward]).any() or (slots[targets] != slots[inward]).any():
        return None
    if (np.bincount(targets, minlength=1) > 1).any():
        return None
    outward = np.flatnonzero(~inward)
    return _Chunk(positions, slots, deletes, renews, outward, previous[outward], targets)


def _add(wheel: TimerWheel, chunk: _Chunk, lists_at: Ints) -> bool:
    """Extend the lists by a chunk; False if it does not continue where they end.

    Only one unit of a slot may link outside the chunk. So all units of a slot form one list, and nothing needs sorting.
    """
    own = chunk.slots[chunk.outward]
    numbers = np.arange(len(own))
    before = wheel.get(own)
    places = wheel.places(own)
    lists_at[places] = numbers
    if (lists_at[places] != numbers).any() or len(wheel.occupied(own)) or (chunk.links != before.lasts).any():
        return False  # two lists in one place, or a list that begins elsewhere
    lists = lists_at[wheel.places(chunk.slots)]
    is_last = np.ones(len(chunk.slots), bool)
    is_last[chunk.targets] = False
    lasts = np.empty(len(own), np.int64)
    lasts[lists[is_last]] = chunk.positions[is_last]
    signs = np.where(chunk.deletes, -1, 1)
    weights = (signs, signs * chunk.renews)
    counts, renews = (np.bincount(lists, own_weights, len(own)).astype(np.int64) for own_weights in weights)
    firsts = np.where(before.firsts < 0, chunk.positions[chunk.outward], before.firsts)
    counts = np.maximum(before.counts + counts, 0)
    wheel.put(own, Slots(firsts, lasts, counts, np.clip(before.renews + renews, 0, counts)))
    return True
