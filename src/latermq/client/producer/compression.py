"""Compression with zlib, and decompression of any type named in the system flag, up to a maximum size."""

import asyncio
import importlib
import zlib
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

from latermq.client.session.failures import UnreadableBody
from latermq.message.record import Message
from latermq.message.record_fields import SYSFLAG_COMPRESSED

ZLIB_LEVEL = 5
MAX_BODY_BYTES = 64 * 1024 * 1024

_TYPE_SHIFT = 8
_TYPE_MASK = 0x7
_LZ4, _ZSTD, _ZLIB = 1, 2, 3
SYSFLAG_ZLIB = SYSFLAG_COMPRESSED | _ZLIB << _TYPE_SHIFT
_CHUNK_BYTES = 1 << 20
# A zstd frame declares its window size, and the decoder allocates it. Only the three highest levels need more.
_MIN_WINDOW_BYTES = 8 << 20


def compress(body: bytes) -> tuple[bytes, int]:
    """Return the body to send and its system flag. A body that does not shrink stays uncompressed."""
    smaller = zlib.compress(body, ZLIB_LEVEL)
    return (smaller, SYSFLAG_ZLIB) if len(smaller) < len(body) else (body, 0)


def decompress_message(message: Message, max_bytes: int = MAX_BODY_BYTES) -> Message:
    """Return the message with a decompressed body: a copy if it was compressed. The copy keeps the system flag."""
    if not message.sysflag & SYSFLAG_COMPRESSED:
        return message
    try:
        return replace(message, body=decompress(message.body, message.sysflag, max_bytes))
    except UnreadableBody as error:
        location = f"{message.topic}, queue {message.queue_id}, offset {message.queue_offset}"
        raise UnreadableBody(
            f"{error.message} ({location})", hint=error.hint, offset=message.queue_offset, is_final=error.is_final
        ) from None


def decompress_messages(messages: list[Message], max_bytes: int) -> list[Message]:
    """Return as many of the first messages as decompress to `max_bytes` in total.

    Raises UnreadableBody only if the first message cannot be decompressed.
    """
    readable: list[Message] = []
    left_bytes = max_bytes
    for message in messages:
        try:
            readable.append(decompress_message(message, max_bytes if not readable else left_bytes))
        except UnreadableBody:
            if not readable:
                raise
            break  # the next call starts with it
        left_bytes -= len(readable[-1].body) if readable[-1] is not message else 0
        if left_bytes <= 0:
            break
    return readable


class BodyLimiter:
    """Decompresses messages for concurrent handlers. While the open bodies total `max_bytes`, further ones wait."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._released = asyncio.Event()

    async def decompress(self, message: Message) -> Message:
        """Return the message with a decompressed body, which counts towards the limit until `release`."""
        while self._bytes >= self._max_bytes:
            self._released.clear()
            await self._released.wait()
        readable = decompress_message(message, self._max_bytes)
        self._bytes += len(readable.body)
        return readable

    def release(self, readable: Message) -> None:
        """Release a message that `decompress` returned."""
        self._bytes -= len(readable.body)
        self._released.set()

    def statistics(self) -> dict[str, int]:
        return {"decompressed_bytes": self._bytes}


def decompress(body: bytes, sysflag: int, max_bytes: int = MAX_BODY_BYTES) -> bytes:
    """Decompress a body. Raises UnreadableBody if it exceeds `max_bytes`, without reading the rest."""
    kind = sysflag >> _TYPE_SHIFT & _TYPE_MASK
    if kind in (0, _ZLIB):
        return _decompress_zlib(body, max_bytes)
    if kind == _LZ4:
        return _decompress_with("lz4.frame", "lz4", _lz4_reader, body, max_bytes)
    if kind == _ZSTD:
        return _decompress_with("zstandard", "zstandard", _zstd_reader, body, max_bytes)
    raise UnreadableBody(f"unknown compression type {kind}")


def _decompress_zlib(body: bytes, max_bytes: int) -> bytes:
    decompressor = zlib.decompressobj()
    try:
        decompressed = decompressor.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise UnreadableBody(f"the body is not valid zlib data: {error}") from None
    if len(decompressed) > max_bytes:
        raise _too_large_error(max_bytes)
    if not decompressor.eof:
        raise UnreadableBody("the body is not valid zlib data: it is truncated")
    return decompressed


Reader = Callable[[int], bytes]  # takes a maximum size; returns the next bytes, empty at the end


def _decompress_with(
    module: str, package: str, make_reader: Callable[[ModuleType, bytes, int], Reader], body: bytes, max_bytes: int
) -> bytes:
    try:
        library = importlib.import_module(module)
    except ImportError:
        raise UnreadableBody(
            f"the body is compressed with {package}, which is not installed",
            hint=f"Run pip install {package}",
            is_final=False,
        ) from None
    pieces: list[bytes] = []
    total_bytes = 0
    try:
        read = make_reader(library, body, max_bytes)
        while total_bytes <= max_bytes and (piece := read(_CHUNK_BYTES)):
            pieces.append(piece)
            total_bytes += len(piece)
    except Exception as error:  # each library has its own exception type
        raise UnreadableBody(f"the body is not valid {package} data: {error}") from None
    if total_bytes > max_bytes:
        raise _too_large_error(max_bytes)
    return b"".join(pieces)


def _lz4_reader(library: ModuleType, body: bytes, max_bytes: int) -> Reader:
    decompressor = library.LZ4FrameDecompressor()
    data = body

    def read(size: int) -> bytes:
        nonlocal data
        if decompressor.eof:
            return b""
        piece: bytes = decompressor.decompress(data, size)
        data = b""
        if not piece and not decompressor.eof:
            raise EOFError("it is truncated")
        return piece

    return read


def _zstd_reader(library: ModuleType, body: bytes, max_bytes: int) -> Reader:
    """Return a streaming reader: Java's clients do not write the body's length, and a stream can stop midway."""
    window_bytes = max(max_bytes, _MIN_WINDOW_BYTES)
    stream = library.ZstdDecompressor(max_window_size=window_bytes).stream_reader(body, read_across_frames=True)
    declared_bytes = library.frame_content_size(body)
    total_bytes = 0

    def read(size: int) -> bytes:
        nonlocal total_bytes
        piece: bytes = stream.read(size)
        total_bytes += len(piece)
        if not piece and total_bytes < declared_bytes:
            raise EOFError("it is truncated")
        return piece

    return read


def _too_large_error(max_bytes: int) -> UnreadableBody:
    return UnreadableBody(
        f"the body decompresses to more than {max_bytes} bytes", hint="Raise max_body_bytes if you trust its sender"
    )
