"""`make demo` in its short form: it succeeds, cleans up, and can be interrupted at any moment."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.waiting import wait_until
from tests.support.leftovers import MARK, leftovers
from tests.support.needs import need_tool
from tests.support.serving import is_alive

TIMEOUT_S = 600  # on a busy machine Spark takes minutes
STOP_TIMEOUT_S = 60


@contextlib.contextmanager
def demo(folder: Path, *options: str) -> Iterator["subprocess.Popen[str]"]:
    """The demo with its temporary files below a folder, and with settings of another server in its environment."""
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "latermq.cli.demo", "--short", "--report", str(folder / "report"), *options]
    environment = {**os.environ, "TMPDIR": str(temporary), "LATERMQ_BROKER_MAX_MESSAGE": "1B", MARK: str(folder)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, cwd=folder
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def played(process: "subprocess.Popen[str]") -> str:
    text, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, text
    return text


def figures(text: str) -> dict[str, list[int]]:
    """The rows of the table at the end."""
    rows = re.findall(r"^│ ([\w() ]+?) +│(.*)│$", text, re.MULTILINE)
    return {
        name: [int(cell.replace(",", "")) for cell in cells.split("│") if cell.strip(" ")]
        for name, cells in rows
        if any(character.isdigit() for character in cells)
    }


def assert_nothing_is_left(folder: Path) -> None:
    wait_until(lambda: not leftovers(str(folder)), STOP_TIMEOUT_S, "the end of all processes")
    assert not list((folder / "tmp").glob("latermq-demo-*"))


@pytest.mark.timeout(TIMEOUT_S + 60)
def test_every_timer_is_delivered_once_and_the_server_can_be_kept(tmp_path: Path) -> None:
    with demo(tmp_path, "--no-spark", "--keep") as process:
        text = played(process)
    assert "All 13 steps succeeded" in text
    assert "the steps with Spark are left out" in text
    found = figures(text)
    orders = {name: counts[0] for name, counts in found.items()}
    assert orders["scheduled"] == orders["cancelled"] + orders["delivered"]
    assert min(orders["cancelled"], orders["moved"], orders["delivered"]) > 0
    assert (orders["missing"], orders["early"], orders["twice"]) == (0, 0, 0)
    assert found["delivered"][1] > 0, "no timer was due while the broker was dead"
    [stop] = re.findall(r"^stop it: +(.*)$", text, re.MULTILINE)
    [pid] = map(int, re.findall(r"kill (\d+);", stop))
    assert is_alive(pid)
    subprocess.run(["bash", "-euc", stop], check=True, timeout=STOP_TIMEOUT_S)
    assert_nothing_is_left(tmp_path)


@pytest.mark.timeout(TIMEOUT_S + 60)
def test_a_campaign_goes_through_spark_and_back(tmp_path: Path) -> None:
    need_tool("java", "Spark needs it")
    with demo(tmp_path) as process:
        text = played(process)
    assert "All 19 steps succeeded" in text
    found = figures(text)
    assert [found[name][1] for name in ("missing", "early", "twice")] == [0, 0, 0]
    assert found["scheduled"][1] == found["cancelled"][1] + found["delivered"][1] == 3_000
    [page] = re.findall(r"^report: +(.*)$", text, re.MULTILINE)
    assert "<html" in Path(page).read_text()
    assert_nothing_is_left(tmp_path)


@pytest.mark.parametrize(
    "moment", ["", "start latermq serve", "watch it", "schedule and receive by gRPC", "kill -9 the b"]
)
def test_ctrl_c_at_any_moment_leaves_nothing(moment: str, tmp_path: Path) -> None:
    with demo(tmp_path, "--no-spark") as process:
        assert process.stdout is not None
        if moment:
            for line in process.stdout:
                if moment in line:
                    break
        time.sleep(0.2)  # in the middle of what comes next
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=STOP_TIMEOUT_S)
    # Before its first line, Python itself may end with the signal.
    assert process.returncode in ((130,) if moment else (130, -signal.SIGINT))
    assert_nothing_is_left(tmp_path)


def test_a_killed_demo_takes_its_server_with_it(tmp_path: Path) -> None:
    with demo(tmp_path, "--no-spark") as process:
        assert process.stdout is not None
        assert any("watch it" in line for line in process.stdout)
        process.kill()
        process.communicate(timeout=STOP_TIMEOUT_S)
    wait_until(lambda: not leftovers(str(tmp_path)), STOP_TIMEOUT_S, "the end of all processes")


def test_without_java_the_demo_says_so(tmp_path: Path) -> None:
    path = tmp_path / "bin"
    path.mkdir()
    environment = {**os.environ, "PATH": str(path), "JAVA_HOME": "", "TMPDIR": str(tmp_path), MARK: str(tmp_path)}
    command = [sys.executable, "-m", "latermq.cli.demo", "--short"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=tmp_path) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "2. create topics" in line:
                break
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=STOP_TIMEOUT_S)
    assert process.returncode == 130
    assert any("the steps with Spark are left out: no Java found" in line for line in lines), lines
    wait_until(lambda: not leftovers(str(tmp_path)), STOP_TIMEOUT_S, "the end of all processes")
