"""Processes that copy a broker's users: a change waits for them, but no process can hold changes or the broker up."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import cast

import msgspec
import pytest

from latermq.access.access_file import decode_access
from latermq.access.inner_credentials import FILE_NAME
from latermq.access.secret_box import SecretBox, inner_key
from latermq.access.users import INNER_USER, AccessState, User
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.frames import Command
from latermq.protocol.remoting.users import AccessStateHeader
from latermq.server.broker.process import BrokerProcess
from latermq.server.handlers.admin import access_copies
from latermq.server.handlers.admin.access_copies import MAX_WAITING_COPIES, TURN_BYTES, AccessCopies
from latermq.server.remoting.connection import Connection
from tests.integration.brokers import run_with_broker, running_broker
from tests.integration.raw_client import RawClient, connect, eventually
from tests.integration.test_access import ON, call
from tests.support.signed_requests import CheckedConnection, as_received, signed

PATIENCE_S = 20.0
SOON_S = PATIENCE_S / 2  # a reply that took no longer has not waited until the broker gave up


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for copies so long that a slow machine makes no difference."""
    monkeypatch.setattr(access_copies, "MAX_CONFIRM_S", PATIENCE_S)


class Copier:
    """A process with the inner secret, which asks for the users as a test tells it."""

    def __init__(self, client: RawClient, data: Path) -> None:
        self.client = client
        self._secret = (data / FILE_NAME).read_text().strip()
        self._box = SecretBox(inner_key(self._secret), lambda size: b"n" * size)
        self.revision = ""
        self.users: set[str] = set()

    async def ask(self, revision: str | None = None, *, wait_ms: int = 30_000, nonce: str = "n") -> None:
        """Say which users it has, or seems to have, and ask for others."""
        fields = {
            "revision": self.revision if revision is None else revision, "nonce": nonce, "waitMillis": str(wait_ms),
        }  # fmt: skip
        code = Request.ACCESS_STATE
        await self.client.send_only(code, signed(INNER_USER, fields, b"", self._secret, code=code))

    async def take(self) -> Command:
        """The next answer, and the users in it."""
        reply = await self.client.receive()
        if reply.code == Response.SUCCESS and (data := self._box.open(reply.body, b"n")):
            state = decode_access(data, "", lambda size: b"").state
            self.revision, self.users = state.revision, set(state.users)
        return reply

    async def follow(self, pause_s: float = 0.0) -> None:
        """Copy all changes until it is cancelled."""
        while True:
            await self.ask()
            await self.take()
            await asyncio.sleep(pause_s)


@asynccontextmanager
async def copying(process: BrokerProcess, data: Path) -> AsyncIterator[Copier]:
    """A process that has the users, and waits for changes."""
    async with connect(process.listener.port) as client:
        copier = Copier(client, data)
        await copier.ask(wait_ms=0)
        await copier.take()
        waiting = counts(process)["waiting_copies"]
        await copier.ask()
        await eventually(lambda: counts(process)["waiting_copies"] > waiting, "the question arrives")
        yield copier


def counts(process: BrokerProcess) -> dict[str, int]:
    return process._server_statistics()


def has_more_users(process: BrokerProcess, than: int) -> bool:
    return counts(process)["access_users"] > than


async def create(client: RawClient, name: str) -> float:
    """Create a user; how long that took."""
    started_s = time.monotonic()
    body = msgspec.json.encode({"password": "s3cret"})
    reply = await call(client, "root", Request.AUTH_CREATE_USER, {"username": name}, body)
    assert reply.code == Response.SUCCESS, reply.remark
    return time.monotonic() - started_s


@contextlib.contextmanager
def running(coroutine: Coroutine[None, None, None]) -> Iterator[asyncio.Task[None]]:
    task = asyncio.ensure_future(coroutine)
    try:
        yield task
    finally:
        task.cancel()


