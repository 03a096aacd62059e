"""The header of the PROXY protocol: golden bytes, every cut of them, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latermq.config import load_config
from latermq.errors import ConfigError
from latermq.protocol.proxy_protocol import (
    MAX_V1_BYTES,
    MAX_V2_BYTES,
    V2_SIGNATURE,
    ProxyHeader,
    ProxyHeaderError,
    read_proxy_header,
)
from latermq.server.proxy.process import transport_limits

IPV6 = "2001:db8::1"
# From the specification's text and its structures; 0xDC04 is port 56324, 0x1F91 is 8081.
GOLDEN: dict[str, tuple[bytes, tuple[str, int] | None]] = {
    "v1, IPv4": (b"PROXY TCP4 192.168.0.1 192.168.0.11 56324 443\r\n", ("192.168.0.1", 56324)),
    "v1, IPv6": (b"PROXY TCP6 2001:db8::1 2001:db8::2 56324 443\r\n", (IPV6, 56324)),
    "v1, longest": (
        b"PROXY TCP6 ffff:f...f:ffff ffff:f...f:ffff 65535 65535\r\n".replace(
            b"ffff:f...f:ffff", b"ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"
        ),
        ("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", 65535),
    ),
    "v1, unknown": (b"PROXY UNKNOWN\r\n", None),
    "v1, unknown with addresses": (b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", None),
    "v2, IPv4": (
        bytes.fromhex("0d0a0d0a000d0a515549540a 21 11 000c c0a80001 c0a8000b dc04 1f91"),
        ("192.168.0.1", 56324),
    ),
    "v2, IPv6": (
        bytes.fromhex(
            "0d0a0d0a000d0a515549540a 21 21 0024"
            "20010db8000000000000000000000001 20010db8000000000000000000000002 dc04 1f91"
        ),
        (IPV6, 56324),
    ),
    "v2, IPv4 with an extension": (
        bytes.fromhex("0d0a0d0a000d0a515549540a 21 11 0011 c0a80001 c0a8000b dc04 1f91 04 0002 0000"),
        ("192.168.0.1", 56324),
    ),
    "v2, a health check of the balancer": (bytes.fromhex("0d0a0d0a000d0a515549540a 20 00 0000"), None),
    "v2, local with addresses": (
        bytes.fromhex("0d0a0d0a000d0a515549540a 20 11 000c c0a80001 c0a8000b dc04 1f91"),
        None,
    ),
    "v2, a Unix socket": (bytes.fromhex("0d0a0d0a000d0a515549540a 21 31 00d8") + bytes(216), None),
    "v2, unspecified": (bytes.fromhex("0d0a0d0a000d0a515549540a 21 00 0003 ffffff"), None),
}


@pytest.mark.parametrize(("data", "source"), GOLDEN.values(), ids=GOLDEN)
def test_a_header_is_read_and_what_follows_is_left(data: bytes, source: tuple[str, int] | None) -> None:
    assert read_proxy_header(data) == ProxyHeader(source, len(data))
    assert read_proxy_header(data + b"PRI * HTTP/2.0") == ProxyHeader(source, len(data))


@pytest.mark.parametrize(("data", "source"), GOLDEN.values(), ids=GOLDEN)
def test_every_cut_of_a_header_is_incomplete(data: bytes, source: tuple[str, int] | None) -> None:
    assert all(read_proxy_header(data[:end]) is None for end in range(len(data)))


@pytest.mark.parametrize(
    "data",
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
        b"\r\n\r\n\0\r\nQUIX",
        b"proxy TCP4 1.2.3.4 1.2.3.4 1 2\r\n",
        b"PROXY TCP4 1.2.3.4 1.2.3.4 1\r\n",
        b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2 3\r\n",
        b"PROXY TCP4  1.2.3.4 1.2.3.4 1 2\r\n",
        b"PROXY TCP4 1.2.3 1.2.3.4 1 2\r\n",
        b"PROXY TCP4 1.2.3.4 ::1 1 2\r\n",
        b"PROXY TCP4 01.2.3.4 1.2.3.4 1 2\r\n",
        b"PROXY TCP6 1.2.3.4 1.2.3.4 1 2\r\n",
        b"PROXY TCP4 1.2.3.4 1.2.3.4 65536 2\r\n",
        b"PROXY TCP4 1.2.3.4 1.2.3.4 -1 2\r\n",
        b"PROXY TCP4 1.2.3.4 1.2.3.4 1 +2\r\n",
        b"PROXY TCP4 1.2.3.\xd9\xa4 1.2.3.4 1 2\r\n",
        b"PROXY UDP4 1.2.3.4 1.2.3.4 1 2\r\n",
        b"PROXY \r\n",
        b"PROXY " + b"x" * (MAX_V1_BYTES - 6),
        b"PROXY UNKNOWN" + b" " * MAX_V1_BYTES + b"\r\n",
        V2_SIGNATURE + bytes.fromhex("11 11 000c") + bytes(12),  # version 1 in the form of version 2
        V2_SIGNATURE + bytes.fromhex("22 11 000c") + bytes(12),
        V2_SIGNATURE + bytes.fromhex("21 11 000b") + bytes(11),
        V2_SIGNATURE + bytes.fromhex("21 21 000c") + bytes(12),
        V2_SIGNATURE + bytes.fromhex("20 00 ffff"),
        V2_SIGNATURE + b"\x21\x11" + (MAX_V2_BYTES - 15).to_bytes(2, "big"),
    ],
)
def test_a_malformed_or_long_header_is_refused(data: bytes) -> None:
    with pytest.raises(ProxyHeaderError):
        read_proxy_header(data)


@given(st.binary(max_size=300) | st.builds(lambda rest: V2_SIGNATURE + rest, st.binary(max_size=300))
       | st.builds(lambda rest: b"PROXY TCP4 " + rest, st.binary(max_size=120)))  # fmt: skip
def test_any_bytes_are_a_header_an_incomplete_one_or_refused(data: bytes) -> None:
    try:
        header = read_proxy_header(data)
    except ProxyHeaderError:
        return
    if header is None:
        assert len(data) < MAX_V2_BYTES
    else:
        assert 0 < header.size_bytes <= len(data)


def test_balancers_are_addresses_and_networks() -> None:
    config = load_config(settings=["proxy.balancers=10.1.2.3; 10.2.0.0/16;2001:db8::/32"])
    assert [str(network) for network in transport_limits(config.proxy).balancers] == [
        "10.1.2.3/32",
        "10.2.0.0/16",
        "2001:db8::/32",
    ]
    assert transport_limits(load_config().proxy).balancers == ()
    for text in ("10.2.0.1/16", "10.0.0.0/33", "host", "10.0.0.1,10.0.0.2"):
        with pytest.raises(ConfigError, match=r"proxy\.balancers"):
            load_config(settings=[f"proxy.balancers={text}"])
