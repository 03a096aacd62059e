"""HPACK against the examples of RFC 7541, appendix C."""

import pytest

from latermq.protocol.http2.hpack.decoder import FieldCache, HeaderDecoder, _integer
from latermq.protocol.http2.hpack.encoder import encode_fields

REQUEST = [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"www.example.com")]
REQUESTS = [
    REQUEST,
    [*REQUEST, (b"cache-control", b"no-cache")],
    [
        (b":method", b"GET"),
        (b":scheme", b"https"),
        (b":path", b"/index.html"),
        (b":authority", b"www.example.com"),
        (b"custom-key", b"custom-value"),
    ],
]
DATE = b"Mon, 21 Oct 2013 20:13:21 GMT"
LOCATION = (b"location", b"https://www.example.com")
PRIVATE = (b"cache-control", b"private")
RESPONSES = [
    [(b":status", b"302"), PRIVATE, (b"date", DATE), LOCATION],
    [(b":status", b"307"), PRIVATE, (b"date", DATE), LOCATION],
    [
        (b":status", b"200"),
        PRIVATE,
        (b"date", b"Mon, 21 Oct 2013 20:13:22 GMT"),
        LOCATION,
        (b"content-encoding", b"gzip"),
        (b"set-cookie", b"foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"),
    ],
]
C3 = (
    "828684410f7777772e6578616d706c652e636f6d",
    "828684be58086e6f2d6361636865",
    "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
)
C4 = (
    "828684418cf1e3c2e5f23a6ba0ab90f4ff",
    "828684be5886a8eb10649cbf",
    "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
)
C5 = (
    "4803333032580770726976617465611d4d6f6e2c203231204f637420323031332032303a31333a323120474d546e1768747470733a2f2f7777"
    "772e6578616d706c652e636f6d",
    "4803333037c1c0bf",
    "88c1611d4d6f6e2c203231204f637420323031332032303a31333a323220474d54c05a04677a69707738666f6f3d4153444a4b48514b425a58"
    "4f5157454f50495541585157454f49553b206d61782d6167653d333630303b2076657273696f6e3d31",
)
C6 = (
    "488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad171863c78f0b97c8e9ae82ae43d3",
    "4883640effc1c0bf",
    "88c16196d07abe941054d444a8200595040b8166e084a62d1bffc05a839bd9ab77ad94e7821dd7f2e6c7b335dfdfcd5b3960d5af27087f3672"
    "c1ab270fb5291f9587316065c003ed4ee5b1063d5007",
)


def decoder(table_bytes: int = 4096) -> HeaderDecoder:
    new = HeaderDecoder(FieldCache(), max_list_bytes=65_536)
    new.limit_table(table_bytes)
    return new


def pairs(decoding: HeaderDecoder, block: bytes) -> list[tuple[bytes, bytes]]:
    fields = decoding.decode(block)
    assert fields is not None
    return [pair for pair, _, _ in fields]


@pytest.mark.parametrize(
    ("encoded", "prefix_bits", "value"),
    [("0a", 5, 10), ("1f9a0a", 5, 1337), ("2a", 8, 42)],
    ids=["C.1.1", "C.1.2", "C.1.3"],
)
def test_integers(encoded: str, prefix_bits: int, value: int) -> None:
    assert _integer(bytes.fromhex(encoded), 0, prefix_bits) == (value, len(encoded) // 2)


@pytest.mark.parametrize("table_bytes", [4096, 0])
@pytest.mark.parametrize(
    ("encoded", "field", "size_bytes"),
    [
        ("400a637573746f6d2d6b65790d637573746f6d2d686561646572", (b"custom-key", b"custom-header"), 55),
        ("040c2f73616d706c652f70617468", (b":path", b"/sample/path"), 0),
        ("100870617373776f726406736563726574", (b"password", b"secret"), 0),
        ("82", (b":method", b"GET"), 0),
    ],
    ids=["C.2.1", "C.2.2", "C.2.3", "C.2.4"],
)
def test_single_fields(encoded: str, field: tuple[bytes, bytes], size_bytes: int, table_bytes: int) -> None:
    decoding = decoder(table_bytes)
    assert pairs(decoding, bytes.fromhex(encoded)) == [field]
    assert decoding.table_bytes == min(size_bytes, table_bytes)
    assert pairs(decoding, bytes.fromhex(encoded)) == [field]  # the second time from the cache, without a table


@pytest.mark.parametrize("blocks", [C3, C4], ids=["C.3", "C.4"])
def test_a_series_of_requests_shares_a_table(blocks: tuple[str, ...]) -> None:
    decoding = decoder()
    assert [pairs(decoding, bytes.fromhex(block)) for block in blocks] == REQUESTS
    assert decoding.table_bytes == 164


@pytest.mark.parametrize("blocks", [C5, C6], ids=["C.5", "C.6"])
def test_a_small_table_evicts_its_oldest_fields(blocks: tuple[str, ...]) -> None:
    decoding = decoder(256)
    sizes_bytes = []
    for block, fields in zip(blocks, RESPONSES, strict=True):
        assert pairs(decoding, bytes.fromhex(block)) == fields
        sizes_bytes.append(decoding.table_bytes)
    assert sizes_bytes == [222, 222, 215]


def test_the_encoder_uses_the_static_table() -> None:
    fields = [(b":status", b"200"), (b":path", b"/sample/path"), (b"password", b"secret")]
    assert encode_fields(fields).hex() == "88" + "040c2f73616d706c652f70617468" + "000870617373776f726406736563726574"
