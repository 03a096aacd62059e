"""Timers over HTTP against a real broker: scheduled once, found, moved, run, cancelled, and delivered."""

import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from latermq.client import blocking
from tests.interop.waiting import wait_until
from tests.support.http_console import HttpClient, Reply, running_console
from tests.support.serving import Server, serving

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("data") / "data") as found:
        yield found


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[HttpClient]:
    with running_console(server.namesrv, "http.rate=0", "http.max_page=50") as (_, found):
        yield found


@pytest.fixture(scope="module")
def admin(server: Server) -> Iterator[blocking.Admin]:
    with blocking.Admin(server.namesrv) as found:
        yield found


def schedule(client: HttpClient, /, topic: str = "orders", **fields: object) -> dict[str, Any]:
    reply = client.post("/api/v1/timers", {"topic": topic, "body": "pay now", "delay": "1h", **fields})
    assert reply.status == 201, reply.body
    timer: dict[str, Any] = reply.json
    assert reply.headers["location"] == f"/api/v1/timers/{timer['id']}"
    return timer


def problem(reply: Reply, status: int) -> str:
    assert (reply.status, reply.headers["content-type"]) == (status, "application/problem+json"), reply.body
    return f"{reply.json['detail']} {reply.json.get('hint', '')}"


def now_ms() -> int:
    return time.time_ns() // 1_000_000


# One timer


def test_a_scheduled_timer_is_delivered_when_it_is_due_with_all_that_was_sent(
    client: HttpClient, admin: blocking.Admin
) -> None:
    before_ms = now_ms()
    timer = schedule(
        client, "delivered", delay="700ms", key="4711", tag="unpaid", properties={"region": "eu"}, body="zahlen €"
    )
    assert before_ms + 700 <= timer["due_ms"] <= now_ms() + 700
    assert timer["state"] == "pending"

    def delivered() -> list[Any]:
        return [one for one in admin.query_by_key("delivered", "4711") if one.topic == "delivered"]

    [message] = wait_until(delivered, 20.0, "the delivery")
    assert message.body.decode() == "zahlen €"
    assert message.store_timestamp_ms >= timer["due_ms"]
    assert (message.properties["TAGS"], message.properties["region"]) == ("unpaid", "eu")
    reply = client.get(f"/api/v1/timers/{timer['id']}")
    assert (reply.status, reply.json["state"]) == (200, "delivered")
    assert problem(client.request("DELETE", f"/api/v1/timers/{timer['id']}"), 409).startswith("the timer is delivered")
    move = client.request("PATCH", f"/api/v1/timers/{timer['id']}", {"delay": "1h"})
    assert (move.status, move.json["code"]) == (409, 604)


def test_the_three_ways_to_give_a_time_agree(client: HttpClient) -> None:
    due_ms = now_ms() // 1000 * 1000 + DAY_MS
    text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(due_ms / 1000 + 3600)) + "+01:00"
    by_text = client.post("/api/v1/timers", {"topic": "orders", "body": "b", "due": text}).json
    by_number = client.post("/api/v1/timers", {"topic": "orders", "body": "b", "due_ms": due_ms}).json
    assert by_text["due_ms"] == by_number["due_ms"] == due_ms
    assert by_text["due"] == by_number["due"] == time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(due_ms / 1000))


def test_a_time_in_the_past_means_now(client: HttpClient, admin: blocking.Admin) -> None:
    reply = client.post("/api/v1/timers", {"topic": "orders", "body": "b", "due_ms": 1000, "key": "past"})
    assert reply.json["due_ms"] >= now_ms() - 10_000
    wait_until(lambda: admin.query_by_key("orders", "past"), 20.0, "its delivery")


def test_a_binary_body_comes_as_base64(client: HttpClient, admin: blocking.Admin) -> None:
    body = bytes(range(256))
    fields = {"topic": "orders", "body_base64": base64.b64encode(body).decode(), "delay": "0s", "key": "binary"}
    assert client.post("/api/v1/timers", fields).status == 201
    [message] = wait_until(lambda: admin.query_by_key("orders", "binary"), 20.0, "its delivery")
    assert message.body == body


