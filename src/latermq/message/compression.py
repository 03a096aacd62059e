"""Decompression of bodies, of any type named in the system flag, up to a maximum size."""

import importlib
import zlib
from collections.abc import Callable
from types import ModuleType

from latermq.errors import LaterMQError

MAX_BODY_BYTES = 64 * 1024 * 1024

_TYPE_SHIFT = 8
_TYPE_MASK = 0x7
_LZ4, _ZSTD, _ZLIB = 1, 2, 3
SYSFLAG_ZLIB_TYPE = _ZLIB << _TYPE_SHIFT
_CHUNK_BYTES = 1 << 20
# A zstd frame declares its window size, and the decoder allocates it. Only the three highest levels need more.
_MIN_WINDOW_BYTES = 8 << 20


class UnreadableBody(LaterMQError):
    """A compressed body cannot be decompressed here.

    `offset` is the queue offset of its message. To skip the message, continue at the next offset. `is_final` means that
    a retry cannot help. It is false if a library is missing, which can still be installed.
    """

    def __init__(self, message: str, *, hint: str = "", offset: int = -1, is_final: bool = True) -> None:
        super().__init__(message, hint=hint)
        self.offset = offset
        self.is_final = is_final


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
