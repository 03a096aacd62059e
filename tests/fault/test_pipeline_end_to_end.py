"""Timers that go far and come back, cancelled and moved on the way, while the broker and the Spark driver are killed.

At the end the whole topic is read: each surviving timer is there once, none early, and none that was cancelled. Then
the pipeline's own report has to find the same.
"""

import asyncio
import datetime
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import NamedTuple

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from latermq.client import Admin, MessageQueue, OutgoingMessage, Producer
from latermq.message.properties import TIMER_OUT_MS
from latermq.model.timers import Outcome, Verdict
from latermq.pipeline.driver.brokers import masters
from latermq.pipeline.driver.link import BrokerLink
from latermq.pipeline.timeline.root import open_root
from tests.fault.test_level_kills import QUEUES, TOPIC, read_until
from tests.fault.test_timer_kills import answer_of, loading, now_ms
from tests.fault.timer_ledger import Ledger
from tests.interop.waiting import wait_until
from tests.support.needs import LONG
from tests.support.pipeline.pipeline_process import PipelineProcess, pipeline_process
from tests.support.serving import Server, serving

pytestmark = pytest.mark.real
SENDERS, OPERATORS = 4, 16
TICK_S = 0.05
SLOW_S = 300.0  # on a busy machine Spark takes its time


class Blow(NamedTuple):
    """A kill, some time after the load has begun."""

    at_s: float
    of: str  # the broker, or the driver
    away_s: float = 0.0  # before another driver is started; the broker comes back by itself


@dataclass(frozen=True)
class Scale:
    """How large a run is, and how long."""

    count: int
    span_ms: int  # over which they fall due
    send_ms: int  # over which they are sent
    near_horizon_ms: int
    window_ms: int
    blows: tuple[Blow, ...]

    @property
    def changes(self) -> int:
        return self.count // 3

    @property
    def settings(self) -> tuple[str, ...]:
        return (f"pipeline.near_horizon={self.near_horizon_ms}ms", f"pipeline.window={self.window_ms}ms",
                "pipeline.ingest_every=2s", "pipeline.roll_deadline=8s", "pipeline.compact_every=60s",
                "pipeline.master=local[2]", "pipeline.enabled=true", "store.checkpoint_every=1s",
                "store.segment=64MiB", "store.flush_every=100ms")  # fmt: skip


# The near horizon is what Spark has for a build, less the deadline; in the long run it shares the machine with other
# long tests.
SHORT_RUN = Scale(5_000, 75_000, 15_000, 40_000, 10_000, (Blow(8, "broker"), Blow(36, "driver", away_s=12)))
LONG_RUN = Scale(
    100_000, 320_000, 100_000, 80_000, 20_000,
    (Blow(20, "broker"), Blow(50, "driver", away_s=25), Blow(90, "broker"), Blow(130, "driver"), Blow(170, "broker")),
)  # fmt: skip


