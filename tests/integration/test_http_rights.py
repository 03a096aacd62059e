"""Attempts to get past the rights of a user at the console: other names, denied topics, long answers, other groups."""

import base64
import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote, urlencode, urljoin

import pytest

from latermq import OutgoingMessage
from latermq.access.inner_credentials import FILE_NAME
from latermq.access.users import INNER_USER
from latermq.audit.audit_log import MAX_BOUNDED_LINES
from latermq.client import blocking
from latermq.http.process import ConsoleProcess
from latermq.http.security.sign_in import MAX_WAITING
from latermq.message.names import TIMER_DEAD_LETTER_TOPIC
from tests.interop.ports import HOST
from tests.interop.waiting import wait_until
from tests.support.console_users import (
    ROOT,
    USERS,
    administer,
    audited,
    client_of,
    create_users,
    running_console_with_users,
    sign_in,
)
from tests.support.http_console import HttpClient
from tests.support.serving import Server, serving

SECRET_BODY = "for the eyes of payroll"
ENTRIES = {
    # Everything but what concerns the payroll, as an operator would write it.
    "curious": (
        ("Topic:*", "Pub,Sub,Get"),
        ("Group:*", "Sub,Get"),
        ("Topic:payroll", "All", "--deny"),
        ("Group:payers", "All", "--deny"),
        ("Cluster:*", "Update"),
    ),
    "clerk": (("Topic:orders", "Pub,Sub,Get"), ("Topic:%DLQ%readers", "Sub")),
    "reader": (("Group:readers", "Sub,Get"),),
    "mover": (("Topic:moved", "Pub,Get"),),
    "sender": (("Topic:*", "Pub,Get"), ("Group:readers", "Sub"), ("Group:payers", "All", "--deny")),
    "watcher": (("Cluster:*", "Get"),),
}
LETTERS = 600  # more than one part of an export


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("users")


@pytest.fixture(scope="module")
def server(data: Path) -> Iterator[Server]:
    with serving(data, *USERS) as running:
        create_users(data, ENTRIES)
        with blocking.Admin(running.namesrv, credentials=ROOT) as admin:
            admin.create_group("readers")
        with blocking.Producer(running.namesrv, credentials=ROOT) as producer:
            for topic in ("orders", "payroll", "%DLQ%readers", "%DLQ%payers"):
                producer.send(OutgoingMessage(topic, SECRET_BODY.encode(), keys=["k"]))
            producer.schedule("payroll", SECRET_BODY.encode(), delay="1h", key="salary")
            producer.schedule("orders", b"an order", delay="2h")
        yield running


@pytest.fixture(scope="module")
def console(server: Server, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleProcess]:
    audit = tmp_path_factory.mktemp("audit")
    with running_console_with_users(server, data, f"audit.folder={audit}", "http.rate=0") as process:
        yield process


def paths_of(group: str) -> list[str]:
    name = quote(group, safe="")
    return [f"/api/v1/dead-letters/{name}", f"/api/v1/dead-letters/{name}/export", f"/dead-letters/{name}"]


@pytest.mark.parametrize("name", ["payers", "%DLQ%payers", TIMER_DEAD_LETTER_TOPIC])
def test_dead_letters_are_those_of_their_group_under_whatever_name(console: ConsoleProcess, name: str) -> None:
    curious = client_of(console, "curious")
    for path in paths_of(name):
        assert curious.get(path).status == 403, path
    resend = f"/api/v1/dead-letters/{quote(name, safe='')}/resend"
    assert curious.post(resend, {"ids": ["A"], "topic": "orders", "dry_run": True}).status == 403
    job = {"action": "resend", "group": name, "all": True, "to_topic": "orders", "dry_run": True}
    assert curious.post("/api/v1/jobs", job).status == 403
    assert client_of(console, "root").get(paths_of(name)[0]).status == 200
    for path in paths_of("%DLQ%readers"):
        assert curious.get(path).status == 200, path


