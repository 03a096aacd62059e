"""Who else has an account on the machine reads no message: files and folders are their user's alone."""

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from latermq.addresses import is_loopback
from latermq.cli import main
from latermq.config import AccessConfig, Config, load_config
from latermq.errors import ConfigError
from latermq.protocol.remoting.codes import Request, Response
from latermq.server.private_files import close_to_others, keep_private
from latermq.server.reachability import remind, require_users
from tests.integration.brokers import send_fields
from tests.security.attacker import attacking
from tests.support.serving import NO_METRICS, Server, serving

OTHERS = 0o077
SETTINGS = ("--set", "store.segment=16MiB", "--set", "timer.engine=rocksdb")


@pytest.fixture
def open_umask() -> Iterator[None]:
    """What most systems begin with."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def send(server: Server) -> None:
    with attacking(server.port) as client:
        for properties in ("", "TIMER_DELAY_SEC\x013600\x02"):
            reply = client.call(Request.SEND_MESSAGE_V2, send_fields("orders", properties=properties), b"message")
            assert reply.code == Response.SUCCESS


def open_to_others(folder: Path) -> dict[str, str]:
    found = [path for path in (folder, *folder.rglob("*")) if mode(path) & OTHERS]
    return {str(path.relative_to(folder)): oct(mode(path)) for path in found}


@pytest.mark.usefixtures("open_umask")
def test_everything_below_the_data_directory_is_private(tmp_path: Path) -> None:
    data = tmp_path / "made" / "data"
    with serving(data, *SETTINGS) as server:
        send(server)
        assert {path.name for path in data.iterdir()} >= {"commitlog", "consumequeue", "timerrocksdb", "namesrv"}
        assert open_to_others(data) == {}
    assert open_to_others(data) == {}


@pytest.mark.usefixtures("open_umask")
def test_a_directory_of_an_earlier_version_is_closed_at_a_start(tmp_path: Path) -> None:
    data, other_disk = tmp_path / "data", tmp_path / "disk"
    for folder in (data, other_disk):
        folder.mkdir(0o755)
    (data / "commitlog").symlink_to(other_disk)
    with serving(data, *SETTINGS) as server:
        send(server)
        assert mode(data) == mode(other_disk) == 0o700
        assert "removed other users' access to the data directory" in server.log()


@pytest.mark.usefixtures("open_umask")
def test_a_timeline_that_is_shared_keeps_the_umask_and_the_store_stays_private(tmp_path: Path) -> None:
    data, timeline = tmp_path / "data", tmp_path / "shared"
    with serving(data, *SETTINGS, "--set", f"pipeline.timeline={timeline}") as server:
        send(server)
        umask = next(
            line for line in Path(f"/proc/{server.broker_pid()}/status").read_text().splitlines() if "Umask" in line
        )
        assert umask.split()[1] == "0022"
        assert mode(data) == 0o700
        found = open_to_others(data)
        assert all(name.startswith("timerrocksdb/") for name in found), found


def test_a_link_to_a_shared_timeline_is_left_alone(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o755)
    data = tmp_path / "data"
    data.mkdir()
    (data / "pipeline").symlink_to(shared)
    close_to_others(data)
    assert mode(shared) == 0o755


def test_what_libraries_and_children_make_is_private_unless_the_timeline_is_shared(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        keep_private(load_config(settings=[f"pipeline.timeline={tmp_path}"], environment={}))
        subprocess.run([sys.executable, "-c", f"open({str(tmp_path / 'shared')!r}, 'w')"], check=True)
        keep_private(Config())
        subprocess.run([sys.executable, "-c", f"open({str(tmp_path / 'private')!r}, 'w')"], check=True)
    finally:
        os.umask(before)
    assert mode(tmp_path / "shared") == 0o644
    assert mode(tmp_path / "private") == 0o600


# Who can reach it


@pytest.mark.parametrize(
    ("host", "is_own"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("127.9.9.9", True), ("0.0.0.0", False), ("::", False),
     ("", False), ("192.0.2.1", False), ("2001:db8::1", False)],
)  # fmt: skip
def test_only_loopback_is_reached_from_this_machine_alone(host: str, is_own: bool) -> None:
    assert is_loopback(host) == is_own


def test_a_server_that_strangers_can_use_says_so_every_hour(capsys: pytest.CaptureFixture[str]) -> None:
    waited_s: list[float] = []

    def is_over(wait_s: float) -> bool:
        waited_s.append(wait_s)
        return len(waited_s) == 3

    remind("broker", "192.0.2.1", is_over)
    assert waited_s == [3600.0] * 3
    told = capsys.readouterr().out.splitlines()
    assert len(told) == 3
    assert all("other machines can use this port without a user" in line for line in told)


@pytest.mark.parametrize(
    ("host", "access", "is_refused"),
    [
        ("127.0.0.1", AccessConfig(), False),
        ("localhost", AccessConfig(), False),
        ("192.0.2.1", AccessConfig(), True),
        ("", AccessConfig(), True),
        ("192.0.2.1", AccessConfig(enabled=True), False),
        ("192.0.2.1", AccessConfig(enabled=True, mode="log"), True),
        ("192.0.2.1", AccessConfig(enabled=True, mode="log", insecure=True), False),
        ("192.0.2.1", AccessConfig(insecure=True), False),
    ],
)
def test_a_port_that_strangers_can_use_is_refused(host: str, access: AccessConfig, is_refused: bool) -> None:
    if not is_refused:
        require_users(access, "broker", host, "broker")
        return
    with pytest.raises(ConfigError, match="other machines could use the broker at") as refused:
        require_users(access, "broker", host, "broker", "/data")
    for command in (
        "latermq user create admin --super --save admin.secret --data /data",
        "latermq broker …",
        "--insecure",
    ):
        assert command in refused.value.hint


@pytest.mark.parametrize("command", ["serve", "broker", "namesrv", "proxy"])
@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::"])
def test_no_part_starts_for_other_machines_without_users(
    command: str, host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--data", str(tmp_path / "data"), "--host", host]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: other machines could use the ")
    assert "--insecure" in told
    assert not (tmp_path / "data").exists()


def test_a_part_starts_for_other_machines_if_the_operator_wants_that() -> None:
    command = [sys.executable, "-m", "latermq", "namesrv", "--host", "0.0.0.0", "--port", "0", "--insecure"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **NO_METRICS}
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("latermq ready")
            process.terminate()
            _, log = process.communicate(timeout=60)
        finally:
            process.kill()
    assert log.count("other machines can use this port without a user") == 1
