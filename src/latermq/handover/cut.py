"""A cut: a record of the timer topic that says which timers from it on are the broker's own, and what Spark hands back.

RocketMQ's reader takes it for a cancel that names nothing. So it takes a blank, which stands where an entry was that is
lost, in a store that was put back from an old copy.
"""

from typing import NamedTuple

from latermq.errors import CorruptStore
from latermq.message.properties import CUT, DUE_MS, TIMER_DELETE_KEY, TIMER_OUT_MS
from latermq.message.slots import last_slot_start

FOREVER_MS = 1 << 53  # as a frontier: everything is the broker's
NAMES_NOTHING = "latermq.cut"
_BLANK = "blank"


class Cut(NamedTuple):
    """The cut `number` is entry `entry` of the timer topic. It tells of the one before it too, which may be gone."""

    number: int
    entry: int
    frontier_ms: int  # U: of what comes behind it, all that is due before is the broker's, all else is Spark's
    handback_ms: int  # W: of what came before it, Spark hands back all that is due before
    last_frontier_ms: int
    last_handback_ms: int
    far_until_ms: int  # no timer of Spark's before it is due later

    @property
    def has_window(self) -> bool:
        """Whether Spark may hold anything that it hands back at this cut."""
        return self.far_until_ms >= self.last_handback_ms and self.handback_ms > self.last_handback_ms


def cut_properties(cut: Cut) -> dict[str, str]:
    """The properties of its record."""
    told = (cut.number, *cut[2:])
    return {
        CUT: ":".join(map(str, told)),
        TIMER_DELETE_KEY: NAMES_NOTHING,
        TIMER_OUT_MS: str(last_slot_start(cut.handback_ms)),
        DUE_MS: str(cut.handback_ms),
    }


def blank_properties(now_ms: int) -> dict[str, str]:
    """The properties of a blank."""
    return {CUT: _BLANK, TIMER_DELETE_KEY: NAMES_NOTHING, TIMER_OUT_MS: str(now_ms), DUE_MS: str(now_ms)}


def decode_cut(properties: dict[str, str], entry: int) -> Cut | None:
    """The cut of a record; None where it is a blank."""
    if properties.get(CUT) == _BLANK:
        return None
    parts = properties.get(CUT, "").split(":")
    if len(parts) != len(Cut._fields) - 1 or not all(part.isdigit() for part in parts):
        raise CorruptStore(
            f"entry {entry} of the timer topic is no cut", hint="The store was written by another version"
        )
    number, *times = map(int, parts)
    return Cut(number, entry, *times)
