"""Compressed bodies: made with zlib, opened as whatever the sender's system flag says."""

import importlib
import zlib

from latermq.client.failures import UnreadableBody
from latermq.message.record import SYSFLAG_COMPRESSED, Message

ZLIB_LEVEL = 5
MAX_OPENED_BYTES = 64 * 1024 * 1024

_TYPE_SHIFT = 8
_TYPE_MASK = 0x7
_LZ4, _ZSTD, _ZLIB = 1, 2, 3
SYSFLAG_ZLIB = SYSFLAG_COMPRESSED | _ZLIB << _TYPE_SHIFT


def compress(body: bytes) -> tuple[bytes, int]:
    """The body to send and its system flag; one that does not shrink stays as it is."""
    smaller = zlib.compress(body, ZLIB_LEVEL)
    return (smaller, SYSFLAG_ZLIB) if len(smaller) < len(body) else (body, 0)


def open_body(message: Message, max_bytes: int = MAX_OPENED_BYTES) -> None:
    """Replace a compressed body by what it holds; the system flag stays, to tell how it was stored."""
    if message.sysflag & SYSFLAG_COMPRESSED:
        message.body = decompress(message.body, message.sysflag, max_bytes)


def decompress(body: bytes, sysflag: int, max_bytes: int = MAX_OPENED_BYTES) -> bytes:
    """What a compressed body holds, but never more than `max_bytes`."""
    kind = sysflag >> _TYPE_SHIFT & _TYPE_MASK
    if kind in (0, _ZLIB):
        return _open_zlib(body, max_bytes)
    if kind == _LZ4:
        opened = _open_with("lz4.frame", "lz4", body)
    elif kind == _ZSTD:
        opened = _open_with("zstandard", "zstandard", body)
    else:
        raise UnreadableBody(f"compression type {kind} is not known")
    if len(opened) > max_bytes:
        raise UnreadableBody(f"the body opens to more than {max_bytes} bytes")
    return opened


def _open_zlib(body: bytes, max_bytes: int) -> bytes:
    opener = zlib.decompressobj()
    try:
        opened = opener.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise UnreadableBody(f"the body is not what its zlib flag says: {error}") from None
    if len(opened) > max_bytes:
        raise UnreadableBody(f"the body opens to more than {max_bytes} bytes")
    return opened


def _open_with(module: str, package: str, body: bytes) -> bytes:
    try:
        library = importlib.import_module(module)
    except ImportError:
        raise UnreadableBody(
            f"the body is compressed with {package}, which is not installed", hint=f"pip install {package}"
        ) from None
    try:
        opened: bytes = library.decompress(body)
    except Exception as error:  # each library has an exception of its own
        raise UnreadableBody(f"the body is not what its {package} flag says: {error}") from None
    return opened
