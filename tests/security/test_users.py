"""The attacks of strangers on a broker that checks users: none gets further than the check, which is bounded."""

import asyncio
import contextlib
import random
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from latermq.access import failed_attempts
from latermq.errors import LaterMQError
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.frames import Command, FrameReader, encode_frame
from latermq.server.access.users import MAX_FAILURES
from latermq.server.broker.process import BrokerProcess
from tests.bench.attacks import ATTACKS, BROKER, Attack
from tests.integration.brokers import run_with_broker, send_fields
from tests.integration.raw_client import RawClient, connect
from tests.integration.test_access import ON, call, create_user, send
from tests.integration.test_authorization import state_of
from tests.security.attacker import Attacker, attacking, cpu_s
from tests.security.fuzzing import Fuzzer
from tests.security.shapes import broker_shapes
from tests.support.needs import LONG
from tests.support.serving import Server, serving
from tests.support.signed_requests import signed

ON_BROKER = [attack for attack in ATTACKS if attack.on == BROKER and attack.connections]
FUZZED = 200_000 if LONG else 4_000
BATCH = 2 * MAX_FAILURES
PUSHED_BYTES = 1 << 20
# Each connection may cost the decoding of what it sent, and a few checks.
MAX_CPU_S = 3.0
REFUSED = {Response.NO_PERMISSION}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    options = [word for setting in ON for word in ("--set", setting)]
    with serving(tmp_path_factory.mktemp("data"), *options) as running:
        yield running


def ask(client: Attacker, user: str, code: Request, fields: dict[str, str] | None = None, body: bytes = b"") -> Command:
    return client.call(code, signed(user, fields or {}, body), body)


def seen_by_root(port: int) -> tuple[bytes, bytes, str]:
    """Topics, groups and the end of the log."""
    with attacking(port) as root:
        topics, groups = (
            ask(root, "root", code).body
            for code in (Request.GET_ALL_TOPIC_CONFIG, Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        )
        status = ask(root, "root", Request.GET_BROKER_RUNTIME_INFO).body.decode()
        return topics, groups, status.partition('"commitLogMaxOffset":')[2].partition(",")[0]


def test_the_attacks_of_a_stranger_are_not_served(server: Server) -> None:
    with attacking(server.port) as root:
        assert ask(root, "root", Request.SEND_MESSAGE_V2, send_fields("plain"), b"x").code == Response.SUCCESS
        before = seen_by_root(server.port)
        used_s = cpu_s(server.broker_pid())
        for attack in ON_BROKER:
            codes = replies_to(server.port, attack)
            assert set(codes) <= REFUSED, attack.name
            assert len(codes) <= MAX_FAILURES, attack.name
        used_s = cpu_s(server.broker_pid()) - used_s
        assert used_s < MAX_CPU_S, f"{len(ON_BROKER)} attacks took {used_s:.2f} s of CPU"
        assert seen_by_root(server.port) == before
        assert ask(root, "root", Request.SEND_MESSAGE_V2, send_fields("plain"), b"x").code == Response.SUCCESS


def replies_to(port: int, attack: Attack) -> list[int]:
    """What a stranger gets that sends all at once and waits for a moment."""
    data = attack.bytes_of()
    codes: list[int] = []
    with attacking(port) as stranger, contextlib.suppress(ConnectionError, TimeoutError):
        stranger.settimeout(0.3)
        with contextlib.suppress(TimeoutError):  # not read any further
            stranger.push(data[:PUSHED_BYTES])
        while True:
            codes.append(stranger.receive().code)
    return codes


def test_the_attacks_of_a_user_without_rights_are_not_served(tmp_path: Path) -> None:
    """Its requests are signed, so they are all checked, and its connection stays open."""

    async def scenario(process: BrokerProcess) -> None:
        port = process.listener.port
        async with connect(port) as root, connect(port) as alice:
            await create_user(root, "alice")
            assert (await send(root, "root", "plain")).code == Response.SUCCESS
            before = state_of(process)
            for attack in ON_BROKER:
                data = attack.bytes_of()
                for command in islice(FrameReader().feed(data), 5):
                    fields = dict(command.text_fields())
                    reply = await call(alice, "alice", command.code, fields, command.body)
                    assert reply.code != Response.SUCCESS, attack.name
            assert state_of(process) == before
            assert process.listener.statistics()["closed_unauthenticated"] == 0

    run_with_broker(tmp_path, scenario, *ON, "server.max_body=16MiB")


def test_nothing_that_a_stranger_may_think_of_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random requests of every code, and bytes that are no requests: unsigned, or signed with a guessed secret."""
    monkeypatch.setattr(failed_attempts, "LONGEST_PAUSE_S", 0.0)  # so that more are tried than once in five seconds
    choose = random.Random(7)
    fuzzer = Fuzzer(7, broker_shapes(), ("plain", "readers"))

    async def scenario(process: BrokerProcess) -> None:
        port = process.listener.port
        async with connect(port) as root:
            assert (await send(root, "root", "plain")).code == Response.SUCCESS
            before = state_of(process)
            frames = fuzzer.frames()
            for _ in range(FUZZED // BATCH):
                batch = [guessed(one) if choose.random() < 0.5 else one for one in islice(frames, BATCH)]
                codes = await exchange(port, b"".join([*batch, fuzzer.broken()]))
                assert set(codes) <= REFUSED
                assert len(codes) <= MAX_FAILURES
            assert state_of(process) == before
            assert (await send(root, "root", "plain")).code == Response.SUCCESS
            statistics = process.listener.statistics()
            assert statistics["closed_unauthenticated"] > FUZZED // BATCH // 2

    run_with_broker(tmp_path, scenario, *ON)


def guessed(frame: bytes) -> bytes:
    """The request with a signature that is wrong."""
    try:
        [command] = FrameReader().feed(frame)
        fields = signed("root", command.text_fields(), command.body, secret="guess")
    except LaterMQError:
        return frame
    return encode_frame(command.code, command.opaque, flag=command.flag, fields=fields, body=command.body)


async def exchange(port: int, data: bytes) -> list[int]:
    """The codes of the replies on a new connection, until the server closes it."""
    codes: list[int] = []
    async with connect(port) as stranger:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, TimeoutError):
            await stranger.send(data)
            async with asyncio.timeout(10):
                while True:
                    codes.append((await stranger.receive()).code)
    return codes


def test_new_connections_of_an_address_are_as_slow_as_its_last(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        port = process.listener.port
        async with connect(port) as root, contextlib.AsyncExitStack() as stack:
            assert (await send(root, "root")).code == Response.SUCCESS
            last: RawClient | None = None
            for _ in range(6):
                last = await stack.enter_async_context(connect(port))
                assert (await send(last, "root", secret="guess")).remark == "check signature failed."
            assert last is not None
            began_s = time.monotonic()
            second = asyncio.create_task(send(last, "root", secret="guess"))
            for _ in range(20):  # on a connection that has failed nothing
                assert (await send(root, "root")).code == Response.SUCCESS
            assert not second.done(), "others were served while it waited"
            await second
            assert time.monotonic() - began_s > 1.0  # 50 ms doubled five times, less what was forgotten meanwhile

    run_with_broker(tmp_path, scenario, *ON)
