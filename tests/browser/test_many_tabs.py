"""Many tabs of one browser: they share one event stream, all stay live, and the console stays small."""

import re

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.browser import visiting
from tests.support.http_console import HttpClient
from tests.support.needs import LONG
from tests.support.serving import Server, resident_bytes

TABS = 50 if LONG else 10
MAX_RESIDENT_BYTES = 150 << 20
PATHS = ("/brokers", "/timers", "/topics", "/groups", "/")


def metric(client: HttpClient, name: str) -> float:
    [value] = re.findall(rf"^{name}{{.*}} (\S+)", client.get("/metrics").body.decode(), re.MULTILINE)
    return float(value)


@pytest.mark.timeout(900 if LONG else 300)
def test_all_tabs_of_a_browser_share_one_stream_and_the_console_stays_small(
    browser: Browser, server: Server, client: HttpClient
) -> None:
    pid = server.child_pid("console")
    assert pid is not None
    with visiting(browser, f"http://{server.http}") as tab:
        pages: list[Page] = [tab.page, *(tab.page.context.new_page() for _ in range(TABS - 1))]
        for number, page in enumerate(pages):
            page.goto(PATHS[number % len(PATHS)])
        for page in pages:
            expect(page.locator("#live")).to_have_attribute("data-state", "live")
        assert metric(client, "latermq_http_streams") == 1
        for page in pages:  # each of them still hears the one stream
            page.evaluate(
                "() => new Promise(heard => document.body.addEventListener('latermq:state', heard, {once: true}))"
            )
        assert resident_bytes(pid) < MAX_RESIDENT_BYTES
        # The one that opened the stream leaves, and the others stay live.
        for page in pages[:-1]:
            page.close()
        assert metric(client, "latermq_http_streams") == 1
        last = pages[-1]
        last.evaluate(
            "() => new Promise(heard => document.body.addEventListener('latermq:state', heard, {once: true}))"
        )
        assert tab.complaints == []
