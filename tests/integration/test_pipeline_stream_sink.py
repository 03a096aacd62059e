"""`df.writeStream.format("latermq")` against a real broker: each row is one timer, also if the driver is killed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from latermq.client import blocking
from latermq.pipeline.bulk.stream_job import StreamProgress, read_progress
from latermq.pipeline.timeline.root import open_root
from tests.interop.waiting import wait_until
from tests.support.needs import LONG
from tests.support.serving import Server, serving

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FILES, ROWS = 4, 6_000
KILLS = 12 if LONG else 1
DRIVER = Path(__file__).with_name("stream_driver.py")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("stream") / "data") as found:
        with blocking.Admin(found.namesrv) as admin:
            wait_until(admin.brokers, 30, "the broker is registered")
        yield found


def write_files(folder: Path, files: int, rows: int) -> None:
    folder.mkdir()
    for number in range(files):
        lines = [json.dumps({"key": f"{number}-{row}"}) for row in range(rows)]
        (folder / f"{number}.json").write_text("\n".join(lines))


def start(spark: "SparkSession", server: Server, folder: Path, topic: str, checkpoint: str = "ck") -> "StreamingQuery":
    rows = spark.readStream.schema("key string").option("maxFilesPerTrigger", 1).json(str(folder / "in"))
    timers = rows.selectExpr(
        f"'{topic}' AS topic", "key", "key AS body", "current_timestamp() + INTERVAL 9 DAYS AS due"
    )
    writer = timers.writeStream.format("latermq").option("checkpointLocation", str(folder / checkpoint))
    writer = writer.option("Namesrv", server.namesrv).option("JOB", topic).option("root", str(folder / "root"))
    return writer.trigger(availableNow=True).start()


def count(server: Server, topic: str) -> int:
    with blocking.Admin(server.namesrv) as admin:
        return admin.count_timers(topic) if topic in admin.topics() else 0


def test_every_row_of_every_batch_is_a_timer_and_a_later_batch_may_repeat_its_keys(
    spark: "SparkSession", server: Server, tmp_path: Path
) -> None:
    write_files(tmp_path / "in", 2, 300)
    query = start(spark, server, tmp_path, "plain")
    assert query.awaitTermination(120)
    assert count(server, "plain") == 600
    # State of finished batches is not kept, and a restart of the query has nothing to do.
    job = tmp_path / "root" / "bulk" / "plain"
    assert sorted(path.name for path in job.iterdir()) == ["batches", "brokers.json", "stream.json"]
    assert list((job / "batches").iterdir()) == []
    assert read_progress(open_root(str(tmp_path / "root")), "plain") == StreamProgress(query.id, 1)
    (tmp_path / "in" / "again.json").write_text((tmp_path / "in" / "0.json").read_text())
    assert start(spark, server, tmp_path, "plain").awaitTermination(120)
    assert count(server, "plain") == 900


def test_a_batch_that_spark_repeats_schedules_nothing_again(
    spark: "SparkSession", server: Server, tmp_path: Path
) -> None:
    write_files(tmp_path / "in", 2, 200)
    assert start(spark, server, tmp_path, "repeated").awaitTermination(120)
    # As if the driver had died after the sink's commit and before Spark's.
    (tmp_path / "ck" / "commits" / "1").unlink()
    (tmp_path / "ck" / "commits" / ".1.crc").unlink(missing_ok=True)
    assert start(spark, server, tmp_path, "repeated").awaitTermination(120)
    assert count(server, "repeated") == 400
    # As if it had died before the sink's commit, with all rows sent.
    (tmp_path / "ck" / "commits" / "1").unlink()
    (tmp_path / "ck" / "commits" / ".1.crc").unlink(missing_ok=True)
    (tmp_path / "root" / "bulk" / "repeated" / "stream.json").unlink()
    assert start(spark, server, tmp_path, "repeated").awaitTermination(120)
    assert count(server, "repeated") == 400


def test_a_job_of_another_query_is_refused_and_says_what_to_do(
    spark: "SparkSession", server: Server, tmp_path: Path
) -> None:
    from pyspark.errors import StreamingQueryException

    write_files(tmp_path / "in", 1, 10)
    assert start(spark, server, tmp_path, "owned").awaitTermination(120)
    other = start(spark, server, tmp_path, "owned", checkpoint="other")
    with pytest.raises(StreamingQueryException, match="set the option job to a new name"):
        other.awaitTermination(120)
    assert count(server, "owned") == 10


def test_a_driver_killed_in_the_middle_of_a_batch_and_restarted_schedules_each_row_once(
    spark: "SparkSession", server: Server, tmp_path: Path
) -> None:
    write_files(tmp_path / "in", FILES, ROWS)
    chance = Random(7)
    for number in range(KILLS):
        run_driver(server, tmp_path, kill_after=count(server, "killed") + chance.randrange(1, ROWS), number=number)
    run_driver(server, tmp_path, kill_after=None, number=KILLS)
    assert count(server, "killed") == FILES * ROWS
    reader = spark.read.format("latermq").option("namesrv", server.namesrv).option("topic", "rmq_sys_wheel_timer")
    found = reader.option("columns", "topic,keys,body_text").load().where("topic = 'killed' AND keys = body_text")
    assert (found.count(), found.distinct().count()) == (FILES * ROWS, FILES * ROWS)
    assert list((tmp_path / "root" / "bulk" / "killed" / "batches").iterdir()) == []


def run_driver(server: Server, folder: Path, *, kill_after: int | None, number: int) -> None:
    """Run the stream in a process of its own. Kill it and its JVM once this many timers are pending."""
    environment = {**os.environ, "NAMESRV_ADDR": server.namesrv, "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1"}
    with (folder / f"log-{number}").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, str(DRIVER), str(folder), "killed"], env=environment, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
    try:
        deadline_s = time.monotonic() + 180
        while process.poll() is None and time.monotonic() < deadline_s:
            if kill_after is not None and count(server, "killed") >= kill_after:
                break
            time.sleep(0.02)
        else:
            assert process.poll() == 0, (folder / f"log-{number}").read_text()[-3000:]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