class FarLoad:
    """Schedules timers over the whole span, and changes a third of them, each once, at any time before it is due."""

    def __init__(self, chance: Random, scale: Scale) -> None:
        self._chance = chance
        self._scale = scale
        self._numbers = iter(range(1 << 60))
        self._unchanged: list[tuple[str, bool]] = []  # name, and whether it was Spark's when it was sent
        self._dues_ms: dict[str, int] = {}
        self._is_stopped = False
        self._changes = 0
        self.began_ms = 0
        self.ledger = Ledger()
        self.changed_while: Counter[str] = Counter()

    def stop(self) -> None:
        self._is_stopped = True

    async def run(self, namesrv: str) -> None:
        self.began_ms = now_ms()
        producer = Producer(namesrv, retries=0, send_timeout_s=5)
        async with producer, Admin(namesrv) as admin, asyncio.TaskGroup() as tasks:
            for _ in range(SENDERS):
                tasks.create_task(self._send(producer))
            for _ in range(OPERATORS):
                tasks.create_task(self._change(admin))

    @property
    def end_ms(self) -> int:
        return self.began_ms + self._scale.span_ms

    def _due_ms(self) -> int:
        at_ms = now_ms() + 500
        return self._chance.randrange(at_ms, max(at_ms + 1, self.end_ms))

    async def _send(self, producer: Producer) -> None:
        while self.ledger.acknowledged < self._scale.count and not self._is_stopped:
            share = int(self._scale.count / SENDERS * TICK_S * 1000 / self._scale.send_ms) or 1
            await asyncio.gather(*(self._send_one(producer) for _ in range(share)))
            await asyncio.sleep(TICK_S)

    async def _send_one(self, producer: Producer) -> None:
        name, due_ms = f"timer-{next(self._numbers):07d}", self._due_ms()
        message = OutgoingMessage(TOPIC, name.encode(), deliver_at_ms=due_ms, properties={"UNIQ_KEY": name})
        queue = MessageQueue(TOPIC, "broker-a", self._chance.randrange(QUEUES))
        answer = await answer_of(producer.send(message, queue=queue))
        self.ledger.scheduled(name, due_ms, answered=answer is not None)
        if answer is not None:
            self._dues_ms[name] = due_ms
            self._unchanged.append((name, due_ms - now_ms() > self._scale.near_horizon_ms))

    async def _change(self, admin: Admin) -> None:
        pause_s = self._scale.span_ms / 1000 / self._scale.changes * OPERATORS
        while self._changes < self._scale.changes and now_ms() < self.end_ms and not self._is_stopped:
            await asyncio.sleep(self._chance.uniform(0, 1.2 * pause_s))
            chosen = self._choose()
            if chosen is None:
                continue
            name, was_far = chosen
            self._changes += 1
            self.changed_while[self._whose(name, was_far)] += 1
            if self._chance.random() < 0.5:
                self.ledger.cancelled(name, _only(await answer_of(admin.cancel_timer(TOPIC, unique_key=name))))
            else:
                due_ms = self._due_ms()
                asked = admin.move_timer(TOPIC, unique_key=name, due_ms=due_ms)
                self.ledger.moved(name, due_ms, _only(await answer_of(asked)))

    def _choose(self) -> tuple[str, bool] | None:
        """One that has not fallen due, and that nobody has changed."""
        for _ in range(20):
            if not self._unchanged:
                return None
            at = self._chance.randrange(len(self._unchanged))
            self._unchanged[at], self._unchanged[-1] = self._unchanged[-1], self._unchanged[at]
            chosen = self._unchanged.pop()
            if self._dues_ms[chosen[0]] > now_ms() + 100:
                return chosen
        return None

    def _whose(self, name: str, was_far: bool) -> str:
        ahead_ms = self._dues_ms[name] - now_ms()
        if not was_far:
            return "near"
        if ahead_ms > self._scale.near_horizon_ms:
            return "far"
        building_ms = 2 * self._scale.window_ms
        return "being built" if ahead_ms > self._scale.near_horizon_ms - building_ms else "handed back"


def _only(outcomes: list[Outcome] | None) -> Outcome | None:
    if outcomes is None:
        return None
    [outcome] = outcomes
    return outcome


async def wait_for_the_last(server: Server, timeout_s: float) -> int:
    """How many timers wait after all should have been delivered."""
    give_up_s = time.monotonic() + timeout_s
    async with Admin(server.namesrv) as admin:
        while True:
            pending = await answer_of(admin.count_timers())
            if pending == 0 or time.monotonic() > give_up_s:
                return -1 if pending is None else pending
            await asyncio.sleep(0.5)


def frontier_ms(link: BrokerLink) -> int:
    """What is due before is the broker's."""
    state = link.state()
    return state.cuts[-1].frontier_ms if state.cuts and state.ingest_offset else 1 << 62


def far_rows(timeline: str) -> int:
    """How many entries were Spark's."""
    root = open_root(timeline)
    table = DeltaTable(root.timeline, storage_options=root.delta_options)
    asking = QueryBuilder().register("timeline", table)
    reader = pa.RecordBatchReader.from_stream(asking.execute("SELECT count(record) AS far FROM timeline"))
    return int(reader.read_all().column("far")[0].as_py())


def _report(namesrv: str, timeline: Path, from_ms: int, until_ms: int) -> dict[str, int]:
    """What `latermq pipeline report` tells of a time that lies behind; it exits 1 where a timer is missing."""
    moments = (datetime.datetime.fromtimestamp(at_ms / 1000, datetime.UTC) for at_ms in (from_ms, until_ms))
    start, end = (moment.isoformat(timespec="milliseconds") for moment in moments)
    period = ("--from", start, "--until", end)
    command = [sys.executable, "-m", "latermq", "pipeline", "report", "--namesrv", namesrv, *period]
    command += ["--timeline", str(timeline), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SLOW_S)
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stdout}\n{done.stderr[-4_000:]}"
    told: dict[str, int] = json.loads(done.stdout)
    return told