BAD_TIMERS: list[tuple[dict[str, object], str]] = [
    ({"delay": None}, "exactly one of delay, due and due_ms"),
    ({"due_ms": 5}, "exactly one of delay, due and due_ms"),
    ({"delay": "soon"}, "'soon' is not valid"),
    ({"delay": "9" * 39 + "d"}, "out of range"),
    ({"delay": "4000d"}, "timer.max_delay"),
    ({"delay": None, "due": "2027-01-01T00:00:00"}, "with its offset"),
    ({"delay": None, "due": "tomorrow"}, "'tomorrow' is not valid"),
    ({"delay": None, "due": "0001-01-01T00:00:00+14:00"}, "is before 1970"),
    ({"delay": None, "due_ms": -1}, "out of range"),
    ({"delay": None, "due_ms": 1 << 62}, "out of range"),
    ({"body": None}, "exactly one of body and body_base64"),
    ({"body_base64": "YQ=="}, "exactly one of body and body_base64"),
    ({"body": ""}, "the body is empty"),
    ({"body": None, "body_base64": "!"}, "is not base64"),
    ({"topic": ""}, "the topic name is blank"),
    ({"topic": "a b"}, "illegal characters"),
    ({"topic": "x" * 128}, "the limit is 127"),
    ({"key": "a\x01b"}, "separates properties"),
    ({"tag": "a\x00"}, "separates properties"),
    ({"properties": {"DELAY": "3"}}, "'DELAY' is reserved"),
    ({"properties": {"LMQ_DUE_MS": "3"}}, "is reserved"),
    ({"properties": {"a": ""}}, "is empty"),
    ({"properties": {"a": "x" * 40_000}}, "its properties exceed"),
    ({"body": "x" * (5 << 20)}, "the limit is 4194304"),
]


@pytest.mark.parametrize(("fields", "reason"), BAD_TIMERS, ids=[reason for _, reason in BAD_TIMERS])
def test_a_timer_that_cannot_be_is_refused_with_the_reason(
    client: HttpClient, fields: dict[str, object], reason: str
) -> None:
    timer = {"topic": "orders", "body": "b", "delay": "1h", **fields}
    reply = client.post("/api/v1/timers", {name: value for name, value in timer.items() if value is not None})
    assert reason in problem(reply, 422)
    assert reply.json["code"] in (13, 29)
    assert "row 0" not in reply.json["detail"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400), (b"{", 400), (b"\xff\xfe", 400), (b'"\\ud800"', 400), (b"[" * 100_000, 400), (b"[]", 422),
        (b"null", 422), (b'{"topic": 1}', 422), (b'{"topic": "a", "nonsense": 1}', 422),
        (b'{"topic": "a", "body": "b", "due_ms": 1e400}', 422), (b'{"topic": "a", "body": "b", "due_ms": 1.5}', 422),
    ],
)  # fmt: skip
def test_a_body_that_is_no_timer_is_refused(client: HttpClient, body: bytes, status: int) -> None:
    reply = client.request("POST", "/api/v1/timers", body, headers={"Content-Type": "application/json"})
    assert reply.status in (status, 422 if b"[[" in body else status), reply.body


def test_a_form_is_refused(client: HttpClient) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        reply = client.request("POST", "/api/v1/timers", b"topic=orders", headers={"Content-Type": kind})
        assert "application/json" in problem(reply, 415)


def test_a_topic_of_the_broker_is_forbidden(client: HttpClient) -> None:
    timer = {"topic": "rmq_sys_wheel_timer", "body": "b", "delay": "1h"}
    assert problem(client.post("/api/v1/timers", timer), 403)


# Repeated requests


