"""What a broker sends with REGISTER_BROKER: JSON, or the same packed and deflated; checked before it is believed."""

import struct
import zlib

from latermq.errors import MalformedRequest
from latermq.protocol.remoting.bodies import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    decode_body,
)
from latermq.protocol.remoting.headers import RegisterBrokerHeader

MAX_INFLATED_BYTES = 64 << 20  # about half a million topics; a deflated frame could claim a thousand times its size

_LENGTH = struct.Struct(">i")
_DEFLATED = b"\x78"  # the first byte of every zlib stream, and of no JSON


def read_registration(header: RegisterBrokerHeader, body: bytes) -> RegisterBrokerBody:
    """The registration in a request's body; raises MalformedRequest where it is not what the broker meant to send."""
    # Java keeps its checksums non-negative; 0 means that there is none.
    if header.bodyCrc32 and header.bodyCrc32 != zlib.crc32(body) & 0x7FFFFFFF:
        raise MalformedRequest("the registration's checksum does not match its body", hint="It is sent again soon")
    if not body:
        return RegisterBrokerBody()
    # Apache's 5.x brokers deflate where they are set to, but say in the header that they did not.
    if not header.compressed and not body.startswith(_DEFLATED):
        return decode_body(body, RegisterBrokerBody)
    return _unpack(_inflate(body))


def _inflate(body: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(body, MAX_INFLATED_BYTES)
    except zlib.error as error:
        raise MalformedRequest(f"the registration does not inflate: {error}") from None
    if inflater.unconsumed_tail or not inflater.eof:
        raise MalformedRequest(f"the registration is cut off or inflates to more than {MAX_INFLATED_BYTES} bytes")
    return data


def _unpack(data: bytes) -> RegisterBrokerBody:
    """Data version, number of topics, each topic, filter servers: every part with its length ahead.

    Behind them 5.x brokers write the mappings of static topics, which no route of ours carries.
    """
    version, at = _part(data, 0)
    topics, at = _number(data, at)
    table: dict[str, TopicConfig] = {}
    for _ in range(topics):
        text, at = _part(data, at)
        topic = _topic(text)
        table[topic.topicName] = topic
    servers, _ = _part(data, at)
    return RegisterBrokerBody(
        topicConfigSerializeWrapper=TopicConfigTable(
            topicConfigTable=table, dataVersion=decode_body(version, DataVersion)
        ),
        filterServerList=decode_body(servers, list[str]) if servers != b"null" else [],
    )


def _number(data: bytes, at: int) -> tuple[int, int]:
    try:
        return _LENGTH.unpack_from(data, at)[0], at + _LENGTH.size
    except struct.error:
        raise MalformedRequest("the registration ends inside a length") from None


def _part(data: bytes, at: int) -> tuple[bytes, int]:
    length, start = _number(data, at)
    end = start + length
    if length < 0 or end > len(data):
        raise MalformedRequest("the registration ends inside one of its parts")
    return data[start:end], end


def _topic(text: bytes) -> TopicConfig:
    """`name readQueues writeQueues perm filterType attributes`, as Java's TopicConfig writes itself."""
    try:
        name, read, write, perm, filter_type, *_ = text.decode().split(" ")
        return TopicConfig(
            topicName=name,
            readQueueNums=int(read),
            writeQueueNums=int(write),
            perm=int(perm),
            topicFilterType="MULTI_TAG" if filter_type == "MULTI_TAG" else "SINGLE_TAG",
        )
    except ValueError:
        raise MalformedRequest(f"the registration holds a topic that does not parse: {text[:100]!r}") from None
