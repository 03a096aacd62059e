"""docs/cli.md has every command, and names no option that is not there."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from latermq.cli import app

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "cli.md").read_text()
CALLS = re.findall(r"^\$ latermq (.+)$", PAGE, re.MULTILINE)
GROUPS = ("topic", "group", "message", "dlq", "bench", "pipeline", "cert", "config", "user", "acl")


def _commands() -> list[str]:
    runner = CliRunner()

    def listed(*path: str) -> list[str]:
        text = runner.invoke(app, [*path, "--help"]).output.partition("Commands:")[2]
        return [match[1] for match in re.finditer(r"^  (\w+)(?:  |$)", text, re.MULTILINE)]

    found = []
    for name in listed():
        found += [f"{name} {inner}" for inner in listed(name)] if name in GROUPS else [name]
    return found


@pytest.mark.parametrize("command", _commands())
def test_the_page_shows_every_command(command: str) -> None:
    if command in ("namesrv", "broker", "proxy", "console"):
        assert f"latermq {command} " in (Path(__file__).resolve().parents[3] / "docs" / "operations.md").read_text()
    elif not command.startswith("bench"):
        assert any(call.startswith(command) for call in CALLS)


@pytest.mark.parametrize("call", CALLS)
def test_every_option_in_an_example_is_there(call: str) -> None:
    words = call.split()
    path = words[:2] if words[0] in GROUPS else words[:1]
    text = CliRunner().invoke(app, [*path, "--help"]).output
    for option in re.findall(r"(?<!\S)--[a-z-]+", call):
        assert re.search(rf"{option}\b", text), f"{option} in: latermq {call}"
