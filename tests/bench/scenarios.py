"""Scenarios that compare brokers: each repeat runs every broker in turn, in alternating order."""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from tests.bench.contenders import Contender
from tests.bench.levels import due_together, measure_levels
from tests.bench.load import Figures, Load, SendShape, memory_figures
from tests.bench.sizes import Sizes
from tests.bench.timers import TimerLoad

T = TypeVar("T")

SEND_TOPIC = "bench-send"
CONSUME_TOPIC = "bench-consume"


@dataclass(frozen=True)
class Row:
    """The figures of one repeat on one broker."""

    scenario: str
    contender: str
    repeat: int
    figures: Figures


class SideBySide:
    """The brokers and the load that all scenarios share. Rows are yielded as they are measured."""

    def __init__(self, contenders: Sequence[Contender], load: Load, sizes: Sizes) -> None:
        self._contenders = contenders
        self._load = load
        self._sizes = sizes
        self._ahead = SendShape("async", sizes.async_threads, sizes.in_flight, sizes.size)
        self._waiting = SendShape("sync", sizes.sync_threads, sizes.sync_threads, sizes.size)
        self._paced = SendShape("async", sizes.async_threads, sizes.in_flight, sizes.size, sizes.rate)
        self._timers = TimerLoad(load, sizes)
        self._warm_for_sends = self._warm_for_timers = False
        self.scenarios: dict[str, Callable[[], Iterator[Row]]] = {
            "send-async": lambda: self._send("send-async", self._ahead, sizes.messages),
            "send-sync": lambda: self._send("send-sync", self._waiting, sizes.third),
            "cpu-per-send": lambda: self._send("cpu-per-send", self._paced, sizes.third),
            "consume": self._consume,
            "levels": lambda: self._levels("levels", self._ahead),
            "levels-paced": lambda: self._levels("levels-paced", self._paced),
            "levels-burst": self._levels_burst,
            "restart": self._restart,
            "timers-spread": lambda: self._measured("timers-spread", self._spread),
            "timers-burst": lambda: self._measured("timers-burst", self._timers.burst),
            "timers-pending": self._timers_pending,
            "timers-grow": lambda: self._measured("timers-grow", self._timers.grow),
            "timers-restart": self._timers_restart,
        }

    def _in_turn(self) -> Iterator[tuple[int, Contender]]:
        return in_turn(self._contenders, self._sizes.repeats)

    def _warm(self) -> None:
        """Warm-up sends, so that the JIT compiles before the first measurement."""
        if self._warm_for_sends:
            return
        self._warm_for_sends = True
        for contender in self._contenders:
            print_line(f"warming up {contender.name} with {self._sizes.warm:,} sends")
            self._load.make_topic(contender, SEND_TOPIC, self._sizes.size)
            # Sync sends come first, because a cold broker of Apache refuses most async sends.
            self._load.fill(contender, SEND_TOPIC, max(1, self._sizes.warm // 10), self._waiting)
            self._load.fill(contender, SEND_TOPIC, self._sizes.warm, self._ahead)

    def _send(self, scenario: str, shape: SendShape, count: int) -> Iterator[Row]:
        self._warm()
        for repeat, contender in self._in_turn():
            yield self._row(scenario, contender, repeat, self._load.send(contender, SEND_TOPIC, count, shape))

    def _consume(self) -> Iterator[Row]:
        count, threads = self._sizes.messages, self._sizes.consume_threads
        for contender in self._contenders:
            print_line(f"filling {contender.name} with {count:,} messages and consuming them once")
            self._load.make_topic(contender, CONSUME_TOPIC, self._sizes.size)
            self._load.fill(contender, CONSUME_TOPIC, count, self._ahead)
            self._load.consume(contender, CONSUME_TOPIC, "bench-warm", count, threads)
        for repeat, contender in self._in_turn():
            figures = self._load.consume(contender, CONSUME_TOPIC, f"bench-drain-{repeat}", count, threads)
            yield self._row("consume", contender, repeat, figures)

    def _levels(self, scenario: str, shape: SendShape) -> Iterator[Row]:
        self._warm()
        for repeat, contender in self._in_turn():
            delayed = replace(shape, delay_level=self._sizes.level)
            figures = measure_levels(self._load, contender, f"{scenario}-{repeat}", self._sizes.delayed, delayed)
            yield self._row(scenario, contender, repeat, figures)

    def _levels_burst(self) -> Iterator[Row]:
        self._warm()
        count = self._sizes.burst
        for repeat, contender in self._in_turn():
            shape = due_together(self._ahead, count)
            figures = measure_levels(self._load, contender, f"levels-burst-{repeat}", count, shape)
            yield self._row("levels-burst", contender, repeat, figures)

    def _restart(self) -> Iterator[Row]:
        stored, tail = self._sizes.stored, max(1, self._sizes.stored // 10)
        for contender in self._contenders:
            missing = stored - contender.stored
            print_line(f"{contender.name} has {contender.stored:,} messages; sending {max(0, missing):,} more")
            self._load.make_topic(contender, SEND_TOPIC, self._sizes.size)
            self._load.fill(contender, SEND_TOPIC, missing, self._ahead)
        for repeat, contender in self._in_turn():
            # A new tail each time. Otherwise the first start would leave everything checkpointed for the second.
            self._load.fill(contender, SEND_TOPIC, tail, self._ahead)
            contender.kill()
            took_s = contender.restart()
            figures = {
                "start after kill -9 (s)": took_s,
                "messages stored": float(contender.stored),
                **memory_figures(contender.broker_pid),
            }
            yield self._row("restart", contender, repeat, figures)

    # Timers

    def _measured(self, scenario: str, measure: Callable[[Contender, str], Figures]) -> Iterator[Row]:
        self._warm_timers()
        for repeat, contender in self._in_turn():
            yield self._row(scenario, contender, repeat, measure(contender, f"{scenario}-{repeat}"))

    def _spread(self, contender: Contender, name: str) -> Figures:
        return self._timers.spread(contender, name, self._sizes.timers, self._sizes.spread_s)

    def _warm_timers(self) -> None:
        """Warm-up timers, whose lateness is not reported."""
        self._warm()
        if self._warm_for_timers:
            return
        self._warm_for_timers = True
        count = max(1, self._sizes.warm // 10)
        for contender in self._contenders:
            print_line(f"warming up {contender.name} with {count:,} timers")
            self._timers.spread(contender, "timers-warm", count, 1.0)

    def _timers_pending(self) -> Iterator[Row]:
        self._warm_timers()
        for pending in self._sizes.pending:
            scenario = f"timers-pending {pending:,}"
            for contender in self._contenders:
                print_line(f"filling {contender.name} until {pending:,} timers are pending")
                self._timers.fill(contender, pending)
            yield from self._measured(scenario, self._timers.sample)

    def _timers_restart(self) -> Iterator[Row]:
        self._warm_timers()
        for contender in self._contenders:
            print_line(f"filling {contender.name} until {self._sizes.stored:,} timers are pending")
            self._timers.fill(contender, self._sizes.stored)
        yield from self._measured("timers-restart", self._timers.restart)

    def _row(self, scenario: str, contender: Contender, repeat: int, figures: Figures) -> Row:
        return print_row(Row(scenario, contender.name, repeat, figures))


def in_turn(contenders: Sequence[T], repeats: int) -> Iterator[tuple[int, T]]:
    """Every broker in every repeat. The order alternates, so that a drift of the machine affects all."""
    for repeat in range(repeats):
        order = contenders if repeat % 2 == 0 else contenders[::-1]
        yield from ((repeat, contender) for contender in order)


def print_row(row: Row) -> Row:
    """Print the first figures of a row, and return it."""
    figures = ", ".join(f"{name} {value:,.4g}" for name, value in list(row.figures.items())[:6])
    print_line(f"{row.scenario} #{row.repeat + 1} {row.contender}: {figures}")
    return row


def print_line(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
