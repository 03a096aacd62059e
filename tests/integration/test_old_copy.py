"""A real broker on a store that was put back from an old copy, with a real timeline that is ahead of it."""

import shutil
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from latermq.client import OutgoingMessage, blocking
from latermq.model.timers import Verdict
from latermq.pipeline.driver.brokers import masters
from latermq.pipeline.driver.link import BrokerLink
from latermq.pipeline.timeline.root import Root, open_root
from tests.interop.ports import free_port
from tests.interop.waiting import wait_until
from tests.support.serving import Server, serving

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = ("pipeline.near_horizon=24s", "pipeline.window=8s", "pipeline.roll_deadline=12s", "pipeline.ingest_every=1s",
            "store.flush_every=20ms",
            "store.checkpoint_every=1s", "pipeline.enabled=true")  # fmt: skip
LEAD_MS = 100_000  # for three starts on a slow machine


@contextmanager
def ingesting(spark: "SparkSession", root: Root, server: Server) -> Iterator[None]:
    """A stream that keeps up, so that far timers are Spark's; at the end it has all."""
    from latermq.pipeline.driver.ingest import Ingest, IngestSettings

    [address] = wait_until(lambda: masters(server.namesrv), 30, "the broker").values()
    with (
        BrokerLink(address) as link,
        closing(Ingest(spark, root, server.namesrv, "broker-a", IngestSettings(every_ms=500))) as ingest,
    ):
        query = ingest.start()
        try:
            wait_until(lambda: _frontier_ms(link) < time.time_ns() // 1_000_000 + LEAD_MS / 2, 60, "a near frontier")
            yield
            time.sleep(0.5)  # many times as long as the broker takes between two flushes
            end = link.state().flushed_entry
            wait_until(lambda: link.state().ingest_offset >= end, 60, "the ingest of all")
        finally:
            query.stop()


def _frontier_ms(link: BrokerLink) -> int:
    cuts = link.state().cuts
    return cuts[-1].frontier_ms if cuts else 1 << 62


def schedule(server: Server, due_ms: int, *names: str) -> None:
    with blocking.Producer(server.namesrv) as producer:
        for name in names:
            producer.send(OutgoingMessage("later", name.encode(), keys=name, deliver_at_ms=due_ms))


def cancel(server: Server, key: str) -> list[Verdict]:
    with blocking.Admin(server.namesrv) as admin:
        return [outcome.verdict for outcome in admin.cancel_timer("later", key=key)]


def arrived(spark: "SparkSession", server: Server) -> list[str]:
    topic = spark.read.format("latermq").option("namesrv", server.namesrv).option("topic", "later").load()
    return sorted(row.body.decode() for row in topic.select("body").collect())


@pytest.mark.timeout(600)
def test_what_spark_holds_of_a_store_outlives_the_return_to_an_old_copy(spark: "SparkSession", tmp_path: Path) -> None:
    root = open_root(str(tmp_path / "pipeline"))
    data, copy = tmp_path / "data", tmp_path / "copy"
    options = [word for setting in SETTINGS for word in ("--set", setting)]
    options += ["--namesrv-port", str(free_port()), "--set", f"pipeline.timeline={root.uri}"]
    due_ms = time.time_ns() // 1_000_000 + LEAD_MS

    with serving(data, *options) as server, ingesting(spark, root, server):
        schedule(server, due_ms, "known", "cancelled-later")
    shutil.copytree(data, copy, ignore=shutil.ignore_patterns("pipeline"))

    with serving(data, *options) as server, ingesting(spark, root, server):
        schedule(server, due_ms, "lost-1", "lost-2", "lost-3")
        assert cancel(server, "cancelled-later") == [Verdict.CANCELLED]
        schedule(server, due_ms, "lost-4")
    shutil.rmtree(data)
    copy.rename(data)

    with serving(data, *options) as server, ingesting(spark, root, server):
        assert "this store was restored from an old backup" in server.log()
        schedule(server, due_ms, *(f"new-{number}" for number in range(8)))
        assert cancel(server, "lost-2") == cancel(server, "cancelled-later") == [Verdict.CANCELLED]
        wanted = ["known", "lost-1", "lost-3", "lost-4", *(f"new-{number}" for number in range(8))]
        wait_until(lambda: time.time_ns() // 1_000_000 > due_ms, LEAD_MS / 1000 + 10, "their time")
        wait_until(lambda: len(arrived(spark, server)) >= len(wanted), 60, "all timers")
        assert arrived(spark, server) == sorted(wanted)
