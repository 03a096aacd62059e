"""What an open page shows when brokers or the console go away and return, and who may open one at all."""

import os
import re
import signal
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.integration.brokers import NOBODY
from tests.support.browser import visiting
from tests.support.http_console import HttpClient, running_console
from tests.support.http_sessions import TOKEN, session_of
from tests.support.serving import Server, serving

BACK_MS = 30_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = ("--set", "http.broker_timeout=1s")
    with serving(tmp_path_factory.mktemp("data"), *settings, http=True, timeout_s=90.0) as found:
        yield found


def test_a_killed_broker_is_shown_on_an_open_page_and_so_is_its_return(browser: Browser, server: Server) -> None:
    with visiting(browser, f"http://{server.http}") as tab:
        tab.page.goto("/brokers")
        expect(tab.page.locator("#brokers .state")).to_have_text("running")
        os.kill(server.broker_pid(), signal.SIGSTOP)
        try:
            expect(tab.page.locator("#trouble")).to_contain_text("The brokers do not answer", timeout=BACK_MS)
            expect(tab.page.locator("#live")).to_have_attribute("data-state", "trouble")
            tab.picture("brokers-trouble-light")
            assert tab.barriers() == []
        finally:
            os.kill(server.broker_pid(), signal.SIGKILL)
        expect(tab.page.locator("#live")).to_have_attribute("data-state", "live", timeout=BACK_MS)
        expect(tab.page.locator("#trouble")).to_be_hidden()
        expect(tab.page.locator("#brokers .state")).to_have_text("running")


def test_a_killed_console_is_shown_on_an_open_page_which_continues_when_it_is_back(
    browser: Browser, server: Server
) -> None:
    with visiting(browser, f"http://{server.http}") as tab:
        tab.page.goto("/")
        expect(tab.page.locator("#live")).to_have_attribute("data-state", "live")
        pid = server.child_pid("console")
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        expect(tab.page.locator("#trouble")).to_contain_text("The connection to the console is lost", timeout=BACK_MS)
        expect(tab.page.locator("#live")).to_have_attribute("data-state", "live", timeout=BACK_MS)
        expect(tab.page.locator("#trouble")).to_be_hidden()


def test_pages_open_without_any_broker_and_say_so(browser: Browser) -> None:
    with (
        running_console(NOBODY, "http.broker_timeout=300ms") as (_, client),
        visiting(browser, f"http://127.0.0.1:{client.port}") as tab,
    ):
        tab.page.goto("/")
        expect(tab.page.locator("#overview .problem")).to_contain_text("The brokers do not answer")
        expect(tab.page.locator("#trouble")).to_be_visible()
        assert tab.barriers() == []
        tab.picture("overview-no-broker-light")
        assert tab.complaints == []
        tab.page.goto("/timers")
        expect(tab.page.locator(".problem")).to_contain_text("no name server answers")
        tab.page.goto("/nowhere")
        expect(tab.page.get_by_role("heading", level=1)).to_have_text("There is no such page")


def test_a_browser_signs_in_with_the_token_and_out_again(browser: Browser) -> None:
    with (
        running_console(NOBODY, "http.broker_timeout=300ms", f"http.token={TOKEN}") as (_, client),
        visiting(browser, f"http://127.0.0.1:{client.port}") as tab,
    ):
        page = tab.page
        page.goto("/timers/new?topic=orders")
        expect(page).to_have_url(re.compile(r"/login\?next="))
        assert tab.barriers() == []
        tab.picture("login-light")
        page.get_by_label("Token").fill("wrong")
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator("#wrong")).to_be_visible()
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Sign in").click()
        expect(page).to_have_url(re.compile(r"/timers/new\?topic=orders$"))
        [cookie] = [cookie for cookie in page.context.cookies() if cookie["name"].startswith("latermq-session-")]
        assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Strict", "/")
        page.get_by_role("button", name="Sign out").click()
        expect(page).to_have_url(re.compile("/login"))
        page.goto("/")
        expect(page).to_have_url(re.compile("/login"))
        page.context.add_cookies([{"name": cookie["name"], "value": cookie["value"], "url": page.url}])
        page.goto("/")
        expect(page).to_have_url(re.compile("/login"))


def test_a_session_reads_the_api_and_changes_nothing_without_a_token_of_its_pages() -> None:
    with running_console(NOBODY, "http.broker_timeout=100ms", f"http.token={TOKEN}") as (_, client):
        bare = HttpClient(client.port)
        cookie, token = session_of(bare)
        assert bare.get("/metrics", Cookie=cookie).status == 200
        timer = {"topic": "orders", "body": "x", "delay": "1m"}
        refused = bare.post("/api/v1/timers", timer, Cookie=cookie)
        assert (refused.status, refused.json["title"]) == (403, "Forbidden")
        assert bare.post("/api/v1/timers", timer, **{"Cookie": cookie, "X-CSRF-Token": token + "x"}).status == 403
        assert (
            bare.post("/api/v1/timers", timer, **{"Cookie": cookie, "X-CSRF-Token": token}).status == 503
        )  # no broker
        form = {"Content-Type": "application/x-www-form-urlencoded", "Cookie": cookie}
        for body, status in ((b"", 403), (b"csrf=wrong", 403), (b"csrf=" + token.encode(), 303)):
            assert bare.request("POST", "/logout", body, headers=form).status == status
        assert bare.get("/metrics", Cookie=cookie).status == 401


@pytest.mark.parametrize(
    "wanted", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:1", "/%0d%0aX: 1"]
)
def test_a_login_leads_nowhere_else(wanted: str) -> None:
    with running_console(NOBODY, "http.broker_timeout=100ms", f"http.token={TOKEN}") as (_, client):
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        body = f"token={TOKEN}&next={wanted}".encode()
        reply = HttpClient(client.port).request("POST", "/login", body, headers=form)
        assert (reply.status, reply.headers["location"]) == (303, "/")
