"""The console process: start, stop, health, and what it refuses before a request reaches the API."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import structlog

from latermq.config import load_config
from latermq.errors import ConfigError
from tests.integration.brokers import NOBODY
from tests.interop.ports import HOST, free_port
from tests.interop.waiting import wait_until
from tests.support.http_console import HttpClient, running_console
from tests.support.http_sessions import TOKEN, session_of
from tests.support.metrics_scrape import scrape
from tests.support.serving import serving
from tests.support.tls_scene import own_certificate, trusting

USERS = ("access.enabled=true", "access.mode=enforce")


@pytest.fixture(scope="module")
def client() -> Iterator[HttpClient]:
    """A console without brokers."""
    with running_console(NOBODY, "http.broker_timeout=300ms", "http.hosts=console.example; other.example") as (
        _,
        found,
    ):
        yield found


# The process


def test_serve_restarts_a_console_on_its_port_and_its_sign_outs_are_not_forgotten(tmp_path: Path) -> None:
    with serving(tmp_path / "data", "--set", f"http.token={TOKEN}", http=True) as server:
        port = int(server.http.rpartition(":")[2])
        client = HttpClient(port)
        assert f", HTTP {HOST}:{port}, " in server.ready_line()
        assert client.get("/healthz").json == {"status": "ok"}
        assert client.get("/readyz").json == {"status": "ready", "brokers": 1}
        (signed_out, token), (other, _) = session_of(client), session_of(client)
        assert {client.get("/", Cookie=one).status for one in (signed_out, other)} == {200}
        killed = server.child_pid("console")
        assert killed is not None
        form = {"Content-Type": "application/x-www-form-urlencoded", "Cookie": signed_out}
        assert client.request("POST", "/logout", b"csrf=" + token.encode(), headers=form).status == 303
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: server.log().count("console is ready") == 2, 20.0, "the second start of the console")
        assert client.get("/readyz").status == 200
        assert [client.get("/metrics", Cookie=one).status for one in (signed_out, other)] == [401, 200]


def test_sigterm_stops_a_console_that_runs_alone(tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "latermq", "console", "--port", str(port), "--namesrv", NOBODY]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == f"latermq ready: console {HOST}:{port}\n"
            with socket.create_connection((HOST, port)) as idle:  # does not delay the stop
                idle.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert idle.recv(100).startswith(b"HTTP/1.1 200 ")
                process.terminate()
                assert process.wait(20) == 0
        finally:
            process.kill()


def test_a_port_in_use_is_one_clear_line(tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "latermq", "console", "--port", str(port)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "error: the console cannot start: Address already in use" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("host", ["0.0.0.0", "10.1.2.3", "::"])
def test_another_address_than_loopback_requires_a_token(host: str) -> None:
    with pytest.raises(ConfigError, match=r"http\.token is empty"):
        load_config(settings=[f"http.host={host}"], environment={})
    with_token = [f"http.host={host}", f"http.token={TOKEN}", "http.tls=true"]
    assert load_config(settings=with_token, environment={}).http.host == host


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", ""])
@pytest.mark.parametrize(
    ("users", "token", "what"),
    [(USERS, "", "secrets of users are"), (USERS, TOKEN, "secrets of users are"), ((), TOKEN, "the token is")],
)
def test_credentials_are_not_accepted_in_plaintext_from_other_machines(
    host: str, users: tuple[str, ...], token: str, what: str
) -> None:
    settings = [*users, f"http.host={host}", f"http.token={token}"]
    with pytest.raises(ConfigError, match=f"where {what} sent in plaintext") as caught:
        load_config(settings=settings, environment={})
    assert {"http.tls", "http.plaintext"} <= set(caught.value.hint.split())
    for permitted in ("http.tls=true", "http.plaintext=true"):
        assert load_config(settings=[*settings, permitted], environment={}).http.host == host
    assert load_config(settings=[*settings, "http.host=127.0.0.1"], environment={}).http.host == "127.0.0.1"


@pytest.mark.parametrize("credentials", [USERS, (f"http.token={TOKEN}",)])
def test_a_console_does_not_start_in_plaintext_on_other_addresses(tmp_path: Path, credentials: tuple[str, ...]) -> None:
    words = [word for setting in (*credentials, "http.host=0.0.0.0", "http.port=0") for word in ("--set", setting)]
    ended = subprocess.run(
        [sys.executable, "-m", "latermq", "console", "--namesrv", NOBODY, *words],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "sent in plaintext" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    "setting",
    ["http.token=short", "http.token=with space and more", "http.port=70000", "http.max_page=0", "http.max_held=1MiB",
     "http.rate=-1", "http.request_timeout=0ms"],
)  # fmt: skip
def test_a_setting_that_cannot_work_is_refused(setting: str) -> None:
    with pytest.raises(ConfigError, match=setting.partition("=")[0]):
        load_config(settings=[setting], environment={})


def test_no_client_of_a_broker_reads_the_token(tmp_path: Path) -> None:
    options = ("--set", f"http.token={TOKEN}")
    with serving(tmp_path / "data", *options, http=True) as server:
        from latermq.client import blocking

        with blocking.Admin(server.namesrv) as admin:
            settings = admin.broker_config(server.broker)
        assert "http.port" in settings
        assert not any(TOKEN in value for value in settings.values())
        assert TOKEN not in server.log()


# Health and metrics


def test_a_console_without_brokers_is_alive_and_not_ready(client: HttpClient) -> None:
    assert client.get("/healthz").status == 200
    reply = client.get("/readyz")
    assert (reply.status, reply.headers["content-type"]) == (503, "application/problem+json")
    assert reply.json["type"] == "urn:latermq:problem:no-name-server"
    assert "no name server answers" in reply.json["detail"]


def test_metrics_count_answers_and_show_each_limit(client: HttpClient) -> None:
    client.get("/healthz")
    client.get("/nowhere")
    figures = scrape(client.port)
    answers = figures.values("latermq_http_answers_total", "status")
    assert answers["200"] >= 1
    assert answers["404"] >= 1
    limits = figures.values("latermq_limit", "setting")
    assert limits == pytest.approx(limits | {"http.max_requests": 100, "http.max_connections": 1000})
    assert figures.value("latermq_limit_used", setting="http.max_requests") == 1
    assert figures.value("process_resident_memory_bytes") > 1_000_000


def test_every_request_is_one_log_line() -> None:
    with structlog.testing.capture_logs() as logs, running_console(NOBODY) as (_, client):
        client.get("/nowhere?key=secret")
    (line,) = [line for line in logs if line["event"] == "request"]
    assert (line["method"], line["status"]) == ("GET", 404)
    assert line["peer"].startswith(f"{HOST}:")
    assert "secret" not in str(line)


# Errors of HTTP


def test_an_unknown_path_and_method_are_problems(client: HttpClient) -> None:
    reply = client.get("/api/v1/nowhere")
    assert (reply.status, reply.json["type"]) == (404, "urn:latermq:problem:not-found")
    reply = client.request("DELETE", "/healthz")
    assert (reply.status, reply.json["title"]) == (405, "Method Not Allowed")
    assert "GET" in reply.headers["allow"]


def test_an_unknown_query_parameter_is_refused(client: HttpClient) -> None:
    reply = client.get("/healthz?verbose=1")
    assert (reply.status, reply.json["code"]) == (422, 29)
    assert reply.json["hint"] == "This request has none"


@pytest.mark.parametrize(
    "request_bytes", [b"\x00\x01\x02\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 40_000]
)
def test_what_is_not_http_is_answered_with_400_and_closed(client: HttpClient, request_bytes: bytes) -> None:
    with socket.create_connection((HOST, client.port), timeout=20) as connection:
        connection.sendall(request_bytes)
        head, _, body = b"".join(iter(lambda: connection.recv(4096), b"")).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert b"application/problem+json" in head
        assert json.loads(body)["status"] == 400


# Other sites


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200), ("LOCALHOST:1", 200), (HOST, 200), ("[::1]:8080", 200), ("10.0.0.9", 200),
        ("console.example", 200), ("other.example:443", 200),
        ("evil.example", 421), ("localhost.evil.example", 421), ("127.0.0.1.evil.example", 421), ("", 421),
        ("[::1", 421), ("user@evil.example", 421),
    ],
)  # fmt: skip
def test_only_requests_under_an_own_name_are_served(client: HttpClient, host: str, status: int) -> None:
    assert client.get("/healthz", Host=host).status == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 404),
        ({"Origin": "http://localhost:8080"}, 404),
        ({"Origin": "http://localhost:8080", "Sec-Fetch-Site": "same-origin"}, 404),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://localhost:9999"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
    ],
)
def test_a_page_of_another_site_changes_nothing(client: HttpClient, headers: dict[str, str], status: int) -> None:
    reply = client.request("POST", "/api/v1/nowhere", b"{}", headers={"Host": "localhost:8080", **headers})
    assert reply.status == status


def test_answers_tell_browsers_to_keep_them_to_this_site(client: HttpClient) -> None:
    headers = client.get("/healthz").headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "access-control-allow-origin" not in headers
    assert "server" not in headers


# Tokens


def test_without_the_token_only_health_is_answered() -> None:
    with running_console(NOBODY, f"http.token={TOKEN}", "http.broker_timeout=100ms") as (_, client):
        bare = HttpClient(client.port)
        assert bare.get("/healthz").status == 200
        assert bare.get("/readyz").status == 503
        for path in ("/metrics", "/api/v1/timers", "/live", "/openapi.json", "/nowhere"):
            reply = bare.get(path)
            assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer"), path
        for wrong in ("Bearer", f"Bearer {TOKEN}x", f"Basic {TOKEN}", TOKEN, "Bearer \xe9"):
            assert bare.get("/metrics", Authorization=wrong).status == 401, wrong
        assert bare.get("/metrics", Authorization=f"bearer  {TOKEN}").status == 200
        assert client.get("/metrics").status == 200


# Limits


def test_the_cookie_of_a_console_with_tls_is_never_sent_in_plaintext(tmp_path: Path) -> None:
    files = own_certificate(tmp_path)
    settings = ("http.tls=true", f"tls.cert={files.certificate}", f"tls.key={files.key}", f"http.token={TOKEN}")
    with running_console(NOBODY, *settings) as (process, _):
        connection = http.client.HTTPSConnection(HOST, process.listener.port, context=trusting(files), timeout=30)
        with contextlib.closing(connection):
            headers = {"Content-Type": "application/x-www-form-urlencoded"}  # and no Origin, as of an old browser
            connection.request("POST", "/login", f"token={TOKEN}", headers)
            cookie = connection.getresponse().getheader("set-cookie") or ""
    assert {"secure", "httponly", "samesite=strict"} <= {one.strip().lower() for one in cookie.split(";")}


def test_a_client_that_asks_too_often_is_refused_until_it_waits() -> None:
    with running_console(NOBODY, "http.rate=5") as (process, client):
        replies = [client.get("/healthz") for _ in range(20)]
        refused = [reply for reply in replies if reply.status == 429]
        assert refused
        assert refused[0].headers["retry-after"] == "1"
        assert process.statistics()["refused_by_rate"] == len(refused)
        wait_until(lambda: client.get("/healthz").status == 200, 5.0, "a request that is served again", pause_s=0.3)


def test_a_body_above_the_limit_is_refused_before_it_is_read() -> None:
    with running_console(NOBODY, "http.max_body=1KiB", "http.max_held=1KiB") as (process, client):
        assert client.post("/api/v1/nowhere", b"x" * 1024).status == 404
        reply = client.post("/api/v1/nowhere", b"x" * 1025)
        assert (reply.status, reply.headers["connection"]) == (413, "close")
        with socket.create_connection((HOST, client.port), timeout=20) as connection:  # without a length
            head = b"POST /x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
            connection.sendall(head + b"800\r\n" + b"x" * 0x800 + b"\r\n")
            assert connection.recv(1000).startswith(b"HTTP/1.1 413 ")
        assert process.statistics()["held_bytes"] == 0


def test_bodies_of_all_requests_together_are_limited() -> None:
    with running_console(NOBODY, "http.max_body=1KiB", "http.max_held=1500B") as (process, client):
        with socket.create_connection((HOST, client.port), timeout=20) as slow:
            slow.sendall(b"POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n" + b"x" * 999)
            wait_until(lambda: process.statistics()["held_bytes"] == 999, 10.0, "the slow request's body")
            assert client.post("/x", b"x" * 1000).status == 503
            assert client.post("/x", b"x" * 100).status == 404
        wait_until(lambda: process.statistics()["held_bytes"] == 0, 10.0, "the release of its memory")


def test_requests_in_progress_are_limited_and_time_out() -> None:
    settings = ("http.max_requests=1", "http.request_timeout=1s")
    with running_console(NOBODY, *settings) as (process, client):
        with socket.create_connection((HOST, client.port), timeout=20) as slow:
            slow.sendall(b"POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n")
            wait_until(lambda: process.statistics()["requests"] == 1, 10.0, "the slow request")
            reply = client.get("/metrics")
            assert (reply.status, reply.headers["retry-after"]) == (503, "1")
            assert client.get("/healthz").status == 200  # always answered
            assert slow.recv(1000).startswith(b"HTTP/1.1 408 ")
        assert process.statistics()["timed_out"] == 1
        assert client.get("/metrics").status == 200


def test_headers_that_never_end_close_the_connection() -> None:
    with running_console(NOBODY, "http.header_timeout=300ms") as (process, client):
        for sent in (b"", b"GET / HTTP/1.1\r\nHost: loc"):
            with socket.create_connection((HOST, client.port), timeout=20) as connection:
                connection.sendall(sent)
                with contextlib.suppress(ConnectionResetError):
                    assert connection.recv(1000) == b""
        wait_until(lambda: process.listener.connections == 0, 10.0, "the end of both connections")


def unread_connection(port: int, request: bytes) -> socket.socket:
    """A connection of a client that sends a request and reads nothing."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((HOST, port))
    connection.settimeout(5)
    with contextlib.suppress(TimeoutError):  # the console stops reading when its answers are not read
        connection.sendall(request)
    return connection


