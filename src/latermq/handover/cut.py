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
_MAX_DIGITS = 18  # always fits into 64 bits


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

    @property
    def is_in_order(self) -> bool:
        """Whether W only grows, and U is not below W (invariant 4)."""
        return self.last_handback_ms <= self.handback_ms <= self.frontier_ms

    def follows(self, earlier: "Cut") -> bool:
        """Whether this cut can follow an earlier one. Otherwise their windows could overlap."""
        return self.number > earlier.number and self.last_handback_ms >= earlier.handback_ms


def cut_properties(cut: Cut) -> dict[str, str]:
    """The properties of a cut's record."""
    assert cut.is_in_order, f"W only grows, and U is never below W (invariant 4): {cut}"
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
    """Decode the cut in a record; None if the record is a blank.

    RocketMQ stores any property that a client sends, so the record may have another writer than a broker of LaterMQ.
    """
    if properties.get(CUT) == _BLANK:
        return None
    parts = properties.get(CUT, "").split(":")
    if len(parts) == len(Cut._fields) - 1 and all(map(_is_number, parts)):
        number, *times = map(int, parts)
        cut = Cut(number, entry, *times)
        if cut.is_in_order:
            return cut
    raise CorruptStore(
        f"entry {entry} of the timer topic is not a valid cut", hint="Use the release that wrote the store"
    )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS
