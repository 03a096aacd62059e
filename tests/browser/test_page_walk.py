"""Every page of the console in a browser: it opens without a complaint, is accessible, and fits on a phone."""

import re

import pytest
from playwright.sync_api import Browser, expect

from latermq import OutgoingMessage
from latermq.client import blocking
from latermq.http.console.pages import PAGES
from tests.support.browser import visiting
from tests.support.http_console import HttpClient
from tests.support.needs import LONG
from tests.support.serving import Server

# A page that is added to PAGES is tested without a change here: its first row, and its examples.
PAGES_BY_NAME = {page.name: page for page in PAGES}
VIEWS = {"light": (False, False), "dark": (False, True), "phone": (True, False), "phone-dark": (True, True)}
MAX_STOPS = 400  # of the Tab key on one page


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


def picture_name(path: str) -> str:
    """A file name for a view, which is a path with its query."""
    return re.sub(r"[^\w=.,]+", "-", path).strip("-") or "overview"


@pytest.mark.parametrize("name", PAGES_BY_NAME)
@pytest.mark.parametrize("view", VIEWS if LONG else ("light", "dark", "phone"))
def test_every_view_of_a_page_opens_without_a_complaint_and_is_accessible(
    browser: Browser, console: str, view: str, name: str
) -> None:
    phone, dark = VIEWS[view]
    page = PAGES_BY_NAME[name]
    with visiting(browser, console, phone=phone, dark=dark) as tab:
        for path in (page.path, *page.examples):
            response = tab.page.goto(path)
            assert response is not None
            assert response.status == 200, path
            expect(tab.page.locator("#live")).to_have_attribute("data-state", "live")
            expect(tab.page.locator("h1")).to_have_count(1)
            expect(tab.page.locator("[hx-trigger=load]")).to_have_count(0)  # parts that come later
            tab.picture(f"{picture_name(path)}-{view}")
            assert tab.complaints == [], path
            assert tab.barriers() == [], path
            width = tab.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert width == 0, f"{path} scrolls sideways"


@pytest.mark.parametrize("name", PAGES_BY_NAME)
def test_the_tab_key_reaches_everything_on_a_page_visibly_and_leaves_it(
    browser: Browser, console: str, name: str
) -> None:
    with visiting(browser, console) as tab:
        tab.page.goto(PAGES_BY_NAME[name].path)
        expect(tab.page.locator("#live")).to_have_attribute("data-state", "live")
        tab.page.evaluate(FREEZE)
        wanted = tab.page.evaluate(f"() => {{ {FOCUSABLE} return elements().length; }}")
        seen: set[int] = set()
        for _ in range(MAX_STOPS):
            tab.page.keyboard.press("Tab")
            stop = tab.page.evaluate(f"() => {{ {FOCUSABLE} return stop(); }}")
            if stop["at"] in seen or stop["at"] < 0:  # the browser's own controls, or the first one again
                break
            assert stop["is_visible"], f"the focus cannot be seen on {stop['html']}"
            seen.add(stop["at"])
        assert len(seen) >= wanted, f"{wanted - len(seen)} of {wanted} are not reached"


# The page stays as it is. Its stops are counted by their places.
FREEZE = "document.body.addEventListener('latermq:state', event => event.stopImmediatePropagation(), {capture: true})"
# Everything that the Tab key should stop at, in a closed <details> only its summary; and where it has stopped.
FOCUSABLE = """
const KINDS = "a[href], button, input, select, textarea, summary, [tabindex='0']";
const elements = () => [...document.querySelectorAll(KINDS)]
    .filter(one => !one.disabled && one.type !== "hidden" && one.checkVisibility({visibilityProperty: true}));
const stop = () => {
    const one = document.activeElement, style = getComputedStyle(one);
    const inside = one.querySelector(".hit");   // a bar of a chart marks its own area
    const isMarked = style.outlineStyle !== "none" || (inside && getComputedStyle(inside).stroke !== "none");
    return {at: elements().indexOf(one), is_visible: Boolean(isMarked), html: one.outerHTML.slice(0, 200)};
};
"""