def test_a_last_answer_that_is_not_read_closes_the_connection() -> None:
    body = b"{\n" * 40_000  # answered with 9 MB
    head = b"POST /api/v1/timers:batch HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head += b"Content-Type: application/x-ndjson\r\nContent-Length: %d\r\n\r\n" % len(body)
    with (
        running_console(NOBODY, "http.stalled_timeout=500ms", "http.max_batch=40000") as (process, client),
        unread_connection(client.port, head + body),
    ):
        wait_until(lambda: process.app.access_log.answers[200] == 1, 20.0, "the answer")
        wait_until(lambda: process.listener.connections == 0, 10.0, "the end of the connection")


def test_unread_answers_to_pipelined_requests_close_the_connection_and_are_no_defect() -> None:
    requests = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1_000
    settings = ("http.request_timeout=500ms", "http.rate=0")  # and unread data may wait for a minute
    with (
        structlog.testing.capture_logs() as logs,
        running_console(NOBODY, *settings) as (process, client),
        unread_connection(client.port, requests),
    ):
        wait_until(lambda: process.statistics()["timed_out"] == 1, 20.0, "the end of a request")
        wait_until(lambda: process.listener.connections == 0, 10.0, "the end of the connection")
    assert {line["event"] for line in logs} == {"request"}


