"""The list of one slot in the timer log: read backwards in runs, each entry once, without removed entries."""

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

_TOGETHER = 8  # this many adjacent units suggest a run long enough to read as an array
# Units of a run that are read at once; the number grows with the run.
_FIRST_CHUNK = 32
_LAST_CHUNK = 4096


def read_slot(log: TimerLog, slot_ms: int, last: int, piece_rows: int) -> Iterator[Units]:
    """Yield the entries whose list ends at `last`, newest first, in pieces.

    The last put or removal of an entry counts. RocketMQ's units name no entry. They come as entry -1, including its
    deletes.
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
    """The entries of a slot seen so far. The first unit seen of an entry is the newest."""

    def __init__(self) -> None:
        self._put: list[Ints] = []
        self._gone: Ints = np.empty(0, np.int64)
        self._lowest = 1 << 62  # lowest entry put

    def keep(self, entries: Ints, deletes: Bools) -> Bools:
        """Which of these units, newest first, belong to an existing entry not seen before."""
        if not deletes.any() and entries[0] < self._lowest and (entries[1:] < entries[:-1]).all() and entries[-1] >= 0:
            # The usual case: entries were put in order, so none was put twice.
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
    """Yield the units of a list, newest first."""
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
    """Yield the units of a list in runs of adjacent units, newest first."""
    singles: list[bytes] = []
    together = 0  # how many of the last units were adjacent
    chunk = min(_FIRST_CHUNK, max_rows)
    # Units before the log's start are forgotten.
    while position >= log.start:
        if together < _TOGETHER:
            # One by one, about 1.5 µs each, for entries that arrived spread over many slots.
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
    """Return the adjacent units that end at this position, at most `count`, and where the list continues."""
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
        f"the timer log has no valid unit at position {position}",
        hint="Remove the folder timerlog: it is rebuilt from the timer topic",
    )