def test_a_change_is_confirmed_when_a_copy_has_it(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(process.listener.port) as root, copying(process, tmp_path) as copier:
            changed = asyncio.ensure_future(create(root, "ann"))
            await copier.take()
            assert "ann" in copier.users
            await asyncio.sleep(0.05)
            assert not changed.done()
            await copier.ask()
            assert await changed < SOON_S

    run_with_broker(tmp_path, scenario, *ON)


def test_a_copy_whose_process_dies_holds_up_nothing(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(process.listener.port) as root:
            async with copying(process, tmp_path) as copier:
                changed = asyncio.ensure_future(create(root, "ann"))
                await copier.take()
            assert await changed < SOON_S
            assert await create(root, "ben") < SOON_S

    run_with_broker(tmp_path, scenario, *ON)


def test_a_process_that_hangs_delays_one_change_and_counts_again_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_copies, "MAX_CONFIRM_S", 0.2)

    async def scenario(process: BrokerProcess) -> None:
        async with connect(process.listener.port) as root, copying(process, tmp_path) as copier:
            assert await create(root, "ann") > 0.15
            monkeypatch.setattr(access_copies, "MAX_CONFIRM_S", PATIENCE_S)
            assert await create(root, "ben") < SOON_S
            await copier.take()
            await copier.ask()  # without ben
            await copier.take()
            await copier.ask()
            await eventually(lambda: counts(process)["waiting_copies"] == 1, "it is up to date")
            changed = asyncio.ensure_future(create(root, "cy"))
            await copier.take()
            assert copier.users == {"root", "ann", "ben", "cy"}
            await asyncio.sleep(0.05)
            assert not changed.done()
            await copier.ask()
            assert await changed < SOON_S

    run_with_broker(tmp_path, scenario, *ON)


def test_a_copy_that_lacks_a_later_change_confirms_the_earlier_one(tmp_path: Path) -> None:
    """While users change all the time, a copy seldom has the newest ones when it asks."""

    async def scenario(process: BrokerProcess) -> None:
        async with (
            connect(process.listener.port) as root,
            connect(process.listener.port) as other,
            copying(process, tmp_path) as copier,
        ):
            first = asyncio.ensure_future(create(root, "ann"))
            await copier.take()
            second = asyncio.ensure_future(create(other, "ben"))
            await eventually(partial(has_more_users, process, 2), "the second change is in effect")
            await copier.ask()
            await copier.take()
            assert await first < SOON_S
            assert not second.done()
            await copier.ask()
            assert await second < SOON_S

    run_with_broker(tmp_path, scenario, *ON)


def test_a_process_that_never_has_what_it_was_sent_delays_nothing(tmp_path: Path) -> None:
    async def lie(copier: Copier) -> None:
        while True:
            await copier.ask("something else")
            await copier.take()

    async def scenario(process: BrokerProcess) -> None:
        async with connect(process.listener.port) as root, connect(process.listener.port) as client:
            with running(lie(Copier(client, tmp_path))):
                await eventually(lambda: counts(process)["access_copiers"], "it asks")
                assert max([await create(root, f"u{number}") for number in range(3)]) < SOON_S

    run_with_broker(tmp_path, scenario, *ON)


def test_one_question_of_a_process_waits(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with copying(process, tmp_path) as flood, copying(process, tmp_path) as copier:
            for _ in range(MAX_WAITING_COPIES):
                await flood.ask()
            for _ in range(MAX_WAITING_COPIES):
                assert (await flood.take()).code == Response.SUCCESS
            assert counts(process)["waiting_copies"] == 2
            async with connect(process.listener.port) as root:
                changed = asyncio.ensure_future(create(root, "ann"))
                await asyncio.gather(flood.take(), copier.take())
                assert "ann" in flood.users & copier.users
                await asyncio.gather(flood.ask(), copier.ask())
                assert await changed < SOON_S

    run_with_broker(tmp_path, scenario, *ON)


def test_processes_that_are_gone_leave_nothing(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(100):
                await stack.enter_async_context(copying(process, tmp_path))
            assert (counts(process)["access_copiers"], counts(process)["waiting_copies"]) == (100, 100)
        await eventually(lambda: not counts(process)["access_copiers"], "they are forgotten, without a change of users")
        assert counts(process)["waiting_copies"] == 0

    run_with_broker(tmp_path, scenario, *ON)


@pytest.mark.parametrize("field", ["revision", "nonce"])
def test_long_texts_are_refused_instead_of_kept(tmp_path: Path, field: str) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with connect(process.listener.port) as client:
            copier = Copier(client, tmp_path)
            await copier.ask(**{field: "x" * 1_000})  # type: ignore[arg-type]
            assert (await copier.take()).code == Response.INVALID_PARAMETER
            assert counts(process)["access_copiers"] == 0

    run_with_broker(tmp_path, scenario, *ON)


def test_changes_that_wait_for_copies_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_copies, "MAX_CONFIRM_S", 1.0)

    async def scenario(process: BrokerProcess) -> None:
        async with connect(process.listener.port) as root, copying(process, tmp_path):  # which hangs
            for number in range(6):
                users = counts(process)["access_users"]
                fields, body = {"username": f"u{number}"}, msgspec.json.encode({"password": "s3cret"})
                await root.send_only(Request.AUTH_CREATE_USER, signed("root", fields, body), body)
                if number < 4:
                    await eventually(partial(has_more_users, process, users), "it is saved")
            codes = [(await root.receive()).code for _ in range(6)]
            assert codes == [Response.SYSTEM_BUSY] * 2 + [Response.SUCCESS] * 4
            assert counts(process)["unsaved_changes"] == 0

    run_with_broker(tmp_path, scenario, *ON, "broker.max_unsaved=4")


def test_who_waits_for_a_copy_may_leave(tmp_path: Path) -> None:
    async def scenario(process: BrokerProcess) -> None:
        async with copying(process, tmp_path) as copier:
            async with connect(process.listener.port) as root:
                changed = asyncio.ensure_future(create(root, "ann"))
                await copier.take()
                assert counts(process)["unsaved_changes"] == 1
                changed.cancel()
            await copier.ask()
            await eventually(lambda: not counts(process)["unsaved_changes"], "the change is confirmed to no one")

    run_with_broker(tmp_path, scenario, *ON)


def test_a_broker_that_stops_confirms_the_changes_that_are_saved(tmp_path: Path) -> None:
    async def main() -> None:
        async with contextlib.AsyncExitStack() as clients:
            async with running_broker(tmp_path, *ON) as process:
                root = await clients.enter_async_context(connect(process.listener.port))
                copier = await clients.enter_async_context(copying(process, tmp_path))
                changed = asyncio.ensure_future(create(root, "ann"))
                await copier.take()
            assert await changed < SOON_S
        async with running_broker(tmp_path, *ON) as process, copying(process, tmp_path) as copier:
            assert "ann" in copier.users

    asyncio.run(main())


def test_large_copies_are_sent_in_turns_with_other_work() -> None:
    async def scenario() -> None:
        state = AccessState({"root": User(name="root", secret="r", is_super=True)}, {}, "one")
        copies = AccessCopies(state, SecretBox(b"k" * 32, lambda size: b"n" * size))
        connections = [CheckedConnection() for _ in range(9)]
        for connection in connections:
            connection.is_paused = False  # type: ignore[attr-defined]
            header = AccessStateHeader(revision="one", nonce="n", waitMillis=1_000)
            asked = copies.ask(cast(Connection, connection), as_received(Request.ACCESS_STATE, {}), header)
            assert asked is None
        user = User(name="x" * (TURN_BYTES // 2), secret="s")
        copies.prepare(state.with_user(user, "two"))
        copies.on_changed()
        sent: list[int] = []
        while len(sent) < 10:
            sent.append(sum(bool(connection.sent) for connection in connections))
            await asyncio.sleep(0)
        assert sent[:6] == [2, 4, 6, 8, 9, 9]

    asyncio.run(scenario())
