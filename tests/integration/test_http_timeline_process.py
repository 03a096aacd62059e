"""The process that reads the timeline for the console: what it keeps out of the console, its bounds, and its end."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from latermq.config import load_config
from latermq.errors import ConfigError
from latermq.http.timeline_process import TimelineProcess, TimelineUnavailable
from latermq.pipeline.timeline.far_reads import LENGTH, ListCommits, TimelineCommit
from tests.interop.waiting import wait_until
from tests.support.http_console import HttpClient, running_console
from tests.support.pipeline.plain_ingest import FAR, begin, ingest
from tests.support.serving import Server, children_of, command_line, is_alive, resident_bytes, serving

MAX_RESIDENT_BYTES = 150 << 20
HEAVY = ("libarrow", "/deltalake/")  # parts of the paths of their libraries
READS = ("/api/v1/timers", "/api/v1/forecast?per=day", "/api/v1/pipeline/runs", "/api/v1/timers/what-if")
PAGES = ("/", "/timers", "/future", "/pipeline", "/topics", "/groups", "/dead-letters", "/messages", "/brokers")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with two far timers on its timeline."""
    folder = tmp_path_factory.mktemp("timeline-process")
    timeline = folder / "pipeline"
    with serving(folder / "data", *FAR, "--set", f"pipeline.timeline={timeline}", http=True) as found:
        begin(found, timeline)
        client = HttpClient(int(found.http.rpartition(":")[2]))
        for hours in (2, 3):
            assert client.post("/api/v1/timers", {"topic": "t", "body": "b", "delay": f"{hours}h"}).status == 201
        assert ingest(found, timeline / "timeline") == 2
        yield found


def readers_of(console_pid: int) -> list[int]:
    return [pid for pid in children_of(console_pid) if "latermq.pipeline.timeline.read_process" in command_line(pid)]


def has_heavy_libraries(pid: int) -> bool:
    maps = Path(f"/proc/{pid}/maps").read_text()
    return any(name in maps for name in HEAVY)


def far_ids(client: HttpClient) -> list[str]:
    page = client.get("/api/v1/timers?topic=t").json
    assert page["far_missing"] == ""
    return [timer["id"] for timer in page["timers"]]


def test_a_console_that_reads_the_timeline_stays_small_and_takes_its_reader_with_it(server: Server) -> None:
    client = HttpClient(int(server.http.rpartition(":")[2]))
    console = server.child_pid("console")
    assert console is not None
    assert len(far_ids(client)) == 2
    for path in READS:
        client.get(path)
    for path in PAGES:
        assert client.get(path, Accept="text/html").status == 200, path
    [reader] = readers_of(console)
    assert has_heavy_libraries(reader)
    assert not has_heavy_libraries(console)
    assert resident_bytes(console) < MAX_RESIDENT_BYTES
    # A reader that dies while nobody reads costs nobody an answer.
    os.kill(reader, signal.SIGKILL)
    wait_until(lambda: not is_alive(reader), 10.0, "the end of the reader")
    assert len(far_ids(client)) == 2
    [reader] = readers_of(console)
    os.kill(console, signal.SIGKILL)
    wait_until(lambda: not is_alive(reader), 10.0, "the end of the reader of a killed console")


@pytest.fixture
def frozen(server: Server) -> "Iterator[Callable[..., Any]]":
    """Starts consoles whose reader stands still, so that a read takes as long as the test wants."""
    stack = []

    def start(*settings: str) -> tuple[Any, HttpClient, int]:
        console = running_console(server.namesrv, *settings)
        process, client = console.__enter__()
        stack.append(console)
        assert len(far_ids(client)) == 2
        [reader] = readers_of(os.getpid())
        os.kill(reader, signal.SIGSTOP)
        return process, client, reader

    yield start
    for console in stack:
        console.__exit__(None, None, None)
    assert readers_of(os.getpid()) == []  # a console that stops ends its reader, even one that stands still


def test_a_reader_that_is_killed_while_it_reads_is_named_on_the_page_and_replaced(
    frozen: Callable[..., tuple[Any, HttpClient, int]],
) -> None:
    process, client, reader = frozen()
    replies: list[Any] = []
    reading = threading.Thread(target=lambda: replies.append(client.get("/api/v1/timers?topic=t").json))
    reading.start()
    wait_until(lambda: process.statistics()["timeline_reads"] == 1, 10.0, "the read")
    assert client.get("/healthz").status == 200  # the console itself does not wait
    os.kill(reader, signal.SIGKILL)
    reading.join(30)
    assert replies[0]["timers"] == []
    assert replies[0]["far_missing"] == "the process that reads the timeline ended: killed by SIGKILL. Try again"
    assert len(far_ids(client)) == 2
    assert process.statistics()["timeline_starts"] == 2


