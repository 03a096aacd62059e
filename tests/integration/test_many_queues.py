"""A store has more files than the limit that a shell begins with: a start raises that before it opens them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from latermq.broker.broker import Broker
from latermq.clock import SystemClock
from latermq.config import load_config
from latermq.store.files.disk import FileDisk
from tests.support.brokers_in_memory import HOST

LIMIT = 100
QUEUES = 2 * LIMIT
SETTINGS = ("store.segment=1MiB", "store.queue_file_entries=1024", "store.index_slots=97", "store.index_entries=500",
            "broker.max_message=64KiB", f"broker.default_queues={QUEUES}")  # fmt: skip


@pytest.fixture
def data(tmp_path: Path) -> Path:
    config = load_config(settings=SETTINGS, environment={})
    broker = Broker(config, FileDisk(tmp_path), SystemClock(), host="127.0.0.1", port=1, new_store_id="q" * 32)
    for queue_id in range(QUEUES):
        broker.writer.send("orders", queue_id, b"message", "", 0, HOST, default_queues=QUEUES)
    broker.close()
    return tmp_path


def run_limited(*arguments: str) -> subprocess.Popen[str]:
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    limit_offsets = ["sh", "-c", f'ulimit -Sn {LIMIT}; exec "$@"', "sh"]
    return subprocess.Popen(
        [*limit_offsets, sys.executable, "-m", "latermq", *arguments, *settings], stdout=subprocess.PIPE, text=True
    )


def test_a_broker_with_more_queues_than_the_limit_of_open_files_starts(data: Path) -> None:
    with run_limited("broker", "--data", str(data), "--port", "0", "--namesrv", "127.0.0.1:1") as broker:
        try:
            assert broker.stdout is not None
            assert broker.stdout.readline().startswith("latermq ready")
        finally:
            broker.terminate()
        assert broker.wait(30) == 0


def test_the_doctor_looks_at_more_queues_than_the_limit_of_open_files(data: Path) -> None:
    with run_limited("doctor", "--data", str(data), "--json") as doctor:
        out, _ = doctor.communicate(timeout=60)
    (store,) = [row for row in map(json.loads, out.splitlines()) if row["check"] == "store"]
    assert store["status"] == "ok"
