"""A real `latermq serve` for tests: `with serving(data_dir) as server:` runs a name server and a broker.

Its ports are free ports below the kernel's ephemeral range, so a test can start a second server on the same ports after
the first was killed: `serving(data_dir, *server.same_ports)`. At the end of the block the server is stopped and must
exit cleanly. If the block fails, the server is killed and the end of its log is added to the failure.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TypeVar

from tests.interop.ports import HOST, free_port
from tests.interop.waiting import TookTooLongError, wait_until

# On a busy machine: several processes import their modules, alongside those of other tests.
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 60.0
_LOG_TAIL_BYTES = 8_000

T = TypeVar("T")
NO_METRICS = {f"LATERMQ_METRICS_{part}PORT": "0" for part in ("", "NAMESRV_", "PROXY_", "PIPELINE_")}
ANY_CONNECT_PORT = {"LATERMQ_PIPELINE_CONNECT_PORT": "0"}  # several drivers may run at a time


class Server:
    """A running `latermq serve` and its child processes."""

    def __init__(self, process: subprocess.Popen[bytes], out: IO[bytes], log: IO[bytes]) -> None:
        self._process = process
        self._out = out
        self._log = log
        self.namesrv = ""
        self.broker = ""
        self.proxy = ""  # empty without one
        self.http = ""  # likewise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def namesrv_port(self) -> int:
        return int(self.namesrv.rpartition(":")[2])

    @property
    def port(self) -> int:
        """The broker's remoting port."""
        return int(self.broker.rpartition(":")[2])

    @property
    def same_ports(self) -> tuple[str, ...]:
        """The options that start another server on the same ports."""
        return ("--namesrv-port", str(self.namesrv_port), "--port", str(self.port))

    def ready_line(self) -> str:
        """The standard output of `serve`: empty until it is ready, then one line."""
        return _content(self._out).decode()

    def log(self) -> str:
        """The end of the log of all processes."""
        return _content(self._log)[-_LOG_TAIL_BYTES:].decode(errors="replace")

    def whole_log(self) -> str:
        """The log of all processes from the start."""
        return _content(self._log).decode(errors="replace")

    def broker_pid(self) -> int:
        """The pid of the current broker process, which changes with a restart. Waits while there is none."""
        return self._wait(lambda: self.child_pid("broker"), START_TIMEOUT_S, "a broker process")

    def proxy_pid(self) -> int:
        """The pid of the current proxy process. Waits while there is none."""
        return self._wait(lambda: self.child_pid("proxy"), START_TIMEOUT_S, "a proxy process")

    def namesrv_pid(self) -> int:
        return self._wait(lambda: self.child_pid("namesrv"), START_TIMEOUT_S, "a name server process")

    def child_pid(self, command: str) -> int | None:
        """The pid of the child of `serve` that runs `latermq COMMAND`, if there is one."""
        for pid in children_of(self.pid):
            if command in command_line(pid)[:4]:
                return pid
        return None

    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait_for_exit(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Wait until `serve` has ended, and return its exit code."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise TookTooLongError(f"serve still runs after {timeout_s:g} s; its log ends:\n{self.log()}") from None

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Send SIGTERM, and check that the server exits cleanly and leaves no process behind."""
        children = children_of(self.pid)
        self._process.send_signal(signal.SIGTERM)
        code = self.wait_for_exit(timeout_s)
        assert code == 0, f"serve exited with {code}; its log ends:\n{self.log()}"
        self._wait(lambda: not any(map(is_alive, children)), 10.0, "the exit of every child")

    def kill(self) -> None:
        """Kill all processes at once with `kill -9`. The files are as after a crash."""
        tree = [self.pid, *children_of(self.pid)]
        for pid in tree:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait(STOP_TIMEOUT_S)
        self._wait(lambda: not any(map(is_alive, tree)), 10.0, "the exit of every killed process")

    def wait_until_ready(self, timeout_s: float) -> None:
        self._wait(lambda: self._is_ready() or not self.is_running(), timeout_s, "the ready line")
        line = self.ready_line()
        assert self._is_ready(), f"serve exited with {self._process.returncode} before it was ready:\n{self.log()}"
        self.namesrv = _address_of("name server", line)
        self.broker = _address_of("broker", line)
        if "no gRPC proxy" not in line:
            self.proxy = _address_of("gRPC proxy", line)
        if "no HTTP" not in line:
            self.http = _address_of("HTTP", line)

    def _is_ready(self) -> bool:
        line = self.ready_line()
        return line.startswith("latermq ready") and line.endswith("\n")

    def _wait(self, condition: Callable[[], T | None], timeout_s: float, description: str) -> T:
        try:
            return wait_until(condition, timeout_s, description)
        except TookTooLongError as error:
            raise TookTooLongError(f"{error}; the log ends:\n{self.log()}") from None


@contextlib.contextmanager
def serving(
    data_dir: Path,
    *options: str,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = START_TIMEOUT_S,
    pipeline: bool = False,
    grpc: bool = False,
    http: bool = False,
    program: Sequence[str] = (sys.executable, "-m", "latermq"),
) -> Iterator[Server]:
    """Run `latermq serve` on a data directory, with further command-line options.

    By default it runs without the pipeline, the proxy and the HTTP API: their start takes longer than most tests.
    """
    arguments = ["--data", str(data_dir), "--host", HOST, *([] if pipeline else ["--no-pipeline"])]
    arguments += ["--grpc-port", str(free_port())] if grpc else ["--no-grpc"]
    arguments += ["--http-port", str(free_port())] if http else ["--no-http"]
    arguments += ["--namesrv-port", str(free_port()), "--port", str(free_port()), *options]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [*program, "serve", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=log,
            # Tests run in parallel, so only tests of metrics set a port for them.
            env={**os.environ, **NO_METRICS, **ANY_CONNECT_PORT, **(environment or {})},
        )
        server = Server(process, out, log)
        try:
            server.wait_until_ready(timeout_s)
            yield server
            if server.is_running():
                server.stop()
        except BaseException as error:
            error.add_note(f"the log of latermq serve ends:\n{server.log()}")
            raise
        finally:
            if server.is_running():
                server.kill()


def children_of(parent_pid: int) -> list[int]:
    """The running child processes of a process."""
    return [pid for pid in _process_ids() if is_alive(pid) and _status(pid)[1] == str(parent_pid)]


def is_alive(pid: int) -> bool:
    """Whether a process runs. A zombie does not run."""
    return _status(pid)[0] not in ("", "Z", "X")


def command_line(pid: int) -> list[str]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    return []


def resident_bytes(pid: int) -> int:
    """The memory of a process that is not swapped out. Libraries count, although other processes share them."""
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024


def peak_resident_bytes(pid: int) -> int:
    """The largest such memory since its start."""
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


def _process_ids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _status(pid: int) -> list[str]:
    """The state and the parent of a process, or two empty strings if it does not exist."""
    with contextlib.suppress(OSError):
        # The command name precedes them in brackets and may contain any characters.
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
    return ["", ""]


def _content(file: IO[bytes]) -> bytes:
    # Read without moving the position, which the server's processes share for writing.
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0)


@contextlib.contextmanager
def another_broker(server: Server, data_dir: Path, port: int, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A second broker, "broker-b". It is killed at the end."""
    command = [sys.executable, "-m", "latermq", "broker", "--data", str(data_dir), "--host", HOST, "--port", str(port)]
    command += ["--namesrv", server.namesrv, "--set", "broker.name=broker-b", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **NO_METRICS}) as process:
        try:
            assert process.stdout is not None
            assert "ready" in process.stdout.readline()
            yield process
        finally:
            process.kill()


def _address_of(part: str, ready_line: str) -> str:
    match = re.search(rf"{part} (\S+:\d+)", ready_line)
    assert match is not None, f"no address of the {part} in {ready_line!r}"
    return match[1]
