"""What the console says became of a message that was a timer, failed, became a dead letter and was sent again."""

from collections.abc import Iterator
from typing import Any

import pytest

from latermq import OutgoingMessage
from latermq.client import Message, blocking
from tests.interop.waiting import wait_until
from tests.support.http_console import HttpClient, running_console
from tests.support.serving import Server, serving


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("data") / "data", "--set", "timer.levels=1s 1s 1s 1s 1s") as found:
        yield found


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[HttpClient]:
    with running_console(server.namesrv, "http.rate=0") as (_, found):
        yield found


def trace(client: HttpClient, query: str) -> list[dict[str, Any]]:
    reply = client.get(f"/api/v1/messages/trace?{query}")
    assert reply.status == 200, reply.body
    found: list[dict[str, Any]] = reply.json["messages"]
    return found


def names(traced: dict[str, Any]) -> list[str]:
    return [step["step"] for step in traced["steps"]]


def groups(traced: dict[str, Any]) -> dict[str, tuple[str, int]]:
    return {one["group"]: (one["state"], one["retries"]) for one in traced["groups"]}


def test_a_message_is_followed_from_its_timer_to_the_dead_letters_and_back(server: Server, client: HttpClient) -> None:
    def fail(message: Message) -> None:
        raise RuntimeError("never")

    with blocking.Admin(server.namesrv) as admin:
        admin.create_topic("orders", queues=1)
    timer = client.post("/api/v1/timers", {"topic": "orders", "body": "pay", "key": "order-1", "delay": "2s"}).json
    [pending] = trace(client, "topic=orders&key=order-1")
    assert (names(pending), pending["groups"]) == (["scheduled"], [])
    assert pending["steps"][0]["due_ms"] == timer["due_ms"]

    with (
        blocking.PushConsumer(server.namesrv, "closer", fail, consume_from="first", max_reconsume_times=1) as consumer,
        blocking.PullConsumer(server.namesrv, group="reader") as reader,
    ):
        consumer.subscribe("orders")
        [queue] = reader.queues("orders")
        reader.commit(queue, 0)
        wait_until(lambda: "dead-letter" in names(trace(client, "topic=orders&key=order-1")[0]), 60.0, "a dead letter")
        [dead] = trace(client, "topic=orders&key=order-1")
        assert names(dead) == ["scheduled", "delivered", "failed", "retried", "dead-letter"]
        assert groups(dead) == {"closer": ("dead-letter", 1), "reader": ("waiting", 0)}
        reader.commit(queue, 1)
        wait_until(lambda: groups(trace(client, "topic=orders&key=order-1")[0])["reader"] == ("read", 0), 10.0, "read")
    steps = {step["step"]: step for step in dead["steps"]}
    assert steps["delivered"]["late_ms"] >= 0
    assert (steps["failed"]["group"], steps["failed"]["attempt"]) == ("closer", 1)
    assert steps["failed"]["at_ms"] + 1_000 <= steps["failed"]["due_ms"] <= steps["retried"]["at_ms"]
    assert steps["dead-letter"]["reason"] == "attempt 2 failed, the limit is 1 retries"
    assert dead["keys"] == ["order-1"]
    history = client.get(f"/api/v1/timers/{timer['id']}/history").json["events"]
    assert [event["event"] for event in history] == ["scheduled", "delivered"], "retries are not timers of their own"

    # The dead letter itself, its id and its offset id lead to the same trace.
    message_id = dead["message_id"]
    [listed] = client.get("/api/v1/dead-letters/closer").json["dead_letters"]
    for query in (
        f"topic=orders&id={message_id}", f"topic=%25DLQ%25closer&id={message_id}", "topic=%25DLQ%25closer&key=order-1",
        f"topic=%25DLQ%25closer&id={listed['message']['offset_message_id']}",
    ):  # fmt: skip
        assert names(trace(client, query)[0]) == names(dead), query

    assert client.post("/api/v1/dead-letters/closer/resend", {"ids": [message_id]}).json["messages"][0]["message_id"]
    first, second = trace(client, "topic=orders&key=order-1")
    assert [*names(dead), "sent-again"] == names(first)
    assert (first["steps"][-1]["message_id"], names(second)) == (second["message_id"], ["stored"])


def test_a_trace_that_cannot_be_is_refused(client: HttpClient) -> None:
    for query, status, code in (
        ("topic=orders&key=none", 404, 22), ("topic=nowhere&id=none", 404, 22), ("topic=orders", 422, 29),
        ("topic=orders&key=a&id=b", 422, 29), ("topic=a%20b&key=a", 422, 13), ("key=a", 422, 29),
    ):  # fmt: skip
        reply = client.get(f"/api/v1/messages/trace?{query}")
        assert (reply.status, reply.json.get("code", 0)) == (status, code), query


def test_all_dead_letters_of_a_group_are_exported(server: Server, client: HttpClient) -> None:
    count = 600
    with blocking.Admin(server.namesrv) as admin, blocking.Producer(server.namesrv) as producer:
        admin.create_topic("%DLQ%exported", 2)
        for number in range(count):
            properties = {"RETRY_TOPIC": "orders"}
            body = b"\xff" if number == 5 else b"%d " % number + b"x" * 500  # more than one part
            producer.send(
                OutgoingMessage("%DLQ%exported", body, keys=[f"k{number}", f"m{number % 3}"], properties=properties)
            )
    reply = client.get("/api/v1/dead-letters/exported/export")
    assert reply.headers["content-type"] == "application/x-ndjson"
    assert reply.headers["content-disposition"] == 'attachment; filename="dead-letters-exported.ndjson"'
    assert sorted(int(line["message"]["keys"][0][1:]) for line in reply.lines) == list(range(count))
    assert {line["original_topic"] for line in reply.lines} == {"orders"}
    [binary] = [line["message"] for line in reply.lines if "k5" in line["message"]["keys"]]
    assert binary["body_base64"] == "/w=="
    assert len(client.get("/api/v1/dead-letters/exported/export?key=m1").lines) == count // 3
    assert client.get("/api/v1/dead-letters/nobody/export").lines == []
    head = client.request("HEAD", "/api/v1/dead-letters/exported/export")
    assert (head.status, head.body) == (200, b"")
    assert client.get("/api/v1/dead-letters/a%20b/export").status == 422
