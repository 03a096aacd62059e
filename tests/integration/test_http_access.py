"""A console that checks users: who may sign in, what each request needs, and what the audit log says."""

import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from latermq.http.api.access_rules import RULES
from latermq.http.process import ConsoleProcess
from latermq.message.timer_ids import timer_id
from tests.interop.waiting import wait_until
from tests.support.console_users import (
    USERS,
    administer,
    audited,
    client_of,
    create_users,
    running_console_with_users,
    secret_file,
    sign_in,
)
from tests.support.http_console import HttpClient, Reply
from tests.support.http_sessions import TOKEN
from tests.support.serving import Server, serving

TIMER = timer_id("orders", "A" * 32)
OPEN = {("GET", "/healthz"), ("GET", "/readyz")}
# Of these, each user sees what it has a right to.
PARTIAL = {("GET", f"/api/v1/{name}") for name in ("timers", "topics", "groups", "dead-letters", "jobs")}
FOR_ANY_USER = OPEN | PARTIAL | {("GET", "/openapi.json"), ("POST", "/api/v1/timers:batch")}
BODIES: dict[tuple[str, str], object] = {
    ("POST", "/api/v1/timers"): {"topic": "orders", "body": "x", "delay": "1h"},
    ("POST", "/api/v1/timers:batch"): b'{"topic": "orders", "body": "x", "delay": "1h"}\n',
    ("PATCH", "/api/v1/timers/{id}"): {"delay": "1h"},
    ("POST", "/api/v1/jobs"): {"action": "cancel", "topic": "orders", "dry_run": True},
    ("POST", "/api/v1/messages"): {"topic": "orders", "body": "x"},
    ("POST", "/api/v1/groups/{group}/offsets:reset"): {"topic": "orders", "to": "first", "dry_run": True},
    ("POST", "/api/v1/dead-letters/{group}/resend"): {"ids": ["A"], "topic": "orders", "dry_run": True},
    ("POST", "/api/v1/what-if"): {"add": 1, "at": "1h"},
}
QUERIES = {
    "/api/v1/messages": {"topic": "orders", "key": "k"},
    "/api/v1/messages/trace": {"topic": "orders", "key": "k"},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("users")


@pytest.fixture(scope="module")
def server(data: Path) -> Iterator[Server]:
    with serving(data, *USERS) as running:
        reader = (("Cluster:*", "Get,List"), ("Topic:*", "Get,Sub"))
        create_users(data, {"alice": (("Topic:orders", "Pub,Get"),), "reader": reader, "nobody": ()})
        yield running


@pytest.fixture(scope="module")
def console(server: Server, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleProcess]:
    settings = (f"audit.folder={tmp_path_factory.mktemp('audit')}", f"http.token={TOKEN}")
    with running_console_with_users(server, data, *settings) as process:
        root = client_of(process, "root")
        assert root.post("/api/v1/messages", {"topic": "orders", "body": "first"}).status in (200, 201)
        yield process


def ask(client: HttpClient, method: str, row: str) -> Reply:
    path = row.replace("{id}", TIMER).replace("{topic}", "orders").replace("{group}", "readers")
    query = f"?{urlencode(QUERIES[row])}" if method == "GET" and row in QUERIES else ""
    headers = {"Content-Type": "application/x-ndjson"} if row.endswith(":batch") else {}
    return client.request(method, path + query, BODIES.get((method, row)), headers=headers)


def test_no_endpoint_lacks_a_rule_and_no_rule_an_endpoint(console: ConsoleProcess) -> None:
    assert {(row.method, row.path) for row in console.endpoints} == set(RULES)
    assert all(row.access is not None for row in console.endpoints)


@pytest.mark.parametrize(("method", "path"), sorted(RULES))
def test_a_request_needs_a_user_its_secret_and_a_right(console: ConsoleProcess, method: str, path: str) -> None:
    if (method, path) not in OPEN:
        nameless = ask(HttpClient(console.listener.port), method, path)
        assert (nameless.status, nameless.headers["content-type"]) == (401, "application/problem+json")
        assert "no user" in nameless.json["detail"]
    unprivileged = ask(client_of(console, "nobody"), method, path)
    if (method, path) in FOR_ANY_USER:
        assert unprivileged.status == 200
        if (method, path) in PARTIAL:
            shown = {name for name, value in unprivileged.json.items() if value}
            assert shown == {"is_partial"}, "nothing but that it is partial"
            assert unprivileged.json["is_partial"]
        if path.endswith(":batch"):
            assert "User:nobody has no permission" in unprivileged.lines[0]["problem"]["detail"]
    elif path.startswith("/api/v1/jobs/{id}"):
        assert unprivileged.status == 404  # the job's own resources are checked
    else:
        assert (unprivileged.status, unprivileged.headers["content-type"]) == (403, "application/problem+json")
        assert unprivileged.json["detail"].startswith("User:nobody has no permission to access ")
    assert ask(client_of(console, "root"), method, path).status not in (401, 403)


@pytest.mark.parametrize(("method", "path"), sorted(set(RULES) - OPEN))
def test_a_wrong_secret_is_refused(
    console: ConsoleProcess, method: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("latermq.access.failed_attempts.LONGEST_PAUSE_S", 0.0)
    wrong = ask(client_of(console, "root", "guess"), method, path)
    assert (wrong.status, "secret is wrong" in wrong.json["detail"]) == (401, True)


def test_rights_are_those_of_the_policies_and_a_refusal_names_the_entry(console: ConsoleProcess, data: Path) -> None:
    alice = client_of(console, "alice")
    assert alice.post("/api/v1/timers", {"topic": "orders", "body": "x", "delay": "1h"}).status == 201
    other = alice.post("/api/v1/timers", {"topic": "bills", "body": "x", "delay": "1h"})
    assert other.status == 403
    assert "Topic:bills" in other.json["detail"]
    assert "Pub on Topic:bills" in other.json["hint"]
    lines = b'{"topic":"orders","body":"x","delay":"1h"}\n{"topic":"bills","body":"x","delay":"1h"}\n'
    batch = alice.request("POST", "/api/v1/timers:batch", lines, headers={"Content-Type": "application/x-ndjson"})
    assert [line["result"] for line in batch.lines] == ["scheduled", "refused"]
    administer(data, "acl", "grant", "alice", "Topic:denied", "Pub", "--deny")
    wait_until(
        lambda: "entry" in alice.post("/api/v1/messages", {"topic": "denied", "body": "x"}).json["detail"],
        10,
        "the new entry",
    )


def test_failed_attempts_are_slowed_down_and_others_are_not(console: ConsoleProcess) -> None:
    guesser = client_of(console, "alice", "guess")
    began_s = time.monotonic()
    for _ in range(3):
        assert guesser.get("/api/v1/topics").status == 401
    assert time.monotonic() - began_s > 0.05 + 0.1 * 0.9  # 50 ms, 100 ms and so on
    assert console.sign_in.failing_addresses == 1
    assert client_of(console, "root").get("/api/v1/topics").status == 200


def test_the_token_still_works_as_an_administrator(console: ConsoleProcess) -> None:
    holder = HttpClient(console.listener.port, {"Authorization": f"Bearer {TOKEN}"})
    assert holder.post("/api/v1/messages", {"topic": "orders", "body": "x"}).status in (200, 201)
    wait_until(lambda: audited(console, user="http.token"), 10, "its line")


@pytest.mark.parametrize("change", ["disable", "rotate", "delete"])
def test_a_changed_user_loses_its_sessions(console: ConsoleProcess, data: Path, change: str) -> None:
    name = f"changed-{change}"
    administer(data, "user", "create", name, "--new-secret-file", secret_file(data, name))
    wait_until(lambda: client_of(console, name).get("/openapi.json").status == 200, 10, "the new user")
    browser = sign_in(console, name)
    assert browser.get("/openapi.json").status == 200
    options = ("--new-secret-file", secret_file(data, "alice")) if change == "rotate" else ()
    administer(data, "user", change, name, *options)
    wait_until(lambda: browser.get("/timers").status == 303, 10, "the end of its session")
    assert browser.get("/timers").headers["location"].startswith("/login")


def test_a_form_of_a_session_that_has_ended_leads_to_the_sign_in_page(console: ConsoleProcess) -> None:
    browser = HttpClient(console.listener.port, {"Accept": "text/html,*/*"})
    for path in ("/logout", "/timers/new"):
        answer = browser.request(
            "POST", path, b"topic=orders", headers={"Content-Type": "application/x-www-form-urlencoded"}
        )
        assert (answer.status, answer.headers["location"]) == (303, "/login?next=%2F")


def test_pages_offer_what_the_user_may_do(console: ConsoleProcess) -> None:
    reader = sign_in(console, "reader")
    page = reader.get("/topics/orders").body.decode()
    assert "Send a message" not in page
    assert 'href="/brokers"' in page
    alice = sign_in(console, "alice")
    assert alice.get("/").headers["location"] == "/timers"
    page = alice.get("/topics/orders").body.decode()
    assert "Send a message" in page
    assert 'href="/brokers"' not in page
    assert alice.get("/brokers").status == 403


def test_every_change_is_in_the_audit_log_with_its_user(console: ConsoleProcess) -> None:
    request = "POST /api/v1/messages"
    alice = client_of(console, "alice")
    assert alice.post("/api/v1/messages", {"topic": "orders", "body": "x"}).status in (200, 201)
    assert alice.post("/api/v1/messages", {"topic": "bills", "body": "x"}).status == 403
    wait_until(
        lambda: "Topic:bills" in str(audited(console, user="alice", request=request, result="refused")),
        10,
        "the line of the refusal",
    )
    allowed = audited(console, user="alice", request=request, result="allowed")[-1]
    assert allowed["from"] == "127.0.0.1"
    assert allowed["access"] == [
        {"action": "Pub", "resource": "Topic:orders", "entry": 1, "by": "Allow Pub,Get on Topic:orders"}
    ]
    browser = sign_in(console, "alice")
    page = browser.get("/topics/orders/send").body.decode()
    token = page.partition('name="csrf" value="')[2].partition('"')[0]
    form = urlencode({"csrf": token, "body": "from the page"}).encode()
    before = len(audited(console, user="alice", request=request, result="allowed"))
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    assert browser.request("POST", "/topics/orders/send", form, headers=headers).status == 303
    wait_until(lambda: len(audited(console, user="alice", request=request, result="allowed")) > before, 10, "its line")
