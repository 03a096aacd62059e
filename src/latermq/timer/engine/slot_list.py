"""The list of one slot in the timer log: walked backwards in runs, each entry once, removed ones left out."""

from collections.abc import Iterator

import numpy as np

from latermq.arrays import Bools, Ints
from latermq.errors import CorruptStore
from latermq.message.slots import slots_of
from latermq.timer.engine.interface import Units
from latermq.timer.engine.timer_log import (
    DELETE,
    LINK,
    MAX_MAGIC,
    ROLL,
    UNIT,
    UNIT_BYTES,
    TimerLog,
    UnitRows,
    is_unit,
    wakes_of,
)

_TOGETHER = 8  # so many units side by side promise a run that is worth an array
# How many units of a run are read at once: more as it turns out to be long.
_FIRST_CHUNK = 32
_LAST_CHUNK = 4096


def read_slot(log: TimerLog, slot_ms: int, last: int, piece_rows: int) -> Iterator[Units]:
    """The entries whose list ends at `last`, the newest first, in pieces.

    What was put or removed last counts. Units of RocketMQ name no entry: they come as entry -1, its deletes too.
    """
    known = _Known()
    for units in _pieces(log, last, piece_rows):
        wakes = wakes_of(units)
        kept = known.keep(units["reserved"].astype(np.int64) - 1, (units["magic"] & DELETE) != 0)
        kept &= slots_of(wakes) == slot_ms
        if kept.all():
            yield _columns(units, wakes)
        elif kept.any():
            yield _columns(units[kept], wakes[kept])


def _columns(units: UnitRows, wakes: Ints) -> Units:
    return Units(
        units["reserved"].astype(np.int64) - 1,
        wakes,
        units["offset"].astype(np.int64),
        units["record_bytes"].astype(np.int64),
        (units["magic"] & ROLL) != 0,
    )


class _Known:
    """Which entries of a slot were met already; those met first are the newest."""

    def __init__(self) -> None:
        self._put: list[Ints] = []
        self._gone: Ints = np.empty(0, np.int64)
        self._lowest = 1 << 62  # of those put

    def keep(self, entries: Ints, deletes: Bools) -> Bools:
        """Which of these units, the newest first, tell of an entry that is there and was not met."""
        if not deletes.any() and entries[0] < self._lowest and (entries[1:] < entries[:-1]).all() and entries[-1] >= 0:
            # Entries were put in their order, as they nearly always are: none of them was put twice.
            kept = np.isin(entries, self._gone, invert=True) if len(self._gone) else np.ones(len(entries), bool)
            put = entries
        else:
            kept = np.zeros(len(entries), bool)
            kept[np.unique(entries, return_index=True)[1]] = True
            kept &= np.isin(entries, np.concatenate((*self._put, self._gone)), invert=True)
            self._gone = np.concatenate((self._gone, entries[kept & deletes]))
            kept &= ~deletes
            kept |= entries < 0
            put = entries[kept]
        self._put.append(put)
        self._lowest = min(self._lowest, int(put.min(initial=self._lowest)))
        return kept


def _pieces(log: TimerLog, last: int, piece_rows: int) -> Iterator[UnitRows]:
    """The units of a list, the newest first."""
    piece: list[UnitRows] = []
    rows = 0
    for units in _runs(log, last, min(_LAST_CHUNK, piece_rows)):
        if rows + len(units) > piece_rows:
            yield np.concatenate(piece)
            piece, rows = [], 0
        piece.append(units)
        rows += len(units)
    if piece:
        yield np.concatenate(piece)


def _runs(log: TimerLog, position: int, max_rows: int) -> Iterator[UnitRows]:
    """The units of a list as they lie together in the log, the newest first."""
    singles: list[bytes] = []
    together = 0  # how many of the last ones lay side by side
    chunk = min(_FIRST_CHUNK, max_rows)
    # What lies before the log's start is forgotten.
    while position >= log.start:
        if together < _TOGETHER:
            # One by one, about 1.5 µs each: what arrived spread over many slots.
            raw = log.raw_unit(position)
            size, previous, magic = LINK.unpack_from(raw) if raw else (0, 0, 0)
            if size != UNIT_BYTES or not 0 <= magic <= MAX_MAGIC or previous >= position:
                raise _damage(position)
            together = together + 1 if previous == position - UNIT_BYTES else 0
            singles.append(raw)
            position = previous
        if singles and (together >= _TOGETHER or len(singles) == max_rows):
            yield np.frombuffer(b"".join(singles), dtype=UNIT)
            singles = []
        if together >= _TOGETHER:
            units, position = _run(log, position, chunk)
            yield units[::-1]
            if len(units) == chunk:
                chunk = min(max_rows, 4 * chunk)
            else:
                together, chunk = 0, min(max_rows, max(_FIRST_CHUNK, 2 * len(units)))
    if singles:
        yield np.frombuffer(b"".join(singles), dtype=UNIT)


def _run(log: TimerLog, position: int, count: int) -> tuple[UnitRows, int]:
    """The units side by side that end at this one, at most so many, and where the list goes on."""
    if not log.holds(position):
        raise _damage(position)
    units = log.read_upto(position, count)
    positions = position - UNIT_BYTES * np.arange(len(units) - 1, -1, -1)
    previous = units["previous"].astype(np.int64)
    breaks = np.flatnonzero(previous != positions - UNIT_BYTES)
    start = int(breaks[-1]) if len(breaks) else 0
    if not is_unit(units[start:]).all() or previous[start] >= positions[start]:
        raise _damage(position)
    return units[start:], int(previous[start])


def _damage(position: int) -> CorruptStore:
    return CorruptStore(
        f"the timer log holds no sound unit at position {position}",
        hint="Remove the folder timerlog: it is written again from the timer topic",
    )
