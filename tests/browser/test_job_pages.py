"""Jobs through the pages: previewed, begun, watched until they are done, and aborted."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from latermq import OutgoingMessage
from latermq.client import blocking
from tests.interop.waiting import wait_until
from tests.support.browser import Watched, visiting
from tests.support.http_console import HttpClient
from tests.support.serving import Server

DONE_MS = 60_000


@pytest.fixture
def tab(browser: Browser, server: Server) -> Iterator[Watched]:
    with visiting(browser, f"http://{server.http}") as found:
        yield found
        assert found.complaints == []


def schedule(client: HttpClient, topic: str, count: int, tag: str) -> None:
    for number in range(count):
        timer = {"topic": topic, "body": "b", "key": f"{tag}-{number}", "tag": tag, "delay": "2h"}
        assert client.post("/api/v1/timers", timer).status == 201


def pending(client: HttpClient, topic: str) -> list[str]:
    return sorted(timer["key"] for timer in client.get(f"/api/v1/timers?topic={topic}").json["timers"])


def test_all_timers_that_match_are_cancelled_after_a_preview(tab: Watched, client: HttpClient) -> None:
    schedule(client, "seats", 3, "held")
    schedule(client, "seats", 1, "paid")
    page = tab.page
    page.goto("/timers?topic=seats")
    page.get_by_role("link", name="Cancel all that match").click()
    expect(page.locator("#matched")).to_have_text("4 timers match")
    page.get_by_label("Tag").fill("held")
    page.get_by_role("button", name="Preview").click()
    expect(page.locator("#matched")).to_have_text("3 timers match")
    assert re.search(r"[?&]tag=held\b", page.url), "the view has its own address"
    assert tab.barriers() == []
    tab.picture("job-preview-light")
    assert len(pending(client, "seats")) == 4
    page.get_by_role("button", name="Cancel 3 timers").click()
    expect(page.locator("#job .state")).to_have_text("done", timeout=DONE_MS)
    expect(page.locator("#job")).to_contain_text("Cancelled3")
    assert tab.barriers() == []
    tab.picture("job-done-light")
    assert pending(client, "seats") == ["paid-0"]
    page.get_by_role("button", name="Remove from the list").click()
    expect(page.get_by_role("status").filter(has_text="no longer listed")).to_be_visible()


def test_timers_are_moved_by_a_span_and_a_form_that_says_nothing_is_explained(tab: Watched, client: HttpClient) -> None:
    schedule(client, "rooms", 2, "booked")
    before = [timer["due_ms"] for timer in client.get("/api/v1/timers?topic=rooms").json["timers"]]
    page = tab.page
    page.goto("/jobs/new?action=move&topic=rooms")
    page.get_by_role("button", name="Move 2 timers").click()
    expect(page.locator(".problem")).to_contain_text("either by how much")
    tab.complaints.clear()  # Chromium reports the status 422
    page.get_by_label("Move each by").fill("1h")
    page.get_by_role("button", name="Move 2 timers").click()
    expect(page.locator("#job .state")).to_have_text("done", timeout=DONE_MS)
    after = [timer["due_ms"] for timer in client.get("/api/v1/timers?topic=rooms").json["timers"]]
    assert after == [due_ms + 3_600_000 for due_ms in before]


def test_a_slow_job_is_aborted(tab: Watched, client: HttpClient) -> None:
    schedule(client, "desks", 4, "free")
    page = tab.page
    page.goto("/jobs/new?action=cancel&topic=desks&per_second=1")
    page.get_by_label("At most per second").fill("1")
    page.get_by_role("button", name="Cancel 4 timers").click()
    page.get_by_role("button", name="Abort").click()
    expect(page.get_by_role("status").filter(has_text="ends after its current step")).to_be_visible()
    expect(page.locator("#job .state")).to_have_text("aborted", timeout=DONE_MS)
    page.goto("/jobs")
    expect(page.locator("#jobs tbody tr").filter(has_text="desks")).to_contain_text("aborted")


def test_all_dead_letters_of_a_group_are_sent_again_later(tab: Watched, server: Server, client: HttpClient) -> None:
    with blocking.Admin(server.namesrv) as admin, blocking.Producer(server.namesrv) as producer:
        admin.create_topic("%DLQ%courier", 1)
        admin.create_topic("routes", 1)
        for number in range(3):
            properties = {"RETRY_TOPIC": "routes"}
            producer.send(OutgoingMessage("%DLQ%courier", b"r", keys=[f"r{number}"], properties=properties))
    page = tab.page
    page.goto("/dead-letters/courier")
    page.get_by_role("link", name="Send all again").click()
    expect(page.locator("#matched")).to_have_text("3 dead letters match")
    page.get_by_label("Deliver them").fill("3h")
    page.get_by_label("Yes, all of them").check()
    page.get_by_role("button", name="Send again 3 dead letters").click()
    expect(page.locator("#job .state")).to_have_text("done", timeout=DONE_MS)
    wait_until(lambda: pending(client, "routes") == ["r0", "r1", "r2"], 10.0, "the messages as timers")