def test_what_is_asked_of_all_topics_leaves_out_none_that_is_denied(console: ConsoleProcess) -> None:
    curious = client_of(console, "curious")
    for action in ("cancel", "resend"):
        job = {"action": action, "all": True, "dry_run": True, **({"group": "readers"} if action == "resend" else {})}
        refused = curious.post("/api/v1/jobs", job)
        assert (refused.status, "Deny All on Topic:payroll" in refused.json["detail"]) == (403, True)
    assert SECRET_BODY[:8] not in curious.get("/api/v1/timers").body.decode()
    assert curious.get("/api/v1/timers?topic=payroll").status == 403
    assert SECRET_BODY[:8] in client_of(console, "root").get("/api/v1/timers").body.decode()


def test_lists_have_what_the_user_has_a_right_to_and_say_so(console: ConsoleProcess) -> None:
    clerk, root = client_of(console, "clerk"), client_of(console, "root")
    for path, rows, name, expected in (
        ("/api/v1/topics", "topics", None, ["orders"]),
        ("/api/v1/topics?all=true", "topics", None, ["%DLQ%readers", "orders"]),
        ("/api/v1/groups", "groups", "group", []),
        ("/api/v1/dead-letters", "groups", "group", []),
        ("/api/v1/timers", "timers", "topic", ["orders"]),
    ):
        part, whole = clerk.get(path).json, root.get(path).json
        assert [row[name] if name else row for row in part[rows]] == expected, path
        assert (part["is_partial"], whole["is_partial"]) == (True, False), path
        assert len(whole[rows]) > len(expected), path
    reader = client_of(console, "reader")
    assert [one["group"] for one in reader.get("/api/v1/dead-letters").json["groups"]] == ["readers"]
    assert reader.get("/api/v1/timers").json["timers"] == []


def test_pages_of_lists_open_for_users_of_single_topics_and_say_that_they_are_partial(console: ConsoleProcess) -> None:
    clerk = client_of(console, "clerk")
    overview = clerk.request("GET", "/", headers={"Accept": "text/html"})
    assert (overview.status, overview.headers["location"]) == (303, "/timers")
    for path in ("/timers", "/topics", "/groups", "/dead-letters"):
        page = clerk.get(path)
        text = page.body.decode()
        assert (page.status, "that you have a right to" in text) == (200, True), path
        assert "payroll" not in text, path
        assert 'href="/brokers"' not in text, path
    text = client_of(console, "root").get("/timers").body.decode()
    assert ("payroll" in text, "that you have a right to" in text) == (True, False)


def test_timers_of_several_topics_are_merged_page_by_page(console: ConsoleProcess) -> None:
    root, curious = client_of(console, "root"), client_of(console, "curious")
    lines = [
        {"topic": f"merged-{number % 3}" if number % 4 else "payroll", "body": "x", "delay": f"{60 + number // 2}m"}
        for number in range(40)
    ]
    body = "\n".join(map(json.dumps, lines)).encode()
    assert root.request("POST", "/api/v1/timers:batch", body, headers={"Content-Type": "application/x-ndjson"}).lines
    wanted = [one for one in root.get("/api/v1/timers?limit=500").json["timers"] if one["topic"] != "payroll"]
    found, cursor, pages = [], "", 0
    while not pages or cursor:
        page = curious.get(f"/api/v1/timers?limit=7&cursor={cursor}").json
        found += page["timers"]
        cursor, pages = page["next"], pages + 1
        assert pages < 40
    assert [one["due_ms"] for one in found] == [one["due_ms"] for one in wanted]
    assert sorted(one["id"] for one in found) == sorted(one["id"] for one in wanted)
    assert len({one["topic"] for one in found}) >= 4
    # A cursor opens no topic: it belongs to the topics that the user may see.
    assert (
        client_of(console, "clerk")
        .get(f"/api/v1/timers?cursor={root.get('/api/v1/timers?limit=1').json['next']}")
        .status
        == 422
    )


