"""The SDK's application of consumers, as programs of their own: retries, dead letters, signals, and early starts."""

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from latermq import App, Message, OutgoingMessage, Sql
from latermq.client import PushConsumer, blocking
from latermq.errors import ConfigError, FilterError, LaterMQError
from tests.integration.client_cluster import client_cluster
from tests.interop.ports import HOST, free_port
from tests.interop.waiting import wait_until
from tests.support.serving import serving


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with client_cluster(tmp_path_factory.mktemp("app")) as address:
        yield address


@contextlib.contextmanager
def program(namesrv: str, source: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A program with an `app`. It writes to `folder`."""
    head = (
        "import os, time, asyncio, threading\nfrom latermq import App, Message\napp = App(os.environ['NAMESRV_ADDR'])\n"
    )
    head += "def note(text): print(text, flush=True)\n"
    command = [sys.executable, "-W", "error", "-c", head + textwrap.dedent(source)]
    environment = {**os.environ, "NAMESRV_ADDR": namesrv}
    with (
        (folder / "err").open("w") as errors,
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=folder) as run,
    ):
        try:
            yield run
        finally:
            run.kill()


def line_of(run: subprocess.Popen[str]) -> str:
    assert run.stdout is not None
    return run.stdout.readline().rstrip("\n")


def lag(namesrv: str, group: str, topic: str) -> int:
    with blocking.Admin(namesrv) as admin:
        return sum(one.brokerOffset - one.consumerOffset for one in admin.consume_stats(group, topic).values())


@pytest.mark.parametrize("kind", ["async def", "def"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_running_functions_finish(
    namesrv: str, tmp_path: Path, kind: str, number: signal.Signals
) -> None:
    topic = f"finish-{kind.split()[0]}-{number.name}"
    with blocking.Producer(namesrv) as producer:
        producer.send(OutgoingMessage(topic, b"one"))
    wait = "await asyncio.sleep(2)" if kind == "async def" else "time.sleep(2)"
    source = f"""
        @app.consumer("{topic}", group="{topic}")
        {kind} handle(message: Message) -> None:
            note("begun")
            {wait}
            note("finished")
        app.run()
        note("ended")
    """
    with program(namesrv, source, tmp_path) as run:
        assert line_of(run) == "begun"
        run.send_signal(number)
        assert [line_of(run), line_of(run)] == ["finished", "ended"]
        assert run.wait(20) == 0
    assert (tmp_path / "err").read_text() == ""
    assert lag(namesrv, topic, topic) == 0  # the offset is stored, so it is not delivered again


def test_a_second_signal_ends_the_process_at_once_and_the_message_is_delivered_again(
    namesrv: str, tmp_path: Path
) -> None:
    with blocking.Producer(namesrv) as producer:
        producer.send(OutgoingMessage("hung", b"one"))
    source = """
        @app.consumer("hung", group="hung")
        def handle(message: Message) -> None:
            note("begun")
            time.sleep(600)
        app.run()
    """
    with program(namesrv, source, tmp_path) as run:
        assert line_of(run) == "begun"
        run.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            run.wait(1)
        run.send_signal(signal.SIGTERM)
        assert run.wait(20) == -signal.SIGTERM
    assert lag(namesrv, "hung", "hung") == 1


def test_an_async_function_that_does_not_end_is_cancelled_after_the_wait(
    namesrv: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = App(namesrv, shutdown_wait_s=0.2)
    begun, ends = asyncio.Event(), []

    @app.consumer("endless", group="endless")
    async def handle(message: Message) -> None:
        begun.set()
        try:
            await asyncio.sleep(600)
        finally:
            ends.append("cancelled")

    async def scenario() -> None:
        async with app:
            await begun.wait()
        assert ends == ["cancelled"]

    with blocking.Producer(namesrv) as producer:
        producer.send(OutgoingMessage("endless", b"one"))
    asyncio.run(asyncio.wait_for(scenario(), 60))
    assert "closing while 1 handlers still run after 0.2 s" in caplog.text


def test_a_program_may_start_before_its_name_server(tmp_path: Path) -> None:
    port = free_port()
    source = """
        @app.consumer("early", group="early")
        async def handle(message: Message) -> None:
            note(message.body.decode())
        app.run()
    """
    with program(f"{HOST}:{port}", source, tmp_path) as run:
        wait_until(lambda: "trying again in" in (tmp_path / "err").read_text(), 30, "the first try")
        with serving(tmp_path / "data", "--namesrv-port", str(port)), blocking.Producer(f"{HOST}:{port}") as producer:
            producer.send(OutgoingMessage("early", b"at last"), timeout_s=20)
            assert line_of(run) == "at last"
            run.terminate()
            assert run.wait(30) == 0


def test_a_signal_ends_a_program_that_still_waits_for_its_name_server(tmp_path: Path) -> None:
    source = """
        @app.consumer("early", group="early")
        async def handle(message: Message) -> None: ...
        app.run()
        note("ended")
    """
    with program(f"{HOST}:{free_port()}", source, tmp_path) as run:
        wait_until(lambda: "trying again in" in (tmp_path / "err").read_text(), 30, "the first try")
        run.terminate()
        assert line_of(run) == "ended"
        assert run.wait(20) == 0


def test_a_group_has_functions_of_several_topics_and_each_retry_comes_back_to_its_own(namesrv: str) -> None:
    app = App(namesrv)
    seen: list[tuple[str, bytes, int]] = []
    threads: set[str] = set()

    @app.consumer("apples", group="fruit", retries=1)
    async def apples(message: Message) -> None:
        seen.append(("apples", message.body, message.reconsume_times))
        if message.reconsume_times == 0:
            raise RuntimeError("not yet")

    @app.consumer("pears", group="fruit", retries=1, expression=Sql("ripe = 'yes'"))
    def pears(message: Message) -> None:
        threads.add(threading.current_thread().name)
        seen.append(("pears", message.body, message.reconsume_times))

    async def scenario() -> None:
        async with app:
            await asyncio.to_thread(wait_until, lambda: len(seen) >= 4, 60, "all messages are handled")
            assert app.statistics()["fruit"]["failed"] == 1

    with blocking.Admin(namesrv) as admin, blocking.Producer(namesrv) as producer:
        admin.create_group("fruit", retry_levels=["500ms"])
        producer.send(OutgoingMessage("apples", b"a"))
        for ripe in ("yes", "no", "yes"):
            producer.send(OutgoingMessage("pears", b"p", properties={"ripe": ripe}))
    asyncio.run(asyncio.wait_for(scenario(), 60))
    assert sorted(seen) == [("apples", b"a", 0), ("apples", b"a", 1), ("pears", b"p", 0), ("pears", b"p", 0)]
    assert all(name.startswith("latermq-fruit") for name in threads)
    assert apples.__name__ == "apples"  # the functions stay as they are, for tests


def test_an_error_that_no_retry_helps_ends_the_start(namesrv: str) -> None:
    app = App(namesrv)

    @app.consumer("filters", group="filters", expression=Sql("a >"))
    async def handle(message: Message) -> None: ...

    @app.consumer("filters", group="others")
    async def other(message: Message) -> None: ...

    async def scenario() -> None:
        with pytest.raises(FilterError):
            await app.start()
        assert app.statistics() == {}

    with blocking.Producer(namesrv) as producer:
        producer.send(OutgoingMessage("filters", b"x"))
    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_start_that_is_cancelled_at_any_moment_leaves_no_connection_open(namesrv: str) -> None:
    def sockets() -> int:
        return sum(path.resolve().name.startswith("socket:") for path in Path("/proc/self/fd").iterdir())

    async def scenario() -> int:
        before, cancelled, turns = sockets(), 0, 0
        while True:
            consumer = PushConsumer(namesrv, "cut-off", lambda message: asyncio.sleep(0))
            await consumer.subscribe("cut-off")
            starting = asyncio.create_task(consumer.start())
            for _ in range(turns):  # of the loop, so that none of its steps is left out
                await asyncio.sleep(0)
            starting.cancel()
            await asyncio.wait([starting])
            if not starting.cancelled():
                await consumer.close()
                return cancelled
            cancelled += 1
            turns += 1 + turns // 20
            assert sockets() == before

    with blocking.Producer(namesrv) as producer:
        producer.send(OutgoingMessage("cut-off", b"x"))
    assert asyncio.run(asyncio.wait_for(scenario(), 60)) > 20


@pytest.mark.parametrize(
    ("topic", "settings", "message"),
    [
        ("a b", {"group": "g"}, "topic"),
        ("t", {"group": "g g"}, "group"),
        ("t", {"group": "g", "concurrency": 0}, "concurrency must be at least 1"),
        ("t", {"group": "g", "consume_from": "middle"}, "consume_from"),
        ("known", {"group": "known"}, "two consumers of topic 'known'"),
        ("other", {"group": "known", "retries": 3}, "different settings"),
    ],
)
def test_a_wrong_registration_fails_where_it_stands(topic: str, settings: dict[str, object], message: str) -> None:
    app = App("127.0.0.1:1")
    app.consumer("known", group="known")(lambda message: None)
    with pytest.raises(LaterMQError, match=message):
        app.consumer(topic, **settings)(lambda message: None)  # type: ignore[arg-type]


def test_an_app_without_consumers_does_not_start(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with pytest.raises(ConfigError, match="no consumers"):
        App("127.0.0.1:1").run()
