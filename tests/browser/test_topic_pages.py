"""Topics, messages, groups and dead letters through the pages."""

import json
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from latermq import OutgoingMessage
from latermq.client import Message, blocking
from tests.interop.waiting import wait_until
from tests.support.browser import Watched, visiting
from tests.support.http_console import HttpClient
from tests.support.serving import Server


@pytest.fixture
def tab(browser: Browser, server: Server) -> Iterator[Watched]:
    with visiting(browser, f"http://{server.http}") as found:
        yield found
        assert found.complaints == []


@pytest.fixture(scope="module")
def admin(server: Server) -> Iterator[blocking.Admin]:
    with blocking.Admin(server.namesrv) as found:
        yield found


def test_a_message_sent_by_hand_appears_in_the_tail_without_a_reload_and_is_found_by_key(
    tab: Watched, admin: blocking.Admin, client: HttpClient
) -> None:
    page = tab.page
    admin.create_topic("parcels", 2)
    page.goto("/topics?name=PARC")
    page.get_by_role("link", name="parcels").click()
    expect(page.get_by_text("The topic has no message")).to_be_visible()
    page.get_by_role("link", name="Send a message").click()
    page.get_by_label("Body").fill('{"parcel": 7, "note": "<b>é</b>"}')
    page.get_by_label("Key").fill("parcel-7")
    page.get_by_label("Properties").fill("region=eu")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("status").filter(has_text="The message is stored.")).to_be_visible()
    rows = page.locator("section[aria-labelledby=tail] tbody tr")
    expect(rows).to_have_count(1)

    assert client.post("/api/v1/messages", {"topic": "parcels", "body": "x", "key": "parcel-8"}).status == 201
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("parcel-8")

    page.get_by_role("link", name="Search by key or id").click()
    page.get_by_label("Key or message id").fill("parcel-7")
    page.get_by_role("button", name="Search").click()
    expect(page.locator("#results tbody tr")).to_have_count(1)
    assert re.search(r"[?&]key=parcel-7\b", page.url), "the view has its own address"
    page.locator("#results tbody a").first.click()
    expect(page.locator("pre")).to_contain_text('"note": "<b>é</b>"')
    expect(page.locator("dl").filter(has_text="region")).to_contain_text("eu")
    message_id = page.url.rpartition("/")[2]
    page.goto(f"/messages?topic=parcels&key={message_id}")
    expect(page.locator("#results tbody tr")).to_have_count(1)


def test_a_property_that_cannot_be_is_explained_and_nothing_typed_is_lost(tab: Watched, admin: blocking.Admin) -> None:
    admin.create_topic("letters", 1)
    page = tab.page
    page.goto("/topics/letters/send")
    page.get_by_label("Body").fill("a long text")
    page.get_by_label("Properties").fill("region")
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".problem")).to_contain_text("is not a property")
    expect(page.get_by_label("Body")).to_have_value("a long text")
    tab.complaints.clear()  # Chromium reports the status 422


def test_a_group_is_reset_after_a_preview(
    tab: Watched, admin: blocking.Admin, server: Server, client: HttpClient
) -> None:
    admin.create_topic("invoices", 1)
    admin.create_group("printer")
    for number in range(5):
        assert client.post("/api/v1/messages", {"topic": "invoices", "body": str(number)}).status == 201
    with blocking.PullConsumer(server.namesrv, group="printer") as consumer:
        for queue in consumer.queues("invoices"):
            consumer.commit(queue, 5)
    page = tab.page
    page.goto("/groups?name=print")
    page.get_by_role("link", name="printer").click()
    expect(page.locator(".figure").first).to_have_text("Lag0")
    page.get_by_label("Continue at").select_option("time")
    page.get_by_label("Time", exact=True).fill("2h ago")
    page.get_by_role("button", name="Preview").click()
    expect(page.locator(".attention")).to_contain_text("reads 5 messages again")
    assert client.get("/api/v1/groups/printer").json["lag"] == 0
    tab.picture("group-reset-light")
    assert tab.barriers() == []
    page.get_by_role("button", name="Reset the offsets").click()
    expect(page.get_by_role("status").filter(has_text="new offsets")).to_be_visible()
    expect(page.locator(".figure").first).to_have_text("Lag5")
    assert client.get("/api/v1/groups/printer").json["lag"] == 5

    page.get_by_label("Continue at").select_option("time")
    page.get_by_role("button", name="Preview").click()
    expect(page.locator(".problem")).to_contain_text("the time is missing")
    tab.complaints.clear()  # Chromium reports the status 422


