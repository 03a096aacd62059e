"""The load generator: Apache's Java client in one process, the same for every broker, and its resource usage."""

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from latermq.cli.bench.process_usage import Memory, cpu_s, memory
from tests.bench.contenders import Contender
from tests.interop.programs import Json, Program
from tests.interop.toolchain import JAVA_SOURCES, build_java
from tests.support.needs import need_tool

SOURCES = Path(__file__).parent / "java" / "src"
CLASSES = SOURCES.parent / "target" / "classes"
# A heap of fixed size without concurrent collection, so that the load uses the same CPU in every run.
_JVM_OPTIONS = ("-Xms512m", "-Xmx512m", "-XX:+UseParallelGC", "-XX:-UsePerfData")
# Brokers dispatch, index and flush briefly after the last response. That work belongs to the run.
_SETTLE_S = 0.5
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_SLOWEST_PER_S = 300

OTHER_CPU = "other CPU (cores)"
NOT_FILES = "of it not file pages (MiB)"
Figures = dict[str, float]


@dataclass(frozen=True)
class SendShape:
    """How messages are sent. `rate` 0 means as fast as possible. `in_flight` limits sends without a response."""

    mode: str
    threads: int
    in_flight: int
    size: int
    rate: float = 0.0
    delay_level: int = 0
    # If set, each message gets the delay level with which it is due at `due_at_ms` or soon after.
    delays_ms: tuple[int, ...] = ()
    due_at_ms: int = 0
    # If above 0, messages are timers that are due in this range, evenly spread but not in send order.
    due_from_ms: int = 0
    due_over_ms: int = 0


class Load:
    """Runs one workload against one broker and returns its figures."""

    def __init__(
        self, program: Program, contenders: Sequence[Contender], access: Mapping[str, object] | None = None
    ) -> None:
        """`access` is how clients connect: `user`, `secret` and `tls`."""
        self._program = program
        self._contenders = contenders
        self._access = dict(access or {})

    def with_access(self, **access: object) -> "Load":
        """The same load with credentials, or with TLS."""
        return Load(self._program, self._contenders, access)

    def make_topic(self, contender: Contender, topic: str, size: int) -> None:
        """Auto-create the topic, with eight queues, by a first message."""
        self.send(contender, topic, 1, SendShape("sync", 1, 1, size))

    def send(self, contender: Contender, topic: str, count: int, shape: SendShape) -> Figures:
        meters = self.meters(contender)
        sent = self._call(
            "send",
            60 + count / (shape.rate or _SLOWEST_PER_S),
            namesrv=contender.namesrv,
            topic=topic,
            count=count,
            size=shape.size,
            mode=shape.mode,
            threads=shape.threads,
            in_flight=shape.in_flight,
            rate=shape.rate,
            delay_level=shape.delay_level,
            due_from_ms=shape.due_from_ms,
            due_over_ms=shape.due_over_ms,
            **({"delays_ms": shape.delays_ms, "due_at_ms": shape.due_at_ms} if shape.delays_ms else {}),
        )
        contender.stored += sent["acknowledged"]
        if not sent["acknowledged"]:
            raise RuntimeError(f"{contender.name} accepted none of {count} messages: {sent['first_failure']}")
        return {
            "messages/s": sent["acknowledged"] / (sent["took_ns"] / 1e9),
            "latency p50 (ms)": sent["p50_ns"] / 1e6,
            "latency p99 (ms)": sent["p99_ns"] / 1e6,
            "latency max (ms)": sent["max_ns"] / 1e6,
            **meters.figures(sent["acknowledged"]),
            "failed sends": sent["failed"],
        }

    def consume(
        self, contender: Contender, topic: str, group: str, count: int, threads: int, *, pops: bool = False
    ) -> Figures:
        """Drain a topic as a new group, which pulls, or pops if that is its mode."""
        meters = self.meters(contender)
        timeout_s = 60 + count // _SLOWEST_PER_S
        done = self._call(
            "consume",
            timeout_s + 60,
            namesrv=contender.namesrv,
            topic=topic,
            group=group,
            count=count,
            threads=threads,
            timeout_s=timeout_s,
            pops=pops,
        )
        return {"messages/s": done["consumed"] / max(done["took_ns"] / 1e9, 1e-6), **meters.figures(done["consumed"])}

    def connect(self, contender: Contender, topic: str, count: int, threads: int) -> Figures:
        """Open connections, each for one request."""
        meters = self.meters(contender)
        done = self._call(
            "connect", 60 + count, address=contender.broker_address, topic=topic, count=count, threads=threads
        )
        figures = meters.figures(count)
        return {
            "connections/s": count / (done["took_ns"] / 1e9),
            **{name.replace("message", "connection"): figure for name, figure in figures.items()},
        }

    def stored(self, contender: Contender, topic: str) -> int:
        """The current number of messages in a topic."""
        memory_figures: int = self._call("stored", 60, namesrv=contender.namesrv, topic=topic)["stored"]
        return memory_figures

    def fill(self, contender: Contender, topic: str, count: int, shape: SendShape) -> None:
        """Send until this many are acknowledged. An overloaded broker refuses some."""
        wanted = contender.stored + count
        while contender.stored < wanted:
            self.send(contender, topic, wanted - contender.stored, shape)

    def meters(self, contender: Contender) -> "Meters":
        """Measure usage from now on, while this broker works and the others wait."""
        rivals = [other.broker_pid for other in self._contenders if other is not contender]
        return Meters([contender.broker_pid], self._program.pid, rivals)

    def _call(self, command: str, answer_within_s: float, **arguments: Any) -> Json:
        return self._program.finish(self._program.begin(command, **self._access, **arguments), answer_within_s, command)


