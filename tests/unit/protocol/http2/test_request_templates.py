"""Templates of requests: a connection that has learned them decodes every block as one that has not."""

from random import Random

import pytest
from hpack import Encoder
from hypothesis import given
from hypothesis import strategies as st

from latermq.protocol.http2.frames import ErrorCode
from latermq.protocol.http2.grpc.call_head import call_head, field_of, metadata_of
from latermq.protocol.http2.hpack.encoder import encode_fields
from latermq.protocol.http2.request_templates import Templates
from latermq.protocol.http2.requests import Request
from tests.unit.protocol.http2.raw_peer import POST, RawPeer, headers

GRPC = [
    *POST,
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
    (b"grpc-timeout", b"1S"),
    (b"x-mq-client-id", b"host@1@2"),
    (b"x-mq-request-id", b"a1"),
    (b"x-mq-date-time", b"20261116T233000Z"),
]
Pairs = list[tuple[bytes, bytes]]


def with_value(name: bytes, value: bytes) -> Pairs:
    return [(other, value if other == name else old) for other, old in GRPC]


def taught(*blocks: bytes) -> RawPeer:
    """A connection that has seen requests with these blocks, by default one of gRPC."""
    peer = RawPeer()
    peer.connection._cache_credit = 0  # whole blocks do not come from the cache
    for block in blocks or (encode_fields(GRPC),):
        peer.open(block, end=True)
    return peer


def outcome(peer: RawPeer, block: bytes) -> object:
    """What a connection makes of a block: a request, or the error of its stream or of the connection."""
    peer.read()
    news = peer.send(headers(next(peer._ids), block))
    if peer.connection.fault is not None:
        return peer.connection.fault.error
    if not news:
        return [(answer.kind, answer.payload) for answer in peer.read()]
    (stream,) = news
    return stream.reset or decoded(stream.request)


def decoded(request: Request) -> tuple[object, ...]:
    """A request with all values decoded, without its template."""
    fields = request.fields if request.template is None else request.template.read(request.fields)
    return request._replace(fields=fields)[:6]


def test_a_request_that_differs_only_in_fresh_values_fits() -> None:
    peer = taught()
    block = encode_fields(with_value(b"x-mq-request-id", b"another-1"))
    request = peer.open(block).request
    assert request.template is not None
    assert field_of(request, b"x-mq-request-id") == b"another-1"
    assert decoded(request) == outcome(RawPeer(), block)


def test_another_steady_value_fits_after_it_was_seen_once() -> None:
    peer = taught()
    later = encode_fields(with_value(b"x-mq-date-time", b"20261116T233001Z"))
    assert peer.open(later).request.template is None
    again = [(name, b"b2" if name == b"x-mq-request-id" else value) for name, value in with_value(
        b"x-mq-date-time", b"20261116T233001Z"
    )]  # fmt: skip
    assert peer.open(encode_fields(again)).request.template is not None


@pytest.mark.parametrize(
    "value", [b"", b" a", b"a ", b"a\r\nb", b"a\0", b"x" * 126, b"x" * 127, b"x" * 300, b"\xff", b"a b"]
)
@pytest.mark.parametrize("name", [b"x-mq-request-id", b"grpc-timeout"])
@pytest.mark.parametrize("huffman", [False, True])
def test_a_fresh_value_is_checked_as_any_other(name: bytes, value: bytes, huffman: bool) -> None:
    encoder = Encoder()
    encoder.header_table_size = 0
    encoder.encode([])  # the size update is behind us
    first = encoder.encode(GRPC, huffman=huffman)
    block = encoder.encode(with_value(name, value), huffman=huffman)
    assert outcome(taught(first), block) == outcome(RawPeer(), block)


@pytest.mark.parametrize("value", ["ff", "1fffffff", "00", "fffffffffc"], ids=["padding", "EOS", "zeros", "long"])
def test_a_request_id_whose_huffman_code_is_not_valid_ends_the_connection(value: str) -> None:
    """After the first call of a connection, too, which the next ones are compared with."""
    encoder = Encoder()
    encoder.header_table_size = 0
    encoder.encode([])
    first = encoder.encode(GRPC, huffman=True)
    place = encoder.encode([(b"x-mq-request-id", b"a1")], huffman=True)
    valid = place[-3:]  # the length and two bytes
    assert first.count(place) == 1
    wrong = bytes.fromhex(value)
    block = first.replace(place, place[:-3] + bytes([0x80 | len(wrong)]) + wrong)
    assert valid[0] == 0x82
    assert outcome(taught(first), block) == outcome(RawPeer(), block)
    if value in ("ff", "1fffffff"):
        assert outcome(taught(first), block) == ErrorCode.COMPRESSION_ERROR


