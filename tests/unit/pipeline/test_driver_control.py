"""The driver's address file and its control endpoint: who may ask, how much, and what clients make of the answers."""

import http.client
import logging
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from latermq.config import load_config
from latermq.errors import InvalidParameter, ServiceUnavailable
from latermq.pipeline.query.bad_query import BadQuery
from latermq.pipeline.remote import control_server
from latermq.pipeline.remote.control_server import MAX_BODY_BYTES, MAX_CONNECTIONS, ControlServer
from latermq.pipeline.remote.driver_address import (
    HOST,
    DriverAddress,
    address_path,
    read_address,
    remove_address,
    write_address,
)
from latermq.pipeline.remote.running_driver import DriverUnreachable, RunningDriver, find_driver
from tests.interop.waiting import wait_until

TOKEN = "f" * 64


def _refuse(body: bytes) -> object:
    raise BadQuery(f"no {body.decode()}", hint="Try another", excerpt="SELECT\n^")


@pytest.fixture
def control() -> Iterator[ControlServer]:
    routes = {
        ("GET", "/status"): lambda body: {"pid": 7},
        ("POST", "/check-sql"): _refuse,
        ("POST", "/broken"): lambda body: 1 / 0,
    }
    server = ControlServer(TOKEN, routes, timeout_s=5.0)
    server.start()
    yield server
    server.close()


def _ask(control: ControlServer, method: str, path: str, token: str = TOKEN, **headers: str) -> int:
    connection = http.client.HTTPConnection(HOST, control.port, timeout=5)
    try:
        connection.request(method, path, headers={"Authorization": f"Bearer {token}", **headers})
        return connection.getresponse().status
    finally:
        connection.close()


def test_every_path_needs_the_token(control: ControlServer) -> None:
    assert _ask(control, "GET", "/status") == 200
    assert _ask(control, "GET", "/none") == 404
    for path in ("/status", "/none"):
        assert _ask(control, "GET", path, token="e" * 64) == 401
    assert _ask(control, "GET", "/status", token="é") == 401
    assert control.statistics()["control_refused"] == 3
    with pytest.raises(DriverUnreachable, match="refuses the token"):
        RunningDriver("wrong", control.port).status()


def test_a_large_body_is_refused_and_a_failure_is_answered(
    control: ControlServer, caplog: pytest.LogCaptureFixture
) -> None:
    assert _ask(control, "POST", "/check-sql", **{"Content-Length": str(MAX_BODY_BYTES + 1)}) == 413
    assert _ask(control, "POST", "/check-sql", **{"Content-Length": "-1"}) == 413
    with caplog.at_level(logging.CRITICAL):
        assert _ask(control, "POST", "/broken") == 500


def test_a_refused_query_arrives_with_its_place(control: ControlServer) -> None:
    driver = RunningDriver(TOKEN, control.port)
    assert driver.status() == {"pid": 7}
    with pytest.raises(BadQuery, match=r'no \{"query":"x","tables":\["t"\]\}') as caught:
        driver.check_query("x", ["t"])
    assert (caught.value.hint, caught.value.excerpt) == ("Try another", "SELECT\n^")


def test_connections_beyond_the_limit_are_closed_and_silent_ones_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ControlServer(TOKEN, {("GET", "/status"): lambda body: {}}, timeout_s=0.3)
    server.start()
    try:
        silent = [socket.create_connection((HOST, server.port)) for _ in range(MAX_CONNECTIONS)]
        wait_until(lambda: server.statistics()["control_connections"] == MAX_CONNECTIONS, 5, "all connections")
        with socket.create_connection((HOST, server.port)) as further:
            further.settimeout(5)
            assert further.recv(1) == b""
        wait_until(lambda: not server.statistics()["control_connections"], 5, "their timeout")
        for connection in silent:
            connection.close()
        assert RunningDriver(TOKEN, server.port).status() == {}
    finally:
        server.close()


@pytest.mark.parametrize("kind", ["Thread", "Timer"])
def test_requests_that_get_no_thread_leave_their_places_to_others(
    monkeypatch: pytest.MonkeyPatch, control: ControlServer, kind: str
) -> None:
    """As when the process, or its user, has too many threads."""

    class Unstartable(getattr(threading, kind)):  # type: ignore[misc]
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    with monkeypatch.context() as patch:
        patch.setattr(threading, kind, Unstartable)
        for _ in range(MAX_CONNECTIONS + 1):
            with socket.create_connection((HOST, control.port), timeout=5) as connection:
                assert connection.recv(1) == b"", "closed at once"
    wait_until(lambda: control.statistics()["control_connections"] == 0, 5, "the end of all requests")
    assert _ask(control, "GET", "/status") == 200


def test_the_address_is_private_replaced_as_a_whole_and_removed_by_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.connect"
    assert read_address(path) is None
    first, second = DriverAddress(TOKEN, 1, 2, 3), DriverAddress("e" * 64, 4, 5, 6)
    write_address(path, first)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert TOKEN not in repr(read_address(path))
    write_address(path, second)
    remove_address(path, first)
    assert read_address(path) == second
    remove_address(path, second)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("settings", "timeline", "expected"),
    [
        ([], "/data/pipeline", "/data/pipeline.connect"),
        (["pipeline.secret_file=/etc/own.secret"], "s3a://b/p", "/etc/own.connect"),
        (["pipeline.secret_file=/etc/vault"], "/data/pipeline", "/etc/vault.connect"),
        (["pipeline.connect_file=/run/driver"], "s3a://b/p", "/run/driver"),
        ([], "s3a://b/p", None),
    ],
)
def test_the_file_is_next_to_the_secret_unless_it_is_set(
    settings: list[str], timeline: str, expected: str | None
) -> None:
    found = address_path(load_config(settings=settings, environment={}).pipeline, timeline)
    assert (str(found) if found else None) == expected


def test_without_a_driver_the_reason_says_why(tmp_path: Path, control: ControlServer) -> None:
    config = load_config(settings=[f"pipeline.connect_file={tmp_path / 'f'}"], environment={}).pipeline
    assert find_driver(config, "").reason == "no driver is running"
    (tmp_path / "f").write_text("{")
    assert "is not the address of a driver" in find_driver(config, "").reason
    with socket.socket() as unused:
        unused.bind((HOST, 0))
        write_address(tmp_path / "f", DriverAddress(TOKEN, unused.getsockname()[1], 1, 1))
        assert "the driver does not answer" in find_driver(config, "").reason
    write_address(tmp_path / "f", DriverAddress(TOKEN, control.port, 0, 1))
    assert find_driver(config, "").reason == "the driver does not offer Spark Connect"
    write_address(tmp_path / "f", DriverAddress(TOKEN, control.port, 9, 1))
    driver, reason = find_driver(config, "")
    assert driver is not None
    assert (driver.connect_port, reason) == (9, "")
    assert find_driver(load_config(environment={}).pipeline, "s3a://b/p").reason == "pipeline.connect_file is not set"


def test_errors_of_other_kinds_are_not_taken_for_mistakes(control: ControlServer) -> None:
    assert control_server.error_fields(InvalidParameter("x", hint="y")) == {"message": "x", "hint": "y", "excerpt": ""}
    with pytest.raises(ServiceUnavailable, match="the driver answered 404"):
        RunningDriver(TOKEN, control.port)._call("GET", "/none")
