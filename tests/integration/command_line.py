"""The `latermq` command inside this process, against one running server: what it prints and how it ends."""

import contextlib
import io
import json
from typing import Any, Protocol
from unittest import mock

from latermq.cli import main


class Target(Protocol):
    """A cluster that commands are for."""

    namesrv: str

    def log(self) -> str: ...


class Cli:
    """Runs `latermq` commands against one server, inside this process: starting Python for each takes a second."""

    def __init__(self, server: Target) -> None:
        self.target = server

    def run(self, *arguments: str, code: int = 0, stdin: bytes = b"", takes_namesrv: bool = True) -> tuple[str, str]:
        out, errors = io.StringIO(), io.StringIO()
        with (
            mock.patch("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin))),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(errors),
        ):
            ended = main([*arguments, *(["--namesrv", self.target.namesrv] if takes_namesrv else [])])
        assert ended == code, f"{errors.getvalue()}\n{self.target.log()}"
        return out.getvalue(), errors.getvalue()

    def rows(self, *arguments: str, code: int = 0) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.run(*arguments, "--json", code=code)[0].splitlines()]

    def text(self, *arguments: str) -> str:
        return self.run(*arguments)[0]

    def error(self, *arguments: str) -> str:
        return self.run(*arguments, code=1)[1]
