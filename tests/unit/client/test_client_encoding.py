"""The wire format of a producer: frames, properties, batches, compression, and the queue of a shard."""

import sys
import zlib

import pytest

from latermq.client.producer.compression import SYSFLAG_ZLIB, compress
from latermq.client.producer.outgoing import (
    OutgoingMessage,
    SendFrames,
    encode_batch_body,
    encode_message_properties,
)
from latermq.client.producer.shards import shard_index
from latermq.errors import IllegalMessage
from latermq.message.batch import BatchMember, decode_batch
from latermq.message.compression import UnreadableBody, decompress
from latermq.message.properties import decode_properties
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.frames import BINARY, JSON, FrameReader
from latermq.protocol.remoting.send import SendHeaderV2

# hashCode of the value in Java, and the queue of seven that SelectMessageQueueByHash selects.
JAVA_SHARDS = [
    ("order-4711", 5),
    ("", 0),
    ("a", 6),
    ("größe", 6),
    ("日本語", 5),
    (0, 0),
    (1, 1),
    (-7, 0),
    (2147483647, 1),
    (2147483648, 2),
    (-2147483649, 2),
    (1099511627776123, 0),
]


@pytest.mark.parametrize("encoding", [JSON, BINARY])
@pytest.mark.parametrize("oneway", [False, True])
def test_a_send_frame_contains_all_fields(encoding: int, oneway: bool) -> None:
    frames = SendFrames("my-group", "my-topic", 4, encoding)
    properties = encode_message_properties(OutgoingMessage("my-topic", b"", tag='quote "', keys=["a", "b"]), "KEY")
    data = frames.frame(41, 3, 1, 1_800_000_000_123, 9, properties, b"body", oneway=oneway)
    (command,) = FrameReader().feed(data)
    assert (command.code, command.opaque, command.is_oneway, command.body) == (310, 41, oneway, b"body")
    assert (command.language, command.encoding) == ("PYTHON", encoding)
    header = command.header(SendHeaderV2)
    assert (header.producerGroup, header.topic, header.queueId, header.sysFlag) == ("my-group", "my-topic", 3, 1)
    assert (header.bornTimestamp, header.flag, header.batch) == (1_800_000_000_123, 9, False)
    assert decode_properties(header.properties) == {"UNIQ_KEY": "KEY", "TAGS": 'quote "', "KEYS": "a b"}


@pytest.mark.parametrize("encoding", [JSON, BINARY])
def test_a_batch_frame_has_the_batch_flag(encoding: int) -> None:
    frames = SendFrames("g", "t", 4, encoding)
    data = frames.frame(1, 0, 0, 0, 0, "", b"", code=Request.SEND_BATCH_MESSAGE)
    (command,) = FrameReader().feed(data)
    assert command.code == Request.SEND_BATCH_MESSAGE
    assert command.header(SendHeaderV2).batch


@pytest.mark.parametrize(
    "message",
    [
        OutgoingMessage("t", b"", tag="a\x01b"),
        OutgoingMessage("t", b"", keys=["a\x02"]),
        OutgoingMessage("t", b"", properties={"na\x01me": "value"}),
        OutgoingMessage("t", b"", properties={"name": "x" * 32_768}),
        OutgoingMessage("t", b"", properties={"name": "ü" * 20_000}),
    ],
)
def test_properties_with_separators_or_too_many_bytes_are_refused(message: OutgoingMessage) -> None:
    with pytest.raises(IllegalMessage):
        encode_message_properties(message, "KEY")


def test_a_batch_body_contains_its_messages() -> None:
    body = encode_batch_body([OutgoingMessage("t", b"one", flag=5), OutgoingMessage("t", b"two", tag="x")], ["A", "B"])
    first, second = (BatchMember(*member) for member in decode_batch(body))
    assert (first.flag, first.body, second.body) == (5, b"one", b"two")
    assert decode_properties(second.properties.decode()) == {"UNIQ_KEY": "B", "TAGS": "x"}


def test_a_batch_has_one_topic() -> None:
    with pytest.raises(IllegalMessage, match="one topic"):
        encode_batch_body([OutgoingMessage("t", b""), OutgoingMessage("u", b"")], ["A", "B"])


@pytest.mark.parametrize(("shard", "index"), JAVA_SHARDS)
def test_a_shard_maps_to_the_same_queue_as_in_java(shard: str | int, index: int) -> None:
    assert shard_index(shard, 7) == index


def test_a_compressed_body_decompresses_to_the_original() -> None:
    body, sysflag = compress(b"again and " * 1000)
    assert len(body) < 10_000
    assert sysflag == SYSFLAG_ZLIB
    assert decompress(body, sysflag) == b"again and " * 1000
    assert decompress(zlib.compress(b"from an old client"), 1) == b"from an old client"


def test_a_body_that_does_not_shrink_stays_uncompressed() -> None:
    assert compress(b"x") == (b"x", 0)


@pytest.mark.parametrize(
    ("body", "sysflag", "reason"),
    [
        (b"no zlib", 0x301, "not valid zlib data"),
        (zlib.compress(bytes(5000)), 0x301, "more than 1000 bytes"),
        (b"", 0x501, "unknown compression type"),
    ],
)
def test_the_error_says_why_a_body_cannot_be_decompressed(body: bytes, sysflag: int, reason: str) -> None:
    with pytest.raises(UnreadableBody, match=reason):
        decompress(body, sysflag, max_bytes=1000)


@pytest.mark.parametrize(("sysflag", "package"), [(0x101, "lz4"), (0x201, "zstandard")])
def test_the_error_names_the_missing_library(sysflag: int, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("lz4.frame", "zstandard"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UnreadableBody, match=package):
        decompress(b"", sysflag)
