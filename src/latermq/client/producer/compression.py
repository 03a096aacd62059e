"""Compression of bodies with zlib, and decompression of messages within a budget of memory."""

import asyncio
import zlib
from dataclasses import replace

from latermq.message.compression import MAX_BODY_BYTES, SYSFLAG_ZLIB_TYPE, UnreadableBody, decompress
from latermq.message.record import Message
from latermq.message.record_fields import SYSFLAG_COMPRESSED

ZLIB_LEVEL = 5
SYSFLAG_ZLIB = SYSFLAG_COMPRESSED | SYSFLAG_ZLIB_TYPE


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