def test_a_read_that_takes_too_long_ends_the_reader_and_the_next_one_works(
    frozen: Callable[..., tuple[Any, HttpClient, int]],
) -> None:
    _, client, reader = frozen("http.timeline_timeout=5s")
    page = client.get("/timers", Accept="text/html").body.decode()
    assert "the timeline was not read within 5000 ms" in page
    assert not is_alive(reader)
    assert len(far_ids(client)) == 2


def test_reads_that_wait_are_bounded(frozen: Callable[..., tuple[Any, HttpClient, int]]) -> None:
    process, client, reader = frozen("http.max_timeline_reads=1")
    reading = threading.Thread(target=client.get, args=("/api/v1/timers",))
    reading.start()
    wait_until(lambda: process.statistics()["timeline_reads"] == 1, 10.0, "the read")
    missing = client.get("/api/v1/timers").json["far_missing"]
    assert missing.startswith("1 reads of the timeline wait, the limit is http.max_timeline_reads.")
    os.kill(reader, signal.SIGCONT)
    reading.join(30)
    assert len(far_ids(client)) == 2


def test_a_reader_without_work_ends(server: Server) -> None:
    with running_console(server.namesrv, "http.timeline_idle=300ms") as (process, client):
        assert len(far_ids(client)) == 2
        wait_until(lambda: process.statistics()["timeline_memory"] == 0, 10.0, "the end of the reader")
        assert readers_of(os.getpid()) == []
        assert len(far_ids(client)) == 2
        assert process.statistics()["timeline_starts"] == 2


# Programs that a test runs instead: they are not asked for anything that they could not do.


class Scripted(TimelineProcess):
    """Runs a program of the test's instead."""

    def __init__(self, program: str, *settings: str) -> None:
        super().__init__(load_config(settings=settings, environment={}).http)
        self._program = program

    def command(self) -> Sequence[str]:
        return [sys.executable, "-c", self._program]


def failure_of(program: str, *settings: str) -> str:
    async def read() -> str:
        process = Scripted(program, *settings)
        try:
            with pytest.raises(TimelineUnavailable) as caught:
                await process.read(ListCommits("", 1), list[TimelineCommit])
            assert process.statistics()["timeline_reads"] == 0
            return str(caught.value)
        finally:
            await process.close()

    return asyncio.run(read())


def test_a_reader_that_takes_too_much_memory_is_ended() -> None:
    program = "import sys, time; sys.stdin.read(1); held = b'x' * (300 << 20); time.sleep(60)"
    said = failure_of(program, "http.timeline_memory=256MiB")
    assert said.startswith("reading the timeline took more memory than http.timeline_memory allows.")


def test_a_reader_that_cannot_start_or_answers_nonsense_is_an_error() -> None:
    assert "ended: exit code 3" in failure_of("raise SystemExit(3)")
    endless = f"import sys, time; sys.stdout.buffer.write({LENGTH.pack(1 << 31)!r}); sys.stdout.flush(); time.sleep(60)"
    assert failure_of(endless).startswith("the answer has 2147483648 bytes.")


@pytest.mark.parametrize("after_s", [0.0, 0.001, 0.05, 0.3])
def test_a_read_that_is_given_up_leaves_no_reader_behind(after_s: float) -> None:
    others = children_of(os.getpid())

    async def give_up() -> None:
        process = Scripted("import time; time.sleep(600)")
        reading = asyncio.create_task(process.read(ListCommits("", 1), list[TimelineCommit]))
        await asyncio.sleep(after_s)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert children_of(os.getpid()) == others
        await process.close()

    asyncio.run(give_up())


def test_settings_that_could_never_work_are_refused() -> None:
    for setting, said in (
        ("http.timeline_memory=10MiB", "at least 256MiB"),
        ("http.timeline_timeout=0s", "http.timeline_timeout must be above 0"),
        ("http.max_timeline_reads=0", "http.max_timeline_reads must be at least 1"),
    ):
        with pytest.raises(ConfigError, match=said):
            load_config(settings=[setting], environment={})
