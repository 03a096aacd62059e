"""`latermq status` and `latermq top` against real servers, the live view in a real terminal."""

import asyncio
import contextlib
import json
import os
import pty
import re
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from fcntl import ioctl
from pathlib import Path
from typing import Any

import pytest

from latermq import OutgoingMessage
from latermq.cli.status.overview import overview_of
from latermq.client import blocking
from latermq.config import load_config
from latermq.server.serve_record import READY, PartRecord, ServeRecord
from tests.interop.ports import HOST, free_port
from tests.interop.waiting import wait_until
from tests.support.serving import Server, another_broker, serving

COLUMNS, LINES = 80, 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("status")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    # A test kills the broker, which then still knows the offset of the group.
    quick = ("--set", "broker.register_every=200ms", "--set", "broker.offset_save_every=100ms")
    with serving(folder / "data", *quick, grpc=True, http=True) as server:
        with blocking.Admin(server.namesrv) as admin, blocking.Producer(server.namesrv) as producer:
            wait_until(admin.brokers, 30, "the broker is registered")
            admin.create_topic("orders", queues=1)
            for _ in range(4):
                sent = producer.send(OutgoingMessage("orders", b"x"))
            with blocking.PullConsumer(server.namesrv, group="billing") as consumer:
                consumer.commit(sent.queue, 1)
            for number in range(7):
                producer.schedule("orders", b"x", delay=f"{number + 5}m")
        yield server


def test_a_driver_is_shown_with_its_master_as_it_is() -> None:
    driver = PartRecord("pipeline", READY, "local[1]")
    config = load_config(settings=[f"server.namesrv={HOST}:{free_port()}", "http.broker_timeout=100ms"])
    (shown, *_) = asyncio.run(overview_of(config, ServeRecord(1, "1.0", 0, [driver]))).parts
    assert (shown.part, shown.state, shown.address) == ("pipeline", "up", "local[1]")


def _run(*arguments: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "latermq", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)


def _rows(*arguments: str) -> dict[str, dict[str, Any]]:
    """The rows of `status --json` by their part or group."""
    done = _run("status", "--json", *arguments)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == int(not all(row.get("is_good", True) for row in rows)), done.stderr
    return {row.get("part") or row["group"]: row for row in rows}


def test_a_server_on_a_data_directory_is_shown_with_all_its_parts(server: Server, folder: Path) -> None:
    rows = _rows("--data", str(folder / "data"))
    places = {"name server": server.namesrv, "broker": server.broker, "proxy": server.proxy, "console": server.http}
    assert {name: (row["state"], row["address"]) for name, row in rows.items() if "part" in row} == {
        name: ("up", address) for name, address in places.items()
    }
    assert {row["version"] for row in rows.values() if "part" in row} == {"0.1.0"}
    assert all(abs(row["started_ms"] / 1000 - time.time()) < 600 for row in rows.values() if "part" in row)
    assert rows["broker"]["detail"].startswith("7 pending timers, on time, disk ")
    assert rows["billing"] == {"group": "billing", "lag": 3}


def test_a_cluster_is_shown_by_its_name_server(server: Server) -> None:
    done = _run("status", "--namesrv", server.namesrv)
    assert done.returncode == 0
    assert re.search(rf"^name server +up +{server.namesrv} .* 1 broker *$", done.stdout, re.MULTILINE)
    assert re.search(rf"^broker broker-a +up +{server.broker} +0.1.0 ", done.stdout, re.MULTILINE)
    assert re.search(r"^billing +3$", done.stdout, re.MULTILINE)


def test_a_killed_broker_is_restarting_and_then_up(server: Server, folder: Path) -> None:
    with another_broker(server, folder / "b", free_port()) as second:
        wait_until(lambda: "broker broker-b" in _rows("--data", str(folder / "data")), 30, "the second broker")
        second.send_signal(signal.SIGKILL)
        second.wait()
        wait_until(
            lambda: _rows("--namesrv", server.namesrv)["broker broker-b"]["state"] == "offline",
            30,
            "the name server misses the second broker",
        )
    os.kill(server.broker_pid(), signal.SIGKILL)
    states = set()

    def is_up_again() -> bool:
        row = _rows("--data", str(folder / "data"))["broker"]
        states.add(row["state"])
        return row["state"] == "up" and "1 restart, the last after: killed by SIGKILL" in row["detail"]

    wait_until(is_up_again, 60, "the broker is up again")
    assert states <= {"up", "down", "restarting"}


