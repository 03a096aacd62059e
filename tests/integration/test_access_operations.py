"""Users in operation, as docs/security.md describes it: switching them on step by step, and rotating a secret."""

import asyncio
import json
from pathlib import Path

import pytest

from latermq.client import Credentials, OutgoingMessage, Producer
from tests.integration.command_line import Cli
from tests.integration.test_access_commands import ON, become
from tests.integration.test_access_lockout import ENABLED, SMALL, STOPPED
from tests.interop.waiting import wait_until
from tests.support.serving import serving

LOG = (*SMALL, "--set", "access.mode=log", "--set", "audit.flush_every=1s")
VARIABLES = ("LATERMQ_USER", "LATERMQ_SECRET")


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def refusals(data: Path) -> dict[tuple[str | None, str, str | None], int]:
    out, _ = STOPPED.run("acl", "refusals", "--data", str(data), "--json", takes_namesrv=False)
    rows = [json.loads(line) for line in out.splitlines()]
    return {(row["user"], row["request"], row["resource"]): row["count"] for row in rows}


def test_users_are_switched_on_step_by_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data"
    forget(monkeypatch)
    with serving(data, *SMALL) as server:
        Cli(server).run("send", "orders", "before")
    STOPPED.run("user", "create", "admin", "--super", "--new-secret-file", "-", "--data", str(data), stdin=b"4dm1n")
    with serving(data, *LOG, environment=ENABLED) as server:
        cli = Cli(server)
        for _ in range(3):
            cli.run("send", "orders", "without a user")
        assert "username cannot be null" in cli.error("user", "create", "mallory", "--super")
        become(monkeypatch, "admin", "4dm1n")
        cli.run("user", "create", "alice", "--new-secret-file", "-", stdin=b"s3cret")
        become(monkeypatch, "alice", "s3cret")
        cli.run("send", "orders", "without a right")
        sends = {(None, "SEND_MESSAGE_V2", None): 3, ("alice", "Pub", "Topic:orders"): 1}

        def noted() -> bool:
            found = refusals(data)
            return sends.items() <= found.items()

        wait_until(noted, 30, "the refusals are in the audit log")
        become(monkeypatch, "admin", "4dm1n")
        cli.run("acl", "grant", "alice", "Topic:orders", "Pub")
    with serving(data, *SMALL, environment=ENABLED) as server:
        cli = Cli(server)
        become(monkeypatch, "alice", "s3cret")
        cli.run("send", "orders", "with a right")
        forget(monkeypatch)
        assert "username cannot be null" in cli.error("send", "orders", "without a user")


def test_a_secret_is_rotated_while_clients_send_without_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = tmp_path / "alice.secret", tmp_path / "alice-2.secret"

    async def send(namesrv: str, file: Path, until: asyncio.Event) -> int:
        sent = 0
        async with Producer(namesrv, group="shop", credentials=Credentials.from_file("alice", file)) as producer:
            while not until.is_set():
                await producer.send(OutgoingMessage("orders", b"x"))
                sent += 1
        return sent

    async def rotate(cli: Cli) -> None:
        namesrv, old_ends, new_ends = cli.target.namesrv, asyncio.Event(), asyncio.Event()
        with_old = asyncio.create_task(send(namesrv, old, old_ends))
        await asyncio.to_thread(cli.run, "user", "rotate", "alice", "--save", str(new))
        with_new = asyncio.create_task(send(namesrv, new, new_ends))
        await asyncio.to_thread(cli.run, "user", "show", "alice")  # both send meanwhile
        old_ends.set()
        assert await with_old > 0
        await asyncio.to_thread(cli.run, "user", "rotate", "alice", "--finish")
        await asyncio.to_thread(cli.run, "user", "show", "alice")
        new_ends.set()
        assert await with_new > 0

    with serving(tmp_path / "data", *SMALL, environment=ON) as server:
        cli = Cli(server)
        become(monkeypatch, "root", "r00t")
        cli.run("user", "create", "alice", "--save", str(old))
        cli.run("acl", "grant", "alice", "Topic:orders", "Pub")
        asyncio.run(rotate(cli))
        become(monkeypatch, "alice", old.read_text().strip())
        assert "check signature failed" in cli.error("send", "orders", "x")