def test_a_user_of_a_topic_begins_jobs_on_it_and_loses_them_with_the_right(console: ConsoleProcess, data: Path) -> None:
    root, mover, reader = (client_of(console, name) for name in ("root", "mover", "reader"))
    lines = "\n".join(json.dumps({"topic": "moved", "body": "x", "delay": "1h"}) for _ in range(80)).encode()
    assert root.request("POST", "/api/v1/timers:batch", lines, headers={"Content-Type": "application/x-ndjson"}).lines
    jobs, cancel = "/api/v1/jobs", {"action": "cancel", "topic": "moved"}
    assert mover.post(jobs, {**cancel, "dry_run": True}).json["matched"] == 80
    for refused in ({"action": "cancel", "all": True}, {"action": "cancel", "topic": "payroll"}):
        assert mover.post(jobs, refused).status == 403
    begun = mover.post(jobs, {**cancel, "per_second": 4})
    assert (begun.status, begun.json["user"]) == (202, "mover")
    path = f"{jobs}/{begun.json['id']}"
    assert [job["id"] for job in mover.get(jobs).json["jobs"]] == [begun.json["id"]]
    assert mover.get(f"{path}/impossible").status == 200
    page = mover.get(path.removeprefix("/api/v1")).body.decode()
    assert ("Begun by" in page, ">Abort<" in page) == (True, True)
    assert reader.get(jobs).json == {"jobs": [], "is_durable": False, "is_partial": True}
    answers = [reader.get(path), reader.get(f"{path}/impossible"), reader.post(f"{path}/abort", None)]
    assert [one.status for one in (*answers, reader.request("DELETE", path))] == [403] * 4
    administer(data, "acl", "revoke", "mover", "Topic:moved")
    wait_until(lambda: root.get(path).json["state"] == "failed", 30, "the end of the job")
    ended = root.get(path).json
    assert ended["done"] < ended["matched"] == 80
    assert "User:mover has no permission to access Topic:moved" in ended["problem"]["detail"]


def test_a_trace_shows_no_topic_and_no_group_that_the_user_may_not_see(console: ConsoleProcess, server: Server) -> None:
    consumed = f"/api/v1/messages/trace?{urlencode({'topic': 'orders', 'key': 'k'})}"
    with blocking.PullConsumer(server.namesrv, group="readers", credentials=ROOT) as consumer:
        for queue in consumer.queues("orders"):
            consumer.commit(queue, 0)
    wait_until(lambda: client_of(console, "root").get(consumed).json["messages"][0]["groups"], 20, "the group")
    whole = client_of(console, "root").get(consumed).json
    assert ([one["group"] for one in whole["messages"][0]["groups"]], whole["is_partial"]) == (["readers"], False)
    part = client_of(console, "clerk").get(consumed).json
    assert (part["messages"][0]["groups"], part["is_partial"]) == ([], True)


def test_an_export_ends_when_its_user_loses_the_right(console: ConsoleProcess, server: Server, data: Path) -> None:
    with blocking.Producer(server.namesrv, credentials=ROOT) as producer:
        for number in range(LETTERS):
            producer.send(OutgoingMessage("%DLQ%readers", bytes(30_000), keys=[str(number)]))
    reader = Reading(console.listener.port, "reader", "/api/v1/dead-letters/readers/export")
    with contextlib.closing(reader):
        assert b" 200 " in reader.until(b"\r\n")
        administer(data, "acl", "revoke", "reader", "Group:readers")
        refused = lambda: client_of(console, "reader").get("/api/v1/groups/readers").status == 403  # noqa: E731
        wait_until(refused, 10, "the change")
        rest = reader.rest()
    last = json.loads(rest.rstrip().rpartition(b"\n")[2].strip() or b"{}") if rest else {}
    assert rest.count(b'"message_id"') < LETTERS, "the answer was sent as a whole"
    assert b"has no permission" in rest[-2000:], last


class Reading:
    """A client that reads an answer slowly."""

    def __init__(self, port: int, name: str, path: str) -> None:
        pair = base64.b64encode(f"{name}:{name}-secret".encode()).decode()
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        self._socket.settimeout(20)
        self._socket.connect((HOST, port))
        head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic {pair}\r\nConnection: close\r\n\r\n"
        self._socket.sendall(head.encode())

    def until(self, end: bytes) -> bytes:
        found = b""
        while end not in found:
            found += self._socket.recv(64)
        return found

    def rest(self) -> bytes:
        parts = []
        while part := self._socket.recv(65_536):
            parts.append(part)
        return b"".join(parts)

    def close(self) -> None:
        self._socket.close()


