"""The pipeline on a Spark standalone cluster: two brokers feed one timeline, and each gets its own windows back.

Then a notebook streams rows into timers through Spark Connect, which executors count and cancel.
"""

import functools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from latermq.client import MessageQueue, OutgoingMessage, blocking
from latermq.pipeline.driver.brokers import masters
from latermq.pipeline.driver.link import BrokerLink
from latermq.pipeline.timeline.local_timeline import open_local_timeline
from latermq.pipeline.timeline.root import Root, open_root
from latermq.pipeline.windows.attempts import read_attempt
from tests.interop.waiting import wait_until
from tests.support.pipeline.pipeline_process import pipeline_process
from tests.support.pipeline.spark_cluster import spark_cluster
from tests.support.pipeline.timeline_places import timeline_at
from tests.support.serving import serving

COUNT = 40
# Before a window is due its broker waits so long for Spark, which shares this machine with five other JVMs.
NEAR_HORIZON_MS = 240_000
# A broker whose ingest lags by more than a window keeps new timers to itself: long enough for Spark on a busy machine.
SETTINGS = (f"pipeline.near_horizon={NEAR_HORIZON_MS}ms", "pipeline.window=20s", "pipeline.ingest_every=1s",
            "pipeline.roll_deadline=1ms", "store.flush_every=20ms", "pipeline.enabled=true")  # fmt: skip
SLOW_S = 240.0


def schedule(namesrv: str, broker: str, due_ms: int) -> None:
    with blocking.Admin(namesrv) as admin:
        admin.create_topic("later", 1, broker=broker)
    with blocking.Producer(namesrv) as producer:
        for number in range(COUNT):
            message = OutgoingMessage("later", broker.encode(), deliver_at_ms=due_ms + number)
            producer.send(message, queue=MessageQueue("later", broker, 0))


def gives_far_timers_to_spark(link: BrokerLink) -> bool:
    """Whether a broker has seen Spark ingest, so that it does not take what is far for its own."""
    state = link.state()
    return state.ingest_offset > 0 and state.cuts[-1].frontier_ms <= state.now_ms + 2 * NEAR_HORIZON_MS


def rows_built_by_spark(root: Root, address: str) -> int:
    """How many timers are in windows that Spark made for a broker and that it is going to play."""
    with BrokerLink(address, patience_s=30.0) as link:
        state = link.state()
    chosen = [(window.number, window.attempt) for window in state.windows if window.attempt.startswith("spark-")]
    return sum(read_attempt(root, state.store_id, number, attempt).manifest.rows for number, attempt in chosen)


def python(namesrv: str, connect_file: Path, uri: str, *words: str) -> str:
    """What a Python process prints that uses the driver, and that succeeds."""
    environment = {
        **os.environ, "NAMESRV_ADDR": namesrv, "LATERMQ_PIPELINE_CONNECT_FILE": str(connect_file),
        "LATERMQ_PIPELINE_TIMELINE": uri,
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, *words], env=environment, capture_output=True, text=True, timeout=SLOW_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


STREAM = """
import sys
import latermq.pipeline as pipeline
from pyspark.sql import functions as F
folder = sys.argv[1]
spark = pipeline.connect()
rows = spark.readStream.schema("key string").json(f"{folder}/in")
due = F.current_timestamp() + F.expr("INTERVAL 9 DAYS")
timers = rows.select("key", due.alias("due"), F.lit("streamed").alias("topic"))
writer = timers.writeStream.format("latermq").option("job", "stream").option("checkpointLocation", f"{folder}/ck")
query = writer.trigger(availableNow=True).start()
assert query.awaitTermination(240)
assert query.exception() is None, query.exception()
spark.stop()
"""


@pytest.mark.timeout(1_500)
@pytest.mark.parametrize("place", ["bucket", pytest.param("folder", marks=pytest.mark.long)])
def test_two_brokers_share_a_timeline_on_a_cluster_and_each_gets_its_own_windows(tmp_path: Path, place: str) -> None:
    with (
        timeline_at(place, tmp_path) as uri,
        # Machines of a cluster have credentials for S3. Where it is they hear from the driver.
        spark_cluster(tmp_path / "spark", workers=2, without=("AWS_ENDPOINT_URL", "AWS_REGION")) as cluster,
    ):
        root = open_root(uri)
        connect_file = tmp_path / "pipeline.connect"
        settings = (
            *SETTINGS,
            f"pipeline.timeline={uri}",
            f"pipeline.secret_file={tmp_path / 'pipeline.secret'}",
            f"pipeline.connect_file={connect_file}",
        )
        options = [word for setting in settings for word in ("--set", setting)]
        with (
            serving(tmp_path / "a", *options) as first,
            serving(
                tmp_path / "b", *options, "--set", "broker.name=broker-b", "--set", f"server.namesrv={first.namesrv}"
            ),
            pipeline_process(
                first.namesrv, uri, "--master", cluster.master, *options, environment=cluster.environment
            ) as driver,
        ):
            wait_until(lambda: len(masters(first.namesrv)) == 2, 60, "both brokers")
            addresses = masters(first.namesrv)
            store_ids = {}
            for broker, address in addresses.items():
                driver.wait_for(f"ingest of {broker}", SLOW_S)
                with BrokerLink(address, patience_s=30.0) as link:
                    far = functools.partial(gives_far_timers_to_spark, link)
                    wait_until(far, SLOW_S, f"the first cut of {broker}, ingested")
                    store_ids[broker] = link.state().store_id
                schedule(first.namesrv, broker, time.time_ns() // 1_000_000 + NEAR_HORIZON_MS + 6_000)
            for broker, address in addresses.items():
                built = functools.partial(rows_built_by_spark, root, address)
                wait_until(lambda built=built: built() == COUNT, SLOW_S, f"the windows of {broker}")  # type: ignore[misc]
            assert cluster.executors() >= 2

            run = functools.partial(python, first.namesrv, connect_file, uri)
            (tmp_path / "in").mkdir()
            (tmp_path / "in" / "0.json").write_text("\n".join(json.dumps({"key": f"{n}"}) for n in range(COUNT)))
            run("-c", STREAM, str(tmp_path))
            query = "SELECT count(*) AS timers FROM pending WHERE topic = 'streamed'"
            assert json.loads(run("-m", "latermq", "pipeline", "sql", query, "--json")) == {"timers": COUNT}
            words = ("pipeline", "cancel", "--where", "topic = 'streamed'", "--json")
            assert json.loads(run("-m", "latermq", *words))["cancelled"] == COUNT
        for store_id in store_ids.values():
            timeline = open_local_timeline(root, store_id)
            assert timeline is not None
            assert timeline.ingested >= COUNT
        assert len(set(store_ids.values())) == 2
