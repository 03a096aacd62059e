"""Timers: their lateness, their cost while many others are pending, and their recovery after a kill."""

import math
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from latermq.message.names import TIMER_TOPIC
from latermq.message.properties import TIMER_DELIVER_MS
from tests.bench.contenders import Contender
from tests.bench.first_send import first_accepted_s
from tests.bench.load import NOT_FILES, Figures, Load, SendShape, Spent, memory_figures
from tests.bench.sizes import Sizes
from tests.bench.stored import Lateness, Stored, log_end, read_lateness
from tests.interop.programs import ProgramError
from tests.interop.waiting import wait_until

FAR_TOPIC = "bench-far"
# Pending background timers must neither be due nor be renewed during a measurement.
_FAR_FROM_MS = 3 * 3_600_000
_FAR_OVER_MS = 37 * 3_600_000
_FILLED_AT_ONCE = 1_000_000
# Timers per second that an overloaded broker accepts. All must be sent before they are due.
_SLOWEST_PER_S = 8_000
# A backlog of deliveries may take long. The figures show the time.
_STORED_TIMEOUT_S = 300
_START_TIMEOUT_S = 180
# Due while the broker is down: they are sent and acknowledged, then the broker is killed.
_DUE_AFTER_KILL = 100
_DUE_AFTER_KILL_MS = 1_500


