"""The measured proxies for gRPC clients, each with its broker and name server: LaterMQ, and Apache RocketMQ twice."""

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from tests.bench.contenders import LATERMQ, LaterMQ
from tests.bench.load import memory_of
from tests.interop.peer import ApachePeer
from tests.interop.ports import HOST, free_port
from tests.support.needs import need_tool

APACHE_LOCAL = "Apache, local"
APACHE_CLUSTER = "Apache, cluster"
# Half of what Apache's broker has in the other scenarios: three JVMs run at once.
_BROKER_HEAP = "2g"
_PROXY_HEAP = "1g"
_JCMD_TIMEOUT_S = 60
_SETTLED_S = 4.0
_USED_HEAP = re.compile(r"used (\d+)K")


class ProxyContender(Protocol):
    """A running proxy with its broker. Both may be one process."""

    name: str

    @property
    def namesrv(self) -> str: ...

    @property
    def broker_address(self) -> str: ...

    @property
    def proxy_address(self) -> str: ...

    @property
    def pids(self) -> Mapping[str, int]:
        """Process ids by part: "broker" and "proxy", or only "broker" if it is both."""
        ...

    def used_bytes(self) -> Mapping[str, int]:
        """Memory in use by part: of a JVM the heap after garbage collection, otherwise all that is not file pages."""
        ...


class LaterMQProxy:
    """`latermq namesrv`, `latermq broker` and `latermq proxy`."""

    name = LATERMQ

    def __init__(self, folder: Path) -> None:
        self._certificate = folder / "proxy"
        self._servers = LaterMQ(folder, self.name, "wheel")
        self._port = free_port()
        self._proxy: subprocess.Popen[bytes] | None = None

    @property
    def namesrv(self) -> str:
        return self._servers.namesrv

    @property
    def broker_address(self) -> str:
        return self._servers.broker_address

    @property
    def proxy_address(self) -> str:
        return f"{HOST}:{self._port}"

    @property
    def pids(self) -> Mapping[str, int]:
        assert self._proxy is not None, "the proxy is not running"
        return {"broker": self._servers.broker_pid, "proxy": self._proxy.pid}

    def used_bytes(self) -> Mapping[str, int]:
        return {part: memory_of(pid).anonymous_bytes for part, pid in self.pids.items()}

    def start(self) -> None:
        self._servers.start()
        options = ("--data", str(self._certificate), "--port", str(self._port), "--namesrv", self.namesrv)
        self._proxy = self._servers.run_part("proxy", *options)

    def close(self) -> None:
        if self._proxy is not None:
            self._proxy.kill()
            self._proxy.wait()
        self._servers.close()


class ApacheProxy(ApachePeer):
    """Apache RocketMQ's proxy: a process of its own ("cluster"), or with the broker in one JVM ("local")."""

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__(folder, {}, _BROKER_HEAP)
        self.name = name

    @property
    def proxy_address(self) -> str:
        return self.endpoints

    @property
    def pids(self) -> Mapping[str, int]:
        pids = {"broker": self.broker_pid}
        return pids if self.proxy_pid is None else {**pids, "proxy": self.proxy_pid}

    def start_broker(self) -> None:
        if self.name == APACHE_LOCAL:
            self.start_broker_with_proxy()
        else:
            super().start_broker()
            self.start_proxy(_PROXY_HEAP)

    def used_bytes(self) -> Mapping[str, int]:
        return {part: _used_heap_bytes(pid) for part, pid in self.pids.items()}


@contextlib.contextmanager
def alone(contender: ProxyContender, contenders: Iterable[ProxyContender]) -> Iterator[None]:
    """Stop the processes of all other contenders for this time. Idle, they take up to 0.4 of two cores.

    All run for a while before, so that those that were stopped catch up and register again.
    """
    others = [pid for other in contenders if other is not contender for pid in other.pids.values()]
    time.sleep(_SETTLED_S)
    try:
        for pid in others:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in others:
            os.kill(pid, signal.SIGCONT)


def _used_heap_bytes(pid: int) -> int:
    jcmd = need_tool("jcmd", "it reads the heap of a JVM")
    subprocess.run([jcmd, str(pid), "GC.run"], check=True, capture_output=True, timeout=_JCMD_TIMEOUT_S)
    info = subprocess.run([jcmd, str(pid), "GC.heap_info"], check=True, capture_output=True, timeout=_JCMD_TIMEOUT_S)
    found = _USED_HEAP.search(info.stdout.decode())
    assert found is not None, info.stdout
    return int(found[1]) * 1024


@contextlib.contextmanager
def _started(proxy: LaterMQProxy | ApacheProxy) -> Iterator[ProxyContender]:
    try:
        proxy.start()
        yield proxy
    finally:
        proxy.close()


def run_proxy(name: str, folder: Path) -> AbstractContextManager[ProxyContender]:
    """Run the contender with this name in its own folder below `folder`."""
    own = folder / name.lower().replace(",", "").replace(" ", "-")
    runs: dict[str, Callable[[], LaterMQProxy | ApacheProxy]] = {
        LATERMQ: lambda: LaterMQProxy(own),
        APACHE_LOCAL: lambda: ApacheProxy(own, name),
        APACHE_CLUSTER: lambda: ApacheProxy(own, name),
    }
    return _started(runs[name]())
