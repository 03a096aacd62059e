"""What the console tells of brokers, topics, groups and messages, against a real broker, and its event stream."""

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from latermq import OutgoingMessage
from latermq.client import blocking
from tests.interop.ports import HOST
from tests.interop.waiting import wait_until
from tests.support.http_console import HttpClient, running_console
from tests.support.serving import Server, serving


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("data") / "data") as found:
        with blocking.Producer(found.namesrv) as producer:
            for number in range(20):
                producer.send(OutgoingMessage("stored", b"body %d" % number, tag="t", keys=[f"k{number % 4}"]))
            producer.send(OutgoingMessage("stored", b"\xff\xfe", keys=["binary"]))
        yield found


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[HttpClient]:
    with running_console(server.namesrv, "http.rate=0") as (_, found):
        yield found


def status_and_code(client: HttpClient, path: str) -> tuple[int, int]:
    reply = client.get(path)
    return reply.status, reply.json.get("code", 0)


# Brokers


def test_brokers_and_the_pipeline_are_shown_as_they_report_themselves(client: HttpClient, server: Server) -> None:
    [broker] = client.get("/api/v1/brokers").json["brokers"]
    assert (broker["broker"], broker["address"]) == ("broker-a", server.broker)
    assert broker["messages_in"] >= 21
    assert 0 < broker["disk_used_ratio"] < 1
    assert "error" not in broker
    [report] = client.get("/api/v1/pipeline").json["brokers"]
    assert report["broker"] == "broker-a"
    assert report["store_id"]


def test_the_density_counts_each_pending_timer_once(client: HttpClient) -> None:
    before = client.get("/api/v1/density").json
    delays = ["20s", "50m", "30h", "300d"]
    for delay in delays:
        assert client.post("/api/v1/timers", {"topic": "dense", "body": "b", "delay": delay}).status == 201
    after = wait_until(
        lambda: found if (found := client.get("/api/v1/density").json)["pending"] == before["pending"] + 4 else None,
        10.0,
        "all four in the count",
    )
    assert after["beyond"] >= before["beyond"] + 1
    in_buckets = sum(bucket["timers"] for bucket in after["buckets"])
    assert in_buckets + after["beyond"] == after["pending"]
    assert after["next_hour"] == before["next_hour"] + 2
    for bucket, following in zip(after["buckets"], after["buckets"][1:], strict=False):
        assert bucket["until_ms"] == following["from_ms"]
    assert sum(bucket["timers"] for bucket in after["buckets"] if 10_000 <= bucket["from_ms"] < 25_000) == 1


def test_messages_and_timers_are_counted_by_minute(client: HttpClient) -> None:
    # A broker counts from its first sample on, in the first second.
    found = wait_until(
        lambda: one if (one := client.get("/api/v1/throughput").json)["minutes"] else None, 15.0, "counts"
    )
    before = found["minutes"]
    assert found["silent"] == []
    assert client.post("/api/v1/messages", {"topic": "counted", "body": "b"}).status == 201
    assert client.post("/api/v1/timers", {"topic": "counted", "body": "b", "delay": "1h"}).status == 201

    def has_grown() -> bool:
        minutes = client.get("/api/v1/throughput").json["minutes"]
        sums = {name: sum(one[name] for one in minutes) for name in ("messages_in", "timers_in")}
        return all(sums[name] > sum(one[name] for one in before) for name in ("messages_in", "timers_in"))

    wait_until(has_grown, 15.0, "both in the counts")
    starts = [one["start_ms"] for one in client.get("/api/v1/throughput").json["minutes"]]
    assert starts == sorted(set(starts))
    assert all(start_ms % 60_000 == 0 for start_ms in starts)


# Topics and messages


def test_topics_and_their_queues(client: HttpClient) -> None:
    names = client.get("/api/v1/topics").json["topics"]
    assert "stored" in names
    assert "rmq_sys_wheel_timer" not in names
    assert set(names) < set(client.get("/api/v1/topics?all=true").json["topics"])
    topic = client.get("/api/v1/topics/stored").json
    assert topic["messages"] == sum(queue["max_offset"] - queue["min_offset"] for queue in topic["queues"]) == 21
    assert status_and_code(client, "/api/v1/topics/nowhere") == (404, 17)
    assert status_and_code(client, "/api/v1/topics/a%20b") == (422, 13)


