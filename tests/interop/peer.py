"""Apache RocketMQ itself, name server, broker and proxy, run from the jars that Maven fetched, to compare with."""

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.interop.ports import HOST, accepts_connections, free_port
from tests.interop.toolchain import build_java
from tests.interop.waiting import wait_until

# Two cores shared with other work: 10 s when idle.
START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 60

# Its memory-mapped files and direct buffers reach into the JDK's inside.
_OPENED = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
)
_PROXY_BOOTED = "rocketmq-proxy startup successfully"
_DEFAULTS = {
    "brokerClusterName": "DefaultCluster",
    "brokerName": "broker-a",
    "brokerId": "0",
    "brokerIP1": HOST,
    "autoCreateTopicEnable": "true",
    "enablePropertyFilter": "true",
    "recallMessageEnable": "true",
    "appendTopicForTimerDeleteKey": "true",
    "timerMaxDelaySec": "3456000",
}


class ApachePeer:
    """A running name server and broker. After `kill` or `stop_broker`, `start_broker` goes on with the same store.

    `start_proxy` adds a proxy for clients of the 5.x protocol.
    """

    def __init__(self, folder: Path, broker_settings: Mapping[str, str], heap: str) -> None:
        self._folder = folder
        self._heap = heap
        self._class_path = build_java().servers
        self._namesrv_port = free_port()
        # Beside its own port the broker takes the one two below (for privileged requests) and the next (replication).
        self.broker_port = free_port(-2, 1)
        self.namesrv = f"{HOST}:{self._namesrv_port}"
        self.broker_address = f"{HOST}:{self.broker_port}"
        self._settings = {**_DEFAULTS, **broker_settings}
        self._namesrv: subprocess.Popen[bytes] | None = None
        self._broker: subprocess.Popen[bytes] | None = None
        self._proxy: subprocess.Popen[bytes] | None = None
        self._proxy_port = free_port()
        self.endpoints = f"{HOST}:{self._proxy_port}"

    @property
    def broker_pid(self) -> int:
        assert self._broker is not None, "the broker is not running"
        return self._broker.pid

    @property
    def proxy_pid(self) -> int | None:
        """None if the proxy is not running, or is the broker."""
        return None if self._proxy is None else self._proxy.pid

    @property
    def store(self) -> Path:
        return self._folder / "store"

    def start(self) -> None:
        for name in ("conf", "tmp"):
            (self._folder / name).mkdir(parents=True, exist_ok=True)
        config = self._write("namesrv.conf", {"listenPort": str(self._namesrv_port)})
        namesrv = ("org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(config))
        self._namesrv = self._run("namesrv", namesrv, "256m")
        self._await_boot(self._namesrv, "namesrv", self._namesrv_port)
        self.start_broker()

    def start_broker(self) -> None:
        registrations = self._registrations()
        broker = ("org.apache.rocketmq.broker.BrokerStartup", "-c", str(self._write_broker_config()))
        self._broker = self._run("broker", broker, self._heap)
        self._await_boot(self._broker, "broker", self.broker_port)
        # It may boot before the name server has answered it, and until then clients find no topic.
        wait_until(lambda: self._registrations() > registrations, START_TIMEOUT_S, "the broker has registered")

    def start_proxy(self, heap: str = "512m") -> None:
        """Start a proxy of its own process; the route it returns has the port that the client used."""
        self._proxy = self._run("proxy", (*self._proxy_command(), "-pm", "cluster"), heap)
        self._await_boot(self._proxy, "proxy", self._proxy_port, _PROXY_BOOTED)

    def start_broker_with_proxy(self) -> None:
        """Start a broker that is its own proxy, in one process."""
        broker = (*self._proxy_command(), "-pm", "local", "-bc", str(self._write_broker_config()))
        self._broker = self._run("broker", broker, self._heap)
        self._await_boot(self._broker, "broker", self._proxy_port, _PROXY_BOOTED)

    def kill(self) -> None:
        """End the broker as a power cut would, the page cache excepted."""
        assert self._broker is not None, "the broker is not running"
        self._broker.send_signal(signal.SIGKILL)
        self._broker.wait(STOP_TIMEOUT_S)
        self._broker = None

    def stop_broker(self) -> None:
        """End the broker cleanly, so that its store can be opened by others; this takes it some 15 s."""
        assert self._broker is not None, "the broker is not running"
        self._broker.terminate()
        self._broker.wait(STOP_TIMEOUT_S)
        self._broker = None

    def close(self) -> None:
        for process in (self._proxy, self._broker, self._namesrv):
            if process is not None:
                process.kill()
                process.wait()
        self._proxy = self._broker = self._namesrv = None

    def log_tail(self, lines: int = 40) -> str:
        return "\n".join(self._log().splitlines()[-lines:])

    def _log(self) -> str:
        log = self._folder / "logs" / "rocketmqlogs" / "broker.log"
        return _text(log) if log.exists() else ""

    def _registrations(self) -> int:
        return self._log().count("Registering current broker to name server completed")

    def _proxy_command(self) -> tuple[str, ...]:
        settings = {
            "rocketMQClusterName": self._settings["brokerClusterName"],
            "namesrvAddr": self.namesrv,
            "localServeAddr": HOST,
            "grpcServerPort": self._proxy_port,
            "useEndpointPortFromRequest": True,
            "remotingListenPort": free_port(),
        }
        config = self._folder / "proxy.json"
        config.write_text(json.dumps(settings))
        return ("org.apache.rocketmq.proxy.ProxyStartup", "-pc", str(config))

    def _write_broker_config(self) -> Path:
        settings = {
            **self._settings,
            "namesrvAddr": self.namesrv,
            "listenPort": str(self.broker_port),
            "storePathRootDir": str(self.store),
            "storePathCommitLog": str(self.store / "commitlog"),
        }
        return self._write("broker.conf", settings)

    def _write(self, name: str, settings: Mapping[str, str]) -> Path:
        path = self._folder / name
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return path

    def _run(self, name: str, main: Sequence[str], heap: str) -> subprocess.Popen[bytes]:
        """Start a class with its options."""
        places = (f"-Duser.home={self._folder}", f"-Djava.io.tmpdir={self._folder / 'tmp'}")
        command = ["java", f"-Xms{heap}", f"-Xmx{heap}", "-XX:-UsePerfData", *places, *_OPENED]
        command += ["-cp", self._class_path, *main]
        environment = {**os.environ, "ROCKETMQ_HOME": str(self._folder)}
        with (self._folder / f"{name}.out").open("wb") as out:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment)

    def _await_boot(
        self, process: subprocess.Popen[bytes], name: str, port: int, booted_line: str = "boot success"
    ) -> None:
        out = self._folder / f"{name}.out"

        def booted() -> bool:
            if process.poll() is not None:
                raise RuntimeError(f"{name} ended with {process.returncode}:\n{_text(out)[-4000:]}")
            return booted_line in _text(out) and accepts_connections(port)

        wait_until(booted, START_TIMEOUT_S, f"{name} of Apache RocketMQ is up")


def _text(path: Path) -> str:
    return path.read_text(errors="replace")


@contextlib.contextmanager
def apache_peer(
    folder: Path, broker_settings: Mapping[str, str] | None = None, heap: str = "4g"
) -> Iterator[ApachePeer]:
    """Run Apache RocketMQ in `folder`, which gets its store and its logs, on free ports of the loopback interface."""
    peer = ApachePeer(folder, broker_settings or {}, heap)
    try:
        peer.start()
        yield peer
    finally:
        peer.close()
