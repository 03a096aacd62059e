"""Encoding of records, one at a time or many at once.

tests/unit/message/test_record_writer.py checks that both ways write the same bytes.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from latermq.arrays import Ints
from latermq.errors import IllegalMessage
from latermq.message.properties import MAX_PROPERTIES_BYTES
from latermq.message.record_fields import (
    AFTER_HOSTS,
    BEFORE_BORN_HOST,
    BETWEEN_HOSTS,
    BODY_CRC_AT,
    BODY_LENGTH_BEFORE_BODY,
    BORN_HOST_AT,
    FLAG_AT,
    HEAD,
    MAGIC_AT,
    PHYSICAL_OFFSET_AT,
    PROPERTIES_LENGTH_BYTES,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    SYSFLAG_AT,
    SYSFLAG_BORN_V6,
    SYSFLAG_HOSTS,
    SYSFLAG_STORE_V6,
    U16,
    V4_HOST_BYTES,
    V6_HOST_BYTES,
    Buffer,
    body_crc32,
    body_crcs32,
    i64_at_any_byte,
    topic_field,
    u16_at_any_byte,
    u32_at_any_byte,
)


def encode_record(
    topic: bytes,
    body: bytes,
    properties: bytes,
    *,
    queue_id: int,
    queue_offset: int,
    physical_offset: int,
    born_timestamp_ms: int,
    born_host: bytes,
    store_timestamp_ms: int,
    store_host: bytes,
    flag: int = 0,
    sysflag: int = 0,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
) -> bytes:
    """Encode one record to be appended at `physical_offset`."""
    magic, topic_bytes = topic_field(topic)
    sysflag &= ~SYSFLAG_HOSTS
    after_hosts = len(body) + len(topic_bytes) + PROPERTIES_LENGTH_BYTES + len(properties)
    if len(born_host) == V4_HOST_BYTES and len(store_host) == V4_HOST_BYTES:
        # fmt: off
        head = HEAD.pack(
            HEAD.size + after_hosts, magic, body_crc32(body), queue_id, flag, queue_offset, physical_offset,
            sysflag, born_timestamp_ms, born_host, store_timestamp_ms, store_host,
            reconsume_times, prepared_transaction_offset, len(body),
        )
        # fmt: on
    else:
        if len(born_host) == V6_HOST_BYTES:
            sysflag |= SYSFLAG_BORN_V6
        if len(store_host) == V6_HOST_BYTES:
            sysflag |= SYSFLAG_STORE_V6
        size = HEAD.size - 2 * V4_HOST_BYTES + len(born_host) + len(store_host) + after_hosts
        head = (
            BEFORE_BORN_HOST.pack(
                size, magic, body_crc32(body), queue_id, flag, queue_offset, physical_offset, sysflag,
                born_timestamp_ms,
            )
            + born_host
            + BETWEEN_HOSTS.pack(store_timestamp_ms)
            + store_host
            + AFTER_HOSTS.pack(reconsume_times, prepared_transaction_offset, len(body))
        )  # fmt: skip
    if len(properties) > MAX_PROPERTIES_BYTES:
        raise IllegalMessage(
            f"the properties have {len(properties)} bytes; the limit is {MAX_PROPERTIES_BYTES}",
            hint="Move large values into the body",
        )
    return b"".join((head, body, topic_bytes, U16.pack(len(properties)), properties))


class Template(NamedTuple):
    """A record without body and properties, from which many similar records are made."""

    before_body: bytes
    after_body: bytes  # the topic, and the length of the properties
    store_timestamp_at: int

    @property
    def size(self) -> int:
        return len(self.before_body) + len(self.after_body)


def record_template(
    topic: str,
    queue_id: int,
    *,
    born_timestamp_ms: int,
    born_host: bytes,
    store_host: bytes,
    sysflag: int = 0,
    reconsume_times: int = 0,
) -> Template:
    """The common part of all records of one queue and one sender. Offsets and store time are set at the append."""
    empty = encode_record(
        topic.encode(), b"", b"", queue_id=queue_id, queue_offset=0, physical_offset=0, store_timestamp_ms=0,
        born_timestamp_ms=born_timestamp_ms, born_host=born_host, store_host=store_host, sysflag=sysflag,
        reconsume_times=reconsume_times,
    )  # fmt: skip
    body_at = HEAD.size - 2 * V4_HOST_BYTES + len(born_host) + len(store_host)
    return Template(empty[:body_at], empty[body_at:], BORN_HOST_AT + len(born_host))


def fill_templates(
    data: bytearray, sizes: Ints, body_at: int, bodies: list[bytes], body_sizes: Ints, properties_sizes: Ints
) -> Ints:
    """Set sizes and CRCs in records that were assembled from templates, and return the starts of the records.

    For each record, `data` contains the part before the body, the body, the part after it, and the properties.
    """
    starts = np.cumsum(sizes) - sizes
    words = u32_at_any_byte(data, len(data))
    words[starts] = sizes
    words[starts + BODY_CRC_AT] = body_crcs32(bodies)
    words[starts + body_at - BODY_LENGTH_BEFORE_BODY] = body_sizes
    shorts = u16_at_any_byte(data, len(data))
    shorts[starts + sizes - properties_sizes - PROPERTIES_LENGTH_BYTES] = properties_sizes
    return starts


def set_flags(data: bytearray, starts: Ints, flags: Sequence[int]) -> None:
    """Set the senders' flags in records."""
    u32_at_any_byte(data, len(data))[starts + FLAG_AT] = np.array(flags, np.int32).view(np.uint32)


def set_queue_ids(data: Buffer, starts: Ints, queue_ids: Ints) -> None:
    """Set the queue ids in records."""
    u32_at_any_byte(data, len(data))[starts + QUEUE_ID_AT] = queue_ids


def set_sysflags(data: bytearray, starts: Ints, sysflags: Ints) -> None:
    """Set the system flags in records."""
    u32_at_any_byte(data, len(data))[starts + SYSFLAG_AT] = sysflags


def set_properties_lengths(data: bytearray, at: Ints, lengths: Ints) -> None:
    """Set the lengths of properties at these positions."""
    u16_at_any_byte(data, len(data))[at] = lengths


def set_topics(data: bytearray, starts: Ints, sizes: Ints, magics: Ints) -> None:
    """Set sizes and magics in records whose topic has already been replaced."""
    words = u32_at_any_byte(data, len(data))
    words[starts] = sizes
    words[starts + MAGIC_AT] = magics


def set_prepared(data: bytearray, at: Ints, values: Ints) -> None:
    """Set the prepared-transaction fields at these positions."""
    i64_at_any_byte(data, len(data))[at] = values


def set_places(
    data: Buffer, starts: Ints, at: int, queue_offsets: Ints, store_timestamp_at: Ints, store_timestamp_ms: int
) -> None:
    """Set the fields that depend on the log offset `at` in contiguous records: log and queue offsets, store time."""
    longs = i64_at_any_byte(data, len(data))
    longs[starts + QUEUE_OFFSET_AT] = queue_offsets
    longs[starts + PHYSICAL_OFFSET_AT] = starts + at
    longs[starts + store_timestamp_at] = store_timestamp_ms
