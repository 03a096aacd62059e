"""The `latermq serve` of the demo: a process of its own, without the user's settings, on free ports."""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from latermq.cli.demo.checks import DemoFailed
from latermq.config import Config
from latermq.processes import die_with_parent

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 60.0
ABORT_TIMEOUT_S = 10.0
_POLL_S = 0.05
_NO_METRICS = ("metrics.port=0", "metrics.namesrv_port=0", "metrics.proxy_port=0", "metrics.pipeline_port=0")
_LOG_TAIL_CHARACTERS = 3_000


def environment() -> dict[str, str]:
    """The environment without settings of LaterMQ: the demo must not depend on those of another server."""
    sections = tuple(f"LATERMQ_{field.name.upper()}_" for field in msgspec.structs.fields(Config))
    return {name: value for name, value in os.environ.items() if not name.startswith(sections)}


class Server:
    """A `latermq serve` with all its parts. With `keep` it outlives the demo."""

    def __init__(
        self, data: Path, folder: Path, settings: Sequence[str], *, pipeline: bool, keep: bool = False
    ) -> None:
        self._data = data
        self._out, self._log = folder / "serve.out", folder / "serve.log"
        self._settings = settings
        self._pipeline = pipeline
        self._keep = keep
        self._process: subprocess.Popen[bytes] | None = None
        self.namesrv = self.broker = self.proxy = self.http = self.pipeline = ""

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def has_pipeline(self) -> bool:
        return self.pipeline.startswith("pipeline starting")

    async def start(self) -> str:
        """Start the processes and wait until they accept connections. Returns the ready line."""
        self._process = self._spawn()
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not (line := self._out.read_text()).endswith("\n"):
            if self._process.poll() is not None:
                raise DemoFailed(f"the server exited with {self._process.returncode} before it was ready")
            if time.monotonic() > deadline_s:
                raise DemoFailed(f"the server was not ready after {START_TIMEOUT_S:.0f} s")
            await asyncio.sleep(_POLL_S)
        found = re.fullmatch(
            r"latermq ready: name server (\S+), broker (\S+), gRPC proxy (\S+), HTTP (\S+), (.*)", line.strip()
        )
        if found is None:
            raise DemoFailed(f"unexpected ready line: {line.strip()}")
        self.namesrv, self.broker, self.proxy, self.http, self.pipeline = found.groups()
        return line.strip()

    def _spawn(self) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "latermq", "serve", "--data", str(self._data)]
        command += [word for part in ("namesrv-", "", "grpc-", "http-") for word in (f"--{part}port", "0")]
        for setting in (*self._settings, *_NO_METRICS, "pipeline.connect_port=0"):
            command += ["--set", setting]
        if not self._pipeline:
            command.append("--no-pipeline")
        parent_pid = os.getpid()
        with self._out.open("wb") as out, self._log.open("ab") as log:
            # In a session of its own, Ctrl-C reaches only the demo, which then stops the server.
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                env=environment(),
                start_new_session=True,
                preexec_fn=None if self._keep else lambda: die_with_parent(parent_pid),
            )

    def pid_of(self, part: str) -> int | None:
        """The process of a part, None while it is being restarted."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        for pid in map(int, children):
            with contextlib.suppress(OSError):
                if f"\0{part}\0".encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return pid
        return None

    def kill(self, part: str) -> int:
        pid = self.pid_of(part)
        if pid is None:
            raise DemoFailed(f"the {part} is not running")
        os.kill(pid, signal.SIGKILL)
        return pid

    async def stop(self) -> int:
        """Stop the server as an operator does, and return its exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        deadline_s = time.monotonic() + STOP_TIMEOUT_S
        while (code := self._process.poll()) is None:
            if time.monotonic() > deadline_s:
                raise DemoFailed(f"the server still runs {STOP_TIMEOUT_S:.0f} s after SIGTERM")
            await asyncio.sleep(_POLL_S)
        return code

    def close(self) -> None:
        """End all processes, if they still run. A second signal while they stop kills them."""
        if self._process is None:
            return
        try:
            if self._process.poll() is None:
                self._process.send_signal(signal.SIGTERM)
                self._process.wait(ABORT_TIMEOUT_S)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            pass
        finally:
            # Parts, and Spark's processes, which may outlive them for a moment.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def log_end(self) -> str:
        if not self._log.exists():
            return ""
        return self._log.read_text(errors="replace")[-_LOG_TAIL_CHARACTERS:]
