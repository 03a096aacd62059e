"""The calendar of the future: a timer is in its hour, of the chosen time zone, and the hour opens its timers."""

import datetime
import re
import zoneinfo
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, expect

from tests.interop.waiting import wait_until
from tests.support.browser import Watched, visiting
from tests.support.http_console import HttpClient
from tests.support.serving import Server

BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")


@pytest.fixture
def tab(browser: Browser, server: Server) -> Iterator[Watched]:
    with visiting(browser, f"http://{server.http}") as found:
        yield found
        assert found.complaints == []


def cell_of(tab: Watched, due_ms: int, zone: datetime.tzinfo) -> Locator:
    moment = datetime.datetime.fromtimestamp(due_ms / 1000, zone)
    return tab.page.get_by_role("link", name=re.compile(f"^{moment:%a %d %b, %H}:00: \\d+ timers?"))


def test_a_timer_is_in_the_cell_of_its_hour_which_opens_it(tab: Watched, client: HttpClient) -> None:
    timer = client.post("/api/v1/timers", {"topic": "tickets", "body": "b", "key": "ticket-1", "delay": "26h"}).json
    page = tab.page
    page.goto("/future")
    expect(page.locator("#future")).to_have_attribute("data-zone-of", "Europe/Berlin")
    expect(cell_of(tab, timer["due_ms"], BERLIN)).to_be_visible()
    page.get_by_label("Time zone").select_option("America/New_York")
    expect(page.locator("#future")).to_have_attribute("data-zone-of", "America/New_York")
    page.get_by_label("Time zone").select_option("UTC")
    expect(page.locator("#future")).to_have_attribute("data-zone-of", "UTC")
    cell_of(tab, timer["due_ms"], datetime.UTC).click()
    expect(page.locator("#results")).to_contain_text("ticket-1")


def test_the_calendar_is_turned_and_switched_to_months(tab: Watched) -> None:
    page = tab.page
    page.goto("/future")
    page.get_by_role("link", name="Later", exact=True).click()
    expect(page).to_have_url(re.compile(r"from=\d{4}-\d\d-\d\d"))
    page.get_by_role("link", name="Now", exact=True).click()
    page.get_by_role("link", name="Months and days").click()
    expect(page.locator("table.heat tbody tr")).to_have_count(12)
    page.goto("/future?from=tomorrow")
    expect(page.locator(".problem")).to_contain_text("is not a date")
    tab.complaints.clear()  # Chromium reports the status 422


def test_the_heaviest_second_is_named(tab: Watched, client: HttpClient) -> None:
    due = (datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=25)).replace(microsecond=0)
    for number in range(5):
        timer = {"topic": "tickets", "body": "b", "key": f"burst-{number}", "due": due.isoformat()}
        assert client.post("/api/v1/timers", timer).status == 201
    page, expected = tab.page, f"{due.astimezone(BERLIN):%Y-%m-%d %H:%M:%S}"

    def is_first() -> bool:
        page.goto("/future/heaviest?to=30m")
        first = page.locator("#worst tbody tr").first
        return first.is_visible() and expected in first.inner_text() and "5" in first.inner_text()

    wait_until(is_first, 60.0, "the burst in the count of brokers", pause_s=0.5)
    assert tab.barriers() == []
