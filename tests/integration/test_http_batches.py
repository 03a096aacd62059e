"""Batches of timers over HTTP against a real broker: a result per line, once each, and fast."""

import json
import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from latermq.client import blocking
from tests.interop.waiting import wait_until
from tests.support.http_console import HttpClient, Reply, running_console
from tests.support.serving import Server, serving

# Far below what an idle machine does, so that a busy one passes. One by one it would be a tenth of this.
MIN_TIMERS_PER_CPU_S = 15_000
NDJSON_TYPE = {"Content-Type": "application/x-ndjson"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    options = ("--set", "broker.max_topics=60", "--set", "broker.max_message=64KiB")
    with serving(tmp_path_factory.mktemp("data") / "data", *options) as found:
        yield found


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[HttpClient]:
    with running_console(server.namesrv, "http.rate=0") as (_, found):
        yield found


def send(client: HttpClient, lines: list[object], **headers: str) -> Reply:
    body = b"".join(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines)
    return client.request("POST", "/api/v1/timers:batch", body, headers={**NDJSON_TYPE, **headers})


def timer(number: int, **fields: object) -> dict[str, Any]:
    return {"topic": "batched", "body": f"body {number}", "delay": f"{3600 + number}s", "key": f"k{number}", **fields}


def test_every_line_has_its_result_and_a_bad_one_affects_no_other(client: HttpClient) -> None:
    lines: list[object] = [
        timer(1),
        b"{not json\n",
        timer(3, topic="a b"),
        timer(4, body="x" * 70_000),
        timer(5),
        b"\n",
        timer(7, topic="rmq_sys_wheel_timer"),
        timer(8, delay="9000d"),
        timer(9, due_ms=5),
        timer(10),
    ]
    reply = send(client, lines)
    assert (reply.status, reply.headers["content-type"]) == (200, "application/x-ndjson")
    results = reply.lines
    assert [result["line"] for result in results] == list(range(1, 11))
    accepted = [result for result in results if result["result"] == "scheduled"]
    assert [result["line"] for result in accepted] == [1, 5, 10]
    for result in accepted:
        found = client.get(f"/api/v1/timers/{result['id']}").json
        assert (found["state"], found["key"], found["due_ms"], found["due"]) == (
            "pending",
            f"k{result['line']}",
            result["due_ms"],
            result["due"],
        )
    statuses = {result["line"]: result["problem"]["status"] for result in results if result["result"] == "refused"}
    assert statuses == {2: 400, 3: 422, 4: 422, 6: 400, 7: 403, 8: 422, 9: 422}
    assert "the limit is 65536" in results[3]["problem"]["detail"]
    assert "row" not in results[3]["problem"]["detail"]


def test_the_handle_of_a_line_cancels_its_timer(client: HttpClient, server: Server) -> None:
    [result] = send(client, [timer(1)]).lines
    with blocking.Admin(server.namesrv) as admin:
        [outcome] = admin.cancel_timer("batched", handle=result["recall_handle"])
    assert str(outcome.verdict) == "cancelled"


def test_a_repeated_batch_schedules_only_what_is_new(client: HttpClient) -> None:
    lines: list[object] = [timer(number, topic="repeated-batch") for number in range(50)]
    key = {"Idempotency-Key": "batch-1"}
    first = send(client, lines, **key).lines
    again = send(client, [*lines[:49], timer(49, topic="repeated-batch", body="other"), timer(50)], **key).lines
    assert [result["result"] for result in again] == ["known"] * 49 + ["scheduled"] * 2
    assert [result["id"] for result in again[:49]] == [result["id"] for result in first[:49]]
    page = client.get("/api/v1/timers?topic=repeated-batch").json
    assert len(page["timers"]) == 51


def test_batches_have_limits(server: Server) -> None:
    with running_console(server.namesrv, "http.max_batch=3") as (_, client):
        assert len(send(client, [timer(number) for number in range(3)]).lines) == 3
        reply = send(client, [timer(number) for number in range(4)])
        assert (reply.status, reply.json["title"]) == (413, "Request Entity Too Large")
        assert send(client, []).lines == []
        wrong = client.request("POST", "/api/v1/timers:batch", b"{}", headers={"Content-Type": "application/json"})
        assert wrong.status == 415


def test_a_batch_of_millions_of_lines_is_refused_without_splitting_it(client: HttpClient) -> None:
    body = b"ab\n" * 5_000_000
    tracemalloc.start()
    try:
        assert client.request("POST", "/api/v1/timers:batch", body, headers=NDJSON_TYPE).status == 413
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 6 * len(body)  # a list of its lines alone has 14 times its size


def test_a_large_batch_is_scheduled_at_little_cost(client: HttpClient) -> None:
    lines: list[object] = [timer(number, topic="fast") for number in range(10_000)]
    began_s, began_cpu_s = time.monotonic(), time.process_time()
    results = send(client, lines).lines
    cpu_s = time.process_time() - began_cpu_s
    assert {result["result"] for result in results} == {"scheduled"}
    print(f"10,000 timers in {time.monotonic() - began_s:.2f} s, {cpu_s:.2f} s of CPU in this process")
    assert len(results) / cpu_s > MIN_TIMERS_PER_CPU_S
    with_client = client.get("/api/v1/timers?topic=fast&limit=1000").json
    assert len(with_client["timers"]) == 1000


def test_a_batch_is_delivered(client: HttpClient, server: Server) -> None:
    lines: list[object] = [timer(number, topic="soon", delay="500ms") for number in range(300)]
    assert {result["result"] for result in send(client, lines).lines} == {"scheduled"}
    with blocking.Admin(server.namesrv) as admin:

        def stored() -> bool:
            stats = admin.topic_stats("soon")
            return sum(queue.maxOffset - queue.minOffset for queue in stats.values()) == 300

        wait_until(stored, 20.0, "all deliveries")


# Last, because it uses up the topics that the broker may have.
def test_a_topic_that_the_broker_refuses_is_refused_on_all_its_lines(client: HttpClient) -> None:
    lines: list[object] = [timer(number, topic=f"many-{number % 80}") for number in range(160)]
    results = send(client, lines).lines
    refused = [result for result in results if result["result"] == "refused"]
    assert 0 < len(refused) < 160
    assert {result["problem"]["code"] for result in refused} <= {1, 13, 16, 17, 29}
    scheduled = {result["line"] for result in results if result["result"] == "scheduled"}
    assert {(line - 1 + 80) % 160 + 1 for line in scheduled} == scheduled  # both lines of a topic
