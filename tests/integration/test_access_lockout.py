"""Users without a user: the owner of a data directory makes the first one, and gets back in after a lock-out."""

import json
import os
from pathlib import Path

import pytest

from latermq.access.access_file import ACCESS_PATH
from latermq.access.changes import UserChange
from latermq.cli.access.own_directory import StoredUsers
from latermq.client.session.failures import RequestTimedOut
from tests.integration.command_line import Cli
from tests.integration.test_access_commands import ON, become
from tests.support.serving import serving

SMALL = ("--set", "store.segment=64MiB")
ENABLED = {"LATERMQ_ACCESS_ENABLED": "true"}


class Nowhere:
    """The name server of a cluster that is stopped."""

    namesrv = "127.0.0.1:1"

    def log(self) -> str:
        return ""


STOPPED = Cli(Nowhere())


def audited(data: Path) -> list[tuple[str, str, str]]:
    lines = (data / "audit" / "broker.jsonl").read_text().splitlines()
    return [(line["part"], line["request"], line["user"]) for line in map(json.loads, lines)]


def test_the_first_super_user_is_made_before_the_first_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data"
    secret = STOPPED.text("user", "create", "admin", "--super", "--data", str(data)).strip()
    STOPPED.run("user", "create", "alice", "--new-secret-file", "-", "--data", str(data), stdin=b"s3cret")
    STOPPED.run("acl", "grant", "alice", "Topic:orders", "Pub", "--data", str(data))
    assert (data / ACCESS_PATH).stat().st_mode & 0o777 == 0o600
    assert data.stat().st_mode & 0o777 == 0o700
    user = f"uid {os.getuid()}"
    assert audited(data) == [
        ("broker stopped", request, user) for request in ("AUTH_CREATE_USER", "AUTH_CREATE_USER", "AUTH_CREATE_ACL")
    ]
    assert secret not in (data / "audit" / "broker.jsonl").read_text()
    with serving(data, *SMALL, environment=ENABLED) as server:
        cli = Cli(server)
        become(monkeypatch, "alice", "s3cret")
        cli.run("send", "orders", "hello")
        become(monkeypatch, "admin", secret)
        assert [row["user"] for row in cli.rows("user", "list")] == ["admin", "alice"]


def test_the_owner_gets_back_in_while_the_broker_runs_and_after_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    with serving(data, *SMALL, environment=ON) as server:
        cli = Cli(server)
        become(monkeypatch, "root", "r00t")
        cli.run("user", "create", "other", "--super", "--save", str(tmp_path / "other.secret"))  # which is then lost
        cli.run("user", "disable", "root")
        assert "is disabled" in cli.error("user", "list")
        for name in ("LATERMQ_USER", "LATERMQ_SECRET"):
            monkeypatch.delenv(name)
        assert "username cannot be null" in cli.error("user", "list")
        # `serve` notes where its broker listens, so even the name server is not needed.
        STOPPED.run("user", "enable", "root", "--data", str(data))
        become(monkeypatch, "root", "r00t")
        cli.run("user", "list")
        cli.run("user", "rotate", "root", "--new-secret-file", "-", stdin=b"forgotten")
        cli.run("user", "rotate", "root", "--finish")
        assert "check signature failed" in cli.error("user", "list")
    assert "AUTH_UPDATE_USER" in [request for _, request, user in audited(data) if user == "latermq-inner"]
    STOPPED.run("user", "rotate", "root", "--new-secret-file", "-", "--data", str(data), stdin=b"n3w")
    STOPPED.run("user", "rotate", "root", "--finish", "--data", str(data))
    with serving(data, *SMALL, environment=ENABLED) as server:
        become(monkeypatch, "root", "n3w")
        Cli(server).run("user", "list")


def test_a_directory_of_another_owner_and_one_that_is_not_there_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*arguments: str) -> str:
        return STOPPED.run(*arguments, code=2)[1]

    assert "there is no data directory" in refused("user", "list", "--data", str(tmp_path / "none"))
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    assert "sudo -u" in refused("user", "create", "admin", "--data", str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_users_that_are_encrypted_are_changed_with_their_key_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LATERMQ_SECRET_KEY", "a key of the operator")
    STOPPED.run("user", "create", "admin", "--new-secret-file", "-", "--data", str(tmp_path), stdin=b"pl41n")
    assert b"pl41n" not in (tmp_path / ACCESS_PATH).read_bytes()
    monkeypatch.delenv("LATERMQ_SECRET_KEY")
    error = STOPPED.run("user", "list", "--data", str(tmp_path), code=2)[1]
    assert "LATERMQ_SECRET_KEY" in error


@pytest.mark.parametrize("saved", [False, True])
def test_a_new_secret_is_not_lost_with_the_answer_of_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saved: bool
) -> None:
    data, file = tmp_path / "data", tmp_path / "alice.secret"
    STOPPED.run("user", "create", "alice", "--data", str(data))
    update = StoredUsers.update_user

    async def without_answer(self: StoredUsers, name: str, change: UserChange) -> None:
        await update(self, name, change)
        raise RequestTimedOut("the broker did not answer in time")

    monkeypatch.setattr(StoredUsers, "update_user", without_answer)
    command = ("user", "rotate", "alice", "--data", str(data))
    out, _ = STOPPED.run(*command, *(("--save", str(file)) if saved else ()), code=1)
    monkeypatch.undo()
    secret = file.read_text().strip() if saved else out.strip()
    # Repeated with the same secret, the command finds the change, and the replaced secret is still valid.
    STOPPED.run(*command, "--new-secret-file", "-", stdin=secret.encode())
    [row] = STOPPED.rows("user", "list", "--data", str(data))
    assert row["secrets"] == 2
