"""The driver against a real broker: timers go far and come back, through restarts of either, and it ends cleanly."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from latermq.client import OutgoingMessage, blocking
from latermq.config import load_config
from latermq.errors import IllegalOperation
from latermq.pipeline.driver.brokers import masters
from latermq.pipeline.driver.link import BrokerLink
from latermq.pipeline.spark.jvm_output import JvmOutput
from latermq.pipeline.timeline.root import Root, open_root
from latermq.pipeline.windows.attempts import read_attempt
from tests.interop.ports import HOST, free_port
from tests.interop.waiting import wait_until
from tests.support.pipeline.drivers import begin_as_driver, driver_link
from tests.support.pipeline.pipeline_process import pipeline_process
from tests.support.serving import Server, serving

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from latermq.pipeline.driver.driver import Driver

# Spark has more than a minute to build a window, so the broker does not do it in its place.
# And ingest may lag by a window before the broker keeps new timers to itself.
SETTINGS = ("pipeline.near_horizon=90s", "pipeline.window=15s", "pipeline.ingest_every=1s",
            "pipeline.roll_deadline=1ms", "pipeline.compact_every=20s", "store.flush_every=20ms",
            "store.checkpoint_every=1s", "pipeline.enabled=true")  # fmt: skip
MADE_BY = ("spark-", "driver-")
SLOW_S = 120.0  # on a busy machine Spark takes its time


@contextmanager
def driving(spark: "SparkSession", root: Root, namesrv: str) -> "Iterator[tuple[Driver, Future[None]]]":
    """A driver on a thread of this process, which has a Spark already."""
    from latermq.pipeline.driver.driver import Driver

    stop = threading.Event()
    driver = Driver(spark, root, namesrv, load_config(settings=SETTINGS, environment={}), stop, JvmOutput())
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(driver.run)
        try:
            yield driver, running
        finally:
            stop.set()


def schedule(server: Server, dues_ms: list[int]) -> None:
    with blocking.Producer(server.namesrv) as producer:
        for due_ms in dues_ms:
            producer.send(OutgoingMessage("later", b"x", deliver_at_ms=due_ms))


def rows_of_chosen_windows(root: Root, link: BrokerLink) -> int:
    """How many timers are in attempts that the driver made and the broker is going to play."""
    state = link.state()
    chosen = [(window.number, window.attempt) for window in state.windows if window.attempt.startswith(MADE_BY)]
    return sum(read_attempt(root, state.store_id, number, attempt).manifest.rows for number, attempt in chosen)


@pytest.mark.timeout(600)
def test_far_timers_come_back_from_spark_whoever_is_there_first_or_restarts(
    spark: "SparkSession", tmp_path: Path
) -> None:
    root = open_root(str(tmp_path / "pipeline"))
    namesrv_port = free_port()
    options = [word for setting in SETTINGS for word in ("--set", setting)]
    options += ["--namesrv-port", str(namesrv_port), "--set", f"pipeline.timeline={root.uri}"]
    with (
        driving(spark, root, f"{HOST}:{namesrv_port}") as (driver, running),
        serving(tmp_path / "data", *options) as server,
    ):
        [address] = wait_until(lambda: masters(server.namesrv), 30, "the broker").values()
        with BrokerLink(address, patience_s=30.0) as link:
            wait_until(lambda: link.state().ingest_offset, SLOW_S, "the first cut, ingested")
            first_ms = time.time_ns() // 1_000_000 + 95_000
            schedule(server, [first_ms + 100 * number for number in range(50)])
            wait_until(lambda: link.state().ingest_offset >= 50, SLOW_S, "their ingest")

            os.kill(server.broker_pid(), signal.SIGKILL)
            wait_until(lambda: server.log().count("broker is ready") == 2, 30, "the broker's return")
            schedule(server, [time.time_ns() // 1_000_000 + 3_600_000])
            end = link.state().flushed_entry
            wait_until(lambda: link.state().ingest_offset >= end, SLOW_S, "the stream's return")
            wait_until(lambda: rows_of_chosen_windows(root, link) == 50, SLOW_S, "windows with all of them")
            wait_until(lambda: driver.compactions, SLOW_S, "a compaction")

            assert not running.done()
            with driver_link(address, Path(root.uri)) as other:
                begin_as_driver(other, Path(root.uri))
            schedule(server, [time.time_ns() // 1_000_000 + 3_600_000])
            with pytest.raises(IllegalOperation, match="another driver has taken over broker broker-a"):
                running.result(SLOW_S)


@pytest.mark.timeout(600)
def test_the_process_tells_of_its_start_and_of_the_death_of_its_jvm(tmp_path: Path) -> None:
    with pipeline_process(f"{HOST}:{free_port()}", tmp_path / "pipeline") as driver:
        driver.wait_for("latermq ready: pipeline local[1]", SLOW_S)
        driver.wait_for("broker lookup stalled: no name server answers", SLOW_S)
        os.kill(driver.jvm_pid(), signal.SIGSTOP)
        time.sleep(1)  # the driver asks twice a second: now it waits for an answer
        os.kill(driver.jvm_pid(), signal.SIGKILL)
        assert driver.wait_for_exit() == 1
        assert "error: Spark has exited: it was killed" in driver.printed()
        assert "Traceback" not in driver.printed()


@pytest.mark.parametrize(
    ("reason", "environment"),
    [
        ("no Java found in JAVA_HOME (/nowhere): Spark needs Java 17 or newer", {"JAVA_HOME": "/nowhere"}),
        ("the timeline {path}: ", {}),
    ],
)
def test_a_process_that_cannot_start_says_why_and_exits_2(
    tmp_path: Path, reason: str, environment: dict[str, str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    path = tmp_path / "file" / "pipeline"
    with pipeline_process(f"{HOST}:{free_port()}", path, environment=environment) as driver:
        assert driver.wait_for_exit(SLOW_S) == 2
        assert f"error: the pipeline cannot start: {reason.format(path=path)}" in driver.printed()
        assert "Traceback" not in driver.printed()


@pytest.mark.timeout(600)
def test_a_broker_with_another_secret_is_told_of_once_and_holds_up_no_other(
    spark: "SparkSession", tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = open_root(str(tmp_path / "pipeline"))
    options = [word for setting in SETTINGS for word in ("--set", setting)]
    options += ["--set", f"pipeline.timeline={root.uri}"]
    secret = tmp_path / "other.secret"
    apart = ("--set", "broker.name=broker-b", "--set", f"pipeline.secret_file={secret}")
    with (
        serving(tmp_path / "a", *options) as first,
        serving(tmp_path / "b", *options, *apart, "--set", f"server.namesrv={first.namesrv}") as second,
        driving(spark, root, first.namesrv) as (_, running),
        BrokerLink(first.broker) as one,
        BrokerLink(second.broker) as other,
    ):
        wait_until(lambda: one.state().ingest_offset, SLOW_S, "the ingest of broker-a")
        wait_until(lambda: second.log().count("is not signed") >= 3, SLOW_S, "more than one try at broker-b")
        told = [record.getMessage() for record in caplog.records if "is not signed" in record.getMessage()]
        assert told == [
            "feed of broker-b stalled: request 7011 is not signed with the secret of broker broker-b. Copy the "
            "broker's pipeline.secret_file to the driver "
            f"({second.broker} answered 16)"
        ]
        assert other.state().epoch == 0
        schedule(first, [time.time_ns() // 1_000_000 + 3_600_000])
        end = one.state(flush=True).flushed_entry
        wait_until(lambda: one.state().ingest_offset >= end, SLOW_S, "the further ingest of broker-a")
        assert not running.done()


def test_a_process_whose_spark_refuses_its_settings_says_why_and_exits_2(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text("spark.executor.memory 1m\n")
    environment = {"SPARK_CONF_DIR": str(tmp_path)}
    with pipeline_process(f"{HOST}:{free_port()}", tmp_path / "pipeline", environment=environment) as driver:
        assert driver.wait_for_exit(SLOW_S) == 2
        assert "error: the pipeline cannot start: Spark cannot start: [INVALID_EXECUTOR_MEMORY]" in driver.printed()
        assert "Traceback" not in driver.printed()
