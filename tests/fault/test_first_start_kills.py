"""`kill -9` before any file-system call of a first start with users. The next start works, and lets nobody in."""

import contextlib
import os
import signal
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from latermq.access.inner_credentials import FILE_NAME, inner_file, load_inner_secret, load_or_create_inner_secret
from latermq.access.users import INNER_USER
from latermq.clock import SystemClock
from latermq.config import Config, load_config
from latermq.errors import LaterMQError
from latermq.protocol.remoting.codes import Request
from latermq.server.broker.access_control import AccessControl
from latermq.server.private_files import close_to_others, keep_private
from latermq.server.remoting.access import UPDATE, Access, Kind
from latermq.server.remoting.connection import Connection
from latermq.store.files.disk import FileDisk
from tests.support.signed_requests import CheckedConnection, as_received, signed

pytestmark = pytest.mark.real
# Python reports these calls before it makes them. The others are wrapped.
REPORTED = frozenset(
    ("open", "os.mkdir", "os.rename", "os.link", "os.remove", "os.chmod", "os.truncate", "os.rmdir", "os.listdir")
)
WRAPPED = ("pwrite", "fsync", "fdatasync")
CLUSTER = Access(Kind.CLUSTER, "", (UPDATE,))


def configuration() -> Config:
    return load_config(settings=["access.enabled=true", "access.init_user=root:r00t"], environment={})


@contextlib.contextmanager
def started(data: Path) -> Iterator[AccessControl]:
    """What a broker's start does with its users."""
    config = configuration()
    keep_private(config)
    disk = FileDisk(data)
    disk.lock()
    try:
        close_to_others(data)
        access = AccessControl(config, disk, data, SystemClock())
        yield access
        access.stop()
    finally:
        disk.unlock()


def start(data: Path) -> None:
    with started(data):
        pass


def die_at(step: int) -> None:
    """End this process with SIGKILL at this call. The first half of a write may be made."""
    left = step

    def count(half: Callable[[], object] | None = None) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            if half is not None:
                half()
            os.kill(os.getpid(), signal.SIGKILL)

    def wrapped(call: Callable[..., Any], name: str) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            half = None
            if name == "pwrite" and step % 2:
                fd, content, at = arguments
                half = lambda: call(fd, content[: len(content) // 2], at)  # noqa: E731
            count(half)
            return call(*arguments)

        return run

    for name in WRAPPED:
        setattr(os, name, wrapped(getattr(os, name), name))
    sys.addaudithook(lambda event, _: count() if event in REPORTED else None)


def dies(step: int, data: Path) -> bool:
    """Run a start in a child process, and return whether it died at this call. False: it has completed before."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.umask(0o022)
            die_at(step)
            start(data)
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, f"the start failed at step {step}"
    return os.WIFSIGNALED(status)


def remark(access: AccessControl, user: str, secret: str) -> str:
    """Why a request of this user is refused; empty if it is not."""
    fields = {"username": "x"}
    code = Request.AUTH_CREATE_USER
    command = as_received(code, signed(user, fields, b"{}", secret, code=code) if user else fields, b"{}")
    assert access.guard is not None
    assert access.table is not None
    try:
        access.guard.check_in(access.table.state, cast(Connection, CheckedConnection()), command, CLUSTER)
    except LaterMQError as error:
        return error.message
    return ""


def open_to_others(data: Path) -> list[str]:
    """Files and folders in the data directory that others could read, if they could enter it."""
    if not data.exists() or not stat.S_IMODE(data.stat().st_mode) & 0o077:
        return []
    return [str(path) for path in data.rglob("*") if stat.S_IMODE(path.stat().st_mode) & 0o077]


@pytest.mark.parametrize("key", ["", "a key of the operator"])
def test_a_first_start_may_be_killed_at_any_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("LATERMQ_SECRET_KEY", key)
    umask = os.umask(0o022)
    try:
        steps, is_killed = 0, True
        while is_killed:
            data = tmp_path / str(steps)
            is_killed = dies(steps, data)
            assert open_to_others(data) == []
            if steps % 3 == 0:  # killed twice
                dies(steps // 2, data)
            with started(data) as access:
                secret = load_inner_secret(data / FILE_NAME)
                assert remark(access, "root", "r00t") == ""
                assert remark(access, INNER_USER, secret) == ""
                for user in ("root", INNER_USER):
                    assert remark(access, user, "guess" * 8) == "check signature failed."
                assert remark(access, "", "") == "username cannot be null."
            assert [path.name for path in data.rglob("*.draft")] == []
            assert open_to_others(data) == []
            with started(data) as again:
                assert load_inner_secret(data / FILE_NAME) == secret
                assert remark(again, "root", "r00t") == ""
            steps += 1
        assert steps > 20
    finally:
        os.umask(umask)


def test_processes_that_start_together_have_one_inner_secret(tmp_path: Path) -> None:
    config = configuration().access
    path = inner_file(config, tmp_path)
    assert path is not None
    for _ in range(20):
        path.unlink(missing_ok=True)
        children = []
        for number in range(4):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    (tmp_path / f"seen-{number}").write_text(load_or_create_inner_secret(path))
                    status = 0
                finally:
                    os._exit(status)
            children.append(child)
        assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
        assert {(tmp_path / f"seen-{number}").read_text() for number in range(4)} == {load_inner_secret(path)}
        assert list(tmp_path.glob("*.draft")) == []
