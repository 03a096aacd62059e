"""Timers over HTTP of a topic with two brokers: a name is scheduled once, also while one of them is away."""

import json
from pathlib import Path
from typing import Any

from latermq.client import blocking
from tests.interop.ports import free_port
from tests.interop.waiting import wait_until
from tests.support.http_console import HttpClient, Reply, running_console
from tests.support.serving import another_broker, serving

TIMERS = [{"topic": "shared", "body": f"body {number}", "delay": "1h"} for number in range(24)]


def schedule(client: HttpClient, number: int, **fields: str) -> Reply:
    return client.post("/api/v1/timers", {**TIMERS[number], **fields}, **{"Idempotency-Key": f"key-{number}"})


def send_batch(client: HttpClient, timers: list[dict[str, Any]], key: str) -> Reply:
    lines = b"".join(json.dumps(timer).encode() + b"\n" for timer in timers)
    headers = {"Content-Type": "application/x-ndjson", "Idempotency-Key": key}
    return client.request("POST", "/api/v1/timers:batch", lines, headers=headers)


def brokers_of(client: HttpClient) -> set[str]:
    return {queue["broker"] for queue in client.get("/api/v1/topics/shared").json["queues"]}


def count(client: HttpClient) -> int:
    return len(client.get("/api/v1/timers?topic=shared&limit=1000").json["timers"])


def test_a_repeated_request_schedules_once_whichever_brokers_there_are(tmp_path: Path) -> None:
    port = free_port()
    with (
        serving(tmp_path / "a") as server,
        running_console(server.namesrv, "http.rate=0") as (_, client),
        blocking.Admin(server.namesrv) as admin,
    ):
        early = schedule(client, 0).json  # when the topic has one broker
        with another_broker(server, tmp_path / "b", port) as second:
            wait_until(lambda: client.get("/readyz").json["brokers"] == 2, 20.0, "the second broker")
            admin.create_topic("shared")
            wait_until(lambda: brokers_of(client) == {"broker-a", "broker-b"}, 20.0, "its queues of the topic")
        second.wait()
    with (
        serving(tmp_path / "a", *server.same_ports) as server,
        another_broker(server, tmp_path / "b", port) as second,
        running_console(server.namesrv, "http.rate=0") as (_, client),
    ):
        wait_until(lambda: brokers_of(client) == {"broker-a", "broker-b"}, 20.0, "both brokers")
        first = [schedule(client, number).json for number in range(24)]
        assert first[0]["id"] == early["id"]
        assert {timer["broker"] for timer in first} == {"broker-a", "broker-b"}
        again = [schedule(client, number) for number in range(24)]
        assert [(reply.status, reply.json["id"]) for reply in again] == [(201, timer["id"]) for timer in first]
        assert {reply.headers["idempotency-replayed"] for reply in again} == {"true"}
        assert {schedule(client, number, body="other").status for number in range(24)} == {422}
        batch = [{**timer, "key": "batch"} for timer in TIMERS]
        assert {line["result"] for line in send_batch(client, batch, "batch").lines} == {"scheduled"}
        assert {line["result"] for line in send_batch(client, batch, "batch").lines} == {"known"}
        assert client.post("/api/v1/timers", {**TIMERS[0], "topic": "fresh"}, **{"Idempotency-Key": "f"}).status == 201
        assert count(client) == 48

        second.kill()
        second.wait()
        there = next(timer for timer in first if timer["broker"] == "broker-b")
        path = f"/api/v1/timers/{there['id']}"
        wait_until(lambda: client.get("/readyz").json["brokers"] == 1, 20.0, "the end of the second broker")
        for method, body in (("GET", None), ("DELETE", None), ("PATCH", {"delay": "2h"})):
            reply = client.request(method, path, body)
            assert (reply.status, reply.headers["retry-after"]) == (503, "1"), reply.body
            assert "offline are broker-b" in reply.json["detail"]
        for number, timer in enumerate(first):
            reply = schedule(client, number)
            if timer["broker"] == "broker-a":
                assert (reply.status, reply.json["id"]) == (201, timer["id"])
            else:
                assert reply.status == 503, reply.body
        assert send_batch(client, batch, "batch").status == 503
        assert client.post("/api/v1/timers", TIMERS[0]).status == 201  # no key, so nothing may be repeated
        with another_broker(server, tmp_path / "b", port):
            wait_until(lambda: client.get("/readyz").json["brokers"] == 2, 20.0, "its return")
            assert client.get(path).json["state"] == "pending"
            assert {schedule(client, number).headers["idempotency-replayed"] for number in range(24)} == {"true"}
            assert count(client) == 49
