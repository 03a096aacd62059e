"""Two whole drivers on one timeline: none of their commits is lost, and the older one ends with a sentence."""

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event, Thread

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from latermq.client import OutgoingMessage, blocking
from latermq.pipeline.driver.link import BrokerLink
from latermq.pipeline.timeline.root import open_root
from tests.interop.waiting import wait_until
from tests.support.needs import LONG, need_tool
from tests.support.pipeline.pipeline_process import PipelineProcess, pipeline_process
from tests.support.pipeline.timeline_places import timeline_at
from tests.support.serving import Server, children_of, serving

pytestmark = pytest.mark.real
SETTINGS = ("pipeline.ingest_every=1s", "store.flush_every=20ms", "pipeline.enabled=true")
HOUR_MS = 3_600_000
SLOW_S = 300.0
# How long after a commit the first driver is stopped, in the middle of whatever it is doing.
PAUSES_S = (0.0, 0.35, 0.7, 1.05) if LONG else (0.35,)


@contextmanager
def endless_timers(server: Server) -> Iterator[list[str]]:
    """Far timers are scheduled all the time. The list has those that were acknowledged."""
    stop, sent = Event(), list[str]()

    def send() -> None:
        with blocking.Producer(server.namesrv) as producer:
            while not stop.wait(0.01):
                due_ms = time.time_ns() // 1_000_000 + 10 * HOUR_MS + len(sent)
                sent.append(producer.send(OutgoingMessage("later", b"x", deliver_at_ms=due_ms)).message_id)

    thread = Thread(target=send)
    thread.start()
    try:
        yield sent
    finally:
        stop.set()
        thread.join()


def signal_all(driver: PipelineProcess, number: signal.Signals) -> None:
    """Send a signal to a driver and its JVM."""
    for pid in (driver.pid, *children_of(driver.pid)):
        os.kill(pid, number)


def check_table(uri: str, sent: list[str]) -> None:
    """Every timer is in the table once, and every version of the table exists."""
    root = open_root(uri)
    table = DeltaTable(root.timeline, storage_options=root.delta_options)
    asked = QueryBuilder().register("timeline", table).execute("SELECT unique_key FROM timeline WHERE taker = 0")
    keys = pa.RecordBatchReader.from_stream(asked).read_all().column("unique_key").to_pylist()
    assert Counter(keys) == Counter(sent)
    versions = [commit["version"] for commit in table.history()]
    assert versions == list(range(table.version(), -1, -1)), "a commit is missing"


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("place", ["folder", pytest.param("bucket", marks=pytest.mark.long)])
@pytest.mark.parametrize("pause_s", PAUSES_S)
def test_the_older_of_two_drivers_ends_and_no_commit_is_lost(tmp_path: Path, place: str, pause_s: float) -> None:
    need_tool("java", "Spark requires it")
    with timeline_at(place, tmp_path) as uri:
        secret = f"pipeline.secret_file={tmp_path / 'data' / 'pipeline.secret'}"
        settings = (*SETTINGS, secret, f"pipeline.timeline={uri}")
        options = [word for setting in settings for word in ("--set", setting)]
        with (
            serving(tmp_path / "data", *options) as server,
            BrokerLink(server.broker, patience_s=30.0) as link,
            pipeline_process(server.namesrv, uri, *options) as first,
            ExitStack() as lives,
        ):

            def wait_for_further_ingest() -> None:
                before = link.state().ingest_offset
                wait_until(lambda: link.state().ingest_offset > before, SLOW_S, "further ingest")

            first.wait_for("ingest of broker-a (epoch 1)", SLOW_S)
            with endless_timers(server) as sent:
                wait_for_further_ingest()
                time.sleep(pause_s)
                signal_all(first, signal.SIGSTOP)
                second = lives.enter_context(pipeline_process(server.namesrv, uri, *options))
                second.wait_for("ingest of broker-a (epoch 2)", SLOW_S)
                wait_for_further_ingest()
                signal_all(first, signal.SIGCONT)
                assert first.wait_for_exit(SLOW_S) == 1
                wait_for_further_ingest()
            end = link.state(flush=True).flushed_entry
            wait_until(lambda: link.state().ingest_offset >= end, SLOW_S, "the ingest of all")
            said = [line for line in first.printed().splitlines() if line.startswith("error: ")]
            assert said == ["error: another driver has taken over broker broker-a"], first.printed()
            assert "Traceback" not in first.printed() + second.printed()
        check_table(uri, sent)
