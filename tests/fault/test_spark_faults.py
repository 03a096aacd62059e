"""Spark that stands still, dies, and finds its timeline gone: near timers are on time, and every timer arrives once."""

import os
import shutil
import signal
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from latermq.client import MessageQueue, OutgoingMessage, blocking
from latermq.message.properties import DUE_MS
from latermq.message.record import Message
from latermq.model.pipeline_state import PipelineState
from latermq.pipeline.driver.link import BrokerLink
from tests.integration.command_line import Cli
from tests.interop.waiting import wait_until
from tests.support.needs import need_tool
from tests.support.pipeline.pipeline_process import PipelineProcess, pipeline_process
from tests.support.pipeline.ticking_clock import TickingClock
from tests.support.serving import Server, children_of, serving

pytestmark = pytest.mark.real
TOPIC = "orders"
QUEUE = MessageQueue(TOPIC, "broker-a", 0)
WINDOW_MS = 300_000
SETTINGS = ("pipeline.near_horizon=10m", "pipeline.window=5m", "pipeline.ingest_every=1s", "store.flush_every=20ms",
            "pipeline.roll_deadline=30s", "store.checkpoint_every=1s", "pipeline.enabled=true")  # fmt: skip
SLOW_S = 240.0
NEAR_LATENESS_MS = 2_000  # Spark starts on the same cores
LAGS = "Spark's ingest lags: new timers of the next two days stay in the broker"
CAUGHT_UP = "Spark's ingest has caught up: new far timers go to Spark again"


class Scene:
    """A broker with a clock of its own, and the timers that were given to it."""

    def __init__(self, server: Server, clock: TickingClock, link: BrokerLink) -> None:
        self.server = server
        self.clock = clock
        self.link = link
        self.expected: Counter[str] = Counter()
        with blocking.Admin(server.namesrv) as admin:
            admin.create_topic(TOPIC, 1)

    def schedule(self, name: str, count: int, due_ms: int) -> None:
        with blocking.Producer(self.server.namesrv) as producer:
            for number in range(count):
                body = f"{name}-{number}"
                producer.send(OutgoingMessage(TOPIC, body.encode(), deliver_at_ms=due_ms + number), queue=QUEUE)
                self.expected[body] += 1

    def arrived(self) -> list[Message]:
        with blocking.PullConsumer(self.server.namesrv) as consumer:
            found, end = list[Message](), consumer.max_offset(QUEUE)
            while len(found) < end:
                found += consumer.pull(QUEUE, len(found), 1_000).messages
        return found

    def check_near_timers(self, name: str, count: int = 20) -> None:
        """Near timers are on time now."""
        self.schedule(name, count, self.clock.now_ms() + 1_000)

        def lateness_ms() -> list[int]:
            near = [one for one in self.arrived() if one.body.decode().startswith(f"{name}-")]
            return sorted(one.store_timestamp_ms - int(one.properties[DUE_MS]) for one in near)

        wait_until(lambda: len(lateness_ms()) == count, SLOW_S, f"the timers {name}")
        late_ms = lateness_ms()
        print(f"{name}: late by p50 {late_ms[count // 2]} ms, at most {late_ms[-1]} ms")
        assert late_ms[0] >= 0, "early"
        assert late_ms[count // 2] < NEAR_LATENESS_MS

    def wait_for_ingest(self) -> PipelineState:
        end = self.link.state(flush=True).flushed_entry
        wait_until(lambda: self.link.state().ingest_offset >= end, SLOW_S, "the ingest of all")
        return self.link.state()

    def check_all(self) -> None:
        """What was scheduled has arrived, each once and none early."""
        wait_until(lambda: len(self.arrived()) >= self.expected.total(), SLOW_S, "all timers", pause_s=0.5)
        found = self.arrived()
        assert Counter(one.body.decode() for one in found) == self.expected
        assert all(one.store_timestamp_ms >= int(one.properties[DUE_MS]) for one in found)


def signal_all(driver: PipelineProcess, number: signal.Signals) -> None:
    for pid in (driver.pid, *children_of(driver.pid)):
        os.kill(pid, number)


@pytest.mark.timeout(1_500)
@pytest.mark.parametrize("lost", [".", pytest.param("timeline", marks=pytest.mark.long)])
def test_spark_stands_still_and_dies_and_its_timeline_is_lost(tmp_path: Path, lost: str) -> None:
    """The last part follows docs/operations.md: a lost folder, or a damaged table without a backup."""
    need_tool("java", "Spark requires it")
    timeline = tmp_path / "data" / "pipeline"
    options = [word for setting in SETTINGS for word in ("--set", setting)]
    with (
        TickingClock(tmp_path / "clock", time.time_ns() // 1_000_000) as clock,
        serving(tmp_path / "data", *options, *clock.settings) as server,
        BrokerLink(server.broker, patience_s=30.0) as link,
        ExitStack() as lives,
    ):
        scene = Scene(server, clock, link)
        driver = lives.enter_context(pipeline_process(server.namesrv, timeline, *options))
        wait_until(lambda: link.state().ingest_offset, SLOW_S, "the ingest of the first cut")
        state = link.state()
        assert state.cuts[-1].frontier_ms == state.cuts[-1].handback_ms, "Spark keeps up"
        first_ms = state.cuts[-1].handback_ms + 60_000
        last_ms = first_ms + 4 * WINDOW_MS
        scene.schedule("first", 20, first_ms)
        scene.schedule("last", 20, last_ms)
        scene.wait_for_ingest()

        signal_all(driver, signal.SIGSTOP)
        scene.schedule("not-ingested", 5, last_ms + 100)
        scene.check_near_timers("still")
        clock.leap_to(clock.now_ms() + WINDOW_MS + 1_000)
        wait_until(lambda: LAGS in server.log(), SLOW_S, "the line about the lag")
        assert link.state().keeps_far_timers
        scene.schedule("kept", 5, last_ms + 200)
        signal_all(driver, signal.SIGCONT)
        scene.wait_for_ingest()
        clock.leap_to(clock.now_ms() + WINDOW_MS + 1_000)
        wait_until(lambda: CAUGHT_UP in server.log(), SLOW_S, "the line about its end")
        assert not link.state().keeps_far_timers
        assert (server.log().count(LAGS), server.log().count(CAUGHT_UP)) == (1, 1)

        # It dies, and its folder is lost.
        driver.kill()
        shutil.rmtree(timeline / lost)
        scene.check_near_timers("dead")
        driver = lives.enter_context(pipeline_process(server.namesrv, timeline, *options))
        driver.wait_for("the missing entries are ingested again", SLOW_S)
        scene.check_near_timers("again")
        scene.wait_for_ingest()
        clock.leap_to(last_ms + 1_000)
        scene.check_all()

        windows = wait_until(lambda: _finished(Cli(server)), SLOW_S, "a finished window")
        print(windows)
        print(Cli(server).text("pipeline", "status"))
        assert {one["built_by"] for one in windows} <= {"spark", "driver", "local"}
        assert all((one["epoch"] is None) == (one["built_by"] == "local") for one in windows)
        assert all(one["built_ms"] and one["took_ms"] is not None and one["rows"] is not None for one in windows)


def _finished(cli: Cli) -> list[dict[str, Any]]:
    """The windows that `latermq pipeline status` lists as finished."""
    [shown] = cli.rows("pipeline", "status")
    [broker] = shown["brokers"]
    return [one for one in broker["last_windows"] if one["is_finished"]]
