"""gRPC messages in a stream of bytes: a compression flag, a length of 4 bytes, and the message."""

import struct
import zlib

from latermq.protocol.http2.grpc.status import GrpcError, StatusCode

PREFIX_BYTES = 5
_GZIP_WINDOW_BITS = 31
_PREFIX = struct.Struct(">BI")
_pack_prefix = _PREFIX.pack
_read_prefix = _PREFIX.unpack_from


def message_prefix(message: bytes) -> bytes:
    """Return the bytes to send before an uncompressed message."""
    return _pack_prefix(0, len(message))


def only_message(data: bytes) -> bytes | None:
    """Return the message if the data is one complete, uncompressed message, as almost all requests are."""
    size = len(data) - PREFIX_BYTES
    return data[PREFIX_BYTES:] if size >= 0 and _read_prefix(data) == (0, size) else None


class MessageReader:
    """Splits a stream of bytes into messages. It holds at most one incomplete message."""

    __slots__ = ("_is_gzip", "_max_bytes", "_needed_bytes", "_pieces", "held_bytes")

    def __init__(self, max_bytes: int, is_gzip: bool) -> None:
        self._max_bytes = max_bytes
        self._is_gzip = is_gzip
        self._pieces: list[bytes] = []
        self._needed_bytes = PREFIX_BYTES  # of the incomplete message, as far as is known
        self.held_bytes = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return the messages that this data completes. Raises GrpcError; the call must end then."""
        self._pieces.append(data)
        self.held_bytes += len(data)
        if self.held_bytes < self._needed_bytes:
            return []
        buffer = data if len(self._pieces) == 1 else b"".join(self._pieces)
        messages = []
        at = 0
        end = len(buffer)
        needed = PREFIX_BYTES
        while end - at >= PREFIX_BYTES:
            size = int.from_bytes(buffer[at + 1 : at + PREFIX_BYTES], "big")
            if size > self._max_bytes:
                raise self._too_large(size)
            needed = PREFIX_BYTES + size
            if end - at < needed:
                break
            message = buffer[at + PREFIX_BYTES : at + needed]
            messages.append(message if buffer[at] == 0 else self._decompressed(buffer[at], message))
            at += needed
            needed = PREFIX_BYTES
        self._needed_bytes = needed
        self.held_bytes = end - at
        self._pieces = [buffer[at:]] if at < end else []
        return messages

    def _decompressed(self, flag: int, message: bytes) -> bytes:
        if flag != 1 or not self._is_gzip:
            raise GrpcError(StatusCode.INTERNAL, f"the compression flag is {flag}, but grpc-encoding is not gzip")
        unpacking = zlib.decompressobj(_GZIP_WINDOW_BITS)
        try:
            data = unpacking.decompress(message, self._max_bytes + 1)
        except zlib.error:
            raise GrpcError(StatusCode.INTERNAL, "the message cannot be decompressed") from None
        if len(data) > self._max_bytes:
            raise self._too_large(len(data))
        if not unpacking.eof or unpacking.unused_data:
            raise GrpcError(StatusCode.INTERNAL, "the message cannot be decompressed")
        return data

    def _too_large(self, size: int) -> GrpcError:
        return GrpcError(
            StatusCode.RESOURCE_EXHAUSTED,
            f"the message has {size} bytes or more; at most {self._max_bytes} are allowed",
        )
