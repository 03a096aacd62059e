"""gRPC's headers, messages and statuses."""

import gzip
import itertools
import zlib
from urllib.parse import unquote

import pytest
from hpack import Decoder
from hypothesis import given
from hypothesis import strategies as st

from latermq.protocol.http2.grpc.call_head import NotGrpc, call_head, metadata_of, parse_timeout_s
from latermq.protocol.http2.grpc.messages import MessageReader, message_prefix, only_message
from latermq.protocol.http2.grpc.status import (
    HEAD,
    MAX_MESSAGE_BYTES,
    TAIL_OK,
    GrpcError,
    StatusCode,
    percent_encoded,
    trailers,
    trailers_only,
)
from latermq.protocol.http2.requests import Pairs, Request

MAX_BYTES = 1000
GRPC = (b"content-type", b"application/grpc")


def framed(message: bytes, flag: int = 0) -> bytes:
    return bytes((flag,)) + len(message).to_bytes(4, "big") + message


def request(*fields: tuple[bytes, bytes], method: bytes = b"POST") -> Request:
    return Request(method, b"/service/Method", b"http", b"here", list(fields), None)


def fields_of(block: bytes) -> Pairs:
    return [(bytes(name), bytes(value)) for name, value in Decoder().decode(block, raw=True)]


def status_of(data: bytes, is_gzip: bool = False) -> StatusCode:
    with pytest.raises(GrpcError) as caught:
        MessageReader(MAX_BYTES, is_gzip).feed(data)
    return caught.value.status


@given(st.lists(st.binary(max_size=50), max_size=8), st.lists(st.integers(0, 500), max_size=20))
def test_messages_arrive_whatever_the_pieces_are(messages: list[bytes], cuts: list[int]) -> None:
    data = b"".join(message_prefix(message) + message for message in messages) + b"\0\0"
    reader = MessageReader(MAX_BYTES, is_gzip=False)
    found = []
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, stop in itertools.pairwise(edges):
        found += reader.feed(data[start:stop])
        assert reader.held_bytes < 55
    assert found == messages
    assert reader.held_bytes == 2


def test_a_long_message_in_small_pieces_is_joined_once() -> None:
    reader = MessageReader(1_000_000, is_gzip=False)
    data = framed(b"x" * 1_000_000)
    assert [message for at in range(0, len(data), 100) for message in reader.feed(data[at : at + 100])] == [data[5:]]
    assert reader.held_bytes == 0


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (framed(b"abc"), b"abc"),
        (framed(b""), b""),
        (framed(b"abc")[:-1], None),
        (framed(b"abc") + b"x", None),
        (framed(b"abc", flag=1), None),
        (b"\0\0\0\0", None),
        (b"", None),
    ],
)
def test_the_only_message_of_a_request(data: bytes, message: bytes | None) -> None:
    assert only_message(data) == message


def test_the_size_limit_applies_before_the_message_arrives() -> None:
    assert MessageReader(MAX_BYTES, False).feed(framed(b"x" * MAX_BYTES)) == [b"x" * MAX_BYTES]
    assert status_of(framed(b"x" * (MAX_BYTES + 1))[:5]) == StatusCode.RESOURCE_EXHAUSTED
    assert status_of(b"\0\xff\xff\xff\xff") == StatusCode.RESOURCE_EXHAUSTED


def test_gzip_messages_are_decompressed_within_the_limit() -> None:
    data = b"abc" * 100
    reader = MessageReader(MAX_BYTES, is_gzip=True)
    assert reader.feed(framed(gzip.compress(data), flag=1) + framed(b"plain")) == [data, b"plain"]
    assert reader.feed(framed(gzip.compress(b"x" * MAX_BYTES), flag=1)) == [b"x" * MAX_BYTES]
    bomb = gzip.compress(b"x" * 500_000)
    assert len(bomb) < MAX_BYTES
    assert status_of(framed(bomb, flag=1), is_gzip=True) == StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    "message",
    [b"", b"not gzip", gzip.compress(b"abc")[:-1], gzip.compress(b"abc") + b"x", zlib.compress(b"abc")],
    ids=["empty", "not gzip", "truncated", "followed by a byte", "zlib"],  # gzip's output contains the time
)
def test_what_is_not_gzip_is_refused(message: bytes) -> None:
    assert status_of(framed(message, flag=1), is_gzip=True) == StatusCode.INTERNAL