class Spent(NamedTuple):
    """Seconds: wall time, and CPU time of the broker, the load, waiting brokers and the whole machine."""

    took_s: float
    broker_s: float
    load_s: float
    waiting_s: float
    machine_s: float

    def others(self) -> Figures:
        """CPU usage other than that of the broker and its load."""
        other_s = self.machine_s - self.broker_s - self.load_s - self.waiting_s
        return {"waiting broker CPU (cores)": self.waiting_s / self.took_s, OTHER_CPU: max(0.0, other_s) / self.took_s}


class Meters:
    """Measures CPU time of the broker, the load, waiting brokers and the whole machine since its creation.

    A broker may have several processes, which count together.
    """

    def __init__(
        self, broker_pids: Sequence[int], load_pid: int, waiting_pids: Sequence[int], name: str = "broker"
    ) -> None:
        self._broker_pids = broker_pids
        self._name = name
        self._load_pid = load_pid
        self._waiting_pids = waiting_pids
        self._at_start = self._read()

    def spent(self) -> Spent:
        return Spent(*(now - then for now, then in zip(self._read(), self._at_start, strict=True)))

    def figures(self, messages: int) -> Figures:
        _settle()
        spent = self.spent()
        return {
            f"{self._name} CPU (µs/message)": spent.broker_s * 1e6 / messages,
            "client CPU (µs/message)": spent.load_s * 1e6 / messages,
            **spent.others(),
            **memory_figures(*self._broker_pids, name=self._name),
        }

    def _read(self) -> Spent:
        broker_s, waiting_s = (sum(map(cpu_s_of, pids)) for pids in (self._broker_pids, self._waiting_pids))
        return Spent(time.monotonic(), broker_s, cpu_s_of(self._load_pid), waiting_s, _machine_cpu_s())


def memory_figures(*pids: int, name: str = "broker") -> Figures:
    """The current memory of a broker."""
    found = [memory_of(pid) for pid in pids]
    return {
        f"{name} resident (MiB)": sum(each.resident_bytes for each in found) / 2**20,
        NOT_FILES: sum(each.anonymous_bytes for each in found) / 2**20,
    }


def memory_of(pid: int) -> Memory:
    found = memory(pid)
    assert found is not None, f"process {pid} has exited"
    return found


def cpu_s_of(pid: int) -> float:
    used_s = cpu_s(pid)
    assert used_s is not None, f"process {pid} has exited"
    return used_s


def _machine_cpu_s() -> float:
    """CPU time of all processes on this machine, including time stolen by the host."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields[:8])
    return (user + nice + system + irq + softirq + steal) / _TICKS_PER_S


def _settle() -> None:
    time.sleep(_SETTLE_S)


def start_load(folder: Path) -> Program:
    """Start the load generator, a context manager."""
    libraries = build_java().servers
    compile_java(SOURCES, CLASSES, libraries)
    # Logging as in the interop programs: warnings, on standard error.
    class_path = f"{JAVA_SOURCES / 'src' / 'main' / 'resources'}:{CLASSES}:{libraries}"
    command = ["java", *_JVM_OPTIONS, f"-Duser.home={folder}", "-cp", class_path, "latermq.bench.Main"]
    return Program(command, folder / "load.log", {})


def compile_java(folder: Path, classes: Path, libraries: str) -> None:
    """Compile the programs of a folder, if any of them is newer than the classes."""
    javac = need_tool("javac", "it compiles the load generator")
    sources = sorted(folder.rglob("*.java"))
    built = list(classes.rglob("Main.class"))
    if built and all(source.stat().st_mtime <= built[0].stat().st_mtime for source in sources):
        return
    command = [javac, "--release", "11", "-proc:none", "-cp", libraries, "-d", str(classes), *map(str, sources)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"javac failed:\n{done.stderr[-4000:]}")
