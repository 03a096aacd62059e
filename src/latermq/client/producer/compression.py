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


def opened(message: Message, max_bytes: int = MAX_BODY_BYTES) -> Message:
    """Return the message with a decompressed body: a copy if it was compressed. The copy keeps the system flag."""
    if not message.sysflag & SYSFLAG_COMPRESSED:
        return message
    try:
        return replace(message, body=decompress(message.body, message.sysflag, max_bytes))
    except UnreadableBody as error:
        place = f"{message.topic}, queue {message.queue_id}, offset {message.queue_offset}"
        raise UnreadableBody(
            f"{error.message} ({place})", hint=error.hint, offset=message.queue_offset, is_final=error.is_final
        ) from None


def opened_together(messages: list[Message], max_bytes: int) -> list[Message]:
    """Return as many of the first messages as decompress to `max_bytes` in total.

    Raises UnreadableBody only if the first message cannot be decompressed.
    """
    shown: list[Message] = []
    left_bytes = max_bytes
    for message in messages:
        try:
            shown.append(opened(message, max_bytes if not shown else left_bytes))
        except UnreadableBody:
            if not shown:
                raise
            break  # the next call starts with it
        left_bytes -= len(shown[-1].body) if shown[-1] is not message else 0
        if left_bytes <= 0:
            break
    return shown


class OpenBodies:
    """Decompresses messages for concurrent handlers. While the open bodies total `max_bytes`, further ones wait."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._shrank = asyncio.Event()

    async def open(self, message: Message) -> Message:
        """Return the message with a decompressed body, which counts towards the limit until `close`."""
        while self._bytes >= self._max_bytes:
            self._shrank.clear()
            await self._shrank.wait()
        shown = opened(message, self._max_bytes)
        self._bytes += len(shown.body)
        return shown

    def close(self, shown: Message) -> None:
        """Release a message that `open` returned."""
        self._bytes -= len(shown.body)
        self._shrank.set()

    def statistics(self) -> dict[str, int]:
        return {"open_body_bytes": self._bytes}


def decompress(body: bytes, sysflag: int, max_bytes: int = MAX_BODY_BYTES) -> bytes:
    """Decompress a body. Raises UnreadableBody if it exceeds `max_bytes`, without reading the rest."""
    kind = sysflag >> _TYPE_SHIFT & _TYPE_MASK
    if kind in (0, _ZLIB):
        return _open_zlib(body, max_bytes)
    if kind == _LZ4:
        return _open_with("lz4.frame", "lz4", _lz4_reader, body, max_bytes)
    if kind == _ZSTD:
        return _open_with("zstandard", "zstandard", _zstd_reader, body, max_bytes)
    raise UnreadableBody(f"compression type {kind} is not known")


def _open_zlib(body: bytes, max_bytes: int) -> bytes:
    opener = zlib.decompressobj()
    try:
        opened = opener.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise UnreadableBody(f"the body is not what its zlib flag says: {error}") from None
    if len(opened) > max_bytes:
        raise _too_large(max_bytes)
    if not opener.eof:
        raise UnreadableBody("the body is not what its zlib flag says: it ends too early")
    return opened


Reader = Callable[[int], bytes]  # takes a maximum size; returns the next bytes, empty at the end


def _open_with(
    module: str, package: str, make_reader: Callable[[ModuleType, bytes, int], Reader], body: bytes, max_bytes: int
) -> bytes:
    try:
        library = importlib.import_module(module)
    except ImportError:
        raise UnreadableBody(
            f"the body is compressed with {package}, which is not installed",
            hint=f"pip install {package}",
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
        raise UnreadableBody(f"the body is not what its {package} flag says: {error}") from None
    if total_bytes > max_bytes:
        raise _too_large(max_bytes)
    return b"".join(pieces)


def _lz4_reader(library: ModuleType, body: bytes, max_bytes: int) -> Reader:
    opener = library.LZ4FrameDecompressor()
    data = body

    def read(size: int) -> bytes:
        nonlocal data
        if opener.eof:
            return b""
        piece: bytes = opener.decompress(data, size)
        data = b""
        if not piece and not opener.eof:
            raise EOFError("it ends too early")
        return piece

    return read


def _zstd_reader(library: ModuleType, body: bytes, max_bytes: int) -> Reader:
    """Return a streaming reader: Java's clients do not write the body's length, and a stream can stop midway."""
    window_bytes = max(max_bytes, _MIN_WINDOW_BYTES)
    stream = library.ZstdDecompressor(max_window_size=window_bytes).stream_reader(body, read_across_frames=True)
    told_bytes = library.frame_content_size(body)
    total_bytes = 0

    def read(size: int) -> bytes:
        nonlocal total_bytes
        piece: bytes = stream.read(size)
        total_bytes += len(piece)
        if not piece and total_bytes < told_bytes:
            raise EOFError("it ends too early")
        return piece

    return read


def _too_large(max_bytes: int) -> UnreadableBody:
    return UnreadableBody(
        f"the body opens to more than {max_bytes} bytes", hint="Raise max_body_bytes if its sender is trusted"
    )