def test_messages_are_found_by_key_and_by_id(client: HttpClient) -> None:
    found = client.get("/api/v1/messages?topic=stored&key=k1").json["messages"]
    assert [message["body"] for message in found] == ["body 1", "body 5", "body 9", "body 13", "body 17"]
    by_id = client.get(f"/api/v1/messages?topic=stored&id={found[2]['message_id']}").json["messages"]
    assert by_id == [found[2]]
    [binary] = client.get("/api/v1/messages?topic=stored&key=binary").json["messages"]
    assert binary["body_base64"] == "//4="
    assert status_and_code(client, "/api/v1/messages?topic=stored&key=none") == (404, 22)
    assert status_and_code(client, "/api/v1/messages?topic=stored") == (422, 29)
    assert status_and_code(client, "/api/v1/messages?key=a") == (422, 29)
    assert len(client.get("/api/v1/messages?topic=stored&key=k1&limit=2").json["messages"]) == 2


def test_the_newest_messages_of_a_topic_come_first_with_the_start_of_their_bodies(client: HttpClient) -> None:
    for number in range(3):
        sent = client.post(
            "/api/v1/messages", {"topic": "tail", "body": f"{number} " + "x" * 5_000, "key": f"t{number}"}
        )
        assert sent.status == 201
    found = client.get("/api/v1/topics/tail/messages?limit=2").json["messages"]
    assert [message["keys"] for message in found] == [["t2"], ["t1"]]
    assert (found[0]["message_id"], len(found[0]["body"])) == (sent.json["message_id"], 256)
    assert client.get("/api/v1/topics/tail").json["in_hour"] == 3
    assert status_and_code(client, "/api/v1/topics/nowhere/messages") == (404, 17)


def test_a_message_that_cannot_be_is_refused(client: HttpClient) -> None:
    for wrong, status in (
        ({"topic": "tail"}, 422),
        ({"topic": "tail", "body": ""}, 422),
        ({"topic": "tail", "body": "b", "body_base64": "Yg=="}, 422),
        ({"topic": "tail", "body": "b", "properties": {"TIMER_DELAY_MS": "5"}}, 422),
        ({"topic": "rmq_sys_wheel_timer", "body": "b"}, 403),
        ({"topic": "a b", "body": "b"}, 422),
        ({"topic": "tail", "body": "b", "delay": "1m"}, 422),
    ):
        assert client.post("/api/v1/messages", wrong).status == status, wrong


# Groups


def test_a_group_is_shown_with_its_lag_and_reset_after_a_dry_run(client: HttpClient, server: Server) -> None:
    with blocking.PullConsumer(server.namesrv, group="billing") as consumer, blocking.Admin(server.namesrv) as admin:
        admin.create_group("billing")
        queues = consumer.queues("stored")
        for queue in queues:
            consumer.commit(queue, consumer.max_offset(queue))
        group = client.get("/api/v1/groups/billing").json
        assert (group["lag"], group["members"]) == (0, [])
        assert len(group["queues"]) == len(queues)
        [listed] = [one for one in client.get("/api/v1/groups?lag=true").json["groups"] if one["group"] == "billing"]
        assert (listed["lag"], listed["topics"], listed["members"]) == (0, ["stored"], 0)
        assert {one["lag"] for one in client.get("/api/v1/groups").json["groups"]} == {None}
        path = "/api/v1/groups/billing/offsets:reset"
        dry = client.post(path, {"topic": "stored", "to": "first", "dry_run": True}).json
        assert (dry["dry_run"], {queue["after"] for queue in dry["queues"]}) == (True, {0})
        assert client.get("/api/v1/groups/billing").json["lag"] == 0
        done = client.post(path, {"topic": "stored", "to": "first"}).json
        assert done == {**dry, "dry_run": False}
        assert client.get("/api/v1/groups/billing").json["lag"] == 21
        done = client.post(path, {"topic": "stored", "to": "2999-01-01T00:00:00Z"}).json
        assert client.get("/api/v1/groups/billing").json["lag"] == 0
        assert client.post(path, {"topic": "stored", "to": "soon"}).status == 422
        assert client.post(path, {"topic": "nowhere", "to": "first"}).status == 404
    assert status_and_code(client, "/api/v1/groups/nowhere") == (404, 26)


# Dead letters


