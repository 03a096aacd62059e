"""A prediction through the page: from the calendar to the form, the words, the chart, and an address to share."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.support.browser import Watched, visiting
from tests.support.serving import Server


@pytest.fixture
def tab(browser: Browser, server: Server) -> Iterator[Watched]:
    with visiting(browser, f"http://{server.http}") as found:
        yield found
        assert found.complaints == []


def test_a_question_is_answered_in_words_with_a_chart_at_an_address_that_can_be_shared(
    tab: Watched, browser: Browser, server: Server
) -> None:
    page = tab.page
    page.goto("/future")
    page.get_by_role("link", name="What if").click()
    page.get_by_label("Add timers").fill("600,000")
    page.get_by_label("Due at").fill("09:00")
    page.get_by_label("Consumers take per second").fill("2,000")
    page.get_by_role("button", name="Predict").click()
    processed = page.locator(".stage").filter(has_text="Processed by consumers")
    expect(processed.locator(".big")).to_have_text(re.compile("^Up to [45] min .*late$"))
    expect(processed).to_contain_text("At 2,000 per second")
    expect(page.locator("#prediction time")).to_contain_text("09:00:00")
    expect(page.locator("#what-if canvas")).to_have_count(1)
    assert tab.barriers() == []

    with visiting(browser, "", dark=True) as other:
        other.page.goto(page.url)
        expect(other.page.locator(".stage").filter(has_text="Processed")).to_contain_text("late")
        assert other.complaints == []

    page.get_by_role("link", name=re.compile("^Spread them over")).click()
    expect(page.locator("#prediction")).to_contain_text("over 5 min")
    expect(processed.locator(".big")).to_have_text("On time")
    assert server.http in page.url


@pytest.mark.parametrize(("field", "text"), [("Add timers", "many"), ("Due at", "soon"), ("Spread over", "8d")])
def test_a_question_without_an_answer_is_explained_and_nothing_typed_is_lost(
    tab: Watched, field: str, text: str
) -> None:
    page = tab.page
    page.goto("/future/what-if?add=5&at=1h")
    page.get_by_role("textbox", name=field).fill(text)
    page.get_by_role("button", name="Predict").click()
    expect(page.locator(".problem")).to_be_visible()
    expect(page.get_by_role("textbox", name=field)).to_have_value(text)
    tab.complaints.clear()  # Chromium reports the status 422
