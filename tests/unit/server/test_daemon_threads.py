"""Threads for what may hang: they do their work in order, and keep no process from ending."""

import asyncio
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from latermq.errors import StoreError
from latermq.server.broker import far_records
from latermq.server.broker.far_records import FarRecords
from latermq.server.windows.daemon_threads import DaemonThreads

# Reads that nobody answers, in each way that a broker reads the folder of its pipeline.
HANGING = """
import asyncio, os, sys, time
from latermq.server.broker import composition, far_records, restored_backup, pipeline_folder
from latermq.server.broker.far_records import FarRecords
from latermq.server.windows.lanes import Lanes
from latermq.server.broker.pipeline_folder import DriverTokens
from tests.support.pipeline.far_broker import FarBroker

path = sys.argv[1]
os.mkfifo(path)


def hang(*_):
    return open(path).read()


far_records.open_pipeline_root = pipeline_folder.read_small_file = restored_backup.list_names = hang
restored_backup._CLAIM_TIMEOUT_S = 0.1


async def run():
    lanes, records, tokens = Lanes({"load": 2}, time.monotonic), FarRecords(path, "s"), DriverTokens(path, "s")
    records.fetch([(1, 1)], print)
    tokens.read(print)
    try:
        await lanes.read_off_loop("load", 0.1, hang)
    except Exception as error:
        print(error.message)
    await composition.restored_backup(FarBroker().broker, path).complete()
    records.stop()
    await lanes.stop(frozenset())


asyncio.run(run())
"""


def test_a_process_ends_while_reads_hang(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HANGING, f"{tmp_path}/fifo"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "reading took longer than 0.1 s\n" in ended.stdout
    assert "cannot determine whether the timeline is ahead of this store" in ended.stdout


def test_work_is_done_in_order_by_as_few_threads_as_it_takes() -> None:
    threads = DaemonThreads(4, "one")
    found = [threads.submit(partial(int, number)) for number in range(3)]
    assert [one.result(10) for one in found] == [0, 1, 2]
    for _ in range(5):
        names = {threads.submit(lambda: threading.current_thread().name).result(10)}
        assert names <= {f"one-{number}" for number in range(3)}
    threads.shutdown(wait=True)


def test_at_its_end_what_was_not_begun_is_cancelled_and_what_was_is_waited_for() -> None:
    threads = DaemonThreads(1, "one")
    begun, go = threading.Event(), threading.Event()

    def work() -> int:
        begun.set()
        go.wait(10)
        return 7

    first = threads.submit(work)
    begun.wait(10)
    second = threads.submit(work)
    threading.Timer(0.05, go.set).start()
    threads.shutdown(wait=True)
    assert first.result(0) == 7
    assert second.cancelled()


def test_what_fails_is_reported_and_the_next_is_done() -> None:
    threads = DaemonThreads(1, "one")
    with pytest.raises(ZeroDivisionError):
        threads.submit(lambda: 1 // 0).result(10)
    assert threads.submit(lambda: 1).result(10) == 1
    threads.shutdown(wait=True)


def test_a_record_that_is_found_after_the_stop_is_reported_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go = threading.Event(), threading.Event()
    results: list[object] = []

    def look_up(uri: str) -> None:
        begun.set()
        go.wait(10)
        raise StoreError("found too late")

    async def story(*, stops: bool) -> list[object]:
        results.clear()
        begun.clear()
        go.clear()
        records = FarRecords("nowhere", "s")
        records.fetch([(1, 1)], results.append)
        await asyncio.to_thread(begun.wait, 10)
        if stops:
            records.stop()
        go.set()
        await asyncio.sleep(0.2)
        return list(results)

    monkeypatch.setattr(far_records, "open_pipeline_root", look_up)
    assert [str(error) for error in asyncio.run(story(stops=False))] == ["found too late"]
    assert asyncio.run(story(stops=True)) == []