def test_a_part_that_does_not_answer_is_down(server: Server, folder: Path) -> None:
    proxy = server.proxy_pid()
    console = server.child_pid("console")
    assert console is not None
    os.kill(console, signal.SIGKILL)
    os.kill(proxy, signal.SIGSTOP)  # its kernel still accepts connections
    try:
        wait_until(lambda: "restart" in _rows("--data", str(folder / "data"))["console"]["detail"], 30, "the restart")
        assert _rows("--data", str(folder / "data"))["proxy"]["state"] == "up"
    finally:
        os.kill(proxy, signal.SIGCONT)


def test_a_name_server_that_is_not_there_is_down(tmp_path: Path) -> None:
    place = f"{HOST}:{free_port()}"
    done = _run("status", "--namesrv", place)
    assert done.returncode == 1
    assert re.search(rf"^name server +down +{place} .*cannot connect", done.stdout, re.MULTILINE)
    assert "the lag of groups is not known" in done.stderr


def test_a_port_on_which_another_program_is_silent_is_down() -> None:
    with socket.create_server((HOST, 0)) as silent:
        done = _run("status", "--namesrv", f"{HOST}:{silent.getsockname()[1]}")
    assert done.returncode == 1
    assert re.search(r"^name server +down ", done.stdout, re.MULTILINE)


@pytest.mark.parametrize("command", ["status", "top"])
def test_a_data_directory_without_a_server_is_an_error(tmp_path: Path, command: str) -> None:
    done = _run(command, "--data", str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: no server runs on {tmp_path}\nhint: Start it: ")


def test_top_prints_one_state_into_a_pipe(server: Server) -> None:
    for arguments in ([], ["--once"]):
        done = _run("top", "--namesrv", server.namesrv, *arguments)
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        assert max(map(len, lines)) <= COLUMNS
        assert lines[0].startswith(f"latermq top  {server.namesrv}  20")
        assert lines[1].startswith("7 pending · 7 in the next hour · busiest second ")
        assert re.search(r"^due in  .*█", done.stdout, re.MULTILINE)
        assert re.search(r"^broker-a +[\d.]+ +[\d.]+ +[\d.]+ +[\d.]+ +7 +- +\d+%$", done.stdout, re.MULTILINE)
        assert re.search(r"^billing +3$", done.stdout, re.MULTILINE)


def test_top_prints_one_state_as_json(server: Server) -> None:
    state = json.loads(_run("top", "--once", "--json", "--namesrv", server.namesrv).stdout)
    assert state["brokers"][0]["pending_timers"] == state["density"]["pending"] == 7
    assert state["groups"] == [{"group": "billing", "lag": 3}]


def test_top_without_a_cluster_is_an_error() -> None:
    done = _run("top", "--namesrv", f"{HOST}:{free_port()}")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: no name server answers")


class Terminal:
    """`latermq top` in a terminal of 80 columns."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "latermq", "top", *arguments]
        self.fd, self._inner = pty.openpty()
        ioctl(self._inner, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        self.modes = termios.tcgetattr(self._inner)
        environment = {**os.environ, "TERM": "xterm-256color"}
        self.process = subprocess.Popen(
            command, stdin=self._inner, stdout=self._inner, stderr=self._inner, env=environment, start_new_session=True
        )
        os.set_blocking(self.fd, False)
        self.seen = ""

    def read(self) -> str:
        with contextlib.suppress(OSError):
            self.seen += os.read(self.fd, 65_536).decode(errors="replace")
        return self.seen

    def modes_now(self) -> list[Any]:
        return termios.tcgetattr(self._inner)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.fd)
        os.close(self._inner)


@pytest.mark.parametrize("way", ["q", "SIGINT", "SIGTERM"])
def test_the_live_view_renews_itself_and_restores_the_terminal(server: Server, way: str) -> None:
    terminal = Terminal("--namesrv", server.namesrv)
    try:
        wait_until(lambda: terminal.read().count("7 pending") >= 2, 60, "two states")
        assert "\x1b[?1049h" in terminal.seen  # the alternate screen
        assert terminal.modes_now() != terminal.modes
        if way == "q":
            os.write(terminal.fd, b"q")
        else:
            terminal.process.send_signal(getattr(signal, way))
        wait_until(lambda: terminal.read() and terminal.process.poll() is not None, 30, "its end")
        assert terminal.process.returncode == 0
        assert "\x1b[?1049l" in terminal.read()
        assert terminal.modes_now() == terminal.modes
    finally:
        terminal.end()


def test_the_live_view_survives_a_cluster_that_is_not_there_and_ends_at_once() -> None:
    terminal = Terminal("--namesrv", f"{HOST}:{free_port()}")
    try:
        wait_until(lambda: "no name server answers" in terminal.read(), 60, "the trouble")
        os.write(terminal.fd, b"q")
        wait_until(lambda: terminal.read() and terminal.process.poll() is not None, 30, "its end")
        assert terminal.process.returncode == 0
    finally:
        terminal.end()
