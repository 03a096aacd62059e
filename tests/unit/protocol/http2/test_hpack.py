"""HPACK against the `hpack` package, with and without a dynamic table, and what it refuses."""

import string
from random import Random

import pytest
from hpack import Decoder, Encoder
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.huffman_table import decode_huffman as reference_huffman
from hypothesis import given
from hypothesis import strategies as st

from latermq.protocol.http2.frames import ConnectionFault, ErrorCode
from latermq.protocol.http2.hpack.decoder import FieldCache, HeaderDecoder, _split
from latermq.protocol.http2.hpack.encoder import encode_fields
from latermq.protocol.http2.hpack.fields import (
    AUTHORITY,
    CONTENT_LENGTH,
    MALFORMED,
    ORDINARY,
    PATH,
    classified,
)
from latermq.protocol.http2.hpack.huffman import decode_huffman, is_plain_huffman
from latermq.protocol.http2.hpack.static_table import STATIC_TABLE

NAMES = st.sampled_from([name for name, _ in STATIC_TABLE]) | st.binary(min_size=1, max_size=40)
FIELDS = st.lists(st.tuples(NAMES, st.binary(max_size=300) | st.sampled_from([b"", b"GET", b"200"])), max_size=12)
LIST_BYTES = 1 << 20


def huffman(text: bytes) -> bytes:
    return HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH).encode(text)


def decoder(cache: FieldCache | None = None, max_list_bytes: int = LIST_BYTES) -> HeaderDecoder:
    return HeaderDecoder(cache or FieldCache(), max_list_bytes)


def pairs(decoding: HeaderDecoder, block: bytes) -> list[tuple[bytes, bytes]]:
    fields = decoding.decode(block)
    assert fields is not None
    return [pair for pair, _, _ in fields]


def error_of(block: bytes, decoding: HeaderDecoder) -> ErrorCode:
    with pytest.raises(ConnectionFault) as caught:
        decoding.decode(block)
    with pytest.raises(ConnectionFault):
        decoding.split(block)
    return caught.value.error


@given(st.lists(FIELDS, max_size=6), st.booleans(), st.integers(0, 6), st.integers(0, 4096))
def test_blocks_of_the_reference_encoder_are_decoded(
    blocks: list[list[tuple[bytes, bytes]]], huffman: bool, acknowledged_after: int, table_bytes: int
) -> None:
    """At some point the peer acknowledges a smaller table and announces it in its next block."""
    encoder = Encoder()
    decoding = decoder()
    for number, fields in enumerate(blocks):
        if number == acknowledged_after:
            encoder.header_table_size = table_bytes
            decoding.limit_table(table_bytes)
        assert pairs(decoding, encoder.encode(fields, huffman=huffman)) == fields


REQUEST_FIELDS = st.lists(
    st.tuples(
        st.sampled_from(
            [b":path", b":method", b"te", b"content-type", b"user-agent", b"grpc-timeout", b"x-mq-a", b"A"]
        ),
        st.binary(max_size=5) | st.binary(min_size=120, max_size=300),
    ),
    max_size=12,
)


@given(st.lists(REQUEST_FIELDS | FIELDS, min_size=1, max_size=8), st.booleans())
def test_a_shared_cache_never_changes_what_a_block_means(
    blocks: list[list[tuple[bytes, bytes]]], huffman: bool
) -> None:
    cache = FieldCache(max_entries=5, max_bytes=50)
    for _ in range(2):
        encoder = Encoder()
        encoder.header_table_size = 0
        decoding = decoder(cache)
        decoding.limit_table(0)
        for fields in blocks * 2:
            block = encoder.encode(fields, huffman=huffman)
            assert pairs(decoding, block) == fields
            assert decoding.split(block) == _split([classified(name, value) for name, value in fields])
            assert cache.statistics()["cached_fields"] <= 5
            assert all(len(encoded) <= 50 for encoded in [*cache.ordinary, *cache.special])