def test_a_repeated_request_schedules_once_across_restarts_of_console_and_broker(tmp_path: Path) -> None:
    timer = {"topic": "repeated", "body": "once", "delay": "1h", "key": "r"}
    with serving(tmp_path / "data") as server:
        with running_console(server.namesrv) as (_, client):
            first = client.post("/api/v1/timers", timer, **{"Idempotency-Key": "request-1"})
            again = client.post("/api/v1/timers", timer, **{"Idempotency-Key": "request-1"})
            other = client.post("/api/v1/timers", {**timer, "body": "twice"}, **{"Idempotency-Key": "request-1"})
            next_one = client.post("/api/v1/timers", timer, **{"Idempotency-Key": "request-2"})
            assert [reply.status for reply in (first, again, other, next_one)] == [201, 201, 422, 201]
            assert again.headers["idempotency-replayed"] == "true"
            assert "idempotency-replayed" not in first.headers
            assert again.json | {"key": "r"} == first.json
            assert "was used for another timer" in other.json["detail"]
            assert next_one.json["id"] != first.json["id"]
        server.kill()
    with serving(tmp_path / "data") as server, running_console(server.namesrv) as (_, client):
        after = client.post("/api/v1/timers", timer, **{"Idempotency-Key": "request-1"})
        assert (after.json["id"], after.json["due_ms"]) == (first.json["id"], first.json["due_ms"])
        assert client.post("/api/v1/timers", {**timer, "tag": "t"}, **{"Idempotency-Key": "request-1"}).status == 422
        assert len(client.get("/api/v1/timers?topic=repeated").json["timers"]) == 2
        client.request("DELETE", f"/api/v1/timers/{first.json['id']}")
        cancelled = client.post("/api/v1/timers", timer, **{"Idempotency-Key": "request-1"})
        assert (cancelled.status, cancelled.json["state"]) == (201, "cancelled")


def test_an_idempotency_key_belongs_to_one_topic(client: HttpClient) -> None:
    key = {"Idempotency-Key": "one-key"}
    timers = [{"topic": f"key-{number}", "body": "b", "delay": "1h"} for number in range(6)]
    first = [client.post("/api/v1/timers", timer, **key) for timer in timers]
    again = [client.post("/api/v1/timers", timer, **key) for timer in timers]
    assert [reply.status for reply in again] == [201] * 6
    assert [reply.json["id"] for reply in again] == [reply.json["id"] for reply in first]
    others = [client.post("/api/v1/timers", {**timer, "body": "other"}, **key) for timer in timers]
    assert [reply.status for reply in others] == [422] * 6


@pytest.mark.parametrize("key", ["", "x" * 256, "a\tb", "a b", "\xe9"])
def test_an_idempotency_key_that_is_not_one_word_of_ascii_is_refused(client: HttpClient, key: str) -> None:
    timer = {"topic": "orders", "body": "b", "delay": "1h"}
    assert "Idempotency-Key" in problem(client.post("/api/v1/timers", timer, **{"Idempotency-Key": key}), 422)


# Changes


def test_a_timer_is_found_moved_and_cancelled_by_its_id(client: HttpClient) -> None:
    timer = schedule(client, key="4712 vip", tag="unpaid")
    path = f"/api/v1/timers/{timer['id']}"
    found = client.get(path)
    assert found.json == {
        **timer,
        "scheduled_ms": found.json["scheduled_ms"],
        "body_bytes": 7,
        "body_start": "pay now",
    }
    moved = client.request("PATCH", path, {"delay": "2h"}, headers={"If-Match": found.headers["etag"]})
    assert (moved.status, moved.json["id"], moved.json["state"]) == (200, timer["id"], "pending")
    assert moved.json["due_ms"] > timer["due_ms"] + HOUR_MS // 2
    after = client.get(path)
    assert (after.json["due_ms"], after.headers["etag"]) == (moved.json["due_ms"], moved.headers["etag"])
    stale = client.request("PATCH", path, {"delay": "3h"}, headers={"If-Match": found.headers["etag"]})
    assert "the timer has changed" in problem(stale, 412)
    assert client.get(path).json["due_ms"] == moved.json["due_ms"]
    cancelled = client.request("DELETE", path, headers={"If-Match": "*"})
    assert (cancelled.status, cancelled.json["state"]) == (200, "cancelled")
    assert client.request("DELETE", path).status == 200  # a repetition says the same
    assert client.get(path).json["state"] == "cancelled"
    assert "cancelled, so it cannot be moved" in problem(client.request("PATCH", path, {"delay": "1h"}), 409)


def test_the_handle_of_a_timer_cancels_it_with_any_client(client: HttpClient, admin: blocking.Admin) -> None:
    timer = schedule(client)
    [outcome] = admin.cancel_timer("orders", handle=timer["recall_handle"])
    assert str(outcome.verdict) == "cancelled"


