"""What a broker is told of the timeline is on disk by then; a table that a power cut shortened is filled again."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from latermq.pipeline.driver.link import BrokerLink
from latermq.pipeline.timeline.root import Root
from latermq.pipeline.timeline.table_sync import added_files, newest_version
from latermq.pipeline.timeline.torn_commits import remove_torn_commits
from tests.integration.test_pipeline_ingest import HOUR_MS, Broker, ingest_all, rows_of
from tests.integration.test_pipeline_ingest import broker as broker  # a fixture
from tests.integration.test_pipeline_ingest import root as root  # a fixture
from tests.interop.waiting import wait_until
from tests.support.needs import need_tool

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COMMIT = r"\"code\":7013"  # as strace quotes it


@contextmanager
def traced(folder: Path, pid: int) -> Iterator[Path]:
    """Write what a process syncs and sends to a file, while the block runs. Of Spark's JVM there is nothing to see."""
    out = folder / "strace"
    command = [need_tool("strace", "it shows what is synced"), "-f", "-yy", "-s", "400", "-o", str(out),
               "-e", "trace=fsync,fdatasync,sendto"]  # fmt: skip
    tracer = subprocess.Popen([*command, "-p", str(pid)], stderr=subprocess.PIPE)
    assert tracer.stderr is not None
    try:
        first = tracer.stderr.readline().decode()
        if "Operation not permitted" in first:
            pytest.skip(f"this user may not trace: {first}")
        assert "attached" in first, first
        yield out
    finally:
        tracer.send_signal(signal.SIGINT)
        tracer.wait(20)
        tracer.stderr.close()


@pytest.mark.timeout(300)
def test_a_batch_is_on_disk_before_the_broker_is_told_of_it(
    spark: "SparkSession",
    root: Root,
    broker: Broker,
    tmp_path: Path,
) -> None:
    broker.schedule(9, HOUR_MS, "a")
    broker.flushed(9)
    with traced(tmp_path, os.getpid()) as trace:
        ingest_all(spark, root, broker, batch_rows=3)
        wait_until(lambda: trace.read_text(errors="replace").count(COMMIT) >= 3, 20, "the commits in the trace")
    lines = trace.read_text(errors="replace").splitlines()
    commits = [number for number, line in enumerate(lines) if COMMIT in line]
    synced = [line for line in lines[commits[-2] : commits[-1]] if "sync(" in line]
    table = Path(root.path, "timeline")
    newest = table / "_delta_log" / f"{newest_version(table):020d}.json"
    for path in (*added_files(newest, table), table, newest, newest.parent, newest.with_name(f".{newest.name}.crc")):
        assert any(f"<{path}>" in line for line in synced), f"{path} is not synced"
    assert any(f"<{root.path}/claims/" in line for line in synced)
    assert any(f"<{root.path}/claims>" in line for line in synced)


@pytest.mark.timeout(300)
def test_a_table_that_lost_its_last_commits_is_filled_again_from_the_log(
    spark: "SparkSession",
    root: Root,
    broker: Broker,
) -> None:
    from latermq.pipeline.timeline.timeline import ingested_entry

    broker.wait_for_cut()
    broker.schedule(10, HOUR_MS, "a")
    end = broker.flushed(11)
    ingest_all(spark, root, broker, batch_rows=3)
    with BrokerLink(broker.address) as link:
        before = link.state()
    assert before.ingest_offset >= end
    rows = rows_of(spark, root)
    table = Path(root.path, "timeline")
    newest = newest_version(table)
    # The newest is lost as a whole; of the one before it the data, while its commit is there.
    for path in (table / "_delta_log").glob(f"*{newest:020d}.*"):
        path.unlink()
    for path in added_files(table / "_delta_log" / f"{newest - 1:020d}.json", table):
        path.write_bytes(b"")
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
    remove_torn_commits(root, root.timeline)
    assert ingested_entry(root, before.store_id) < before.ingest_offset
    broker.schedule(5, HOUR_MS, "b")
    broker.flushed(end + 5)
    ingest_all(spark, root, broker, batch_rows=4)
    again = rows_of(spark, root)
    assert again[: len(rows)] == rows
    assert [row["keys"] for row in again[len(rows) :]] == [f"b{number}" for number in range(5)]
    with BrokerLink(broker.address) as link:
        assert link.state().ingest_offset > again[-1].entry_offset
