"""Parsing and validation of REGISTER_BROKER bodies: JSON, or the same data packed and deflated."""

import re
import struct
import zlib
from typing import Literal

from latermq.config import NameServerConfig
from latermq.config_json.topics import DataVersionJson, TopicJson, TopicTableJson
from latermq.errors import InvalidParameter, MalformedRequest, ServiceUnavailable
from latermq.message.record_fields import body_crc32
from latermq.protocol.remoting.json_body import decode_body
from latermq.protocol.remoting.routes import RegisterBrokerBody, RegisterBrokerHeader

MAX_NAME_BYTES = 255  # as UTF-8; bounds the list of all topics, which holds every name
MAX_QUEUES = 65_535  # of one topic on one broker; clients create an object per queue
MAX_FILTER_SERVERS = 64

_LENGTH = struct.Struct(">i")
_DEFLATED = b"\x78"  # the first byte of every zlib stream, and of no JSON
_CHUNK_BYTES = 64 << 10
_FILTER_TYPES: dict[str, Literal["SINGLE_TAG", "MULTI_TAG"]] = {"SINGLE_TAG": "SINGLE_TAG", "MULTI_TAG": "MULTI_TAG"}
_ADDRESS = re.compile(r"\S+:(\d{1,5})").fullmatch


def read_registration(header: RegisterBrokerHeader, body: bytes, bounds: NameServerConfig) -> RegisterBrokerBody:
    """The registration in a request's body. Raises an error if no valid broker could have sent it."""
    _check_header(header)
    # Java clears the sign bit of its checksums. 0 means no checksum.
    if header.bodyCrc32 and header.bodyCrc32 != body_crc32(body):
        raise MalformedRequest(
            "the registration's checksum does not match its body", hint="The broker sends it again soon"
        )
    if not body:
        return RegisterBrokerBody()
    # Apache's 5.x brokers deflate the body if configured to, but the header says that it is not compressed.
    if header.compressed or body.startswith(_DEFLATED):
        registration = _unpack(_inflate(body, bounds.max_registration), bounds.max_host_topics)
    elif len(body) > bounds.max_registration:
        raise _too_large(bounds.max_registration)
    else:
        registration = decode_body(body, RegisterBrokerBody)
    _check_body(registration, bounds.max_host_topics)
    return registration


def _check_header(header: RegisterBrokerHeader) -> None:
    _check_name("broker name", header.brokerName)
    _check_name("cluster name", header.clusterName)
    address = _ADDRESS(header.brokerAddr)
    if address is None or int(address[1]) > 65_535 or not _is_name(header.brokerAddr):
        raise InvalidParameter(f"{header.brokerAddr[:100]!r} is not a valid broker address", hint="Use host:port")
    if header.haServerAddr:
        _check_name("HA address", header.haServerAddr)
    if header.brokerId < 0:
        raise InvalidParameter(
            f"broker id {header.brokerId} is below 0", hint="Use 0 for a master and a larger id for a replica"
        )
    if header.heartbeatTimeoutMillis is not None and header.heartbeatTimeoutMillis <= 0:
        raise InvalidParameter(f"a heartbeat timeout of {header.heartbeatTimeoutMillis} ms is not valid")


def _check_body(body: RegisterBrokerBody, max_topics: int) -> None:
    topics = body.topicConfigSerializeWrapper.topics
    _check_count(len(topics), max_topics)
    for name, topic in topics.items():
        _check_name("topic name", name)
        for queues in (topic.read_queues, topic.write_queues):
            if not 0 <= queues <= MAX_QUEUES:
                raise InvalidParameter(f"topic {name!r} has {queues} queues; the number must be 0 to {MAX_QUEUES}")
    if len(body.filterServerList) > MAX_FILTER_SERVERS:
        raise InvalidParameter(f"{len(body.filterServerList)} filter servers exceed the limit of {MAX_FILTER_SERVERS}")
    for server in body.filterServerList:
        _check_name("filter server", server)