def test_an_event_stream_ends_when_its_user_loses_the_right(console: ConsoleProcess, data: Path) -> None:
    with contextlib.closing(Reading(console.listener.port, "watcher", "/live")) as stream:
        assert b'"brokers"' in stream.until(b"event: state\n") + stream.until(b"\n\n")
        administer(data, "acl", "revoke", "watcher", "Cluster:*")
        stream.rest()  # its end
    assert client_of(console, "watcher").get("/live").status == 403


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "TRACE", "PROPFIND"])
@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/brokers", "//api/v1/brokers", "/api//v1/brokers", "/api/v1/brokers/", "/api/v1/brokers;x",
        "/API/v1/brokers", "/%61pi/v1/brokers", "/api%2fv1%2fbrokers", "/./api/v1/brokers",
        "/static/../api/v1/brokers", "/static/%2e%2e/api/v1/brokers", "/healthz/../api/v1/brokers",
        "/healthz/%2e%2e/api/v1/brokers", "/login/../api/v1/brokers", "http://localhost/api/v1/brokers",
        "/live", "/live/", "/metrics", "/metrics?x", "/timers/%2e%2e/brokers", "/brokers", "//brokers",
    ],
)  # fmt: skip
def test_no_spelling_of_a_path_gets_past_its_rule(console: ConsoleProcess, method: str, path: str) -> None:
    override = {"X-HTTP-Method-Override": "GET", "X-Original-URL": "/healthz", "X-Rewrite-URL": "/healthz"}
    for client in (client_of(console, "reader"), HttpClient(console.listener.port)):
        answer = client.request(method, path, headers=override)
        assert answer.status in (401, 403, 404, 405, 422), answer.body
        assert b"broker-a" not in answer.body


def test_nobody_signs_in_as_the_user_of_latermq_itself(console: ConsoleProcess, data: Path) -> None:
    secret = (data / FILE_NAME).read_text().strip()
    assert client_of(console, INNER_USER, secret).get("/openapi.json").status == 401


@pytest.mark.parametrize(
    "wanted",
    ["//evil.example", "/\\evil.example", "https://evil.example", "/\t/evil.example", "\\\\evil.example",
     "javascript:alert(1)", "/x\r\nSet-Cookie: a=b", "/%0d%0aSet-Cookie:a=b", "evil.example", ""],
)  # fmt: skip
def test_signing_in_leads_to_no_other_site_and_sets_no_header(console: ConsoleProcess, wanted: str) -> None:
    form = urlencode({"user": "clerk", "secret": "clerk-secret", "next": wanted}).encode()
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = HttpClient(console.listener.port).request("POST", "/login", form, headers=headers)
    assert answer.status == 303
    target = answer.headers["location"]
    assert urljoin("http://console.example/login", target).startswith("http://console.example/"), target
    assert "a=b" not in answer.headers["set-cookie"]


