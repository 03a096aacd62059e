"""The measured brokers, each with its own name server: LaterMQ and Apache RocketMQ."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from tests.interop.peer import ApachePeer, apache_peer
from tests.interop.ports import HOST, free_port
from tests.interop.target import USERS_OF_APACHE, USERS_OF_LATERMQ
from tests.interop.waiting import wait_until

START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 30
# RocketMQ's default levels, and every second up to 45, so that messages sent over half a minute can be due together.
LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h " + " ".join(f"{s}s" for s in range(2, 46))
LATERMQ = "LaterMQ"
LATERMQ_ROCKSDB = "LaterMQ, RocksDB"
APACHE = "Apache RocketMQ"
APACHE_FINE = "Apache, 100 ms"
LATERMQ_USERS = "LaterMQ, users"
APACHE_USERS = "Apache, users"


class Contender(Protocol):
    """A running broker. `stored` counts the messages that the benchmark has sent to it."""

    name: str
    stored: int

    @property
    def namesrv(self) -> str: ...

    @property
    def broker_pid(self) -> int: ...

    @property
    def broker_address(self) -> str: ...

    @property
    def log_folder(self) -> Path:
        """The folder of its CommitLog."""
        ...

    def kill(self) -> None:
        """Kill the broker with `kill -9`."""
        ...

    def restart(self) -> float:
        """Start it on the same store. Return the seconds until it reports that it is ready."""
        ...


class LaterMQ:
    """`latermq namesrv` and `latermq broker`: two processes like Apache's, so that starts are comparable."""

    def __init__(self, folder: Path, name: str, engine: str, settings: Sequence[str] = ()) -> None:
        self.name = name
        self.stored = 0
        self._settings = (f"timer.levels={LEVELS}", f"timer.engine={engine}", *settings)
        self._folder = folder
        self._namesrv_port = free_port()
        self._broker_port = free_port()
        self._namesrv: subprocess.Popen[bytes] | None = None
        self._broker: subprocess.Popen[bytes] | None = None

    @property
    def namesrv(self) -> str:
        return f"{HOST}:{self._namesrv_port}"

    @property
    def broker_pid(self) -> int:
        assert self._broker is not None, "the broker is not running"
        return self._broker.pid

    @property
    def broker_address(self) -> str:
        return f"{HOST}:{self._broker_port}"

    @property
    def log_folder(self) -> Path:
        return self._folder / "data" / "commitlog"

    def start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        data = str(self._folder / "namesrv")  # with its certificate
        self._namesrv = self.run_part("namesrv", "--port", str(self._namesrv_port), "--data", data)
        self._start_broker()

    def _start_broker(self) -> None:
        data = str(self._folder / "data")
        options = ("--data", data, "--port", str(self._broker_port), "--namesrv", self.namesrv)
        settings = [word for setting in self._settings for word in ("--set", setting)]
        self._broker = self.run_part("broker", *options, *settings)

    def kill(self) -> None:
        assert self._broker is not None, "the broker is not running"
        self._broker.kill()
        self._broker.wait(STOP_TIMEOUT_S)

    def restart(self) -> float:
        started_s = time.monotonic()
        self._start_broker()
        return time.monotonic() - started_s

    def close(self) -> None:
        for process in (self._broker, self._namesrv):
            if process is not None:
                process.kill()
                process.wait()
        self._broker = self._namesrv = None

    def run_part(self, part: str, *options: str) -> subprocess.Popen[bytes]:
        """Start a server and wait until it is ready."""
        command = [sys.executable, "-m", "latermq", part, "--host", HOST, "--parent-pid", str(os.getpid()), *options]
        with (self._folder / f"{part}.out").open("wb") as out, (self._folder / f"{part}.log").open("ab") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=log)
        try:
            self._await_ready(process, part)
        except BaseException:
            process.kill()
            process.wait()
            raise
        return process

    def _await_ready(self, process: subprocess.Popen[bytes], part: str) -> None:
        out, log = self._folder / f"{part}.out", self._folder / f"{part}.log"

        def ready() -> bool:
            if process.poll() is not None:
                raise RuntimeError(f"latermq {part} ended with {process.returncode}:\n{log.read_text()[-4000:]}")
            return out.read_bytes().startswith(b"latermq ready")

        wait_until(ready, START_TIMEOUT_S, f"latermq {part} is ready")


class Apache:
    """Apache RocketMQ's name server and broker with their default settings."""

    def __init__(self, peer: ApachePeer, name: str) -> None:
        self.name = name
        self.stored = 0
        self._peer = peer

    @property
    def namesrv(self) -> str:
        return self._peer.namesrv

    @property
    def broker_pid(self) -> int:
        return self._peer.broker_pid

    @property
    def broker_address(self) -> str:
        return self._peer.broker_address

    @property
    def log_folder(self) -> Path:
        return self._peer.store / "commitlog"

    def kill(self) -> None:
        self._peer.kill()

    def restart(self) -> float:
        started_s = time.monotonic()
        self._peer.start_broker()
        return time.monotonic() - started_s


@contextlib.contextmanager
def run_latermq(folder: Path, name: str, engine: str, settings: Sequence[str] = ()) -> Iterator[Contender]:
    broker = LaterMQ(folder, name, engine, settings)
    try:
        broker.start()
        yield broker
    finally:
        broker.close()


@contextlib.contextmanager
def run_apache(
    folder: Path, name: str, precision_ms: int, settings: Mapping[str, str] | None = None
) -> Iterator[Contender]:
    common = {"messageDelayLevel": LEVELS, "timerPrecisionMs": str(precision_ms)}
    with apache_peer(folder, {**common, **(settings or {})}) as peer:
        yield Apache(peer, name)


def run_contender(name: str, folder: Path) -> AbstractContextManager[Contender]:
    """Run the contender with this name in its own folder below `folder`."""
    own = folder / name.lower().replace(",", "").replace(" ", "-")
    runs: dict[str, Callable[[], AbstractContextManager[Contender]]] = {
        LATERMQ: lambda: run_latermq(own, name, "wheel"),
        LATERMQ_ROCKSDB: lambda: run_latermq(own, name, "rocksdb"),
        APACHE: lambda: run_apache(own, name, 1_000),
        APACHE_FINE: lambda: run_apache(own, name, 100),
        LATERMQ_USERS: lambda: run_latermq(own, name, "wheel", USERS_OF_LATERMQ),
        APACHE_USERS: lambda: run_apache(own, name, 1_000, USERS_OF_APACHE),
    }
    return runs[name]()
