"""Entry ids: which stored entry a delivered record replaces, in the 8 bytes of its prepared-transaction field.

Bit 62 says that it is one; bits 56 to 61 are the level (0: the timer topic), bits 0 to 55 the queue offset. No physical
offset reaches bit 62, so a transaction's commit, which writes one there, is never mistaken for a delivery.
"""

import numpy as np

from latermq.arrays import Ints

FLAG = 1 << 62
LEVEL_SHIFT = 56
MAX_LEVELS = 63
OFFSET_MASK = (1 << LEVEL_SHIFT) - 1


def encode_entry_id(level: int, offset: int) -> int:
    """The id of the entry at this offset of a level's queue."""
    return FLAG | level << LEVEL_SHIFT | offset


def decode_entry_id(value: int) -> tuple[int, int] | None:
    """(level, offset), None where the field holds no entry id."""
    if not 0 < value < 1 << 63 or not value & FLAG:
        return None
    return value >> LEVEL_SHIFT & 0x3F, value & OFFSET_MASK


def decode_entry_ids(values: Ints) -> tuple[Ints, Ints]:
    """The levels and offsets in many fields; where one holds no entry id, the level is -1."""
    is_id = (values > 0) & (values & FLAG != 0)
    return np.where(is_id, values >> LEVEL_SHIFT & 0x3F, -1), values & OFFSET_MASK