def test_a_session_of_a_user_takes_a_token_for_every_change_and_for_signing_out(console: ConsoleProcess) -> None:
    browser = sign_in(console, "clerk")
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    for path in ("/logout", "/timers/new", "/topics/orders/send", "/jobs/new", "/api/v1/timers", "/api/v1/messages"):
        for sent in (b"", b"csrf=guess", urlencode({"csrf": f"{'0' * 32}.{'0' * 43}"}).encode()):
            assert browser.request("POST", path, sent, headers=form).status == 403, path
    for site in ({"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "same-site"}):
        assert browser.request("POST", "/logout", b"", headers=form | site).status == 403
    assert browser.get("/timers").status == 200


def test_a_guessed_session_is_not_adopted_and_credentials_take_precedence(console: ConsoleProcess) -> None:
    browser = sign_in(console, "clerk")
    cookie = browser._headers["Cookie"]
    assert browser.get("/timers").status == 200
    form = urlencode({"user": "clerk", "secret": "clerk-secret"}).encode()
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Cookie": f"{cookie[:-2]}AA"}
    again = HttpClient(console.listener.port).request("POST", "/login", form, headers=headers)
    assert again.status == 303
    assert again.headers["set-cookie"].partition(";")[0] not in (cookie, headers["Cookie"])
    # With a session and other credentials, the request is that of the credentials, right or wrong.
    pair = base64.b64encode(b"reader:reader-secret").decode()
    topics = HttpClient(console.listener.port, {"Cookie": cookie}).get("/api/v1/topics", Authorization=f"Basic {pair}")
    assert topics.json["topics"] == []
    wrong = HttpClient(console.listener.port, {"Cookie": cookie}).get("/api/v1/topics", Authorization="Basic wrong")
    assert wrong.status == 401


def test_changes_that_programs_make_do_not_fill_the_audit_log(console: ConsoleProcess) -> None:
    clerk, root = client_of(console, "clerk"), client_of(console, "root")
    timer = {"topic": "orders", "body": "x", "delay": "3h"}
    assert {clerk.post("/api/v1/timers", timer).status for _ in range(MAX_BOUNDED_LINES + 30)} == {201}
    reset = {"topic": "orders", "to": "first"}
    assert root.post("/api/v1/groups/readers/offsets:reset", reset).status == 200
    request = "POST /api/v1/groups/{group}/offsets:reset"
    wait_until(lambda: audited(console, user="root", request=request), 10, "the line of the administrator")
    assert len(audited(console, user="clerk", result="allowed")) <= 2 * MAX_BOUNDED_LINES  # an interval may have ended


def test_who_guesses_from_an_address_locks_out_no_program_that_knows_its_secret(console: ConsoleProcess) -> None:
    knowing = client_of(console, "clerk")
    assert knowing.get("/openapi.json").status == 200
    stop = threading.Event()

    def guess() -> None:
        guesser = client_of(console, "clerk", "guess")
        while not stop.is_set():
            guesser.get("/openapi.json")

    with crowd(guess, 3 * MAX_WAITING, stop):
        newcomer = client_of(console, "curious", "another guess")
        wait_until(lambda: newcomer.get("/openapi.json").status == 429, 20, "the limit of failed attempts")
        assert {knowing.get("/openapi.json").status for _ in range(20)} == {200}


@contextlib.contextmanager
def crowd(work: Callable[[], None], number: int, stop: threading.Event) -> Iterator[None]:
    threads = [threading.Thread(target=work) for _ in range(number)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_a_body_of_two_lengths_is_refused_and_what_follows_it_is_not_served(console: ConsoleProcess) -> None:
    second = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    head = b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
    with socket.create_connection((HOST, console.listener.port), 10) as connection:
        connection.sendall(head + b"0\r\n\r\n" + second)
        answer = b""
        while part := connection.recv(65_536):
            answer += part
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1") == 1


def test_timers_of_all_topics_include_no_retries_of_groups_without_a_right(console: ConsoleProcess) -> None:
    root, sender = client_of(console, "root"), client_of(console, "sender")
    for group in ("readers", "payers"):
        retry = {"topic": f"%RETRY%{group}", "body": f"{SECRET_BODY} {group}", "delay": "3h"}
        assert root.post("/api/v1/timers", retry).status == 201
    page = sender.get("/api/v1/timers?limit=500").json
    topics = {one["topic"] for one in page["timers"]}
    assert topics >= {"%RETRY%readers", "orders", "payroll"}
    assert ("%RETRY%payers" in topics, page["is_partial"]) == (False, True)
    for dry_run in (True, False):
        refused = sender.post("/api/v1/jobs", {"action": "cancel", "all": True, "dry_run": dry_run})
        assert (refused.status, "to access Group:" in refused.json["detail"]) == (403, True)
    assert "Cancel all" not in sender.get("/timers").body.decode()
    assert "%RETRY%payers" in {one["topic"] for one in root.get("/api/v1/timers?limit=500").json["timers"]}
