"""The examples of docs/http-api.md, run as they stand but for the address."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from latermq.http.process import ConsoleProcess
from tests.support.http_console import running_console
from tests.support.needs import need_tool
from tests.support.serving import serving

TEXT = (Path(__file__).parents[2] / "docs" / "http-api.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```console\n(.*?)```", TEXT, flags=re.DOTALL)
ADDRESS = "127.0.0.1:8080"
# In a block every command runs in the same shell, so that variables and files of one are there for the next.
SCRIPTS = ["\n".join(re.findall(r"^\$ (.+)$", block, re.MULTILINE)) for block in BLOCKS]


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleProcess]:
    need_tool("curl", "the page uses it")
    with (
        serving(tmp_path_factory.mktemp("data") / "data") as server,
        running_console(server.namesrv) as (process, _),
    ):
        yield process


def run(script: str, console: ConsoleProcess, folder: Path) -> str:
    moved = script.replace(ADDRESS, console.address)
    command = ["bash", "-euc", moved]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def shape(document: object) -> object:
    """The names of fields, without values."""
    return {name: shape(value) for name, value in document.items()} if isinstance(document, dict) else None


def objects(text: str) -> list[object]:
    """The JSON documents that follow each other in the output of several commands."""
    decoder, found, at = json.JSONDecoder(), [], 0
    while at < len(text):
        if text[at] in " \n":
            at += 1
            continue
        document, at = decoder.raw_decode(text, at)
        found.append(document)
    return found


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_an_example_answers_what_the_page_shows(number: int, console: ConsoleProcess, tmp_path: Path) -> None:
    text = run(SCRIPTS[number], console, tmp_path)
    shown = [json.loads(line) for line in BLOCKS[number].splitlines() if line.startswith("{")]
    if shown:
        assert [shape(document) for document in objects(text)] == [shape(document) for document in shown]
        return
    answers = [] if "/live" in SCRIPTS[number] else objects(text)
    assert all(isinstance(answer, dict) and "status" not in answer for answer in answers)
    assert text


def test_the_page_names_every_path(console: ConsoleProcess) -> None:
    for row in console.endpoints:
        called = row.path.replace("/timers/{id}", "/timers/$ID").replace("/jobs/{id}", "/jobs/$JOB")
        assert row.path in TEXT or called in TEXT, row.path
