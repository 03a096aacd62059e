"""The fields of a commit log record: their positions and encodings (docs/formats/commitlog.md).

All code that reads or writes records uses these constants. A record consists of size, magic, CRC of the body, queue id,
flag, queue offset, physical offset, system flag, born time, born host, store time, store host, reconsume times,
prepared transaction, body length, body, topic length, topic, properties length, properties.
"""

import struct
import zlib
from mmap import mmap

import numpy as np

from latermq.arrays import Ints

Buffer = bytes | bytearray | memoryview | mmap

MAGIC = 0xDAA320A7
MAGIC_LONG_TOPIC = 0xDAA320AB  # "V2": the topic's length takes two bytes
BLANK_MAGIC = 0xCBD43194
BLANK = struct.Struct(">II")  # size of the rest of the segment, BLANK_MAGIC

SYSFLAG_COMPRESSED = 0x1
SYSFLAG_TRANSACTION_MASK = 0xC
SYSFLAG_PREPARED = 0x4
SYSFLAG_COMMITTED = 0x8
SYSFLAG_ROLLED_BACK = 0xC  # a record that is in no queue
# Flags that a sender may set: body compressed, compression type, several tags. Only the broker sets the others.
SYSFLAG_FROM_SENDER = 0x703
SYSFLAG_BORN_V6 = 0x10
SYSFLAG_STORE_V6 = 0x20
SYSFLAG_HOSTS = SYSFLAG_BORN_V6 | SYSFLAG_STORE_V6
SYSFLAG_ABRIDGED = 0x10000  # LaterMQ's own, of a timer that waits: it gets the broker's properties when it is delivered

MAX_RECONSUME_TIMES = (1 << 31) - 1

V4_HOST_BYTES, V6_HOST_BYTES = 8, 20  # address and port

# All fields up to the body length, for IPv4 hosts, which nearly every record has.
HEAD = struct.Struct(">IIIIiqqIq8sq8siqI")
# The same fields without the hosts, which may have any length.
BEFORE_BORN_HOST = struct.Struct(">IIIIiqqIq")
BETWEEN_HOSTS = struct.Struct(">q")
AFTER_HOSTS = struct.Struct(">iqI")

SIZE_AND_MAGIC = struct.Struct(">II")
SIZE_TO_FLAG = struct.Struct(">IIIIi")
OFFSETS_AND_SYSFLAG = struct.Struct(">qqI")  # from QUEUE_OFFSET_AT
RECONSUME_AND_PREPARED = struct.Struct(">iq")
U16 = struct.Struct(">H")
I16 = struct.Struct(">h")
U32 = struct.Struct(">I")
I32 = struct.Struct(">i")
I64 = struct.Struct(">q")

# Positions from the record's start. An IPv6 host moves all fields after it by 12 bytes.
MAGIC_AT = 4
BODY_CRC_AT = 8
QUEUE_ID_AT = 12
FLAG_AT = 16
QUEUE_OFFSET_AT = 20
PHYSICAL_OFFSET_AT = 28
SYSFLAG_AT = 36
BORN_TIMESTAMP_AT = 40
BORN_HOST_AT = 48
# Distances from the end of the store host, and back from the start of the body.
PREPARED_AFTER_HOSTS = 4
BODY_LENGTH_AFTER_HOSTS = 12
RECONSUME_BEFORE_BODY = 16
PREPARED_BEFORE_BODY = 12
BODY_LENGTH_BEFORE_BODY = 4

PROPERTIES_LENGTH_BYTES = 2
PLAIN_BYTES = HEAD.size + PROPERTIES_LENGTH_BYTES  # of a record with IPv4 hosts: all but body, topic and properties
MIN_RECORD_BYTES = PLAIN_BYTES + 1  # an empty topic has its length
MAX_SHORT_TOPIC_BYTES = 127
CRC_MASK = 0x7FFFFFFF  # RocketMQ stores a CRC without its sign bit


def body_crc32(body: Buffer) -> int:
    """The CRC of a body as RocketMQ computes it, for records and for registrations at a name server."""
    return zlib.crc32(body) & CRC_MASK


def body_crcs32(bodies: list[bytes]) -> Ints:
    """The CRCs of many bodies as stored in their records."""
    return np.fromiter(map(zlib.crc32, bodies), np.int64, len(bodies)) & CRC_MASK


def host_bytes(sysflag: int) -> tuple[int, int]:
    """The sizes of born host and store host in a record with this system flag."""
    return (
        V6_HOST_BYTES if sysflag & SYSFLAG_BORN_V6 else V4_HOST_BYTES,
        V6_HOST_BYTES if sysflag & SYSFLAG_STORE_V6 else V4_HOST_BYTES,
    )


def born_host_bytes(sysflags: Ints) -> Ints:
    """The sizes of the born hosts of many records."""
    return np.where(sysflags & SYSFLAG_BORN_V6, V6_HOST_BYTES, V4_HOST_BYTES)


def store_host_bytes(sysflags: Ints) -> Ints:
    """The sizes of the store hosts of many records."""
    return np.where(sysflags & SYSFLAG_STORE_V6, V6_HOST_BYTES, V4_HOST_BYTES)


def topic_field(topic: bytes) -> tuple[int, bytes]:
    """The magic of a record of this topic, and the topic prefixed with its length."""
    if len(topic) <= MAX_SHORT_TOPIC_BYTES:
        return MAGIC, bytes((len(topic),)) + topic
    return MAGIC_LONG_TOPIC, U16.pack(len(topic)) + topic


# Views with a number at every byte position: one indexing operation reads or writes a field of all records.
def u16_at_any_byte(buffer: Buffer, limit: int) -> Ints:
    return np.ndarray((max(0, limit - 1),), ">u2", buffer, strides=(1,))


def u32_at_any_byte(buffer: Buffer, limit: int) -> Ints:
    return np.ndarray((max(0, limit - 3),), ">u4", buffer, strides=(1,))


def i64_at_any_byte(buffer: Buffer, limit: int) -> Ints:
    return np.ndarray((max(0, limit - 7),), ">i8", buffer, strides=(1,))
