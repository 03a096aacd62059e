"""Bodies that decompress to hundreds of times their size: consumers refuse them, continue, and use little memory."""

import json
import subprocess
import sys
import zlib
from collections.abc import Iterator

import lz4.frame  # type: ignore[import-untyped]
import pytest
import zstandard

from latermq.protocol.remoting.codes import Request, Response
from tests.security.attacker import attacking
from tests.support.serving import Server, serving

MIB = 1 << 20
BOMB_BYTES = 150 * MIB
CONSUMER = """
import asyncio, json, resource, sys
from latermq.client import PushConsumer

async def main(namesrv, topic, expected, settings):
    seen, done = [], asyncio.Event()
    def handle(message):
        seen.append(len(message.body))
        if len(seen) >= expected:
            done.set()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with PushConsumer(namesrv, "G" + topic, handle, consume_from="first", **settings) as consumer:
        await consumer.subscribe(topic)
        await asyncio.wait_for(done.wait(), 20)
        failed = consumer.statistics()["failed"]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"seen": seen, "failed": failed, "grew_kib": peak - before}))

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4])))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("data")) as running:
        yield running


def zlib_bomb() -> bytes:
    stream = zlib.compressobj(9)
    return b"".join(stream.compress(bytes(MIB)) for _ in range(BOMB_BYTES // MIB)) + stream.flush()


def zstd_bomb() -> bytes:
    stream = zstandard.ZstdCompressor().compressobj(size=BOMB_BYTES)
    return b"".join(stream.compress(bytes(MIB)) for _ in range(BOMB_BYTES // MIB)) + stream.flush()


def lz4_bomb() -> bytes:
    with lz4.frame.LZ4FrameCompressor() as stream:
        pieces = [stream.begin(BOMB_BYTES), *(stream.compress(bytes(MIB)) for _ in range(BOMB_BYTES // MIB))]
        return b"".join([*pieces, stream.flush()])


BOMBS = ((zlib_bomb, 0x301), (lz4_bomb, 0x101), (zstd_bomb, 0x201))


def store(server: Server, topic: str, bodies: list[tuple[bytes, int]], properties: str = "") -> None:
    with attacking(server.port) as attacker:
        for body, sysflag in bodies:
            fields = {
                "a": "P", "b": topic, "c": "TBW102", "d": "1", "e": "0", "f": str(sysflag), "g": "1700000000000",
                "h": "0", "i": properties, "j": "0", "k": "false", "m": "false",
            }  # fmt: skip
            assert attacker.call(Request.SEND_MESSAGE_V2, fields, body).code == Response.SUCCESS


def consume(server: Server, topic: str, expected: int, **settings: object) -> dict[str, object]:
    command = [sys.executable, "-c", CONSUMER, server.namesrv, topic, str(expected), json.dumps(settings)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-4_000:]
    assert "Traceback" not in done.stderr
    assert "decompresses to more than" in done.stderr
    report: dict[str, object] = json.loads(done.stdout)
    return report


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
def test_a_consumer_skips_bombs_and_uses_little_memory(server: Server, orderly: bool) -> None:
    topic = f"bombs{int(orderly)}"
    bombs = [(compress(), sysflag) for compress, sysflag in BOMBS]
    store(server, topic, [(b"first", 0), *bombs, (b"fifth", 0), (zlib.compress(b"last!!"), 0x301)])
    report = consume(server, topic, 3, orderly=orderly, max_body_bytes=8 * MIB)
    assert sorted(report["seen"]) == [5, 5, 6]  # type: ignore[call-overload]
    assert report["failed"] == 3
    assert report["grew_kib"] < 60 * 1024, "less than one decompressed body"  # type: ignore[operator]


def test_many_bodies_just_below_the_limit_are_not_decompressed_at_the_same_time(server: Server) -> None:
    body = zlib.compress(bytes(7 * MIB))
    store(server, "many", [(zlib_bomb(), 0x301), *[(body, 0x301)] * 30])
    report = consume(server, "many", 30, max_body_bytes=8 * MIB)
    assert report["seen"] == [7 * MIB] * 30
    assert report["grew_kib"] < 100 * 1024  # type: ignore[operator]


def test_message_print_skips_a_bomb_with_a_note(server: Server) -> None:
    store(server, "printed", [(b"first", 0), (zlib_bomb(), 0x301), (b"third", 0)])
    command = [sys.executable, "-m", "latermq", "message", "print", "printed", "--namesrv", server.namesrv, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["body"] for line in done.stdout.splitlines()] == ["first", "third"]
    assert "skipped: the body decompresses to more than 67108864 bytes (printed, queue 0, offset 1)" in done.stderr


def test_message_query_shows_the_messages_around_a_bomb(server: Server) -> None:
    store(server, "queried", [(b"first", 0), (zlib_bomb(), 0x301), (b"third", 0)], "KEYS\x01k\x02")
    command = [sys.executable, "-m", "latermq", "message", "query", "queried", "--key", "k", "--json"]
    done = subprocess.run(
        [*command, "--namesrv", server.namesrv], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["body"] for line in done.stdout.splitlines()] == ["first", "third"]
    assert "skipped: the body decompresses to more than" in done.stderr