class Drivers:
    """One driver after the other."""

    def __init__(self, namesrv: str, timeline: Path | str, settings: Iterable[str], lives: ExitStack) -> None:
        self._namesrv = namesrv
        self._timeline = timeline
        self._options = [word for setting in settings for word in ("--set", setting)]
        self._lives = lives
        self.now: PipelineProcess | None = None
        self._built = 0  # windows, by those that were killed

    def start(self) -> None:
        self.now = self._lives.enter_context(pipeline_process(self._namesrv, self._timeline, *self._options))

    def wait_for(self, text: str) -> None:
        assert self.now is not None
        self.now.wait_for(text, SLOW_S)

    def kill(self) -> None:
        assert self.now is not None
        self._built = self.built()
        self.now.kill()

    def built(self) -> int:
        """How many windows were built by all drivers so far."""
        assert self.now is not None
        return self._built + self.now.printed().count(" rows in ")


def deal(blow: Blow, server: Server, drivers: Drivers) -> None:
    if blow.of == "broker":
        os.kill(server.broker_pid(), signal.SIGKILL)
        return
    drivers.kill()
    asyncio.run(asyncio.sleep(blow.away_s))
    drivers.start()


def moments(load: FarLoad, scale: Scale) -> Iterator[Blow]:
    wait_until(lambda: load.began_ms, 30, "the beginning")
    for blow in scale.blows:
        wait_until(lambda blow=blow: now_ms() >= load.began_ms + blow.at_s * 1000, SLOW_S, "the time of a kill")  # type: ignore[misc]
        yield blow


@pytest.mark.timeout(1_500)
def test_each_timer_keeps_its_word_on_its_way_through_spark_whoever_is_killed(tmp_path: Path) -> None:
    scale = LONG_RUN if LONG else SHORT_RUN
    load = FarLoad(Random(20_31), scale)
    timeline = tmp_path / "data" / "pipeline"
    options = [word for setting in scale.settings for word in ("--set", setting)]
    with serving(tmp_path / "data", *options) as server, ExitStack() as lives:
        drivers = Drivers(server.namesrv, timeline, scale.settings, lives)
        drivers.start()
        drivers.wait_for("ingest of broker-a")
        [address] = wait_until(lambda: masters(server.namesrv), 30, "the broker").values()
        with BrokerLink(address, patience_s=60.0) as link:
            # Until Spark is at work, a broker keeps to itself what is due within two days.
            wait_until(
                lambda: frontier_ms(link) < now_ms() + 2 * scale.near_horizon_ms, SLOW_S, "a Spark that keeps up"
            )
            with loading(load, server.namesrv) as running:  # type: ignore[arg-type]
                for blow in moments(load, scale):
                    assert not running.done() or running.exception() is None
                    deal(blow, server, drivers)
                    print(f"{blow}: {load.ledger.acknowledged} timers were acknowledged")
                running.result(SLOW_S)
            pending = asyncio.run(wait_for_the_last(server, scale.span_ms / 1000 + 120))
            found = asyncio.run(read_until(server, 1))
            # Spark goes on where it was.
            drivers.wait_for("ingest of broker-a")
            wait_until(lambda: link.state().ingest_offset > load.ledger.acknowledged, SLOW_S, "the ingest of all")
            report = _report(server.namesrv, timeline, load.began_ms, max(load.end_ms, now_ms() - 1_000))
            built = drivers.built()
    far = far_rows(str(timeline))
    print(f"{far} entries were Spark's; {built} windows were built by Spark")
    print(f"{len(found)} arrived; {dict(load.ledger.counts)}; changed while {dict(load.changed_while)}")
    print(f"the report: {report}")
    load.ledger.check(found)
    assert (report["missing"], report["early"], report["delivered_twice"], report["not_kept"]) == (0, 0, 0, 0)
    # What was due when it came in, which a broker that was away has long not heard of, was never a timer.
    waited = sum(TIMER_OUT_MS in message.properties for message in found)
    assert (report["delivered"], report["dead_letter"], report["waiting"]) == (waited, 0, 0)
    assert report["cancelled"] >= load.ledger.counts[f"cancel: {Verdict.CANCELLED}"]
    assert pending == 0, "the broker's own count is wrong"
    assert load.ledger.acknowledged >= scale.count
    assert far > scale.count // 20, "next to nothing was Spark's"
    if LONG:  # in the short run a busy machine leaves Spark too little time
        assert built
    for whose in ("near", "far", "being built", "handed back"):
        assert load.changed_while[whose], f"nothing was changed while {whose}"