@pytest.mark.parametrize(("flag", "is_gzip"), [(1, False), (2, True), (255, False)])
def test_a_compression_flag_needs_an_encoding(flag: int, is_gzip: bool) -> None:
    assert status_of(framed(gzip.compress(b"abc"), flag), is_gzip) == StatusCode.INTERNAL


@pytest.mark.parametrize(
    ("value", "timeout_s"),
    [(b"1H", 3600), (b"2M", 120), (b"3S", 3), (b"4m", 0.004), (b"5u", 5e-6), (b"99999999n", 0.099999999), (b"0S", 0)],
)
def test_timeouts(value: bytes, timeout_s: float) -> None:
    assert parse_timeout_s(value) == pytest.approx(timeout_s)
    assert call_head(request(GRPC, (b"grpc-timeout", value))).timeout_s == pytest.approx(timeout_s)


@pytest.mark.parametrize("value", [b"", b"S", b"1", b"1s", b"-1S", b"123456789S", b" 1S", b"1.5S", "²S".encode()])
def test_malformed_timeouts_are_refused(value: bytes) -> None:
    with pytest.raises(GrpcError) as caught:
        parse_timeout_s(value)
    assert caught.value.status == StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("content_type", [b"application/grpc", b"application/grpc+proto", b"application/grpc;x=y"])
def test_content_types_of_grpc(content_type: bytes) -> None:
    call = request((b"content-type", content_type), (b"a", b"1"), (b"b", b"2"), (b"a", b"3"))
    head = call_head(call)
    assert metadata_of(call) == {b"content-type": content_type, b"a": b"1,3", b"b": b"2"}
    assert head.timeout_s is None
    assert not head.is_gzip


@pytest.mark.parametrize(
    "fields", [[], [(b"content-type", b"application/json")], [(b"content-type", b"application/grpcx")]]
)
def test_other_content_types_are_refused(fields: Pairs) -> None:
    with pytest.raises(NotGrpc) as caught:
        call_head(request(*fields))
    assert fields_of(caught.value.block) == [(b":status", b"415")]


def test_other_methods_are_refused() -> None:
    with pytest.raises(NotGrpc) as caught:
        call_head(request(GRPC, method=b"GET"))
    assert fields_of(caught.value.block)[0] == (b":status", b"405")


def test_encodings() -> None:
    assert call_head(request(GRPC, (b"grpc-encoding", b"gzip"))).is_gzip
    assert not call_head(request(GRPC, (b"grpc-encoding", b"identity"))).is_gzip
    with pytest.raises(GrpcError) as caught:
        call_head(request(GRPC, (b"grpc-encoding", b"zstd")))
    assert caught.value.status == StatusCode.UNIMPLEMENTED


@given(st.text(max_size=100))
def test_messages_of_statuses_survive_the_encoding(message: str) -> None:
    encoded = percent_encoded(message.encode(errors="replace").decode())
    assert all(0x20 <= byte <= 0x7E for byte in encoded)
    assert unquote(encoded.decode("ascii")) == message.encode(errors="replace").decode()


def test_long_messages_of_statuses_are_cut_between_characters() -> None:
    encoded = percent_encoded("a" + "ü" * 5000)
    assert unquote(encoded.decode()) == "a" + "ü" * ((MAX_MESSAGE_BYTES - 1) // 2)


def test_the_blocks_of_an_answer() -> None:
    head = [(b":status", b"200"), (b"content-type", b"application/grpc")]
    assert fields_of(HEAD.block) == head
    assert fields_of(TAIL_OK.block) == [(b"grpc-status", b"0")]
    assert fields_of(trailers(StatusCode.NOT_FOUND, "no 100% topic\n.", [(b"hint", b"look")])) == [
        (b"grpc-status", b"5"),
        (b"grpc-message", b"no 100%25 topic%0A."),
        (b"hint", b"look"),
    ]
    assert fields_of(trailers_only(StatusCode.OK)) == [*head, (b"grpc-status", b"0")]
    assert fields_of(trailers_only(StatusCode.NOT_FOUND, " \n"))[-1] == (b"grpc-message", b"")
