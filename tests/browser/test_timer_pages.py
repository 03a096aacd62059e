"""Timers through the pages: scheduled, found, moved, run and cancelled, with the mouse and with the keyboard only."""

import re
import time
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.interop.waiting import wait_until
from tests.support.browser import Watched, visiting
from tests.support.http_console import HttpClient
from tests.support.serving import Server


@pytest.fixture
def tab(browser: Browser, server: Server) -> Iterator[Watched]:
    with visiting(browser, f"http://{server.http}") as found:
        yield found
        assert found.complaints == []


def schedule(page: Page, topic: str, key: str, when: str, body: str = "pay now") -> None:
    page.goto("/timers/new")
    page.get_by_label("Topic").fill(topic)
    page.get_by_label("Due", exact=True).fill(when)
    page.get_by_label("Body").fill(body)
    page.get_by_label("Key").fill(key)
    page.get_by_role("button", name="Schedule").click()
    expect(page.get_by_role("status").filter(has_text="The timer is scheduled.")).to_be_visible()


def state_of(page: Page) -> Locator:
    return page.locator("main .top .state")


def test_a_timer_is_scheduled_found_moved_and_cancelled(tab: Watched, client: HttpClient) -> None:
    page = tab.page
    schedule(page, "bookings", "order-1", "15m")
    expect(page.get_by_role("heading", level=1)).to_have_text("order-1")
    expect(state_of(page)).to_have_text("pending")

    page.get_by_role("link", name="Timers", exact=True).first.click()
    page.get_by_label("Topic").fill("bookings")
    page.get_by_label("Key").fill("order-1")
    page.get_by_role("button", name="Search").click()
    expect(page.locator("#results tbody tr")).to_have_count(1)
    assert re.search(r"[?&]key=order-1\b", page.url), "the view has its own address"
    page.locator("#results tbody a").first.click()

    page.get_by_label("New due time").fill("2030-05-01 09:00")
    page.get_by_role("button", name="Move").click()
    expect(page.get_by_role("status").filter(has_text="new due time")).to_be_visible()
    expect(page.locator("dl time").first).to_have_text("2030-05-01 09:00:00")
    [found] = client.get("/api/v1/timers?topic=bookings&key=order-1").json["timers"]
    assert found["due"] == "2030-05-01T07:00:00.000Z"  # the browser is in Berlin
    expect(page.locator("ol.history li")).to_have_text(
        [re.compile("^Scheduled"), re.compile("^Moved"), re.compile("^Waits")]
    )
    tab.picture("timer-moved-light")

    page.get_by_role("button", name="Cancel the timer").click()
    expect(state_of(page)).to_have_text("cancelled")
    expect(page.locator("ol.history li.cancelled")).to_have_count(1)
    assert client.get(f"/api/v1/timers/{found['id']}").json["state"] == "cancelled"
    assert client.get("/api/v1/timers?topic=bookings&key=order-1").json["timers"] == []


def test_a_timer_that_is_run_is_delivered_and_its_history_says_when(tab: Watched, client: HttpClient) -> None:
    page = tab.page
    schedule(page, "bookings", "order-2", "40d", "é“<script>alert(1)</script>")
    page.get_by_role("button", name="Run now").click()
    expect(page.get_by_role("status").filter(has_text="is due now")).to_be_visible()

    def is_delivered() -> bool:
        page.reload()
        return state_of(page).inner_text() == "delivered"

    wait_until(is_delivered, 15.0, "the delivery", pause_s=0.3)
    expect(page.locator("ol.history li.delivered")).to_contain_text("offset 0")
    expect(page.get_by_role("button", name="Run now")).to_have_count(0)
    assert tab.barriers() == []
    tab.picture("timer-delivered-light")
    [message] = client.get("/api/v1/messages?topic=bookings&key=order-2").json["messages"]
    assert message["body"] == "é“<script>alert(1)</script>"


def test_a_change_of_a_timer_that_has_changed_meanwhile_is_refused(tab: Watched, client: HttpClient) -> None:
    page = tab.page
    schedule(page, "bookings", "order-3", "1h")
    timer_id = page.url.partition("/timers/")[2].partition("?")[0]
    moved = client.request("PATCH", f"/api/v1/timers/{timer_id}", {"delay": "2h"})
    assert moved.status == 200
    page.get_by_role("button", name="Cancel the timer").click()
    expect(page.locator(".problem")).to_contain_text("the timer has changed")
    assert client.get(f"/api/v1/timers/{timer_id}").json["state"] == "pending"
    tab.complaints.clear()  # Chromium reports the status 412


@pytest.mark.parametrize(
    ("when", "complaint"), [("soon", "is not a time"), ("2027-13-01 09:00", "is not a time"), ("20y", "ahead")]
)
def test_a_time_that_cannot_be_is_explained_and_nothing_typed_is_lost(tab: Watched, when: str, complaint: str) -> None:
    page = tab.page
    page.goto("/timers/new")
    page.get_by_label("Topic").fill("bookings")
    page.get_by_label("Body").fill("a long text")
    page.get_by_label("Due", exact=True).fill(when)
    page.get_by_role("button", name="Schedule").click()
    expect(page.locator(".problem")).to_be_visible()
    assert page.get_by_label("Body").input_value() == "a long text"
    assert page.get_by_label("Due", exact=True).input_value() == when
    tab.complaints.clear()  # Chromium reports the status 422


