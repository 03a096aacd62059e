"""The programs of examples/, each run against a real broker as a reader would run it."""

import contextlib
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from latermq import OutgoingMessage
from latermq.client import blocking
from tests.interop.waiting import wait_until
from tests.support.serving import serving

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDER = Path(__file__).resolve().parents[2] / "examples"
# test_framework_examples.py runs these, with packages that are not installed here.
FRAMEWORKS = ("django_shop", "celery_later")
DAY_MS = 86_400_000


def own_programs() -> Iterator[Path]:
    """The programs that need nothing but LaterMQ."""
    for path in FOLDER.rglob("*.py"):
        if path.relative_to(FOLDER).parts[0] not in FRAMEWORKS:
            yield path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("examples") / "data"


@pytest.fixture(scope="module")
def namesrv(data: Path) -> Iterator[str]:
    with serving(data) as server:
        with blocking.Admin(server.namesrv) as admin:
            wait_until(admin.brokers, 30, "the broker is registered")
        yield server.namesrv


def _command(name: str) -> list[str]:
    return [sys.executable, "-W", "error", str(FOLDER / name)]


def _output(name: str, namesrv: str, *arguments: str, **variables: str) -> list[str]:
    """The lines that an example prints, in a process of its own that ends without a complaint."""
    environment = {**os.environ, "NAMESRV_ADDR": namesrv, **variables}
    command = [*_command(name), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def _bodies(namesrv: str, topic: str) -> list[bytes]:
    """What is in a topic now."""
    with blocking.PullConsumer(namesrv, group="reader") as consumer:
        return [
            message.body
            for queue in consumer.queues(topic)
            for message in consumer.pull(queue, consumer.min_offset(queue), wait_s=0).messages
        ]


def test_a_delayed_message_arrives(namesrv: str) -> None:
    started_s = time.time()
    (line,) = _output("delayed_producer.py", namesrv)
    assert line.startswith("SEND_OK: ")
    wait_until(lambda: _bodies(namesrv, "payment-checks"), 20, "the delayed message")
    assert time.time() - started_s >= 2
    assert _bodies(namesrv, "payment-checks") == [b"is it paid?"]


def test_an_absolute_time_is_kept_to_the_millisecond(namesrv: str) -> None:
    (line,) = _output("absolute_time.py", namesrv)
    message_id, due = line.split(" is due at ")
    with blocking.Admin(namesrv) as admin:
        (timer,) = admin.pending_timers("greetings")
    assert timer.unique_key == message_id
    assert timer.due_ms == datetime.fromisoformat(due).timestamp() * 1000
    assert "T09:00:00" in due


def test_a_timer_is_moved_and_cancelled(namesrv: str) -> None:
    assert _output("cancel_and_move.py", namesrv) == [
        "move: moved",
        "status: pending",
        "cancel: cancelled",
        "cancel: cancelled",
    ]
    with blocking.Admin(namesrv) as admin:
        assert admin.pending_timers("cancellations") == []


def test_a_push_consumer_prints_its_tags_until_it_is_stopped(namesrv: str) -> None:
    with blocking.Admin(namesrv) as admin:
        admin.create_topic("orders", queues=2)
    environment = {**os.environ, "NAMESRV_ADDR": namesrv}
    command = _command("push_consumer.py")
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        try:
            assert run.stdout is not None
            assert run.stdout.readline() == "consuming\n"
            with blocking.Producer(namesrv) as producer:
                for tag in ("created", "viewed", "paid"):
                    producer.send(OutgoingMessage("orders", b"order-1", tag=tag), shard="order-1")
            assert [run.stdout.readline() for _ in range(2)] == ["orders created order-1\n", "orders paid order-1\n"]
            run.send_signal(signal.SIGINT)
            out, errors = run.communicate(timeout=30)
        finally:
            run.kill()
    assert (run.returncode, out, errors) == (0, "", "")


def test_the_steps_of_an_order_are_consumed_in_order(namesrv: str) -> None:
    assert _output("ordered_consumer.py", namesrv) == [f"order-{n} created paid shipped" for n in (1, 2, 3)]


def test_a_message_that_always_fails_becomes_a_dead_letter(namesrv: str) -> None:
    assert _output("retries_and_dead_letters.py", namesrv) == [
        "attempt 1",
        "attempt 2",
        "attempt 3",
        "dead letter: parcel-1 to nowhere",
    ]


@contextlib.contextmanager
def _running(name: str, namesrv: str, *arguments: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """An example that runs until SIGTERM, and then ends cleanly."""
    environment = {**os.environ, "NAMESRV_ADDR": namesrv, **variables}
    command = [*_command(name), *arguments]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        try:
            yield run
            run.terminate()
            out, errors = run.communicate(timeout=30)
        finally:
            run.kill()
    assert (run.returncode, out, errors) == (0, "", "")


def _line(run: subprocess.Popen[str]) -> str:
    assert run.stdout is not None
    return run.stdout.readline()


def test_decorated_functions_consume_their_topics(namesrv: str) -> None:
    with blocking.Producer(namesrv) as producer:
        producer.send(OutgoingMessage("signups", b'{"address": "a@example.org"}'))
        producer.send(OutgoingMessage("invoices", b"number 1", tag="open"))
        producer.send(OutgoingMessage("invoices", b"number 2", tag="paid"))
    with _running("consumer_app.py", namesrv) as run:
        assert sorted((_line(run), _line(run))) == ["archived number 2\n", "welcome a@example.org\n"]


def test_a_message_that_an_app_rejects_is_a_dead_letter_at_once(namesrv: str) -> None:
    environment = {**os.environ, "NAMESRV_ADDR": namesrv}
    with blocking.Producer(namesrv) as producer:
        producer.send(OutgoingMessage("signups", b"not JSON"))
    command = _command("consumer_app.py")
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        try:
            with blocking.Admin(namesrv) as admin:
                wait_until(lambda: "%DLQ%mailer" in admin.topics(), 30, "a dead letter")
            wait_until(lambda: b"not JSON" in _bodies(namesrv, "%DLQ%mailer"), 30, "the dead letter")
            run.terminate()
            out, errors = run.communicate(timeout=30)
        finally:
            run.kill()
    assert (run.returncode, out) == (0, "")
    assert re.search(r"the handler rejected .*: not a sign-up: JSONDecodeError", errors)


def test_unpaid_orders_are_closed_and_paid_ones_are_not(namesrv: str, tmp_path: Path) -> None:
    shop = {"SHOP_DATABASE": str(tmp_path / "shop.sqlite"), "PAYMENT_TIME": "1h"}

    def program(*arguments: str) -> list[str]:
        return _output("tasks/unpaid_orders.py", namesrv, *arguments, **shop)

    assert [program("place", f"order-{n}") for n in (1, 2, 3)] == [[f"placed order-{n}"] for n in (1, 2, 3)]
    # As after a crash of the relay, when the broker already had a timer: the rows are in the outbox again.
    before = (tmp_path / "shop.sqlite").read_bytes()
    assert program("relay") == ["scheduled order-1", "scheduled order-2", "scheduled order-3"]
    (tmp_path / "shop.sqlite").write_bytes(before)
    assert program("pay", "order-3") == ["paid order-3"]  # its timer is not known here, so it stays
    assert program("relay") == ["scheduled order-1", "scheduled order-2", "scheduled order-3"]
    assert program("relay") == []
    assert program("pay", "order-2") == ["paid order-2", "timer cancelled"]
    assert program("pay", "order-2") == ["cannot be paid: order-2"]
    with blocking.Admin(namesrv) as admin:
        assert admin.count_timers("unpaid-orders") == 2
        for order in ("order-1", "order-3"):  # the hour passes
            admin.move_timer("unpaid-orders", key=order, delay_ms=0)
    with _running("tasks/unpaid_orders.py", namesrv, "work", **shop) as run:
        assert sorted((_line(run), _line(run))) == ["closed order-1\n", "left as it is: order-3\n"]
    assert sorted(_bodies(namesrv, "unpaid-orders")) == [b"order-1", b"order-3"]
    assert program("pay", "order-1") == ["cannot be paid: order-1"]


def test_examples_are_accepted_by_a_strict_type_checker_that_knows_only_the_installed_package(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", os.devnull, "--cache-dir", str(tmp_path)]
    programs = [str(path) for path in own_programs() if "pipeline" not in path.read_text()]
    wrong = (tmp_path / "unitless").with_suffix(".py")
    wrong.write_text('from latermq.client.blocking import Producer\n\nProducer().schedule("orders", b"x", delay=900)\n')
    done = subprocess.run(
        [*command, "--scripts-are-modules", *programs, str(wrong)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert [line.partition(":")[0] for line in done.stdout.splitlines()[:-1]] == [wrong.name], done.stdout
    assert 'Argument "delay" to "schedule" of "Producer"' in done.stdout


def test_rows_become_timers_once_and_sql_counts_them(
    spark: "SparkSession",
    namesrv: str,
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # In this process, where they find the session of the tests: to start Spark takes longer than to run them.
    monkeypatch.setenv("NAMESRV_ADDR", namesrv)
    monkeypatch.setenv("LATERMQ_PIPELINE_TIMELINE", str(data / "pipeline"))
    runpy.run_path(str(FOLDER / "schedule_from_dataframe.py"), run_name="__main__")
    assert capsys.readouterr().out == "1000 scheduled, then 0 scheduled and 1000 known\n"
    with blocking.Admin(namesrv) as admin:
        assert admin.count_timers("reminders") == 1_000
        (first,) = admin.pending_timers("reminders", limit=1)
    assert 29 * DAY_MS < first.due_ms - time.time() * 1000 < 31 * DAY_MS
    runpy.run_path(str(FOLDER / "query_pending_timers.py"), run_name="__main__")
    counted = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("reminders")]
    assert sum(int(timers) for _, _, timers in counted) == 1_000


def test_the_notebooks_run_from_the_first_cell_to_the_last(
    spark: "SparkSession",
    namesrv: str,
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", namesrv)
    monkeypatch.setenv("LATERMQ_PIPELINE_TIMELINE", str(data / "pipeline"))
    monkeypatch.setenv("TOPIC", "payment-checks")

    def run(name: str) -> list[str]:
        runpy.run_path(str(FOLDER / name), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    assert run("notebooks/campaign_from_table.py")[-1] == "300 scheduled, 0 known"
    assert run("notebooks/campaign_from_table.py")[-1] == "0 scheduled, 300 known"
    moved = run("notebooks/move_a_region.py")
    assert moved[0] == "100 timers match"
    assert moved[-2:] == ["{'moved': 100}", "100 of 100 were done before"]
    with blocking.Admin(namesrv) as admin:
        dues = sorted(timer.due_ms % DAY_MS // 3_600_000 for timer in admin.pending_timers("campaign", limit=300))
    # Nine o'clock in Tokyo is midnight in UTC, and no zone here is 7 hours away from another.
    assert dues.count(2) == 100
    assert any("busiest second" in line for line in run("notebooks/forecast_of_a_year.py"))
    with blocking.Producer(namesrv) as producer:
        producer.send(OutgoingMessage("payment-checks", b"x", keys="late", delay_ms=10))
    wait_until(lambda: b"x" in _bodies(namesrv, "payment-checks"), 20, "the timer")
    assert run("notebooks/late_deliveries.py")[-1].endswith(" delivered, 0 early")


def test_every_example_is_run_here_and_listed_in_the_readme() -> None:
    programs = {str(path.relative_to(FOLDER)) for path in own_programs()}
    assert set(re.findall(r'"((?:notebooks/|tasks/)?\w+\.py)"', Path(__file__).read_text())) == programs
    assert set(re.findall(r"\]\(((?:notebooks/|tasks/)?\w+\.py)\)", (FOLDER / "README.md").read_text())) == programs
    assert all(f"]({name}/)" in (FOLDER / "README.md").read_text() for name in FRAMEWORKS)