def test_blocks_with_a_common_start_keep_their_own_fields() -> None:
    decoding = decoder()
    decoding.limit_table(0)
    start = [(b":method", b"POST"), (b":path", b"/a"), (b"content-type", b"application/grpc"), (b"te", b"trailers")]
    for number in range(20):
        rest = [(b"grpc-timeout", b"%dm" % number), (b"content-length", b"7")]
        special, ordinary, is_ordered = decoding.split(encode_fields(start + rest)) or ([], [], False)
        assert [pair for pair, _, _ in special] == [*start[:2], rest[1]]
        assert ordinary == [*start[2:], rest[0]]
        assert is_ordered
        _, ordinary, is_ordered = decoding.split(encode_fields([*start, start[0]])) or ([], [], True)
        assert ordinary == start[2:]
        assert not is_ordered


@given(FIELDS)
def test_the_reference_decoder_reads_our_blocks(fields: list[tuple[bytes, bytes]]) -> None:
    block = encode_fields(fields)
    assert list(Decoder(max_header_list_size=LIST_BYTES).decode(block, raw=True)) == fields
    stateless = decoder()
    stateless.limit_table(0)
    assert pairs(stateless, block) == fields


@given(st.binary(max_size=60))
def test_huffman_strings_mean_the_same_to_the_reference(data: bytes) -> None:
    try:
        expected: bytes | None = reference_huffman(data)
    except Exception:
        expected = None
    try:
        decoded: bytes | None = decode_huffman(data)
    except ConnectionFault:
        decoded = None
    assert decoded == expected


@pytest.mark.parametrize("stateless", [False, True])
def test_no_bytes_make_the_decoder_raise_anything_but_a_fault(stateless: bool) -> None:
    dice = Random(20_261_116)
    decoding = decoder(FieldCache(max_entries=50))
    if stateless:
        decoding.limit_table(0)
    faults: list[ErrorCode] = []
    valid = Encoder().encode([(b":path", b"/a"), (b"x-mq-request-id", b"7"), (b"grpc-timeout", b"3S")])
    for _ in range(20_000):
        block = bytearray(valid if dice.random() < 0.5 else dice.randbytes(dice.randrange(40)))
        for _ in range(dice.randrange(3)):
            if block:
                block[dice.randrange(len(block))] = dice.randrange(256)
        results: list[object] = []
        for way in (decoding.decode, decoding.split) if stateless else (decoding.decode,):
            try:
                found = way(bytes(block))
                results.append(_split(found) if isinstance(found, list) else found)
            except ConnectionFault as fault:
                faults.append(fault.error)
                results.append(fault.error)
        assert len(results) == 1 or results[0] == results[1]
        assert decoding.table_bytes <= 4096
    assert 1000 < len(faults) < 39_000
    assert set(faults) == {ErrorCode.COMPRESSION_ERROR}


@pytest.mark.parametrize("stateless", [False, True])
@pytest.mark.parametrize(
    "block",
    [
        b"\x80",  # index 0
        b"\xff\x80\x80\x80\x80\x80\x01",  # an integer without end
        b"\xc0",  # beyond the tables
        b"\x7f\x10\x01a",  # a name beyond the tables
        b"\x00\x05ab",  # a name longer than the block
        b"\x00\x01a\x7f\x85\x01",  # a value longer than the block
        b"\x00",
        b"\x00\x01a",
        b"\x82\x20",  # a table size update at the end
        b"\x3f\xe2\x1f",  # a table of 4097 bytes
        b"\x00\x01a\x81\x00",  # Huffman padding with zeros
        b"\x00\x01a\x82\x1f\xff",  # Huffman padding of more than 7 bits
        b"\x00\x01a\x84\xff\xff\xff\xff",  # Huffman EOS
    ],
)
def test_a_malformed_block_is_a_compression_error(block: bytes, stateless: bool) -> None:
    decoding = decoder()
    if stateless:
        decoding.limit_table(0)
    assert error_of(block, decoding) == ErrorCode.COMPRESSION_ERROR


