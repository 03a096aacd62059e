"""The examples with Django and Celery, as a reader runs them: in an empty folder, with packages from PyPI."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection
from pathlib import Path

import pytest

from latermq.client import blocking
from tests.interop.ports import HOST, free_port
from tests.interop.waiting import wait_until
from tests.support.needs import IN_CI, LONG, find_tool
from tests.support.serving import serving

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not LONG, reason="needs packages from PyPI; runs in the long suite"),
]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
START_S = 60.0


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("frameworks") / "data") as server:
        with blocking.Admin(server.namesrv) as admin:
            wait_until(admin.brokers, 30, "the broker is registered")
            for topic in ("unpaid-orders", "celery-tasks"):
                admin.create_topic(topic, queues=1)
        yield server.namesrv


class Project:
    """A copy of an example in an empty folder, with the packages that its README installs."""

    def __init__(self, name: str, folder: Path, **variables: str) -> None:
        self.folder = folder / name
        shutil.copytree(EXAMPLES / name, self.folder, ignore=shutil.ignore_patterns("__pycache__"))
        packages = folder / "packages"
        self._install(packages)
        kept = {key: value for key, value in os.environ.items() if not key.startswith("LATERMQ_")}
        self.environment = {**kept, "PYTHONPATH": str(packages), "PYTHONUNBUFFERED": "1", **variables}

    def _install(self, packages: Path) -> None:
        [wanted] = re.findall(r'pip install latermq "(.+)"', (self.folder / "README.md").read_text())
        uv = find_tool("uv")
        command = [uv, "pip", "install", "--quiet", "--python", sys.executable, "--target", str(packages), wanted]
        done = (
            subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
            if uv is not None
            else None
        )
        if done is None or done.returncode != 0:
            said = "uv is not installed" if done is None else done.stderr[-500:]
            (pytest.fail if IN_CI else pytest.skip)(f"{wanted} cannot be installed: {said}")

    def run(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @contextlib.contextmanager
    def running(self, *arguments: str) -> Iterator[Path]:
        """A program that runs until SIGTERM. Yields the file with its output."""
        log = self.folder / f"{arguments[-1]}.log"
        with (
            log.open("wb") as output,
            subprocess.Popen(
                [sys.executable, *arguments], cwd=self.folder, env=self.environment, stdout=output, stderr=output
            ) as process,
        ):
            try:
                yield log
                process.terminate()
                process.wait(30)
            except BaseException as error:
                error.add_note(f"{' '.join(arguments)}:\n{log.read_text()}")
                raise
            finally:
                process.kill()


def ask(port: int, method: str, path: str, body: str = "") -> tuple[int, Mapping[str, str]]:
    connection = HTTPConnection(HOST, port, timeout=30)
    try:
        connection.request(method, path, body, {"Content-Type": "application/x-www-form-urlencoded"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def is_listening(port: int) -> bool:
    try:
        connection = HTTPConnection(HOST, port, timeout=5)
        connection.connect()
    except OSError:
        return False
    connection.close()
    return True


def test_a_django_shop_closes_the_orders_that_are_not_paid(namesrv: str, tmp_path: Path) -> None:
    project = Project("django_shop", tmp_path, NAMESRV_ADDR=namesrv, PAYMENT_TIME="1h")
    project.run("manage.py", "migrate")
    assert "No changes detected" in project.run("manage.py", "makemigrations", "--check", "--dry-run")
    assert "no issues" in project.run("manage.py", "check")
    port = free_port()
    with project.running("manage.py", "runserver", "--noreload", str(port)):
        wait_until(lambda: is_listening(port), START_S, "the web server")
        for number in ("4711", "4712"):
            assert ask(port, "POST", "/orders/", f"order={number}") == (201, {"order": number, "state": "placed"})
        assert ask(port, "POST", "/orders/4712/pay/") == (200, {"order": "4712", "state": "paid"})
        with blocking.Admin(namesrv) as admin:
            assert [timer.keys for timer in admin.pending_timers("unpaid-orders")] == ["4711"]
            # A crash after the commit: the row is in the outbox, and the broker has no timer.
            crash = "from shop.models import *; Outbox.objects.create(order=Order.objects.create(number='4713'))"
            project.run("manage.py", "shell", "--command", crash)
            assert project.run("manage.py", "relay") == "1 scheduled\n"
            assert project.run("manage.py", "relay") == "0 scheduled\n"
            for number in ("4711", "4713"):  # the hour passes
                admin.move_timer("unpaid-orders", key=number, delay_ms=0)
        with project.running("manage.py", "work") as log:
            wait_until(lambda: log.read_text().count("closed") == 2, START_S, "the worker")
        assert ask(port, "GET", "/orders/4711/") == (200, {"order": "4711", "state": "closed"})
        assert ask(port, "GET", "/orders/4712/") == (200, {"order": "4712", "state": "paid"})
        assert ask(port, "POST", "/orders/4711/pay/") == (409, {"order": "4711", "state": "closed"})


def test_tasks_of_celery_wait_at_the_broker_and_run_in_a_worker(namesrv: str, tmp_path: Path) -> None:
    project = Project("celery_later", tmp_path, NAMESRV_ADDR=namesrv)
    handle = project.run("later.py", "remind", "4710", "1h").strip()
    project.run("later.py", "remind", "4711", "1s")
    project.run("later.py", "remind", "4712", "30d")
    assert project.run("later.py", "cancel", handle) == "cancelled\n"
    worker = ("-m", "celery", "--app", "tasks", "worker", "--pool", "solo")
    with project.running("later.py", "bridge"), project.running(*worker) as log:
        wait_until(lambda: "of order 4711" in log.read_text(), START_S, "the task in the worker")
    with blocking.Admin(namesrv) as admin:
        assert [timer.keys for timer in admin.pending_timers("celery-tasks")] == ["4712"]
