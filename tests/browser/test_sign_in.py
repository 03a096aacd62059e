"""Users at the console: who signs in sees what that user may do, and can sign out."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from latermq.client import blocking
from latermq.client.session.credentials import Credentials
from tests.support.browser import Watched, visiting
from tests.support.serving import Server, serving

USERS = ("--set", "access.enabled=true", "--set", "access.init_user=root:r00t-secret")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("users")


@pytest.fixture(scope="module")
def secured(data: Path) -> Iterator[Server]:
    with serving(data, *USERS, http=True, timeout_s=90.0) as running:
        for name, entries in {
            "viewer": (("Cluster:*", "Get", "List"), ("Topic:*", "Get", "Sub")),
            "clerk": (("Topic:orders", "Get", "Sub", "Pub"),),
            "operator": (("Cluster:*", "Get", "List", "Update"), ("Topic:*", "Get", "Sub", "Pub")),
        }.items():
            secret = data.parent / f"{name}.secret"
            secret.write_text(f"{name}-secret")
            secret.chmod(0o600)
            administer(data, "user", "create", name, "--new-secret-file", str(secret))
            for entry in entries:
                administer(data, "acl", "grant", name, *entry)
        timers = blocking.Producer(running.namesrv, credentials=Credentials("root", "r00t-secret"))
        with timers as producer:
            for topic in ("orders", "payroll"):
                producer.schedule(topic, b"body", delay="1h", key="first")
        yield running


@pytest.fixture
def tab(browser: Browser, secured: Server) -> Iterator[Watched]:
    with visiting(browser, f"http://{secured.http}") as found:
        yield found


def administer(data: Path, *words: str) -> None:
    """Run a command, in a process of its own because this one's loop is the browser's."""
    subprocess.run([sys.executable, "-m", "latermq", *words, "--data", str(data)], check=True, capture_output=True)


def sign_in(page: Page, name: str, secret: str = "") -> None:
    page.get_by_label("User").fill(name)
    page.get_by_label("Secret").fill(secret or f"{name}-secret")
    page.get_by_role("button", name="Sign in").click()


def test_a_viewer_and_an_operator_are_offered_different_things_and_can_sign_out(tab: Watched) -> None:
    page = tab.page
    page.goto("/timers")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    assert tab.barriers() == []
    sign_in(page, "viewer", "guess")
    expect(page.locator("#wrong")).to_contain_text("secret is wrong")
    tab.complaints.clear()  # Chromium reports the status 401
    sign_in(page, "viewer")
    expect(page.get_by_role("heading", name="Timers")).to_be_visible()
    expect(page.get_by_text("viewer (viewer)")).to_be_visible()
    expect(page.get_by_role("link", name="Schedule")).to_have_count(0)
    page.get_by_role("link", name="Jobs").click()
    expect(page.get_by_role("link", name="Cancel many timers")).to_have_count(0)
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    sign_in(page, "operator")
    expect(page.get_by_text("operator (operator)")).to_be_visible()
    page.goto("/timers")
    expect(page.get_by_role("link", name="Schedule a timer")).to_be_visible()
    page.get_by_role("link", name="Jobs").click()
    expect(page.get_by_role("link", name="Cancel many timers")).to_be_visible()
    assert tab.complaints == []


def test_a_user_of_one_topic_works_with_it_and_sees_nothing_of_others(tab: Watched) -> None:
    page = tab.page
    page.goto("/")
    sign_in(page, "clerk")
    expect(page.get_by_role("heading", name="Timers")).to_be_visible()
    expect(page.get_by_text("You see only timers of topics that you have a right to")).to_be_visible()
    expect(page.locator("#results tbody tr")).to_have_count(1)
    expect(page.locator("body")).not_to_contain_text("payroll")
    expect(page.get_by_role("link", name="Overview", exact=True)).to_have_count(0)
    assert tab.barriers() == []
    page.get_by_role("link", name="Topics").click()
    expect(page.locator("#topics tbody tr")).to_have_count(1)
    pending = page.locator("td[data-label='Pending timers']")
    expect(pending).to_have_text("1")
    with page.context.new_page() as other:
        other.goto("/timers/new?topic=orders&body=second&when=2h")
        other.get_by_role("button", name="Schedule", exact=True).click()
        expect(other.get_by_text("The timer is scheduled.")).to_be_visible()
    expect(pending).to_have_text("2", timeout=20_000)  # although there is no event stream
    page.goto("/timers?topic=orders")
    page.get_by_role("link", name="Cancel all").click()
    page.get_by_role("button", name="Cancel 2 timers").click()
    expect(page.get_by_text("Begun by")).to_be_visible()
    expect(page.get_by_role("status").filter(has_text="done")).to_be_visible(timeout=20_000)
    assert tab.complaints == []
