"""Every page of the console in a browser: it opens without a complaint, is accessible, and fits on a phone."""

import pytest
from playwright.sync_api import Browser, expect

from latermq import OutgoingMessage
from latermq.client import blocking
from latermq.http.console.pages import PAGES
from tests.support.browser import visiting
from tests.support.http_console import HttpClient
from tests.support.serving import Server

# The first row of each page, and its examples. A page that is added to PAGES is tested without a change here.
PATHS = [path for page in PAGES for path in (page.path, *page.examples)]
VIEWS = {"light": (False, False), "dark": (False, True), "phone": (True, False)}


@pytest.fixture(scope="module")
def console(server: Server, client: HttpClient) -> str:
    """A console with a few timers, messages, groups and dead letters."""
    for number, delay in enumerate(("30s", "15m", "90m", "1d", "40h", "9d")):
        timer = {"topic": "orders", "body": "pay now", "key": f"order-{number}", "tag": "unpaid", "delay": delay}
        assert client.post("/api/v1/timers", timer).status == 201
    for number in range(3):
        message = {"topic": "orders", "body": '{"order": 1}', "key": f"order-{number}", "properties": {"region": "eu"}}
        assert client.post("/api/v1/messages", message).status == 201
    with (
        blocking.Admin(server.namesrv) as admin,
        blocking.PullConsumer(server.namesrv, group="closer") as consumer,
        blocking.Producer(server.namesrv) as producer,
    ):
        admin.create_group("closer")
        for queue in consumer.queues("orders"):
            consumer.commit(queue, 0)
        admin.create_topic("%DLQ%closer", 1)
        properties = {"RETRY_TOPIC": "orders"}
        producer.send(OutgoingMessage("%DLQ%closer", b"pay now", keys=["order-1"], properties=properties))
    return f"http://{server.http}"


@pytest.mark.parametrize("view", VIEWS)
def test_every_page_opens_without_a_complaint_and_is_accessible(browser: Browser, console: str, view: str) -> None:
    phone, dark = VIEWS[view]
    with visiting(browser, console, phone=phone, dark=dark) as tab:
        for path in PATHS:
            response = tab.page.goto(path)
            assert response is not None
            assert response.status == 200, path
            expect(tab.page.locator("#live")).to_have_attribute("data-state", "live")
            expect(tab.page.locator("h1")).to_have_count(1)
            tab.picture(f"{path.partition('?')[0].strip('/').replace('/', '-') or 'overview'}-{view}")
            assert tab.complaints == [], path
            assert tab.barriers() == [], path
            width = tab.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert width == 0, f"{path} scrolls sideways"
