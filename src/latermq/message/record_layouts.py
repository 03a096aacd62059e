"""Layouts of many records, computed together with the same results as `layout` for one record."""

from typing import NamedTuple

import numpy as np

from latermq.arrays import Bools, Ints
from latermq.message.properties import MAX_PROPERTIES_BYTES
from latermq.message.record_fields import (
    BODY_LENGTH_BEFORE_BODY,
    BORN_HOST_AT,
    MAGIC,
    MAGIC_AT,
    MAGIC_LONG_TOPIC,
    PREPARED_AFTER_HOSTS,
    PREPARED_BEFORE_BODY,
    PROPERTIES_LENGTH_BYTES,
    SYSFLAG_AT,
    Buffer,
    born_host_bytes,
    i64_at_any_byte,
    store_host_bytes,
    u16_at_any_byte,
    u32_at_any_byte,
)


class Numbers:
    """Reads numbers at many positions of a buffer at once."""

    def __init__(self, buffer: Buffer, limit: int) -> None:
        self._buffer = buffer
        self._limit = limit

    def u8(self, at: Ints) -> Ints:
        return np.frombuffer(self._buffer, np.uint8, self._limit)[at].astype(np.int64)

    def u16(self, at: Ints) -> Ints:
        return u16_at_any_byte(self._buffer, self._limit)[at].astype(np.int64)

    def u32(self, at: Ints) -> Ints:
        return u32_at_any_byte(self._buffer, self._limit)[at].astype(np.int64)

    def i64(self, at: Ints) -> Ints:
        return i64_at_any_byte(self._buffer, self._limit)[at].astype(np.int64)


class RecordLayouts(NamedTuple):
    """Positions in a buffer, one per record. They are valid only where `fits` is true: the parts fill the record."""

    sysflags: Ints
    store_timestamps_at: Ints
    prepared_at: Ints
    bodies_at: Ints
    bodies_end: Ints
    topics_at: Ints
    topics_end: Ints
    properties_at: Ints
    fits: Bools


def lay_out(read: Numbers, starts: Ints, ends: Ints) -> RecordLayouts:
    """Compute the layouts of records of which only starts and ends are known."""
    magics = read.u32(starts + MAGIC_AT)
    has_long_topic = magics == MAGIC_LONG_TOPIC
    sysflags = read.u32(starts + SYSFLAG_AT)
    store_timestamps_at = starts + BORN_HOST_AT + born_host_bytes(sysflags)
    prepared_at = store_timestamps_at + 8 + store_host_bytes(sysflags) + PREPARED_AFTER_HOSTS
    bodies_at = prepared_at + PREPARED_BEFORE_BODY
    # A length that exceeds its record is not used, because it could point anywhere.
    fits = (has_long_topic | (magics == MAGIC)) & (bodies_at + 3 + has_long_topic <= ends)
    bodies_end = np.where(
        fits, bodies_at + read.u32(np.where(fits, bodies_at - BODY_LENGTH_BEFORE_BODY, starts)), starts
    )
    topics_at = bodies_end + 1 + has_long_topic
    fits &= topics_at + PROPERTIES_LENGTH_BYTES <= ends
    bodies_end[~fits] = starts[~fits]
    topics_end = topics_at + np.where(has_long_topic, read.u16(bodies_end), read.u8(bodies_end))
    properties_at = topics_end + PROPERTIES_LENGTH_BYTES
    fits &= (topics_end > topics_at) & (properties_at <= ends)
    property_lengths = read.u16(np.where(fits, topics_end, starts))
    fits &= (property_lengths <= MAX_PROPERTIES_BYTES) & (properties_at + property_lengths == ends)
    return RecordLayouts(
        sysflags, store_timestamps_at, prepared_at, bodies_at, bodies_end, topics_at, topics_end, properties_at, fits
    )