def test_a_template_does_not_change_the_order_of_fields() -> None:
    """Pseudo-header fields come first, also if all fields before them are fresh."""
    fields = [*GRPC[6:7], *GRPC[:6], *GRPC[7:]]
    peer = taught()
    for _ in range(3):
        assert peer.stream_error(headers(next(peer._ids), encode_fields(fields))) == ErrorCode.PROTOCOL_ERROR


def test_a_block_with_a_table_size_update_is_not_learned() -> None:
    block = b"\x20" + encode_fields(GRPC)
    peer = taught(block, block)
    assert outcome(peer, block) == outcome(RawPeer(), encode_fields(GRPC))


def test_a_request_with_a_content_length_fits_no_template() -> None:
    peer = taught(encode_fields([*GRPC, (b"content-length", b"5")]))
    request = peer.open(encode_fields([*with_value(b"x-mq-request-id", b"b2"), (b"content-length", b"5")])).request
    assert (request.template, request.content_bytes) == (None, 5)


def test_every_truncation_of_a_block_is_refused_as_without_templates() -> None:
    block = encode_fields(with_value(b"x-mq-request-id", b"b2"))
    for end in range(len(block)):
        assert outcome(taught(), block[:end]) == outcome(RawPeer(), block[:end]), end


names = st.sampled_from([name for name, _ in GRPC] + [b"x-other", b"content-length", b"Bad", b":path", b"connection"])
values = st.sampled_from([value for _, value in GRPC] + [b"", b"5", b" x", b"y\n", b"z" * 130]) | st.binary(max_size=9)
changes = st.lists(
    st.tuples(st.sampled_from(["set", "insert", "delete"]), st.integers(0, 12), names, values), max_size=2
)


flips = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=1)


@given(st.lists(st.tuples(changes, st.booleans(), flips), min_size=1, max_size=12))
def test_requests_are_decoded_as_on_a_new_connection(
    requests: list[tuple[list[tuple[str, int, bytes, bytes]], bool, list[tuple[int, int]]]],
) -> None:
    peer = taught()
    encoder = Encoder()
    encoder.header_table_size = 0
    encoder.encode([])
    for edits, huffman, flipped in requests:
        fields = list(GRPC)
        for edit, position, name, value in edits:
            at = min(position, len(fields) - 1)
            if edit == "insert":
                fields.insert(at, (name, value))
            elif edit == "set":
                fields[at] = (fields[at][0], value)
            else:
                del fields[at]
        block = bytearray(encoder.encode(fields, huffman=huffman))
        for at, byte in flipped:
            block[at % len(block)] = byte
        assert outcome(peer, bytes(block)) == outcome(RawPeer(), bytes(block))
        if peer.connection.is_ended:
            peer = taught()


def test_the_number_of_templates_and_of_attempts_to_learn_is_bounded() -> None:
    templates = Templates()
    assert sum(templates.miss() for _ in range(6500)) == 100 + 6500 // 64 - 1
    peer = RawPeer()
    dice = Random(1)
    for _ in range(300):
        peer.open(encode_fields([*POST[:2], (b":path", b"/%d" % dice.getrandbits(60)), *GRPC[3:]]), end=True)
    assert len(peer.connection._templates._found) == 4


def test_the_fields_of_a_call_are_its_own() -> None:
    peer = taught()

    def call(number: int, timeout: bytes) -> Request:
        fields = [(name, {b"x-mq-request-id": b"%d" % number, b"grpc-timeout": timeout}.get(name, value))
                  for name, value in GRPC]  # fmt: skip
        return peer.open(encode_fields(fields)).request

    requests = [call(number, b"%dS" % number) for number in range(1, 5)]
    assert all(request.template is not None for request in requests)
    for number, request in enumerate(requests, 1):
        plain = Request(*decoded(request))  # type: ignore[arg-type]
        head = call_head(request)
        assert head == call_head(plain)
        assert head.timeout_s == number
        for name in [*dict(GRPC), b"x-other"]:
            assert field_of(request, name) == field_of(plain, name) == metadata_of(plain).get(name)


def test_a_repeated_name_is_joined_in_every_call() -> None:
    fields = [*GRPC, (b"x-mq-request-id", b"again")]
    peer = taught(encode_fields(fields))
    for number in range(3):
        fields[8] = (b"x-mq-request-id", b"%d" % number)
        request = peer.open(encode_fields(fields)).request
        assert request.template is not None
        assert call_head(request).timeout_s == 1
        assert field_of(request, b"x-mq-request-id") == b"%d,again" % number