def test_the_same_call_is_shown_for_programs(tab: Watched, server: Server) -> None:
    page = tab.page
    page.goto("/timers/new")
    page.get_by_label("Topic").fill("bookings")
    page.get_by_label("Body").fill('it\'s "due"')
    page.get_by_label("Key").fill("order-9")
    shown = page.locator("#calls")
    expect(shown).to_contain_text("order-9")
    bookings = ("producer.schedule('bookings'", "message.setDelayTimeMs(900000L)", "latermq send bookings")
    for part in (f"curl http://{server.http}/api/v1/timers", f"Producer('{server.namesrv}')", *bookings):
        expect(shown).to_contain_text(part)
    tab.picture("new-timer-filled-light")


def test_a_search_pages_through_all_timers(tab: Watched, client: HttpClient) -> None:
    lines = b"".join(
        b'{"topic": "many", "body": "%d", "key": "many-%d", "delay": "%ds"}\n' % (number, number, 1000 + number)
        for number in range(120)
    )
    reply = client.request("POST", "/api/v1/timers:batch", lines, headers={"Content-Type": "application/x-ndjson"})
    assert {line["result"] for line in reply.lines} == {"scheduled"}
    page = tab.page
    page.goto("/timers?topic=many")
    seen: list[str] = []
    while True:
        seen += page.locator("#results tbody td:nth-child(4)").all_inner_texts()
        later = page.get_by_role("link", name="Later timers")
        if later.count() == 0:
            break
        later.click()
        page.wait_for_load_state()
        assert len(seen) < 200
    assert seen == [f"many-{number}" for number in range(120)]


def test_a_bar_of_the_overview_opens_its_timers(tab: Watched, client: HttpClient) -> None:
    assert client.post("/api/v1/timers", {"topic": "far", "body": "x", "key": "in-a-day", "delay": "30h"}).status == 201
    page = tab.page
    page.goto("/")
    # Other files of tests on the same server have later timers.
    bar = page.get_by_role("link", name=re.compile("due in 1.* days? to")).first
    bar.focus()
    bar.press("Enter")
    expect(page.locator("#results")).to_contain_text("in-a-day")
    expect(page.locator("#results tbody tr")).to_have_count(1)


def test_everything_works_with_the_keyboard_only(tab: Watched) -> None:
    page = tab.page
    page.goto("/timers/new")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")  # the way back to the list
    page.keyboard.press("Tab")
    for text in ("keys", "", "typed by hand", "key-1"):
        if text:
            page.keyboard.type(text)
        page.keyboard.press("Tab")
    page.keyboard.press("Tab")  # past the tag and the properties, which are folded
    expect(page.get_by_role("button", name="Schedule")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("key-1")
    for _ in range(40):
        if page.evaluate("document.activeElement.textContent") == "Cancel the timer":
            break
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(state_of(page)).to_have_text("cancelled")


def test_times_follow_the_chosen_zone_which_is_remembered(tab: Watched) -> None:
    page = tab.page
    schedule(page, "bookings", "order-4", "2030-01-01T12:00:00Z")
    moment = page.locator("dl time").first
    expect(moment).to_have_text("2030-01-01 13:00:00")
    page.get_by_label("Time zone").select_option("America/New_York")
    expect(moment).to_have_text("2030-01-01 07:00:00")
    page.reload()
    expect(moment).to_have_text("2030-01-01 07:00:00")
    page.get_by_label("New due time").fill("2030-01-02 17:30")
    page.get_by_role("button", name="Move").click()
    expect(moment).to_have_text("2030-01-02 17:30:00")
    page.get_by_label("Time zone").select_option("UTC")
    expect(moment).to_have_text("2030-01-02 22:30:00")


def test_the_appearance_is_chosen_and_remembered(tab: Watched) -> None:
    page = tab.page
    page.goto("/")
    ground = "getComputedStyle(document.body).backgroundImage"
    light = page.evaluate(ground)
    page.get_by_label("Appearance").select_option("dark")
    dark = page.evaluate(ground)
    assert dark != light
    page.reload()
    assert page.evaluate(ground) == dark


def test_tabs_of_one_browser_share_one_stream(tab: Watched, client: HttpClient) -> None:
    pages = [tab.page, *(tab.page.context.new_page() for _ in range(4))]
    for page in pages:
        page.goto("/")
    for page in pages:
        expect(page.locator("#live")).to_have_attribute("data-state", "live")
    assert "latermq_http_streams{" in client.get("/metrics").body.decode()
    streams = re.findall(r"^latermq_http_streams{.*} (\d+)", client.get("/metrics").body.decode(), re.MULTILINE)
    assert streams == ["1.0"] or streams == ["1"]
    for page in pages[1:]:
        page.close()
    before = time.monotonic()
    expect(pages[0].locator("#live")).to_have_attribute("data-state", "live")
    assert time.monotonic() - before < 10
