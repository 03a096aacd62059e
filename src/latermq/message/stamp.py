"""The properties that a broker adds to messages: to most when it stores them, to an abridged timer when it delivers it.

The record of a timer that waits is written several times. It therefore leaves out what the broker knows anyway or can
compute, and a system flag says so (docs/formats/commitlog.md).
"""

import numpy as np

from latermq.arrays import Ints
from latermq.message.properties import (
    CLUSTER,
    DEFAULT_REGION,
    DUE_MS,
    MAX_PROPERTIES_BYTES,
    REGION,
    TIMER_OUT_MS,
    TRACE_ON,
    decode_properties,
    encode_properties,
)
from latermq.message.record_fields import SYSFLAG_ABRIDGED
from latermq.message.slots import slot_of, slots_of
from latermq.message.timer_code import MAX_DUE_DIGITS, is_due

_COMPLETE = -1  # in place of a slot


class Stamp:
    """The properties of one broker, in their wire form."""

    def __init__(self, cluster: str) -> None:
        # RocketMQ's broker adds these properties to single messages, but not to batches. Clients' traces read them.
        self.text = encode_properties({CLUSTER: cluster, REGION: DEFAULT_REGION, TRACE_ON: "true"})
        self._before_slot, self._after_slot = f"{TIMER_OUT_MS}\x01".encode(), f"\x02{self.text}".encode()
        self.most_bytes = len(self._before_slot) + MAX_DUE_DIGITS + len(self._after_slot)

    def completed(self, properties: dict[str, str]) -> dict[str, str]:
        """The properties of one abridged timer with those that it lacks."""
        due = properties.get(DUE_MS, "").encode()
        slot = {TIMER_OUT_MS: str(slot_of(int(due)))} if is_due(due) else {}
        return properties | slot | decode_properties(self.text)

    def left_out(self, dues_ms: Ints, sysflags: Ints, properties_bytes: Ints) -> list[bytes] | None:
        """What each of these timers lacks; None if all are complete. Timers of the same second share it.

        Admission leaves room for it. A cluster that was given a longer name since then must not keep timers back.
        """
        is_abridged = sysflags & SYSFLAG_ABRIDGED != 0
        is_abridged &= properties_bytes + self.most_bytes <= MAX_PROPERTIES_BYTES
        if not is_abridged.any():
            return None
        slots = np.where(is_abridged, slots_of(dues_ms), _COMPLETE).tolist()
        by_slot = {slot: self._before_slot + b"%d" % slot + self._after_slot for slot in set(slots)}
        by_slot[_COMPLETE] = b""
        return list(map(by_slot.__getitem__, slots))
