"""Decompression of bodies: real libraries' output is read completely, and no body exceeds its limit."""

import asyncio
import zlib

import lz4.frame  # type: ignore[import-untyped]
import pytest
import zstandard

from latermq.client.producer.compression import BodyLimiter, decompress_message, decompress_messages
from latermq.message.compression import UnreadableBody, decompress
from latermq.message.record import Message

ZLIB, LZ4, ZSTD = 0x301, 0x101, 0x201
TEXT = b"again and again, " * 1_000
MIB = 1 << 20


def zstd_without_length(data: bytes) -> bytes:
    """As Java's clients write it."""
    stream = zstandard.ZstdCompressor().compressobj()
    return stream.compress(data) + stream.flush()


COMPRESSORS = [
    pytest.param(ZLIB, zlib.compress, id="zlib"),
    pytest.param(LZ4, lz4.frame.compress, id="lz4"),
    pytest.param(ZSTD, zstandard.compress, id="zstd"),
    pytest.param(ZSTD, zstd_without_length, id="zstd without its length"),
]


@pytest.mark.parametrize(("sysflag", "compress"), COMPRESSORS)
@pytest.mark.parametrize("data", [b"", b"x", TEXT, bytes(5 * MIB)], ids=["empty", "short", "text", "long"])
def test_a_body_decompresses_to_the_original(sysflag: int, compress: type[bytes], data: bytes) -> None:
    assert decompress(compress(data), sysflag) == data
    assert decompress(compress(data), sysflag, max_bytes=max(1, len(data))) == data


@pytest.mark.parametrize(("sysflag", "compress"), COMPRESSORS)
def test_a_body_above_the_limit_is_refused(sysflag: int, compress: type[bytes]) -> None:
    for size in (1_001, 5 * MIB):
        with pytest.raises(UnreadableBody, match="more than 1000 bytes") as caught:
            decompress(compress(bytes(size)), sysflag, max_bytes=1_000)
        assert "max_body_bytes" in caught.value.hint
        assert caught.value.is_final


@pytest.mark.parametrize(("sysflag", "compress"), COMPRESSORS[:3])
def test_a_truncated_or_foreign_body_is_refused(sysflag: int, compress: type[bytes]) -> None:
    for body in (compress(TEXT)[:-8], compress(TEXT)[:20], b"something else", b"\xff" * 100):
        with pytest.raises(UnreadableBody, match="is not valid"):
            decompress(body, sysflag)


def test_a_zstd_frame_with_a_large_window_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=27)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    body = stream.compress(TEXT) + stream.flush()
    assert decompress(body, ZSTD, max_bytes=128 * MIB) == TEXT
    with pytest.raises(UnreadableBody, match="not valid zstandard data"):
        decompress(body, ZSTD, max_bytes=MIB)


def message(offset: int, size: int) -> Message:
    return Message("t", zlib.compress(bytes(size)), sysflag=ZLIB, queue_offset=offset)


def test_the_original_message_stays_compressed_for_a_retry() -> None:
    original = message(7, 1_000)
    for _ in range(2):
        readable = decompress_message(original)
        assert (readable.body, readable.queue_offset) == (bytes(1_000), 7)
    plain = Message("t", b"plain")
    assert decompress_message(plain) is plain
    with pytest.raises(UnreadableBody, match=r"\(t, queue 0, offset 7\)") as caught:
        decompress_message(original, 999)
    assert caught.value.offset == 7


def test_messages_are_decompressed_up_to_a_total_size() -> None:
    messages = [message(offset, 400) for offset in range(5)]
    assert [len(readable.body) for readable in decompress_messages(messages, 1_000)] == [400, 400]
    assert len(decompress_messages(messages, 800)) == 2
    assert len(decompress_messages(messages, 10_000)) == 5
    bomb = message(9, 2_000)
    assert len(decompress_messages([*messages[:2], bomb], 1_000)) == 2
    with pytest.raises(UnreadableBody):
        decompress_messages([bomb, *messages], 1_000)


def test_handlers_wait_while_decompressed_bodies_are_at_the_limit() -> None:
    async def scenario() -> None:
        limiter = BodyLimiter(1_000)
        first = await limiter.decompress(message(0, 600))
        second = await limiter.decompress(message(1, 600))
        third = asyncio.create_task(limiter.decompress(message(2, 600)))
        await asyncio.sleep(0)
        assert not third.done()
        assert limiter.statistics() == {"decompressed_bytes": 1_200}
        limiter.release(first)
        assert (await third).queue_offset == 2
        limiter.release(second)
        with pytest.raises(UnreadableBody):
            await limiter.decompress(message(3, 1_001))
        assert limiter.statistics() == {"decompressed_bytes": 600}

    asyncio.run(scenario())