class LargeState(msgspec.Struct):
    """More than a socket holds."""

    text: str = "x" * (16 << 20)


def test_a_stream_that_is_not_read_closes_its_connection_and_is_no_defect() -> None:
    async def collect() -> LargeState:
        return LargeState()

    settings = ("http.stalled_timeout=500ms",)
    with structlog.testing.capture_logs() as logs, running_console(NOBODY, *settings) as (process, client):
        process.collector._collect = collect
        with unread_connection(client.port, b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n"):
            wait_until(lambda: process.collector.streams == 1, 10.0, "the stream")
            wait_until(lambda: process.listener.connections == 0, 10.0, "the end of the connection")
        wait_until(lambda: process.collector.streams == 0, 10.0, "the end of the stream")
    assert {line["event"] for line in logs} == {"request"}


def test_connections_are_limited() -> None:
    with running_console(NOBODY, "http.max_connections=2") as (process, client):
        held = [socket.create_connection((HOST, client.port)) for _ in range(2)]
        try:
            wait_until(lambda: process.listener.connections == 2, 10.0, "two connections")
            reply = client.get("/healthz")
            assert (reply.status, reply.headers["connection"]) == (503, "close")
            assert "http.max_connections" in reply.json["detail"]
        finally:
            for connection in held:
                connection.close()
        wait_until(lambda: process.listener.connections == 0, 10.0, "their end")
        assert client.get("/healthz").status == 200


def test_a_stop_finishes_requests_in_flight() -> None:
    statuses = []
    with running_console(NOBODY, "http.broker_timeout=1s") as (process, client):
        asking = threading.Thread(target=lambda: statuses.append(client.get("/readyz").status))
        asking.start()
        wait_until(lambda: process.statistics()["requests"] == 1, 10.0, "the request")
    asking.join(20)
    assert statuses == [503]
