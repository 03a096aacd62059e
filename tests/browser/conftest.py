"""One browser for all tests of a file, and one server for all files that do not stop it."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.support.browser import running_browser
from tests.support.http_console import HttpClient
from tests.support.needs import need_tool
from tests.support.serving import Server, serving


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    need_tool("chromium", "it opens the pages of the console")
    with running_browser() as found:
        yield found


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A broker and a console. Each file uses topics and groups of its own."""
    with serving(tmp_path_factory.mktemp("data"), http=True, timeout_s=90.0) as found:
        yield found


@pytest.fixture(scope="session")
def client(server: Server) -> HttpClient:
    return HttpClient(int(server.http.rpartition(":")[2]))
