"""Message ids: the offset id (where a record is stored) and the unique key (made by the sender)."""

import socket
import struct
from collections.abc import Callable

from latermq.clock import Clock
from latermq.errors import QueryNotFound

IPV4_HOST_BYTES = 8  # what `pack_host` makes of an IPv4 address
_V4_ID_CHARS = 32
_V6_ID_CHARS = 56


def pack_host(ip: str, port: int) -> bytes:
    """An address as records and ids hold it: 4 or 16 bytes of IP, then the port in 4 bytes."""
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    return socket.inet_pton(family, ip) + struct.pack(">I", port)


def unpack_host(packed: bytes) -> tuple[str, int]:
    """The inverse of `pack_host`."""
    family = socket.AF_INET if len(packed) == 8 else socket.AF_INET6
    return socket.inet_ntop(family, packed[:-4]), int.from_bytes(packed[-4:], "big")


def offset_message_id(store_host: bytes, physical_offset: int) -> str:
    """The id under which `VIEW_MESSAGE_BY_ID` finds a record: the store's packed host and the physical offset."""
    return f"{store_host.hex().upper()}{physical_offset:016X}"


def parse_offset_message_id(message_id: str) -> tuple[str, int, int]:
    """(ip, port, physical offset) of an offset id."""
    if len(message_id) not in (_V4_ID_CHARS, _V6_ID_CHARS):
        raise QueryNotFound(f"message id {message_id!r} is not an offset id", hint="It has 32 or 56 hexadecimal digits")
    try:
        raw = bytes.fromhex(message_id)
    except ValueError:
        raise QueryNotFound(f"message id {message_id!r} is not hexadecimal") from None
    ip, port = unpack_host(raw[:-8])
    return ip, port, int.from_bytes(raw[-8:], "big", signed=True)


class UniqueKeys:
    """Makes unique keys in the shape Java's client gives them: ip, process, instance, milliseconds, counter."""

    def __init__(self, clock: Clock, ip: bytes, process_id: int, random_bytes: Callable[[int], bytes]) -> None:
        self._clock = clock
        # The last four address bytes keep an IPv6 sender's key as short as everybody else's.
        self._prefix = (ip[-4:] + (process_id & 0xFFFF).to_bytes(2, "big") + random_bytes(4)).hex().upper()
        self._base_ms = clock.now_ms()
        self._counter = 0

    def next(self) -> str:
        """A key that no other sender makes, nor this one again."""
        self._counter = (self._counter + 1) & 0xFFFF
        elapsed_ms = (self._clock.now_ms() - self._base_ms) & 0xFFFFFFFF
        return f"{self._prefix}{elapsed_ms:08X}{self._counter:04X}"