def _check_name(what: str, name: str) -> None:
    if not _is_name(name):
        raise InvalidParameter(
            f"{what} {name[:40]!r} of {len(name)} characters is not valid",
            hint=f"Use 1 to {MAX_NAME_BYTES} bytes of UTF-8 without blanks",
        )


def _is_name(name: str) -> bool:
    """Whether a name is valid. Apache allows nearly all: broker and cluster names are also topics, often host names."""
    return name.isprintable() and " " not in name and 0 < len(name.encode()) <= MAX_NAME_BYTES


def _check_count(topics: int, max_topics: int) -> None:
    if topics > max_topics:
        raise ServiceUnavailable(
            f"the registration lists {topics} topics; the limit is {max_topics} (namesrv.max_host_topics)",
            hint="Delete unused topics, or raise the limit",
        )


def _too_large(max_bytes: int) -> ServiceUnavailable:
    return ServiceUnavailable(
        f"the registration exceeds {max_bytes} bytes (namesrv.max_registration)",
        hint="Delete unused topics, or raise the limit",
    )


def _inflate(body: bytes, max_bytes: int) -> bytes:
    """Inflate piece by piece, so that a body that expands a thousandfold costs no more than the limit."""
    inflater = zlib.decompressobj()
    data = bytearray()
    try:
        while body and not inflater.eof:
            data += inflater.decompress(body, _CHUNK_BYTES)
            if len(data) > max_bytes:
                raise _too_large(max_bytes)
            body = inflater.unconsumed_tail
    except zlib.error as error:
        raise MalformedRequest(f"the registration cannot be decompressed: {error}") from None
    if not inflater.eof:
        raise MalformedRequest("the registration is truncated")
    return bytes(data)


def _unpack(data: bytes, max_topics: int) -> RegisterBrokerBody:
    """Parse data version, number of topics, each topic and filter servers. A length precedes every part.

    5.x brokers append the mappings of static topics. Our routes do not carry these.
    """
    version, at = _part(data, 0)
    topics, at = _number(data, at)
    _check_count(topics, max_topics)
    table: dict[str, TopicJson] = {}
    for _ in range(topics):
        text, at = _part(data, at)
        topic = _topic(text)
        table[topic.name] = topic
    servers, _ = _part(data, at)
    return RegisterBrokerBody(
        topicConfigSerializeWrapper=TopicTableJson(topics=table, version=decode_body(version, DataVersionJson)),
        filterServerList=decode_body(servers, list[str]) if servers != b"null" else [],
    )


def _number(data: bytes, at: int) -> tuple[int, int]:
    try:
        return _LENGTH.unpack_from(data, at)[0], at + _LENGTH.size
    except struct.error:
        raise MalformedRequest("the registration ends within a length") from None


def _part(data: bytes, at: int) -> tuple[bytes, int]:
    length, start = _number(data, at)
    end = start + length
    if length < 0 or end > len(data):
        raise MalformedRequest("the registration ends within one of its parts")
    return data[start:end], end


def _topic(text: bytes) -> TopicJson:
    """Parse `name readQueues writeQueues perm filterType attributes`, the text form of Java's topic configuration."""
    try:
        name, read, write, perm, filter_type, *_ = text.decode().split(" ")
        return TopicJson(
            name=name,
            read_queues=_small(read),
            write_queues=_small(write),
            permissions=_small(perm),
            filter_type=_FILTER_TYPES[filter_type],
        )
    except (ValueError, KeyError):
        raise MalformedRequest(f"the registration contains a topic that cannot be parsed: {text[:100]!r}") from None


def _small(digits: str) -> int:
    """Parse a number of a topic. msgspec takes three times as long, and there may be thousands of topics."""
    if len(digits) > 9 or not (digits.isascii() and digits.isdigit()):
        raise ValueError(digits)
    return int(digits)
