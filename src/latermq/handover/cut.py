"""Cuts: records of the timer topic that decide which later timers the broker owns, and which timers Spark hands back.

RocketMQ reads a cut as a cancel of a timer that does not exist. It reads a blank in the same way. A blank replaces a
lost entry in a store that was restored from an old backup.
"""

from typing import NamedTuple

from latermq.errors import CorruptStore
from latermq.message.properties import CUT, DUE_MS, TIMER_DELETE_KEY, TIMER_OUT_MS
from latermq.message.slots import last_slot_start

FOREVER_MS = 1 << 53  # as a frontier: the broker owns all timers
_PLACEHOLDER_KEY = "latermq.cut"  # the key of no timer
_BLANK = "blank"


class Cut(NamedTuple):
    """Cut `number`, which is entry `entry` of the timer topic.

    It also contains the times of the previous cut, which may no longer be in the log.
    """

    number: int
    entry: int
    frontier_ms: int  # U: of the timers after the cut, the broker owns those due before U, and Spark the others
    handback_ms: int  # W: of the timers before the cut, Spark hands back those due before W
    last_frontier_ms: int
    last_handback_ms: int
    far_until_ms: int  # none of Spark's timers before the cut is due after this time

    @property
    def has_window(self) -> bool:
        """Whether Spark may have timers to hand back at this cut."""
        return self.far_until_ms >= self.last_handback_ms and self.handback_ms > self.last_handback_ms


def cut_properties(cut: Cut) -> dict[str, str]:
    """The properties of a cut's record."""
    in_order = cut.last_handback_ms <= cut.handback_ms <= cut.frontier_ms
    assert in_order, f"W only grows, and U is never below W (invariant 4): {cut}"
    values = (cut.number, *cut[2:])
    return {
        CUT: ":".join(map(str, values)),
        TIMER_DELETE_KEY: _PLACEHOLDER_KEY,
        TIMER_OUT_MS: str(last_slot_start(cut.handback_ms)),
        DUE_MS: str(cut.handback_ms),
    }


def blank_properties(now_ms: int) -> dict[str, str]:
    """The properties of a blank's record."""
    return {CUT: _BLANK, TIMER_DELETE_KEY: _PLACEHOLDER_KEY, TIMER_OUT_MS: str(now_ms), DUE_MS: str(now_ms)}


def decode_cut(properties: dict[str, str], entry: int) -> Cut | None:
    """Decode the cut in a record; None if the record is a blank."""
    if properties.get(CUT) == _BLANK:
        return None
    parts = properties.get(CUT, "").split(":")
    if len(parts) != len(Cut._fields) - 1 or not all(part.isdigit() for part in parts):
        raise CorruptStore(
            f"entry {entry} of the timer topic is not a valid cut", hint="Use the release that wrote the store"
        )
    number, *times = map(int, parts)
    return Cut(number, entry, *times)