def test_dead_letters_are_listed_and_sent_again(client: HttpClient, server: Server) -> None:
    with blocking.Admin(server.namesrv) as admin, blocking.Producer(server.namesrv) as producer:
        admin.create_topic("%DLQ%failing", 1)
        admin.create_topic("again", 1)
        for number in range(5):
            properties = {"RETRY_TOPIC": "again", "region": "eu"}
            producer.send(
                OutgoingMessage("%DLQ%failing", b"dead %d" % number, keys=[f"d{number}"], properties=properties)
            )
        [count] = [one for one in client.get("/api/v1/dead-letters").json["groups"] if one["group"] == "failing"]
        assert count["messages"] == 5
        found: list[dict[str, Any]] = []
        cursor = ""
        while True:
            page = client.get(f"/api/v1/dead-letters/failing?limit=2&cursor={cursor}").json
            found += page["dead_letters"]
            cursor = page["next"]
            if not cursor:
                break
        assert [one["message"]["body"] for one in found] == [f"dead {number}" for number in range(5)]
        assert found[0]["original_topic"] == "again"
        [by_key] = client.get("/api/v1/dead-letters/failing?key=d3").json["dead_letters"]
        assert by_key == found[3]
        ids = [found[1]["message"]["message_id"], "nonsense", found[2]["message"]["offset_message_id"]]
        path = "/api/v1/dead-letters/failing/resend"
        dry = client.post(path, {"ids": ids, "dry_run": True}).json
        assert [one.get("topic") for one in dry["messages"]] == ["again", None, "again"]
        assert dry["messages"][1]["problem"]["status"] == 404
        assert admin.query_by_key("again", "d1") == []
        done = client.post(path, {"ids": ids}).json["messages"]
        assert done[0]["message_id"]
        [sent] = wait_until(lambda: admin.query_by_key("again", "d1"), 10.0, "the message that was sent again")
        assert (sent.body, sent.properties["region"]) == (b"dead 1", "eu")
        assert client.post(path, {"ids": []}).status == 422
        missing = client.post(path, {"ids": ids[:1], "topic": "nowhere"}).json["messages"][0]["problem"]
        assert (missing["status"], missing["code"]) == (404, 17)
    assert client.get("/api/v1/dead-letters/nobody").json == {"dead_letters": [], "next": ""}
    assert status_and_code(client, "/api/v1/dead-letters/failing?cursor=abc") == (422, 29)
    assert status_and_code(client, f"/api/v1/dead-letters/{quote('a b')}") == (422, 13)


# The event stream


@contextlib.contextmanager
def open_stream(port: int) -> Iterator[Any]:
    with socket.create_connection((HOST, port), timeout=20) as connection:
        connection.sendall(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with connection.makefile("rb") as stream:
            yield stream


def next_state(stream: Any) -> dict[str, Any]:
    for line in stream:
        if line.startswith(b"data: "):
            state: dict[str, Any] = json.loads(line[6:])
            return state
    raise AssertionError("the stream has ended")


def test_all_streams_share_one_question_per_second_and_none_is_asked_without_them(server: Server) -> None:
    with running_console(server.namesrv, "http.max_streams=3") as (process, client):
        assert process.collector.collected == 0
        with contextlib.ExitStack() as stack:
            streams = [stack.enter_context(open_stream(client.port)) for _ in range(3)]
            states = [next_state(stream) for stream in streams]
            assert all(state["brokers"][0]["broker"] == "broker-a" for state in states)
            assert all("buckets" in state["density"] for state in states)
            before = process.collector.collected
            for stream in streams:
                next_state(stream)
            assert process.collector.collected <= before + 3
            refused = client.get("/live")
            assert (refused.status, refused.json["code"]) == (429, 2)
        wait_until(lambda: process.collector.streams == 0, 10.0, "the end of the streams")
        stopped_at = process.collector.collected
        with open_stream(client.port) as stream:
            assert next_state(stream)["brokers"]
        assert process.collector.collected <= stopped_at + 2


def test_a_stream_ends_when_the_console_stops(server: Server) -> None:
    with contextlib.ExitStack() as stack:
        with running_console(server.namesrv) as (_, client):
            stream = stack.enter_context(open_stream(client.port))
            next_state(stream)
            began_s = time.monotonic()
        assert time.monotonic() - began_s < 4  # below http.stop_timeout
        assert stream.read() is not None
