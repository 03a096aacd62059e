"""`latermq serve` with real processes: signals, kills, restarts, and starts that fail."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interop.ports import HOST, accepts_connections, free_port
from tests.interop.waiting import wait_until
from tests.support.serving import children_of, is_alive, serving


def _run(*arguments: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "latermq", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)


def _send(namesrv: str, body: str) -> subprocess.CompletedProcess[str]:
    return _run("send", "orders", body, "--namesrv", namesrv, "--json")


def _bodies(namesrv: str, count: int) -> list[str]:
    consumed = _run(
        "consume", "orders", "--group", "audit", "--count", str(count), "--timeout", "20s", "--namesrv", namesrv
    )
    assert consumed.returncode == 0, consumed.stderr
    return sorted(line.split("  ")[-1] for line in consumed.stdout.splitlines())


def test_serve_prints_one_ready_line_with_addresses(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server:
        line = server.ready_line()
        assert line == (
            f"latermq ready: name server {server.namesrv}, broker {server.broker}, no gRPC proxy, no HTTP, "
            "no pipeline\n"
        )
        assert accepts_connections(server.namesrv_port)
        assert accepts_connections(server.port)


def test_port_0_picks_free_ports_and_prints_them(tmp_path: Path) -> None:
    with serving(tmp_path / "data", "--namesrv-port", "0", "--port", "0") as server:
        assert 0 not in (server.namesrv_port, server.port)
        assert _send(server.namesrv, "hello").returncode == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_every_part_and_exits_0(tmp_path: Path, number: signal.Signals) -> None:
    with serving(tmp_path / "data") as server:
        children = children_of(server.pid)
        assert len(children) == 2
        os.kill(server.pid, number)
        assert server.wait_for_exit() == 0
        assert not any(map(is_alive, children))


def test_messages_survive_a_clean_stop(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server:
        assert _send(server.namesrv, "before").returncode == 0
    with serving(tmp_path / "data") as server:
        assert _send(server.namesrv, "after").returncode == 0
        assert _bodies(server.namesrv, 2) == ["after", "before"]


def test_kill_9_of_serve_ends_its_parts_and_the_data_opens_again_at_once(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server:
        assert _send(server.namesrv, "acknowledged").returncode == 0
        children = children_of(server.pid)
        os.kill(server.pid, signal.SIGKILL)
        server.wait_for_exit()
        with serving(tmp_path / "data", *server.same_ports) as second:
            assert _bodies(second.namesrv, 1) == ["acknowledged"]
        assert not any(map(is_alive, children))


def test_a_killed_broker_is_restarted_on_the_same_port(tmp_path: Path) -> None:
    with serving(tmp_path / "data", "--port", "0") as server:
        assert _send(server.namesrv, "before").returncode == 0
        killed = server.broker_pid()
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: server.child_pid("broker") not in (None, killed), 20.0, "a new broker process")
        wait_until(lambda: accepts_connections(server.port), 20.0, "the broker at its old port")
        assert "killed by SIGKILL" in server.log()
        wait_until(lambda: server.log().count("broker is ready") == 2, 20.0, "the broker's second ready line")
        assert _send(server.namesrv, "after").returncode == 0
        assert _bodies(server.namesrv, 2) == ["after", "before"]


def test_a_killed_name_server_is_restarted_and_the_broker_registers_again(tmp_path: Path) -> None:
    with serving(tmp_path / "data", "--set", "broker.register_every=200ms") as server:
        os.kill(server.namesrv_pid(), signal.SIGKILL)
        wait_until(lambda: _send(server.namesrv, "after").returncode == 0, 30.0, "a send over the new name server")


def test_without_java_serve_runs_without_the_pipeline_and_says_so(tmp_path: Path) -> None:
    environment = {"JAVA_HOME": str(tmp_path / "nowhere")}
    with serving(tmp_path / "data", pipeline=True, environment=environment) as server:
        assert f", no pipeline: no Java found in JAVA_HOME ({tmp_path}/nowhere)" in server.ready_line()
        assert len(children_of(server.pid)) == 2
        assert _send(server.namesrv, "hello").returncode == 0


def test_a_pipeline_that_cannot_start_is_retried_and_stops_no_other_part(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    timeline = tmp_path / "file" / "pipeline"
    with serving(tmp_path / "data", "--set", f"pipeline.timeline={timeline}", pipeline=True) as server:
        assert ", pipeline starting on local[1]" in server.ready_line()
        wait_until(lambda: server.log().count("pipeline exited and is being restarted") >= 2, 60.0, "two tries")
        assert f"error: the pipeline cannot start: the timeline {timeline}" in server.log()
        assert "Traceback" not in server.log()
        assert _send(server.namesrv, "hello").returncode == 0


def test_a_killed_pipeline_is_restarted_and_runs_at_a_lower_priority(tmp_path: Path) -> None:
    with serving(tmp_path / "data", pipeline=True) as server:
        first = wait_until(lambda: server.child_pid("pipeline"), 20.0, "the pipeline's process")
        broker = server.broker_pid()
        wait_until(lambda: os.getpriority(os.PRIO_PROCESS, first) == 10, 20.0, "its niceness")
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: server.child_pid("pipeline") not in (None, first), 20.0, "another one")
        assert server.broker_pid() == broker
        assert os.getpriority(os.PRIO_PROCESS, broker) == os.getpriority(os.PRIO_PROCESS, server.pid)
        assert _send(server.namesrv, "hello").returncode == 0


@pytest.mark.parametrize("option", ["--port", "--namesrv-port", "--grpc-port", "--http-port"])
def test_a_port_in_use_is_one_clear_line_and_exit_code_2(tmp_path: Path, option: str) -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        free = ("--port", "0", "--namesrv-port", "0", "--grpc-port", "0", "--http-port", "0")
        ended = _run("serve", "--data", str(tmp_path / "data"), *free, option, str(port))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.splitlines() == [
        f"error: port {port} on {HOST} is in use",
        f"hint: Stop the process that listens there, or choose another port with {option}",
    ]


@pytest.mark.parametrize("command", ["broker", "namesrv"])
def test_a_single_part_reports_a_port_in_use_too(tmp_path: Path, command: str) -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        ended = _run(command, "--data", str(tmp_path / "data"), "--port", str(port))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "address already in use" in ended.stderr
    assert "hint: Stop the process that listens there" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_data_directory_in_use_is_one_clear_line_and_exit_code_2(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server:
        ended = _run(
            "serve", "--data", str(tmp_path / "data"), "--port", "0", "--namesrv-port", "0", "--no-grpc", "--no-http"
        )
        assert (ended.returncode, ended.stdout) == (2, "")
        assert ended.stderr.splitlines() == [
            f"error: the data directory {tmp_path / 'data'} is in use by another latermq serve (pid {server.pid})",
            "hint: Stop it, or choose another directory with --data",
        ]
        assert _send(server.namesrv, "undisturbed").returncode == 0


def test_a_data_directory_that_cannot_be_created_is_one_clear_line_and_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    ended = _run("serve", "--data", str(tmp_path / "file" / "data"))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"error: cannot create the data directory {tmp_path / 'file' / 'data'}: ")


def test_each_part_runs_alone(tmp_path: Path) -> None:
    namesrv_port, port = free_port(), free_port()
    name_server = [sys.executable, "-m", "latermq", "namesrv", "--port", str(namesrv_port)]
    broker = [sys.executable, "-m", "latermq", "broker", "--data", str(tmp_path / "data"), "--port", str(port)]
    broker += ["--namesrv", f"{HOST}:{namesrv_port}"]
    with (
        subprocess.Popen(name_server, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as first,
        subprocess.Popen(broker, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as second,
    ):
        try:
            assert first.stdout is not None
            assert second.stdout is not None
            assert first.stdout.readline() == f"latermq ready: name server {HOST}:{namesrv_port}\n"
            assert second.stdout.readline() == f"latermq ready: broker {HOST}:{port}\n"
            wait_until(lambda: _send(f"{HOST}:{namesrv_port}", "hello").returncode == 0, 20.0, "a send")
        finally:
            for process in (second, first):
                process.terminate()
        assert (first.wait(20), second.wait(20)) == (0, 0)
