"""`kill -9` of a driver's processes while they migrate and compact a timeline: no window changes at any moment.

The table has schema version 1, two stores, and takers without a place. After each kill the windows are built without
Spark, as a broker builds them whose driver is away, and the next process continues.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from random import Random
from typing import IO

import pytest
from deltalake import DeltaTable

from latermq.pipeline.timeline.local_timeline import open_local_timeline
from latermq.pipeline.timeline.root import Root, open_root
from latermq.pipeline.timeline.torn_commits import remove_torn_commits
from tests.support.faults.timer_histories import History, append_rows, expected_rows, random_history, write_timeline
from tests.support.needs import LONG, need_tool
from tests.unit.pipeline.test_pipeline_local_build import built_keys

pytestmark = [pytest.mark.real, pytest.mark.timeout(1_800)]
KILLS = 30 if LONG else 3
SLOW_S = 300.0
# What `latermq pipeline run` does at its start, and then a compaction, with files so small that there are many steps.
PROGRAM = """
import sys, time
from latermq.pipeline.spark.session import open_session
from latermq.pipeline.timeline.compact import compact
from latermq.pipeline.timeline.migration import migrate
from latermq.pipeline.timeline.root import open_root
from latermq.pipeline.timeline.torn_commits import remove_torn_commits
from tests.fault.test_timeline_model import TINY
root = open_root(sys.argv[1])
spark = open_session()
print("ready", flush=True)
for address in (root.timeline, root.archive):
    remove_torn_commits(root, address)
migrate(spark, root)
print("migrated", flush=True)
compact(spark, root, [], vacuum_hours=0, limits=TINY)
print("compacted", flush=True)
"""


class Process:
    """A process with Spark, in a process group of its own."""

    def __init__(self, root: Root, scratch: str) -> None:
        environment = {**os.environ, "SPARK_LOCAL_DIRS": scratch, "PYTHONPATH": str(Path(__file__).parents[2])}
        environment["JDK_JAVA_OPTIONS"] = f"-XX:TieredStopAtLevel=1 -Djava.io.tmpdir={scratch}"
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115, closed in `end`
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, root.uri],
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            start_new_session=True,
        )
        self.printed: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def wait_for(self, line: str, timeout_s: float) -> bool:
        """Wait until it has printed a line; False if it ends or the time is over."""
        give_up_s = time.monotonic() + timeout_s
        while line not in self.printed and self._reader.is_alive() and time.monotonic() < give_up_s:
            time.sleep(0.01)
        return line in self.printed

    def end(self) -> None:
        """Kill it and its JVM with its workers, as a machine does that stops."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()

    def errors(self) -> str:
        return os.pread(self._errors.fileno(), 1 << 20, 0).decode(errors="replace")[-8_000:]

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.printed.append(line.decode().strip())


def check_windows(root: Root, histories: list[History]) -> None:
    """As a driver does at its start and a broker without one: the windows of both stores are what they should be."""
    for history in histories:
        for window in history.windows:
            assert built_keys(root, history, window, history.end) == expected_rows(history.rows, window)


def wait_for_commits(root: Root, count: int, process: Process) -> None:
    """Wait until so many commits were made since now, or the process has nothing more to do."""
    log = Path(root.timeline, "_delta_log")
    start = len(list(log.glob("*.json")))
    give_up_s = time.monotonic() + SLOW_S
    while len(list(log.glob("*.json"))) < start + count and "compacted" not in process.printed:
        assert time.monotonic() < give_up_s, process.errors()
        time.sleep(0.01)


def test_no_window_changes_whenever_a_migration_or_compaction_is_killed(tmp_path: Path) -> None:
    need_tool("java", "Spark requires it")
    chance = Random(31)
    root = open_root(str(tmp_path / "pipeline"))
    histories = [random_history(seed, 60, name) for seed, name in ((61, "s"), (62, "other"))]
    write_timeline(root.timeline, [], 0, version="1")
    for history in histories:
        for start in range(0, history.end, 20):
            rows = [row for row in history.rows if start <= row["entry_offset"] < start + 20]
            append_rows(root.timeline, rows, history.store_id, min(start + 20, history.end))
    check_windows(root, histories)
    seen: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        for _ in range(KILLS):
            process = Process(root, scratch)
            try:
                assert process.wait_for("ready", SLOW_S), process.errors()
                wait_for_commits(root, chance.choice((0, 1, 2, 3, 5)), process)
                time.sleep(chance.uniform(0, 0.5))
            finally:
                process.end()
            seen.append(f"{process.printed[-1]}, version {DeltaTable(root.timeline).version()}")
            remove_torn_commits(root, root.timeline)
            check_windows(root, histories)
        last = Process(root, scratch)
        try:
            assert last.wait_for("compacted", SLOW_S), last.errors()
        finally:
            last.end()
    print(f"killed after {seen}; {DeltaTable(root.timeline).version()} commits")
    check_windows(root, histories)
    timeline = open_local_timeline(root, "s")
    assert timeline is not None
    assert (timeline.layout, timeline.unplaced_takers()) == (2, 0)
