"""The process that builds windows without Spark: its reports, and its end when a build hangs."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from latermq.errors import LaterMQError
from latermq.server.windows.local_builds import BuildTimedOut, LocalBuilds

Report = list[tuple[int, str]]


class Scripted(LocalBuilds):
    """Runs a program of the test's instead."""

    def __init__(self, program: str) -> None:
        super().__init__("", lambda: "", 1_000)
        self._program = program

    def command(self, numbers: Sequence[int], limit_s: float) -> list[str]:
        return [sys.executable, "-c", self._program, *map(str, numbers)]


def build(program: str, numbers: Sequence[int], limit_s: float = 30.0) -> tuple[Report, BaseException | None]:
    report: Report = []
    try:
        asyncio.run(Scripted(program).build(numbers, limit_s, lambda number, error: report.append((number, error))))
    except LaterMQError as error:
        return report, error
    return report, None


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_each_window_is_told_of_and_noise_is_passed_over() -> None:
    lines = ["a warning", "built 4 local-1-a", "failed 5 no room left. Free space", "built 6 x"]
    program = "; ".join(f"print({line!r})" for line in lines)
    assert build(program, [4, 5, 6]) == ([(4, ""), (5, "no room left. Free space"), (6, "")], None)


def test_a_process_that_ends_before_it_told_of_all_is_an_error_with_its_last_words() -> None:
    report, error = build("print('built 4 a'); raise SystemExit('out of luck')", [4, 5])
    assert report == [(4, "")]
    assert str(error) == "the build process exited: exit code 1 out of luck"


def test_a_process_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    program = f"""
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open({str(tmp_path / "pids")!r}, "w").write(f"{{os.getpid()}} {{child.pid}}")
print("built 4 a", flush=True)
time.sleep(600)
"""
    report, error = build(program, [4, 5], limit_s=2.0)
    assert report == [(4, "")]
    assert isinstance(error, BuildTimedOut)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    give_up_s = time.monotonic() + 10
    while any(is_alive(pid) for pid in pids) and time.monotonic() < give_up_s:
        time.sleep(0.02)
    assert [pid for pid in pids if is_alive(pid)] == []


def test_a_roll_whose_broker_died_ends_by_itself(tmp_path: Path) -> None:
    program = """
import sys, time
from latermq.pipeline.windows import build_process
build_process._GRACE_S = 0.5
build_process.build_each([4, 5], lambda number: "a" if number == 4 else time.sleep(600), 0.5)
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=os.environ)
    out, _ = process.communicate(timeout=60)
    assert out == b"built 4 a\n"
    assert process.returncode < 0


def test_one_window_that_fails_keeps_no_other_from_being_rolled(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("deltalake")
    from latermq.pipeline.windows.build_process import build_each

    def make(number: int) -> str:
        if number == 5:
            raise LaterMQError("its rows\nmake no sense", hint="Look at them")
        if number == 6:
            raise ValueError("a defect")
        return f"local-{number}"

    assert not build_each([4, 5, 6, 7], make, 0.0)
    assert capsys.readouterr().out.splitlines() == [
        "built 4 local-4",
        "failed 5 its rows make no sense. Look at them",
        "failed 6 ValueError: a defect",
        "built 7 local-7",
    ]


@pytest.mark.parametrize("cancels", [1, 2, 3])
def test_a_cancelled_build_leaves_no_process_behind(cancels: int) -> None:
    children: list[asyncio.subprocess.Process] = []
    create = asyncio.create_subprocess_exec

    async def record(*command: str, **options: object) -> asyncio.subprocess.Process:
        children.append(await create(*command, **options))  # type: ignore[arg-type]
        return children[-1]

    async def main() -> None:
        task = asyncio.create_task(
            Scripted("import time; time.sleep(600)").build([4], 60.0, lambda number, error: None)
        )
        while not children:  # noqa: ASYNC110 -- the build itself has no event
            await asyncio.sleep(0.001)
        await asyncio.sleep(0)
        for _ in range(cancels):
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert children[0].returncode is not None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "create_subprocess_exec", record)
        asyncio.run(main())
