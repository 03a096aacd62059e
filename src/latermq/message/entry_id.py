"""Entry ids: the stored entry that a delivered record replaces, in the 8 bytes of its prepared-transaction field.

Bit 62 marks an entry id. Bits 56 to 61 are the level (0: the timer topic), and bits 0 to 55 the queue offset. The
commit of a transaction writes a physical offset into this field. No physical offset reaches bit 62, so a commit is
never mistaken for a delivery.
"""

import numpy as np

from latermq.arrays import Ints

FLAG = 1 << 62
LEVEL_SHIFT = 56
MAX_LEVELS = 63
OFFSET_MASK = (1 << LEVEL_SHIFT) - 1


def encode_entry_id(level: int, offset: int) -> int:
    """The id of the entry at this offset in the queue of a level."""
    return FLAG | level << LEVEL_SHIFT | offset


def decode_entry_id(value: int) -> tuple[int, int] | None:
    """Level and offset, or None if the field does not hold an entry id."""
    if not 0 < value < 1 << 63 or not value & FLAG:
        return None
    return value >> LEVEL_SHIFT & 0x3F, value & OFFSET_MASK


def decode_entry_ids(values: Ints) -> tuple[Ints, Ints]:
    """Levels and offsets of many fields; the level is -1 if a field does not hold an entry id."""
    is_id = (values > 0) & (values & FLAG != 0)
    return np.where(is_id, values >> LEVEL_SHIFT & 0x3F, -1), values & OFFSET_MASK