def test_run_delivers_a_timer_at_once(client: HttpClient, admin: blocking.Admin) -> None:
    timer = schedule(client, key="run-now")
    reply = client.request("POST", f"/api/v1/timers/{timer['id']}/run")
    assert (reply.status, reply.json["id"]) == (200, timer["id"])
    assert reply.json["due_ms"] < timer["due_ms"] - HOUR_MS // 2
    wait_until(lambda: admin.query_by_key("orders", "run-now"), 20.0, "its delivery")


@pytest.mark.parametrize("wrong", ["x", "b3JkZXJz", "..%2F..", "%00", "é", "A" * 2000, "b3JkZXJzIFVOS05PV04"])
def test_an_unknown_id_is_not_found(client: HttpClient, wrong: str) -> None:
    path = f"/api/v1/timers/{quote(wrong, safe='%')}"
    for method, body in (("GET", None), ("DELETE", None), ("PATCH", {"delay": "1h"})):
        assert client.request(method, path, body).status == 404
    assert client.request("POST", f"{path}/run").status == 404


# Lists


def test_a_list_is_in_the_order_of_due_times_and_its_pages_are_complete(client: HttpClient) -> None:
    delays = [90 + 7 * (number * 13 % 60) for number in range(60)]
    timers = [
        schedule(client, "listed", delay=f"{delay}s", key=f"k{number % 3}") for number, delay in enumerate(delays)
    ]
    expected = [one["id"] for one in sorted(timers, key=lambda one: one["due_ms"])]
    for limit in (7, 50):
        found: list[str] = []
        cursor = ""
        while True:
            page = client.get(f"/api/v1/timers?topic=listed&limit={limit}&cursor={cursor}").json
            found += [timer["id"] for timer in page["timers"]]
            cursor = page["next"]
            if not cursor:
                break
        assert found == expected
    by_key = client.get("/api/v1/timers?topic=listed&key=k1").json["timers"]
    assert sorted(timer["id"] for timer in by_key) == sorted(one["id"] for one in timers[1::3])
    first, last = (min(timers, key=lambda one: one["due_ms"]), max(timers, key=lambda one: one["due_ms"]))
    page = client.get(f"/api/v1/timers?topic=listed&from={first['due_ms'] + 1}&to={last['due']}&limit=50").json
    more = client.get(
        f"/api/v1/timers?topic=listed&from={first['due_ms'] + 1}&to={last['due']}&limit=50&cursor={page['next']}"
    ).json
    assert [timer["id"] for timer in page["timers"] + more["timers"]] == expected[1:-1]
    assert page["timers"][0]["body_start"] == "pay now"


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("limit=0", "limit"), ("limit=51", "http.max_page"), ("limit=many", "limit"), ("nonsense=1", "nonsense"),
        ("key=a", "needs a topic"), ("from=yesterday", "'yesterday' is not valid"), ("cursor=abc", "is not a cursor"),
        ("cursor=%C3%A9", "is not a cursor"), ("cursor=W10", "is not a cursor"), ("topic=a&topic=b", "given twice"),
        ("cursor=WzEseyJhIjoiYiJ9XQ", "belongs to another filter"),
    ],
)  # fmt: skip
def test_a_query_that_cannot_be_is_refused(client: HttpClient, query: str, reason: str) -> None:
    assert reason in problem(client.get(f"/api/v1/timers?{query}"), 422)


def test_a_position_that_no_broker_gave_is_refused(client: HttpClient) -> None:
    for number in range(2):
        schedule(client, "forged", body=str(number))
    text = client.get("/api/v1/timers?topic=forged&limit=1").json["next"]
    mark, positions, far = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    for position in ("x", "-1", "9" * 400, "\0"):
        cursor = json.dumps([mark, dict.fromkeys(positions, position), far]).encode()
        reply = client.get(
            f"/api/v1/timers?topic=forged&cursor={base64.urlsafe_b64encode(cursor).decode().rstrip('=')}"
        )
        assert "is not a valid cursor" in problem(reply, 422)
        assert reply.json["type"] == "urn:latermq:problem:invalid-parameter"


def test_an_unknown_topic_is_not_found(client: HttpClient) -> None:
    reply = client.get("/api/v1/timers?topic=nowhere")
    assert (reply.status, reply.json["code"]) == (404, 17)