def test_picked_dead_letters_are_sent_again_and_those_that_cannot_be_are_named(
    tab: Watched, admin: blocking.Admin, server: Server
) -> None:
    admin.create_topic("%DLQ%shipper", 1)
    admin.create_topic("shipments", 1)
    with blocking.Producer(server.namesrv) as producer:
        for number, topic in enumerate(("shipments", "shipments", "shipments", "gone")):
            properties = {"RETRY_TOPIC": topic}
            body = b"shipment %d" % number
            producer.send(OutgoingMessage("%DLQ%shipper", body, keys=[f"s{number}"], properties=properties))
    page = tab.page
    page.goto("/dead-letters")
    page.get_by_role("link", name="shipper").click()
    expect(page.locator("tbody tr")).to_have_count(4)
    page.get_by_label("Pick s1").check()
    expect(page.locator("[data-picked]")).to_have_text("1 of 4 picked")
    page.get_by_role("button", name="Send again").click()
    expect(page.get_by_role("status").filter(has_text="in their topics again")).to_be_visible()
    wait_until(lambda: admin.query_by_key("shipments", "s1"), 10.0, "the message that was sent again")
    assert admin.query_by_key("shipments", "s0") == []

    page.get_by_label("Pick all on this page").check()
    page.get_by_role("button", name="Send again").click()
    expect(page.get_by_role("status").filter(has_text="3 sent again, 1 not")).to_contain_text("gone")
    assert tab.barriers() == []
    tab.picture("dead-letters-some-failed-light")

    page.goto("/dead-letters/shipper")
    page.get_by_role("button", name="Send again").click()
    expect(page.locator(".problem")).to_contain_text("no dead letter is picked")
    tab.complaints.clear()  # Chromium reports the status 422


def test_a_message_that_was_given_up_is_traced_and_its_dead_letter_exported(
    tab: Watched, server: Server, client: HttpClient
) -> None:
    def fail(message: Message) -> None:
        raise RuntimeError("never")

    with blocking.PushConsumer(
        server.namesrv, "baker", fail, consume_from="first", max_reconsume_times=0, concurrency=1
    ) as consumer:
        assert client.post("/api/v1/messages", {"topic": "cakes", "body": "bake", "key": "cake-1"}).status == 201
        consumer.subscribe("cakes")
        traces = "/api/v1/messages/trace?topic=cakes&key=cake-1"
        wait_until(lambda: b"dead-letter" in client.get(traces).body, 60.0, "the dead letter")
    page = tab.page
    page.goto("/messages?topic=cakes&key=cake-1")
    page.get_by_role("link", name="What became of it").click()
    steps = page.locator("ol.history li")
    expect(steps).to_have_text([re.compile("^Stored"), re.compile("^Given up by baker.*attempt 1 failed", re.DOTALL)])
    assert re.search(r"[?&]key=cake-1\b", page.url), "the view has its own address"
    assert tab.barriers() == []
    tab.picture("trace-dead-letter-light")
    page.get_by_role("link", name="its dead letters").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    with page.expect_download() as download:
        page.get_by_role("link", name="Export").click()
    assert download.value.suggested_filename == "dead-letters-baker.ndjson"
    [line] = download.value.path().read_text().splitlines()
    assert json.loads(line)["message"]["body"] == "bake"

    page.get_by_label("Pick cake-1").check()
    page.get_by_role("button", name="Send again").click()
    expect(page.get_by_role("status").filter(has_text="in their topics again")).to_be_visible()
    page.goto("/messages?topic=cakes&key=cake-1")
    page.locator("#results tbody a").first.click()
    expect(page.locator("section[aria-labelledby=trace] li.sent-again")).to_be_visible()
    page.locator("li.sent-again a").click()
    expect(page.locator("section[aria-labelledby=trace] ol.history li")).to_have_text([re.compile("^Stored")])
