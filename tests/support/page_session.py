"""A page of the documentation, done by a reader: its files, commands and programs in order, in one shell and folder.

- A `toml` block that begins with `# NAME` is the file NAME. A `python` block is a program that runs, or the file that
  the sentence before it names (Save this as `NAME`).
- In a `console` block, lines that begin with `$ ` are commands. The lines below a command are what it prints, in
  essence: all their words must occur.
- A command that starts a server runs in the background from its ready line to the end of the page, and then must end
  cleanly.

Addresses are those of this session instead of the default ones.
"""

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.interop.ports import HOST, free_port
from tests.interop.waiting import TookTooLongError, wait_until
from tests.support.serving import ANY_CONNECT_PORT, NO_METRICS, is_alive

_BLOCK = re.compile(r"([^\n]*)\n\n```(console|python|toml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE_NAME = re.compile(r"Save this as `([\w.]+)`")
_SERVER = re.compile(r"latermq (?:serve|broker|namesrv|proxy|console) |latermq pipeline run ")
_WORD = re.compile(r"[A-Za-z_]{3,}")
_DONE = "page-session-done"
_COMMAND_TIMEOUT_S = 600.0
_READY_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Step:
    """One thing that a reader does."""

    kind: str  # "command", "python" or "file"
    text: str
    shown: tuple[str, ...] = ()  # what the page shows as its output
    name: str = ""  # of the file

    @property
    def is_server(self) -> bool:
        return self.kind == "command" and _SERVER.match(self.text) is not None


def steps_of(page: Path) -> list[Step]:
    """The steps of a page, in their order."""
    found: list[Step] = []
    for before, language, text in _BLOCK.findall(page.read_text(encoding="utf-8")):
        named = re.match(r"# ([\w.]+)\n", text) if language == "toml" else _FILE_NAME.search(before)
        if language == "console":
            found += _commands(text)
        elif named:
            found.append(Step("file", text, name=named[1]))
        elif language == "python":
            found.append(Step("python", text))
    return found


def _commands(text: str) -> Iterator[Step]:
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, *shown = part.splitlines()
        yield Step("command", command, tuple(line for line in shown if line.strip()))


class PageSession:
    """A shell in a folder, with `latermq` and `python` on the PATH and ports of its own."""

    def __init__(self, folder: Path, shell: "subprocess.Popen[bytes]", addresses: Mapping[str, str]) -> None:
        self._folder = folder
        self._shell = shell
        self._addresses = addresses
        self._servers: list[tuple[str, int]] = []

    def do(self, step: Step) -> None:
        """Do a step and check its result."""
        text = self._moved(step.text)
        if step.kind == "file":
            (self._folder / step.name).write_text(text, encoding="utf-8")
        elif step.is_server:
            self.start(text)
        else:
            if step.kind == "python":
                program = self._folder / "program.py"
                program.write_text(text, encoding="utf-8")
                text = f"python -W error {program.name}"
            output, code = self.run(text)
            assert code == 0, f"{step.text}\nexited with {code}:\n{output}"
            missing = [word for line in step.shown for word in _WORD.findall(self._moved(line)) if word not in output]
            assert not missing, f"{step.text}\ndoes not print {missing}, but:\n{output}"

    def start(self, command: str) -> None:
        """Start a server in the background, and wait until it is ready."""
        number = len(list(self._folder.glob("server-*.out")))
        out, log = self._folder / f"server-{number}.out", self._folder / f"server-{number}.log"
        out.touch()  # the shell's background process does so somewhat later
        self.run(f"{command} >{out.name} 2>{log.name} & SERVER=$!")
        pid = int(self.run("echo $SERVER")[0])
        with contextlib.suppress(TookTooLongError):  # what it logged says more
            wait_until(lambda: b"\n" in out.read_bytes() or not is_alive(pid), _READY_TIMEOUT_S, "the ready line")
        assert out.read_text().startswith("latermq ready"), f"{command}\nis not ready:\n{log.read_text()}"
        self._servers.append((command, pid))

    def stop_servers(self) -> None:
        """Stop the servers, the last one first. Each must end with success."""
        while self._servers:
            command, pid = self._servers.pop()
            output, code = self.run(f"kill -TERM {pid} && wait {pid}")
            assert code == 0, f"{command}\nexited with {code} after SIGTERM:\n{output}"

    def run(self, command: str) -> tuple[str, int]:
        """Run a command in the shell. Return its output, of both kinds, and its exit code."""
        assert self._shell.stdin is not None
        self._shell.stdin.write(f"{{ {command}\n}} </dev/null; printf '\\n%s %s\\n' {_DONE} $?\n".encode())
        self._shell.stdin.flush()
        output = self._output_of(command)
        text, _, code = output.rpartition(f"\n{_DONE} ")
        return text, int(code)

    def _moved(self, text: str) -> str:
        for default, own in self._addresses.items():
            text = text.replace(default, own)
        return text

    def _output_of(self, command: str) -> str:
        assert self._shell.stdout is not None
        output = b""
        deadline_s = time.monotonic() + _COMMAND_TIMEOUT_S
        while not re.search(rb"\n" + _DONE.encode() + rb" \d+\n$", output):
            ready, _, _ = select.select([self._shell.stdout], [], [], max(0.0, deadline_s - time.monotonic()))
            assert ready, f"{command}\nstill runs after {_COMMAND_TIMEOUT_S:g} s:\n{output.decode()}"
            piece = os.read(self._shell.stdout.fileno(), 65_536)
            assert piece, f"{command}\nended the shell:\n{output.decode()}"
            output += piece
        return output.decode(errors="replace")


@contextlib.contextmanager
def page_session(
    folder: Path, environment: Mapping[str, str] | None = None, replaced: Mapping[str, str] | None = None
) -> Iterator[PageSession]:
    """A reader in an empty folder. At the end all servers are stopped, or killed if something failed.

    `replaced` are further words of the page that are others here.
    """
    ports = {name: free_port() for name in ("SERVER_NAMESRV_PORT", "SERVER_PORT", "PROXY_PORT", "HTTP_PORT")}
    addresses = {
        "127.0.0.1:9876": f"{HOST}:{ports['SERVER_NAMESRV_PORT']}",
        "127.0.0.1:10911": f"{HOST}:{ports['SERVER_PORT']}",
        "127.0.0.1:8081": f"{HOST}:{ports['PROXY_PORT']}",
        "127.0.0.1:8080": f"{HOST}:{ports['HTTP_PORT']}",
        # To it, a name server that is named and does not run is a failure.
        "latermq doctor": "env --unset=NAMESRV_ADDR latermq doctor",
    }
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("LATERMQ_", "PYSPARK_"))}
    own = {
        **inherited,
        **NO_METRICS,
        **ANY_CONNECT_PORT,
        **{f"LATERMQ_{name}": str(port) for name, port in ports.items()},
        "HOME": str(folder),
        "NAMESRV_ADDR": addresses["127.0.0.1:9876"],
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        **(environment or {}),
    }
    shell = subprocess.Popen(
        ["bash", "--noprofile", "--norc"], cwd=folder, env=own, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    session = PageSession(folder, shell, addresses | dict(replaced or {}))
    try:
        yield session
        session.stop_servers()
    finally:
        with contextlib.suppress(ProcessLookupError):  # the shell, and what it has started if something failed
            os.killpg(shell.pid, signal.SIGKILL)
        shell.communicate(timeout=30)
