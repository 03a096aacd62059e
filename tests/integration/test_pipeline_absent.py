"""A timeline that two real brokers share, one of which is killed: what is asked of both is not answered by half."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from latermq.client import OutgoingMessage, blocking
from latermq.handover.ingest_claim import IngestClaim
from latermq.pipeline.bulk.job_root import find_job_root
from latermq.pipeline.driver.brokers import masters
from latermq.pipeline.driver.known_stores import AbsentStores, find_brokers
from latermq.pipeline.timeline.lost_entries import write_claim
from latermq.pipeline.timeline.root import open_root
from tests.interop.ports import free_port
from tests.interop.waiting import wait_until
from tests.support.serving import Server, serving

HOUR_MS = 3_600_000


@contextmanager
def second_broker(server: Server, data: Path, timeline: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Another broker at the same name server."""
    command = [sys.executable, "-m", "latermq", "broker", "--data", str(data), "--namesrv", server.namesrv]
    command += [
        "--port",
        str(free_port()),
        "--host",
        "127.0.0.1",
        "--set",
        "metrics.port=0",
        "--set",
        "metrics.namesrv_port=0",
    ]
    command += [
        "--set",
        "store.flush_every=30s",
        "--set",
        "broker.name=broker-b",
        "--set",
        f"pipeline.timeline={timeline}",
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: "broker-b" in masters(server.namesrv), 30, "the second broker is registered")
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_broker_that_was_killed_is_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LATERMQ_PIPELINE_TIMELINE", raising=False)
    root = open_root(str(tmp_path / "timeline"))
    settings = ("--set", f"pipeline.timeline={root.uri}", "--set", "store.flush_every=30s")
    with (
        serving(tmp_path / "a", "--no-pipeline", *settings) as server,
        second_broker(server, tmp_path / "b", tmp_path / "timeline") as second,
    ):
        with blocking.Producer(server.namesrv) as producer:
            due_ms = int(time.time() * 1000) + HOUR_MS
            for number in range(40):
                producer.send(OutgoingMessage("orders", b"%d" % number, deliver_at_ms=due_ms))
        # Jobs are remembered where the brokers say that their timeline is.
        assert find_job_root(None, server.namesrv, "job").uri == root.uri
        both = find_brokers(root, server.namesrv)
        assert [broker.name for broker in both.present] == ["broker-a", "broker-b"]
        # All that was acknowledged is seen, though neither flushes by itself for half a minute.
        assert sum(broker.state.flushed_entry for broker in both.present) >= 40
        for broker in both.present:  # as their ingest leaves it
            write_claim(root, broker.state.store_id, IngestClaim(end=1, epoch=1, broker=broker.name))
        second.kill()
        second.wait()
        store = both.present[1].state.store_id
        with pytest.raises(AbsentStores, match=rf"store {store} \(broker broker-b\)"):
            find_brokers(root, server.namesrv, patience_s=0.5)
        left = find_brokers(root, server.namesrv, allow_partial=True, patience_s=0.5)
        assert [broker.name for broker in left.present] == ["broker-a"]
        assert f"store {store} (broker broker-b)" in left.absent