def test_after_the_acknowledgment_the_dynamic_table_is_gone() -> None:
    decoding = decoder()
    assert pairs(decoding, b"\x40\x01a\x01b") == [(b"a", b"b")]
    assert pairs(decoding, b"\xbe") == [(b"a", b"b")]
    decoding.limit_table(0)
    assert decoding.is_stateless
    assert decoding.table_bytes == 0
    assert pairs(decoding, b"\x40\x01a\x01b") == [(b"a", b"b")]
    assert error_of(b"\xbe", decoding) == ErrorCode.COMPRESSION_ERROR
    assert pairs(decoding, b"\x20\x82") == [(b":method", b"GET")]
    assert error_of(b"\x21\x82", decoding) == ErrorCode.COMPRESSION_ERROR


@pytest.mark.parametrize("stateless", [False, True])
def test_a_header_list_above_the_limit_is_dropped_and_the_table_stays_correct(stateless: bool) -> None:
    decoding = decoder(max_list_bytes=200)
    if stateless:
        decoding.limit_table(0)
    large = encode_fields([(b"a", b"x" * 100), (b"b", b"y" * 100)])
    assert decoding.decode(large + b"\x40\x01c\x01d") is None
    if not stateless:
        assert pairs(decoding, b"\xbe") == [(b"c", b"d")]
    assert pairs(decoding, b"\x82") == [(b":method", b"GET")]


def test_references_to_a_large_field_are_not_kept_beyond_the_limit() -> None:
    decoding = decoder(max_list_bytes=65_536)
    decoding.decode(b"\x40\x01a" + b"\x7f\x81\x1e" + b"x" * 3968)
    assert decoding.table_bytes == 4001
    assert decoding.decode(b"\xbe" * 16_000) is None


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        (b":path", b"/a", PATH),
        (b":authority", b"", AUTHORITY),
        (b"x-mq-client-id", b"host@1", ORDINARY),
        (b"te", b"trailers", ORDINARY),
        (b"content-length", b"17", CONTENT_LENGTH),
        (b"content-length", b"-1", MALFORMED),
        (b"content-length", b"1, 1", MALFORMED),
        (b"content-length", b"", MALFORMED),
        (b"te", b"gzip", MALFORMED),
        (b"connection", b"close", MALFORMED),
        (b"keep-alive", b"1", MALFORMED),
        (b"proxy-connection", b"1", MALFORMED),
        (b"transfer-encoding", b"chunked", MALFORMED),
        (b"upgrade", b"h2c", MALFORMED),
        (b"Upper", b"1", MALFORMED),
        (b"", b"1", MALFORMED),
        (b"a b", b"1", MALFORMED),
        (b"a\x00", b"1", MALFORMED),
        (b"a:b", b"1", MALFORMED),
        (b":status", b"200", MALFORMED),
        (b":protocol", b"websocket", MALFORMED),
        (b"a", b"1\n2", MALFORMED),
        (b"a", b"1\r2", MALFORMED),
        (b"a", b"1\x002", MALFORMED),
        (b"a", b" 1", MALFORMED),
        (b"a", b"1\t", MALFORMED),
        (b"a", "ü".encode(), ORDINARY),
    ],
)
def test_the_rules_for_a_single_field(name: bytes, value: bytes, kind: int) -> None:
    assert classified(name, value) == ((name, value), kind, len(name) + len(value) + 32)


@given(st.binary(max_size=30) | st.text(string.printable, max_size=30).map(lambda text: huffman(text.encode())))
def test_the_check_of_a_huffman_string_agrees_with_its_decoding(data: bytes) -> None:
    try:
        expected = all(0x21 <= character <= 0x7E for character in decode_huffman(data))
    except ConnectionFault:
        expected = False
    assert is_plain_huffman(data) == expected


def test_every_printable_character_has_its_huffman_code() -> None:
    for character in string.printable:
        text = character.encode() * 9
        block = Encoder().encode([(b"a", text)], huffman=True)
        assert pairs(decoder(), block) == [(b"a", text)]
