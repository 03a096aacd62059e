"""The supervisor over stand-in parts: small programs that are ready, die, hang and fail when they are told to."""

import asyncio
import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from latermq.server import supervisor
from latermq.server.supervisor import Addresses, Part, Supervisor
from tests.interop.waiting import wait_until
from tests.support.serving import is_alive

_PARTS = {
    # Ready at once, ends cleanly on SIGTERM; each life leaves a line with what it was started with.
    "steady": """
        import pathlib, os, signal, sys
        def end(*_):
            note("stopped")
            sys.exit(0)
        def note(text):
            with open(sys.argv[1], "a") as file:
                file.write(f"{text} {os.getpid()} {' '.join(sys.argv[2:])}\\n")
        signal.signal(signal.SIGTERM, end)
        note("started")
        print("latermq ready: part 127.0.0.1:4711", flush=True)
        while True:
            signal.pause()
    """,
    "unable": "import sys; print('error: port 1 is in use', file=sys.stderr); sys.exit(2)",
    "crashing": "raise SystemExit(7)",
    "stubborn": """
        import signal
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("latermq ready: part 127.0.0.1:4712", flush=True)
        while True:
            signal.pause()
    """,
}


@dataclass
class Life:
    """What was seen of one supervisor."""

    exit_code: int | None = None
    announced: list[dict[str, str]] = field(default_factory=list)


def _part(kind: str, name: str, notes: Path) -> Part:
    import textwrap

    program = textwrap.dedent(_PARTS[kind])
    return Part(name, lambda ready: [sys.executable, "-S", "-c", program, str(notes), *map("=".join, ready.items())])


def _supervise(parts: Sequence[Part], meanwhile: Callable[[], Awaitable[None]] | None = None) -> Life:
    """Run a supervisor until it ends; `meanwhile` runs once it has announced that all parts are ready."""
    life = Life()

    async def run() -> None:
        ready = asyncio.Event()

        def on_ready(addresses: Addresses) -> None:
            life.announced.append(dict(addresses))
            ready.set()

        async def act() -> None:
            await ready.wait()
            if meanwhile is not None:
                await meanwhile()
            os.kill(os.getpid(), signal.SIGTERM)

        acting = asyncio.create_task(act())
        life.exit_code = await Supervisor(parts, on_ready).run()
        if not ready.is_set():
            acting.cancel()
            return
        await acting

    asyncio.run(run())
    return life


async def _until(happened: Callable[[], object], what: str) -> None:
    await asyncio.to_thread(wait_until, happened, 10.0, what)


def _notes(file: Path) -> list[list[str]]:
    return [line.split() for line in file.read_text().splitlines()] if file.exists() else []


def test_parts_start_in_order_and_stop_in_reverse(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    life = _supervise([_part("steady", "name server", notes), _part("steady", "broker", notes)])

    assert life.exit_code == 0
    assert life.announced == [{"name server": "127.0.0.1:4711", "broker": "127.0.0.1:4711"}]
    started_first, started_second, stopped_first, stopped_second = _notes(notes)
    assert [started_first[0], started_second[0]] == ["started", "started"]
    assert [stopped_first[:2], stopped_second[:2]] == [["stopped", started_second[1]], ["stopped", started_first[1]]]


def test_a_later_part_is_told_where_the_earlier_ones_are(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    _supervise([_part("steady", "namesrv", notes), _part("steady", "broker", notes)])
    assert _notes(notes)[1][2:] == ["namesrv=127.0.0.1:4711"]


def test_a_part_that_dies_is_started_again_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(supervisor, "_FIRST_PAUSE_S", 0.01)
    notes = tmp_path / "notes"

    async def kill_twice() -> None:
        for lives in (1, 2):
            os.kill(int(_notes(notes)[-1][1]), signal.SIGKILL)
            await _until(lambda lives=lives: len(_notes(notes)) > lives, "a new life of the part")  # type: ignore[misc]

    life = _supervise([_part("steady", "broker", notes)], kill_twice)

    assert life.exit_code == 0
    assert len(life.announced) == 1
    assert [line[0] for line in _notes(notes)] == ["started", "started", "started", "stopped"]
    assert [line[2:] for line in _notes(notes)[1:3]] == [["broker=127.0.0.1:4711"]] * 2
    assert capfd.readouterr().out.count("killed by SIGKILL") == 2


def test_a_part_that_cannot_start_ends_all_with_its_exit_code(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    life = _supervise([_part("steady", "name server", notes), _part("unable", "broker", notes)])

    assert life.exit_code == 2
    assert life.announced == []
    assert [line[0] for line in _notes(notes)] == ["started", "stopped"]


def test_a_part_that_crashes_before_it_is_ready_is_not_started_again(tmp_path: Path) -> None:
    assert _supervise([_part("crashing", "broker", tmp_path / "notes")]).exit_code == 1


def test_an_optional_part_is_not_waited_for_and_tried_again_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(supervisor, "_FIRST_PAUSE_S", 0.01)
    notes = tmp_path / "notes"
    told = ""

    async def wait_for_three_tries() -> None:
        def tries() -> bool:
            nonlocal told
            told += capfd.readouterr().out
            return told.count("exit code 7") >= 3

        await _until(tries, "three tries of the part")

    crashing = dataclasses.replace(_part("crashing", "pipeline", notes), is_optional=True)
    life = _supervise([_part("steady", "broker", notes), crashing], wait_for_three_tries)

    assert life.exit_code == 0
    assert life.announced == [{"broker": "127.0.0.1:4711"}]
    assert [line[0] for line in _notes(notes)] == ["started", "stopped"]
    assert "pipeline exited and is being restarted" in told


def test_a_part_that_does_not_stop_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_STOP_TIMEOUT_S", 0.1)
    assert _supervise([_part("stubborn", "broker", tmp_path / "notes")]).exit_code == 1


def test_a_second_signal_kills_what_does_not_stop(tmp_path: Path) -> None:
    async def ask_again() -> None:
        asyncio.get_running_loop().call_later(0.1, os.kill, os.getpid(), signal.SIGTERM)

    assert _supervise([_part("stubborn", "broker", tmp_path / "notes")], ask_again).exit_code == 1


def test_a_process_dies_with_its_parent_even_when_that_is_killed(tmp_path: Path) -> None:
    notes = tmp_path / "pid"
    child = (
        "import os, sys, time; from latermq.processes import die_with_parent;"
        "die_with_parent(int(sys.argv[1])); open(sys.argv[2], 'w').write(f'{os.getpid()}\\n'); time.sleep(60)"
    )
    parent = (
        "import os, subprocess, sys, time;"
        "subprocess.Popen([sys.executable, '-c', sys.argv[1], str(os.getpid()), sys.argv[2]]); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", parent, child, str(notes)]) as process:
        try:
            wait_until(lambda: _notes(notes), 10.0, "the start of the child")
            child_pid = int(_notes(notes)[0][0])
            assert is_alive(child_pid)
        finally:
            process.kill()
    wait_until(lambda: not is_alive(child_pid), 10.0, "the death of the child")


def test_a_process_whose_parent_is_already_dead_ends_at_once() -> None:
    program = "from latermq.processes import die_with_parent; die_with_parent(1); print('still here')"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
