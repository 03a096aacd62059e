"""The load generators for gRPC and POP: a grpc-go client, and the official Java client. Each is one process."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.bench.load import Figures, Meters, compile_java, cpu_s_of
from tests.bench.proxies import ProxyContender
from tests.bench.sizes import Sizes
from tests.interop.programs import Json, Program
from tests.interop.toolchain import build_go_load, build_java5

JAVA5_SOURCES = Path(__file__).parent / "java5" / "src"
JAVA5_CLASSES = JAVA5_SOURCES.parent / "target" / "classes"
QUEUES = 8
BATCH = 32
CONNECTIONS = 4
SENDERS = 32  # per connection
RECEIVERS = 4  # per connection
# What a broker does after the invisible time must not fall into other runs of pop-pull.
POP_INVISIBLE_S = 300.0
POLL_S = 5.0  # the shortest that Apache's proxy accepts
WAITING_POLL_S = 20.0  # the longest
TOGETHER = "proxy + broker"
OF_IT_PROXY = "of it the proxy (µs/message)"
_PATIENCE_S = 60.0


class GrpcLoad:
    """Runs one workload against one proxy, or one broker, and returns its figures."""

    def __init__(self, program: Program, contenders: Sequence[ProxyContender], sizes: Sizes) -> None:
        self._program = program
        self._contenders = contenders
        self._size_bytes = sizes.size
        self._invisible_s = sizes.grpc_invisible_s

    def prepare(self, contender: ProxyContender, topic: str, *groups: str, message_type: str = "NORMAL") -> str:
        """Create a topic, and groups that read it from its beginning. Return the name of the broker."""
        wanted: Json = {"topic": topic, "groups": groups, "queues": QUEUES, "message_type": message_type}
        name: str = self._call(contender, "prepare", **wanted)["broker_name"]
        return name

    def send(self, contender: ProxyContender, topic: str, duration_s: float, tls: bool = False) -> Figures:
        """Send for some time."""
        meters = ProxyMeters(contender, self._contenders, self._program.pid)
        shape = {"seconds": duration_s, "connections": CONNECTIONS, "callers": SENDERS, "tls": tls}
        sent = self._call(contender, "send", duration_s, topic=topic, size=self._size_bytes, **shape)
        _check(contender, sent, sent["sent"])
        return {
            "messages/s": sent["sent"] / (sent["took_ns"] / 1e9),
            "latency p50 (ms)": sent["p50_ns"] / 1e6,
            "latency p99 (ms)": sent["p99_ns"] / 1e6,
            "latency max (ms)": sent["max_ns"] / 1e6,
            **meters.figures(sent["sent"]),
            "failed sends": sent["failed"],
        }

    def fill(self, contender: ProxyContender, topic: str, count: int) -> None:
        """Send messages that are received later. Failed sends are repeated."""
        while count > 0:
            shape = {"count": count, "connections": CONNECTIONS, "callers": SENDERS}
            sent = self._call(contender, "send", count / 300, topic=topic, size=self._size_bytes, **shape)
            _check(contender, sent, sent["sent"])
            count -= sent["sent"]

    def receive(self, contender: ProxyContender, topic: str, group: str, count: int, tls: bool = False) -> Figures:
        """Drain a topic in batches of 32. Every message is acknowledged with a call of its own."""
        meters = ProxyMeters(contender, self._contenders, self._program.pid)
        shape = {"connections": CONNECTIONS, "callers": RECEIVERS, "batch": BATCH, "tls": tls}
        timeout_s = _PATIENCE_S + count / 1_000
        done = self._call(
            contender,
            "receive",
            timeout_s,
            topic=topic,
            group=group,
            count=count,
            timeout_s=timeout_s,
            poll_s=POLL_S,
            invisible_s=self._invisible_s,
            **shape,
        )
        _check(contender, done, done["acked"])
        return {
            "messages/s": done["acked"] / (done["took_ns"] / 1e9),
            "messages per call": done["received"] / max(1, done["calls"]),
            **meters.figures(done["acked"]),
            "not received": max(0, count - done["acked"]),
            "received again": done["repeated"],
            "failed calls": done["failed"],
        }

    def delay(
        self, contender: ProxyContender, topic: str, group: str, count: int, over_s: float, ahead_s: float
    ) -> Figures:
        """Messages that are due over some time, received as they come: how late they are at the client."""
        meters = ProxyMeters(contender, self._contenders, self._program.pid)
        timeout_s = ahead_s + over_s + 30
        done = self._call(
            contender,
            "delay",
            timeout_s,
            topic=topic,
            group=group,
            count=count,
            size=self._size_bytes,
            from_ms=int(ahead_s * 1000),
            over_ms=int(over_s * 1000),
            connections=CONNECTIONS,
            callers=RECEIVERS,
            senders=RECEIVERS,
            batch=BATCH,
            timeout_s=timeout_s,
            poll_s=POLL_S,
            invisible_s=self._invisible_s,
        )
        _check(contender, done, done["received"])
        # At a low rate, the CPU time per message is mostly that of an idle server.
        used = {name: value for name, value in meters.figures(done["received"]).items() if "µs/message" not in name}
        return {
            "lateness p50 (ms)": done["p50_ns"] / 1e6,
            "lateness p99 (ms)": done["p99_ns"] / 1e6,
            "lateness max (ms)": done["max_ns"] / 1e6,
            **used,
            "received early": done["early"],
            "not received": max(0, done["missing"]),
            "received again": done["repeated"],
            "sent too late": done["sent_too_late"],
            "failed sends": done["failed"],
            "failed calls": done["failed_receives"],
        }

    def connect_waiting(self, contender: ProxyContender, topic: str, groups: Sequence[str], connections: int) -> None:
        """Open the connections of receivers that wait later."""
        shape = {
            "connections": connections,
            "batch": BATCH,
            "poll_s": WAITING_POLL_S,
            "invisible_s": self._invisible_s,
        }
        self._call(contender, "wait-connect", topic=topic, groups=list(groups), **shape)

    def open_waiting(self, contender: ProxyContender, count: int) -> int:
        """Open receive calls. Return how many of them wait."""
        waiting = self._call(contender, "wait-open", count / 300, count=count)
        _check(contender, waiting, waiting["waiting"])
        open_now: int = waiting["waiting"]
        return open_now

    def close_waiting(self, contender: ProxyContender) -> None:
        self._call(contender, "wait-close")

    def drain(self, contender: ProxyContender, how: str, topic: str, group: str, broker_name: str, count: int) -> Json:
        """Drain a topic over remoting: `how` is pull, or how the messages of a pop are acknowledged."""
        command = "pull" if how == "pull" else "pop"
        timeout_s = _PATIENCE_S + count / 1_000
        done = self._call(
            contender,
            command,
            timeout_s,
            topic=topic,
            group=group,
            count=count,
            queues=QUEUES,
            callers=QUEUES,
            batch=BATCH,
            ack=how,
            broker_name=broker_name,
            timeout_s=timeout_s,
            invisible_s=POP_INVISIBLE_S,
        )
        _check(contender, done, done["taken"])
        return done

    def broker_meters(self, contender: ProxyContender) -> Meters:
        """Measure usage of the broker alone from now on."""
        others = [pid for other in self._contenders for pid in other.pids.values() if pid != contender.pids["broker"]]
        return Meters([contender.pids["broker"]], self._program.pid, others)

    def _call(self, contender: ProxyContender, command: str, takes_s: float = 0.0, **arguments: Any) -> Json:
        addresses = {
            "address": contender.proxy_address,
            "broker": contender.broker_address,
            "namesrv": contender.namesrv,
        }
        request = self._program.begin(command, **addresses, **arguments)
        return self._program.finish(request, takes_s + _PATIENCE_S, f"{command} on {contender.name}")


class ProxyMeters:
    """CPU time and memory of the proxy and its broker together, and of the proxy alone where it is a process."""

    def __init__(self, contender: ProxyContender, contenders: Sequence[ProxyContender], load_pid: int) -> None:
        rivals = [pid for other in contenders if other is not contender for pid in other.pids.values()]
        self._proxy_pid = contender.pids.get("proxy")
        self._proxy_s = self._proxy_cpu_s()
        self._meters = Meters(list(contender.pids.values()), load_pid, rivals, TOGETHER)

    def figures(self, messages: int) -> Figures:
        figures: Figures = {}
        for name, value in self._meters.figures(messages).items():
            figures[name] = value
            if name.startswith(f"{TOGETHER} CPU") and self._proxy_pid is not None:
                figures[OF_IT_PROXY] = (self._proxy_cpu_s() - self._proxy_s) * 1e6 / messages
        return figures

    def _proxy_cpu_s(self) -> float:
        return 0.0 if self._proxy_pid is None else cpu_s_of(self._proxy_pid)


def _check(contender: ProxyContender, result: Json, succeeded: int) -> None:
    if not succeeded:
        failure = result["first_failure"] or result.get("first_failed_receive")
        raise RuntimeError(f"{contender.name}: no call succeeded: {failure}")


def start_java5_load(folder: Path) -> Program:
    """Start the load generator with the official Java client, which can only send and receive."""
    options = ("-Xms512m", "-Xmx512m", "-XX:+UseParallelGC", "-XX:-UsePerfData", "-Drocketmq.log.level=warn")
    libraries = build_java5()
    compile_java(JAVA5_SOURCES, JAVA5_CLASSES, libraries)
    class_path = f"{JAVA5_CLASSES}:{libraries}"
    command = ["java", *options, f"-Duser.home={folder}", "-cp", class_path, "latermq.bench5.Main"]
    return Program(command, folder / "java5-load.log", {})


def start_grpc_load(folder: Path) -> Program:
    """Start the load generator, a context manager."""
    return Program([str(build_go_load())], folder / "grpc-load.log", {})
