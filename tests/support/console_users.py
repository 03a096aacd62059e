"""A server and a console that check users, the users of a test, and clients that act as them."""

import base64
import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlencode

from latermq.access.inner_credentials import FILE_NAME
from latermq.cli import main
from latermq.client.session.credentials import Credentials
from latermq.http.process import ConsoleProcess
from tests.interop.waiting import wait_until
from tests.support.http_console import HttpClient, running_console
from tests.support.serving import Server

Entry = tuple[str, ...]  # a resource, its actions, and options of `latermq acl grant`


def secret_of(name: str) -> str:
    """The secret of each user."""
    return f"{name}-secret"


ROOT = Credentials("root", secret_of("root"))
USERS = ("--set", "access.enabled=true", "--set", f"access.init_user={ROOT.user}:{secret_of('root')}")


def secret_file(data: Path, name: str, secret: str = "") -> str:
    path = data.parent / f"{name}.secret"
    path.touch(mode=0o600)
    path.write_text(secret or secret_of(name))
    return str(path)


def administer(data: Path, *words: str) -> None:
    """Run a command as the owner of the data directory."""
    assert main([*words, "--data", str(data)]) == 0


def create_users(data: Path, users: Mapping[str, tuple[Entry, ...]]) -> None:
    """Create users with these entries of their policies."""
    for name, entries in users.items():
        administer(data, "user", "create", name, "--new-secret-file", secret_file(data, name))
        for entry in entries:
            administer(data, "acl", "grant", name, *entry)


@contextlib.contextmanager
def running_console_with_users(server: Server, data: Path, *settings: str) -> Iterator[ConsoleProcess]:
    """A console that has copied the users of a server."""
    checked = ("access.enabled=true", f"access.inner_file={data / FILE_NAME}")
    with running_console(server.namesrv, *checked, *settings) as (process, _):
        root = client_of(process, "root")
        wait_until(lambda: root.get("/api/v1/topics").status == 200, 20, "the copy of the users")
        yield process


def client_of(console: ConsoleProcess, name: str, secret: str = "") -> HttpClient:
    """A program that sends a user and its secret."""
    pair = base64.b64encode(f"{name}:{secret or secret_of(name)}".encode()).decode()
    return HttpClient(console.listener.port, {"Authorization": f"Basic {pair}"})


def sign_in(console: ConsoleProcess, name: str, secret: str = "") -> HttpClient:
    """A browser after the sign-in form."""
    form = urlencode({"user": name, "secret": secret or secret_of(name)}).encode()
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = HttpClient(console.listener.port).request("POST", "/login", form, headers=headers)
    assert answer.status == 303, answer.body
    cookie = answer.headers["set-cookie"].partition(";")[0]
    return HttpClient(console.listener.port, {"Cookie": cookie, "Accept": "text/html"})


def audited(console: ConsoleProcess, **wanted: str) -> list[dict[str, object]]:
    """The lines of the console's audit log with these values."""
    folder = Path(console._config.audit.folder)
    lines = [json.loads(line) for line in (folder / "http.jsonl").read_text().splitlines()]
    return [one for one in lines if all(one.get(name) == value for name, value in wanted.items())]
