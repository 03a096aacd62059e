"""Scenarios of the gRPC protocol and POP: each repeat runs every proxy in turn, in alternating order."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence

from tests.bench.grpc_load import TOGETHER, GrpcLoad
from tests.bench.load import Figures, cpu_s_of
from tests.bench.proxies import APACHE_LOCAL, ProxyContender, alone
from tests.bench.scenarios import Row, in_turn, print_line, print_row
from tests.bench.sizes import Sizes

SEND_TOPIC = "bench-grpc-send"
POP_TOPIC = "bench-pop-pull"
# Apache's broker lets 1,024 receivers of a group wait.
_WAITING_GROUPS = 10
_WAITING_CONNECTIONS = 50
_WARM_WAITING = 100
_WARM_ROUND_S = 5.0
_CLIENT_ROUNDS = 3
_IDLE_S = 2.0
_PASSES = 4
# How the messages of a topic are taken in pop-pull.
_PULL = "pull"
_DRAINS = {_PULL: "pull", "batch": "pop, one ack per pop", "one": "pop, one ack per message"}


class GrpcSideBySide:
    """The proxies and the load that all scenarios share. Rows are yielded as they are measured."""

    def __init__(
        self,
        contenders: Sequence[ProxyContender],
        load: GrpcLoad,
        sizes: Sizes,
        start_official: Callable[[], GrpcLoad],
    ) -> None:
        self._contenders = contenders
        self._load = load
        self._sizes = sizes
        self._start_official = start_official
        self._is_warm_for_sends = False
        self.scenarios: dict[str, Callable[[], Iterator[Row]]] = {
            "grpc-waiting": self._waiting,
            "grpc-send": lambda: self._send("grpc-send", load, tls=False),
            "grpc-receive": lambda: self._receive("grpc-receive", load, tls=False),
            "grpc-send-tls": lambda: self._send("grpc-send-tls", load, tls=True),
            "grpc-receive-tls": lambda: self._receive("grpc-receive-tls", load, tls=True),
            # With TLS, which is the client's default.
            "grpc-java": self._official,
            "grpc-delay": self._delay,
            "pop-pull": self._pop_pull,
        }

    def _waiting(self) -> Iterator[Row]:
        """Run once, and first: memory that was in use before is used again and hides the growth."""
        topic, groups = "bench-grpc-waiting", [f"bench-waiting-{number}" for number in range(_WAITING_GROUPS)]
        for contender in self._contenders:
            self._load.prepare(contender, topic, *groups)
            self._load.connect_waiting(contender, topic, groups, _WAITING_CONNECTIONS)
            self._load.open_waiting(contender, min(_WARM_WAITING, self._sizes.waiting))
            self._load.close_waiting(contender)
            self._load.connect_waiting(contender, topic, groups, _WAITING_CONNECTIONS)
            before = contender.used_bytes()
            count = self._load.open_waiting(contender, self._sizes.waiting)
            after = contender.used_bytes()
            self._load.close_waiting(contender)
            figures: Figures = {f"{TOGETHER} (bytes/receiver)": (sum(after.values()) - sum(before.values())) / count}
            if "proxy" in before:
                figures["of it the proxy (bytes/receiver)"] = (after["proxy"] - before["proxy"]) / count
            figures["waiting"] = count
            yield print_row(Row("grpc-waiting", contender.name, 0, figures))

    def _warm(self) -> None:
        """Sends until the JIT has compiled them, for all contenders the same time."""
        if self._is_warm_for_sends:
            return
        self._is_warm_for_sends = True
        for contender in self._contenders:
            print_line(f"warming up {contender.name} with {self._sizes.grpc_warm_s:g} s of sends")
            self._load.prepare(contender, SEND_TOPIC)
            left_s = self._sizes.grpc_warm_s
            while left_s > 0:
                self._load.send(contender, SEND_TOPIC, min(left_s, _WARM_ROUND_S))
                left_s -= _WARM_ROUND_S

    def _official(self) -> Iterator[Row]:
        load = self._start_official()
        yield from self._send("grpc-java, send", load, tls=True)
        yield from self._receive("grpc-java, receive", load, tls=True)

    def _send(self, scenario: str, load: GrpcLoad, tls: bool) -> Iterator[Row]:
        self._warm()
        if load is not self._load or tls:
            # In rounds: the client compiles its code, too, and must be as fast for the first contender as for the last.
            for _ in range(_CLIENT_ROUNDS):
                for contender in self._contenders:
                    load.send(contender, SEND_TOPIC, min(_WARM_ROUND_S, self._sizes.grpc_warm_s), tls)
        for repeat, contender in in_turn(self._contenders, self._sizes.repeats):
            with alone(contender, self._contenders):
                figures = load.send(contender, SEND_TOPIC, self._sizes.grpc_s, tls)
            yield print_row(Row(scenario, contender.name, repeat, figures))

    def _receive(self, scenario: str, load: GrpcLoad, tls: bool) -> Iterator[Row]:
        self._warm()
        topic = f"bench-{scenario.replace(', ', '-')}"
        later = [DeferredWork(contender) for contender in self._contenders]
        for contender in self._contenders:
            print_line(f"warming up {contender.name} with {self._sizes.grpc_messages:,} receives")
            self._drain(contender, load, f"{topic}-warm", tls, later)
        for repeat, contender in in_turn(self._contenders, self._sizes.repeats):
            figures = self._drain(contender, load, f"{topic}-{repeat}", tls, later)
            yield print_row(Row(scenario, contender.name, repeat, figures))
        print_line(f"waiting for {self._sizes.grpc_later_s:g} s until all invisible times are over")
        time.sleep(self._sizes.grpc_later_s)
        messages = self._sizes.grpc_messages * (self._sizes.repeats + 1)
        for work in later:
            figures = {f"{TOGETHER} CPU, later (µs/message)": work.cpu_s() * 1e6 / messages}
            yield print_row(Row(scenario, work.contender.name, 0, figures))

    def _drain(
        self, contender: ProxyContender, load: GrpcLoad, topic: str, tls: bool, later: "Sequence[DeferredWork]"
    ) -> Figures:
        """Fill a new topic and drain it with a new group."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(alone(contender, self._contenders))
            for work in later:  # the others are stopped meanwhile
                stack.enter_context(work.excluded())
            self._load.prepare(contender, topic, topic)
            self._load.fill(contender, topic, self._sizes.grpc_messages)
            return load.receive(contender, topic, topic, self._sizes.grpc_messages, tls)

    def _delay(self) -> Iterator[Row]:
        self._warm()
        for repeat, contender in in_turn(self._contenders, self._sizes.repeats + 1):
            # The first round is the warm-up.
            topic = f"bench-grpc-delay-{repeat}"
            self._load.prepare(contender, topic, topic, message_type="DELAY")
            count = self._sizes.grpc_delayed
            ahead_s = self._sizes.grpc_ahead_s
            figures = self._load.delay(contender, topic, topic, count, self._sizes.grpc_spread_s, ahead_s)
            if repeat > 0:
                yield print_row(Row("grpc-delay", contender.name, repeat - 1, figures))

    def _pop_pull(self) -> Iterator[Row]:
        """Brokers alone. In local mode the proxy's work could not be told from the broker's."""
        brokers = [contender for contender in self._contenders if contender.name != APACHE_LOCAL]
        count = self._sizes.grpc_messages
        names = {}
        for contender in brokers:
            print_line(f"filling {contender.name} with {count:,} messages and taking them once in each way")
            names[contender.name] = self._load.prepare(contender, POP_TOPIC)
            self._load.fill(contender, POP_TOPIC, count)
            for how in _DRAINS:
                self._take(contender, how, names[contender.name], "warm")
        for repeat, contender in in_turn(brokers, self._sizes.repeats):
            figures: Figures = {}
            for how, name in _DRAINS.items():
                measured = self._take(contender, how, names[contender.name], str(repeat))
                cpu_us = measured.pop("broker CPU (µs/message)")
                figures[f"{name}: broker CPU (µs/message)"] = cpu_us
                if how != _PULL:
                    figures[f"{name}: CPU, pull = 1"] = cpu_us / max(figures["pull: broker CPU (µs/message)"], 1e-9)
                figures[f"{name}: messages/s"] = measured.pop("messages/s")
                figures[f"{name}: failed calls"] = measured.pop("failed calls")
                figures |= measured
            yield print_row(Row("pop-pull", contender.name, repeat, figures))

    def _take(self, contender: ProxyContender, how: str, broker_name: str, run: str) -> Figures:
        """Take all messages, as several groups in turn where a single pass is short for a clock of 10 ms."""
        groups = [f"bench-{how}-{run}-{number}" for number in range(1 if how == "one" else _PASSES)]
        self._load.prepare(contender, POP_TOPIC, *groups)
        meters = self._load.broker_meters(contender)
        passes = [
            self._load.drain(contender, how, POP_TOPIC, group, broker_name, self._sizes.grpc_messages)
            for group in groups
        ]
        taken = sum(done["taken"] for done in passes)
        return {
            "messages/s": taken / (sum(done["took_ns"] for done in passes) / 1e9),
            "failed calls": sum(done["failed"] for done in passes),
            **meters.figures(taken),
        }


class DeferredWork:
    """CPU time of a contender outside the measured runs, beyond what it needs when idle.

    Apache's broker writes timers for popped and acknowledged messages, which it handles after the invisible time.
    """

    def __init__(self, contender: ProxyContender) -> None:
        self.contender = contender
        idle_from_s, used_s = time.monotonic(), self._used_s()
        time.sleep(_IDLE_S)
        self._since_s = time.monotonic()
        self._used_before_s = self._used_s()
        self._idle_cores = (self._used_before_s - used_s) / (self._since_s - idle_from_s)
        self._excluded_s = self._excluded_cpu_s = 0.0

    @contextlib.contextmanager
    def excluded(self) -> Iterator[None]:
        """Leave out a measured run."""
        since_s, used_s = time.monotonic(), self._used_s()
        yield
        self._excluded_s += time.monotonic() - since_s
        self._excluded_cpu_s += self._used_s() - used_s

    def cpu_s(self) -> float:
        passed_s = time.monotonic() - self._since_s - self._excluded_s
        spent_s = self._used_s() - self._used_before_s - self._excluded_cpu_s
        return max(0.0, spent_s - self._idle_cores * passed_s)

    def _used_s(self) -> float:
        return sum(map(cpu_s_of, self.contender.pids.values()))
