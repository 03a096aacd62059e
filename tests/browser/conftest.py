"""One browser for all tests of a file."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.support.browser import running_browser
from tests.support.needs import need_tool


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    need_tool("chromium", "it opens the pages of the console")
    with running_browser() as found:
        yield found
