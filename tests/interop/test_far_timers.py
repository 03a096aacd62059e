"""Far timers with the Java client: forty days on the timeline, and to the millisecond out of a window."""

from pathlib import Path

import pytest

from latermq.model.pipeline_state import PipelineState
from latermq.pipeline.driver.link import BrokerLink
from tests.interop.ports import HOST, free_port
from tests.interop.programs import Program, start_java
from tests.interop.target import IS_APACHE
from tests.interop.test_levels import START_MS, count, stored, wait_for_count
from tests.interop.test_timers import DAY_MS, DAY_S, HOUR_MS, SMALL_LOG
from tests.interop.waiting import wait_until
from tests.support.fifo_clock import FifoClock
from tests.support.pipeline.pipeline_process import pipeline_process
from tests.support.serving import serving

# Windows of a day, so that forty days are forty of them.
PIPELINE = tuple(
    word
    for setting in (
        "pipeline.enabled=true",
        "pipeline.near_horizon=2d",
        "pipeline.window=1d",
        "pipeline.ingest_every=1s",
        "pipeline.roll_deadline=1h",
    )
    for word in ("--set", setting)
)
CATCH_UP_S = 120.0


@pytest.mark.skipif(IS_APACHE, reason="Apache RocketMQ has no timeline")
@pytest.mark.timeout(600)
def test_a_timer_of_forty_days_comes_from_the_timeline_when_its_log_is_long_gone(tmp_path: Path) -> None:
    """Spark ingests it and is then away for good: the broker builds by itself, and nothing is early, late or lost."""
    due_ms = START_MS + 40 * DAY_MS + 123
    namesrv_port, root = free_port(), tmp_path / "data" / "pipeline"
    namesrv = f"{HOST}:{namesrv_port}"
    options = (*SMALL_LOG, *PIPELINE, "--namesrv-port", str(namesrv_port), "--port", str(free_port()))
    with (
        FifoClock(tmp_path / "clock") as clock,
        start_java(tmp_path / "java.log", {"namesrv": namesrv}) as java,
        serving(tmp_path / "data", *options, *clock.settings) as server,
        BrokerLink(server.broker) as link,
    ):
        clock.advance_to(START_MS)
        java.call("make_topics", topics=["far", "filler"], queues=1)
        with pipeline_process(namesrv, root, *PIPELINE):
            wait_until(lambda: link.state().epoch, CATCH_UP_S, "the driver's epoch")
            clock.advance_to(START_MS + 1_000)
            wait_until(lambda: link.state().cuts, CATCH_UP_S, "the first cut")
            java.call("send", topic="far", prefix="far", timers=[{"way": "deliver", "value": due_ms}])
            java.call("send", topic="far", prefix="relative", timers=[{"way": "sec", "value": 40 * DAY_S}])
            taken = java.call("send", topic="far", prefix="taken", timers=[{"way": "deliver", "value": due_ms}])
            sent = wait_until(lambda: _with_all(link.state(), 4), 30, "the flush")
            pass_days(clock, java, 0, 4)
            later = link.state().flushed_entry
            wait_until(lambda: link.state().ingest_offset >= later, CATCH_UP_S, "the ingest")
        pass_days(clock, java, 4, 39)
        wait_until(lambda: link.state().min_entry >= sent.flushed_entry, CATCH_UP_S, "the end of the log they came in")
        java.call("recall", topic="far", handle=taken["results"][0]["recall_handle"])
        relative_ms = int(START_MS + 1_000 + 40 * DAY_MS)
        clock.advance_to(due_ms - 1)
        wait_until(lambda: _is_played(link.state(), due_ms), CATCH_UP_S, "the window")
        assert count(java, "far") == 0
        clock.advance_to(due_ms)
        wait_for_count(java, "far", 1)
        clock.advance_to(relative_ms + 1)
        wait_for_count(java, "far", 2)
        clock.advance_to(due_ms + 2 * DAY_MS)
        java.call("send", topic="filler", size_bytes=1)
        arrived = [(message["body"], message["stored_ms"]) for message in stored(java, "far")]
    assert arrived == [("far-0", due_ms), ("relative-0", relative_ms + 1)]


def pass_days(clock: FifoClock, java: Program, first: int, last: int) -> None:
    """Half a day after the other, with a message at each, so that the log behind goes."""
    for hours in range(first * 24 + 12, last * 24, 12):
        clock.advance_to(START_MS + hours * HOUR_MS)
        java.call("send", topic="filler", size_bytes=200_000, incompressible=True)


def _with_all(state: PipelineState, entries: int) -> PipelineState | None:
    return state if state.flushed_entry >= entries else None


def _is_played(state: PipelineState, due_ms: int) -> bool:
    """Whether the broker plays the window that this time lies in."""
    return any(window.from_ms <= due_ms < window.until_ms and window.attempt for window in state.windows)
