"""HAProxy's PROXY protocol, versions 1 and 2: a header in which a load balancer states the address of its client.

Version 1 is a line of text, at most 107 bytes: `PROXY TCP4 10.1.2.3 10.9.9.9 56324 8081\\r\\n` (source address and
destination address, then the ports), or `PROXY UNKNOWN ...\\r\\n`.

| bytes | version 2 |
|---|---|
| 0–11 | `\\r\\n\\r\\n\\0\\r\\nQUIT\\n` |
| 12 | 0x20 (LOCAL: a connection of the balancer itself) or 0x21 (PROXY) |
| 13 | family and transport: 0x11 TCP over IPv4, 0x21 TCP over IPv6, others without an address of a client |
| 14–15 | length of the rest |
| 16– | source address, destination address, source port, destination port, then extensions, which are ignored |
"""

from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import NamedTuple

from latermq.errors import LaterMQError

V2_SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
MAX_V1_BYTES = 107
# Extensions such as the client's certificate may follow the addresses. Balancers send some hundred bytes.
MAX_V2_BYTES = 4096
_V1_START = b"PROXY "
_V2_HEAD_BYTES = 16
_LOCAL = 0x20
_PROXY = 0x21
_FAMILIES = {0x11: 4, 0x21: 16}  # the bytes of an address
_V1_ADDRESSES = {b"TCP4": IPv4Address, b"TCP6": IPv6Address}


class ProxyHeaderError(LaterMQError):
    """The bytes are not a header of the PROXY protocol."""


class ProxyHeader(NamedTuple):
    """A complete header."""

    source: tuple[str, int] | None  # the client; None if the balancer does not state one
    size_bytes: int


def read_proxy_header(data: bytes) -> ProxyHeader | None:
    """Return the header at the start of the data, or None if it is incomplete. Raises ProxyHeaderError."""
    if data.startswith(V2_SIGNATURE[: len(data)]):
        return _read_v2(data)
    if data.startswith(_V1_START[: len(data)]):
        return _read_v1(data)
    raise ProxyHeaderError("the connection does not begin with a header of the PROXY protocol")


def _read_v1(data: bytes) -> ProxyHeader | None:
    end = data.find(b"\r\n", 0, MAX_V1_BYTES)
    if end < 0:
        if len(data) >= MAX_V1_BYTES:
            raise ProxyHeaderError("the PROXY line is too long")
        return None
    words = data[:end].split(b" ")
    if words[1] == b"UNKNOWN":
        return ProxyHeader(None, end + 2)
    address_type = _V1_ADDRESSES.get(words[1])
    if address_type is None or len(words) != 6:
        raise ProxyHeaderError("the PROXY line is malformed")
    try:
        source = str(address_type(words[2].decode("ascii")))
        address_type(words[3].decode("ascii"))
    except ValueError:
        raise ProxyHeaderError("an address in the PROXY line is malformed") from None
    return ProxyHeader((source, _v1_port(words[4], words[5])), end + 2)


def _v1_port(source: bytes, destination: bytes) -> int:
    for port in (source, destination):
        if not (port.isdigit() and len(port) <= 5 and int(port) <= 65_535):
            raise ProxyHeaderError("a port in the PROXY line is malformed")
    return int(source)


def _read_v2(data: bytes) -> ProxyHeader | None:
    if len(data) < _V2_HEAD_BYTES:
        return None
    command = data[12]
    if command not in (_LOCAL, _PROXY):
        raise ProxyHeaderError("the PROXY header has an unknown version or command")
    size_bytes = _V2_HEAD_BYTES + int.from_bytes(data[14:16], "big")
    if size_bytes > MAX_V2_BYTES:
        raise ProxyHeaderError(f"the PROXY header has {size_bytes} bytes; at most {MAX_V2_BYTES} are allowed")
    width = _FAMILIES.get(data[13], 0) if command == _PROXY else 0
    if width and size_bytes < _V2_HEAD_BYTES + 2 * width + 4:
        raise ProxyHeaderError("the PROXY header is too short for its addresses")
    if len(data) < size_bytes:
        return None
    if not width:
        return ProxyHeader(None, size_bytes)
    ip = str(ip_address(data[_V2_HEAD_BYTES : _V2_HEAD_BYTES + width]))
    port_at = _V2_HEAD_BYTES + 2 * width
    return ProxyHeader((ip, int.from_bytes(data[port_at : port_at + 2], "big")), size_bytes)