class TimerLoad:
    """Runs timer workloads against one broker, and counts the pending timers of each broker."""

    def __init__(self, load: Load, sizes: Sizes) -> None:
        self._load = load
        self._sizes = sizes
        self._ahead = SendShape("async", sizes.async_threads, sizes.in_flight, sizes.size)
        self._waiting: Counter[str] = Counter()
        self._empty_mib: dict[str, float] = {}

    def spread(self, contender: Contender, name: str, count: int, over_s: float) -> Figures:
        """Timers that are due one after the other, in a different order than they were sent."""
        topic, before = self._topic(contender, name)
        shape = self._due(count, over_s * 1000)
        meters = self._load.meters(contender)
        sent = self._load.send(contender, topic, count, shape)
        self._await_stored(contender, topic, count - int(sent["failed sends"]), shape)
        spent = meters.spent()
        lateness = self._lateness(contender, before, topic).figures()
        return {**lateness, "failed sends": sent["failed sends"], **spent.others()}

    def burst(self, contender: Contender, name: str) -> Figures:
        """Timers that are all due within one second, and within one slot of a wheel."""
        return self.spread(contender, name, self._sizes.burst, 1.0)

    def grow(self, contender: Contender, name: str) -> Figures:
        """Timers due within one second, while timers that are due much later are scheduled."""
        count, calm_ms = self._sizes.timers, self._sizes.calm_s * 1000
        self._load.make_topic(contender, FAR_TOPIC, self._sizes.size)
        topic, before = self._topic(contender, name)
        shape = self._due(count, 1_000, lead_ms=calm_ms)
        sent = self._load.send(contender, topic, count, shape)
        _wait_until_ms(shape.due_from_ms - calm_ms)
        meters = self._load.meters(contender)
        far_count = math.ceil(self._sizes.growth * 2 * self._sizes.calm_s)
        grown = self._load.send(contender, FAR_TOPIC, far_count, replace(self._far(), rate=self._sizes.growth))
        self._waiting[contender.name] += far_count - int(grown["failed sends"])
        self._await_stored(contender, topic, count - int(sent["failed sends"]), shape)
        spent = meters.spent()
        return {
            **self._lateness(contender, before, topic).figures(),
            "scheduled meanwhile (timers/s)": grown["messages/s"],
            "failed sends": sent["failed sends"] + grown["failed sends"],
            **spent.others(),
        }

    # Many pending timers

    def fill(self, contender: Contender, upto: int) -> None:
        """Schedule timers until `upto` are pending, also in the engine."""
        self._empty_mib.setdefault(contender.name, memory_figures(contender.broker_pid)[NOT_FILES])
        self._schedule_far(contender, upto)
        _pass_s(self._sizes.calm_s)

    def _schedule_far(self, contender: Contender, upto: int) -> None:
        """Send timers that are due hours later, until `upto` are pending."""
        self._load.make_topic(contender, FAR_TOPIC, self._sizes.size)
        while (missing := upto - self._waiting[contender.name]) > 0:
            count = min(missing, _FILLED_AT_ONCE)
            self._load.fill(contender, FAR_TOPIC, count, self._far())
            self._waiting[contender.name] += count

    def sample(self, contender: Contender, name: str) -> Figures:
        """The cost and lateness of some timers while many others are pending. Upkeep is not included in the cost."""
        count, rate, calm_s = self._sizes.sample, self._sizes.rate, self._sizes.calm_s
        topic, before = self._topic(contender, name)
        idle = self._spent_in(contender, calm_s)
        memory = memory_figures(contender.broker_pid)
        waiting = self._waiting[contender.name]
        grown_bytes = (memory[NOT_FILES] - self._empty_mib[contender.name]) * 2**20
        # Between the last send and the first due time, there is time to finish scheduling and to prepare the delivery.
        lead_ms = 1_000 * count / rate + 2_000 * calm_s
        shape = replace(self._due(count, 1_000 * count / rate, lead_ms=lead_ms), rate=rate)

        meters = self._load.meters(contender)
        sent = self._load.send(contender, topic, count, shape)
        accepted_sends = count - int(sent["failed sends"])
        _pass_s(calm_s)
        scheduling = meters.spent()
        meters = self._load.meters(contender)
        self._await_stored(contender, topic, accepted_sends, shape)
        _pass_s(calm_s)
        delivering = meters.spent()
        return {
            "CPU (µs/scheduled timer)": _cost_us(scheduling, idle, accepted_sends),
            "CPU (µs/delivered timer)": _cost_us(delivering, idle, accepted_sends),
            "CPU while nothing is due (cores)": idle.broker_s / idle.took_s,
            **self._lateness(contender, before, topic).figures(),
            "pending": float(waiting),
            "not file pages (bytes/pending timer)": grown_bytes / waiting,
            **memory,
            "failed sends": sent["failed sends"],
            **delivering.others(),
        }

    # After a kill

    def restart(self, contender: Contender, name: str) -> Figures:
        """Schedule a tenth more timers, `kill -9` right before some timers are due, and restart."""
        topic, before = self._topic(contender, name)
        self._schedule_far(contender, self._waiting[contender.name] + max(1, self._sizes.stored // 10))
        shape = SendShape("sync", 1, 1, self._sizes.size)
        shape = replace(shape, due_from_ms=_now_ms() + _DUE_AFTER_KILL_MS, due_over_ms=100)
        self._load.send(contender, topic, _DUE_AFTER_KILL, shape)
        contender.kill()
        started_ms, started_s = _now_ms(), time.monotonic()
        with ThreadPoolExecutor(1) as pool:
            # The broker starts in this thread, because it ends with the thread that started it.
            accepted = pool.submit(first_accepted_s, contender.broker_address, FAR_TOPIC, _START_TIMEOUT_S)
            serving_s = contender.restart()
            accepted_s = accepted.result() - started_s
        self._await_stored(contender, topic, _DUE_AFTER_KILL, shape)
        _pass_s(self._sizes.calm_s)  # the count matches, but some may be duplicates
        lateness = self._lateness(contender, before, topic)
        stored_ms = sorted(at_ms for _, at_ms in lateness.stored if at_ms >= started_ms) or [started_ms]
        counts = lateness.figures()
        return {
            "start after kill -9 (s)": serving_s,
            "until a send is accepted (s)": accepted_s,
            "until a due timer is stored (s)": (stored_ms[0] - started_ms) / 1000,
            "until all due timers are stored (s)": (stored_ms[-1] - started_ms) / 1000,
            "pending": float(self._waiting[contender.name]),
            **{figure: counts[figure] for figure in ("stored early", "never stored", "stored twice")},
            **memory_figures(contender.broker_pid),
        }

    # Common steps

    def _topic(self, contender: Contender, name: str) -> tuple[str, int]:
        """A new topic, and the end of the log before its first timer."""
        topic = "bench-" + name.replace(" ", "-").replace(",", "")
        self._load.make_topic(contender, topic, self._sizes.size)
        return topic, log_end(contender.log_folder)

    def _due(self, count: int, over_ms: float, lead_ms: float = 0) -> SendShape:
        """Due from the start of a second, at least `lead_ms` after all of them are sent."""
        lead_ms += 1_000 * self._sizes.calm_s + count * 1_000 / _SLOWEST_PER_S
        from_s = math.ceil((_now_ms() + lead_ms) / 1000)
        # A slot covers the time after the start of its second, up to and including the start of the next.
        return replace(self._ahead, due_from_ms=from_s * 1000 + 1, due_over_ms=math.ceil(over_ms))

    def _far(self) -> SendShape:
        return replace(self._ahead, due_from_ms=_now_ms() + _FAR_FROM_MS, due_over_ms=_FAR_OVER_MS)

    def _spent_in(self, contender: Contender, seconds: float) -> Spent:
        meters = self._load.meters(contender)
        _pass_s(seconds)
        return meters.spent()

    def _await_stored(self, contender: Contender, topic: str, count: int, shape: SendShape) -> None:
        # The broker is not queried before then, because queries would cost CPU.
        _wait_until_ms(shape.due_from_ms + shape.due_over_ms)

        def all_stored() -> bool:
            try:
                return self._load.stored(contender, topic) > count
            except ProgramError:  # the client is not connected to the restarted broker yet
                return False

        wait_until(all_stored, _STORED_TIMEOUT_S, f"{contender.name} has stored {count} messages of {topic}")

    @staticmethod
    def _lateness(contender: Contender, before: int, topic: str) -> Lateness:
        return read_lateness(contender.log_folder, before, topic, TIMER_TOPIC, _due_ms)


def _due_ms(waiting: Stored) -> int:
    return int(waiting.properties[TIMER_DELIVER_MS])


def _cost_us(spent: Spent, idle: Spent, timers: int) -> float:
    upkeep_s = idle.broker_s / idle.took_s * spent.took_s
    return max(0.0, spent.broker_s - upkeep_s) * 1e6 / max(1, timers)


def _now_ms() -> int:
    return int(time.time() * 1000)


def _wait_until_ms(at_ms: float) -> None:
    left_s = max(0.0, (at_ms - _now_ms()) / 1000)
    wait_until(lambda: _now_ms() >= at_ms, left_s + 10, "the end of the wait")


def _pass_s(seconds: float) -> None:
    time.sleep(seconds)
