"""A prediction against a run: timers due at once, and consumers that process a known number per second."""

import time
from pathlib import Path
from typing import Any

from latermq.client import blocking
from latermq.message.properties import DUE_MS
from tests.integration.test_http_jobs import schedule
from tests.interop.waiting import wait_until
from tests.support.http_console import HttpClient, running_console
from tests.support.serving import serving

TIMERS, PER_TURN, TURN_S = 2_000, 40, 0.1
RATE = PER_TURN / TURN_S


def consume(namesrv: str, topic: str, count: int) -> list[float]:
    """Process messages at a fixed rate. Return how late each was, in milliseconds."""
    late: list[float] = []
    with blocking.PullConsumer(namesrv) as consumer:
        wait_until(lambda: sum(map(consumer.max_offset, consumer.queues(topic))) > 0, 60.0, "the first delivery")
        offsets = dict.fromkeys(consumer.queues(topic), 0)
        next_s = time.monotonic()
        while len(late) < count:
            wanted = min(PER_TURN, count - len(late))
            for queue in offsets:
                if wanted and offsets[queue] < consumer.max_offset(queue):
                    result = consumer.pull(queue, offsets[queue], wanted)
                    now_ms = time.time() * 1000
                    late += [now_ms - int(message.properties[DUE_MS]) for message in result.messages]
                    wanted -= len(result.messages)
                    offsets[queue] = result.next_offset
            next_s = max(next_s + TURN_S, time.monotonic() - 1)
            time.sleep(max(0.0, next_s - time.monotonic()))
    return sorted(late)


def predict(client: HttpClient, **fields: object) -> dict[str, Any]:
    reply = client.post("/api/v1/what-if", fields)
    assert reply.status == 200, reply.body
    found: dict[str, Any] = reply.json
    return found


def test_a_prediction_is_within_a_factor_of_two_of_a_run(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server, running_console(server.namesrv, "http.rate=0") as (_, client):
        with blocking.Admin(server.namesrv) as admin:
            admin.create_topic("burst", 1)
        due_ms = int(time.time() * 1000) + 6_000
        predicted = predict(client, add=TIMERS, at=str(due_ms), consumers_per_second=RATE)
        assert predicted["others"] == 0
        timers = schedule(client, "burst", TIMERS, delay=None, due_ms=due_ms)
        assert {one["result"] for one in timers} == {"scheduled"}
        late = consume(server.namesrv, "burst", TIMERS)
        measured = {"p50_ms": late[TIMERS // 2], "p99_ms": late[TIMERS * 99 // 100], "max_ms": late[-1]}
        for name, figure in measured.items():
            assert predicted["consumption"][name] / 2 <= figure <= predicted["consumption"][name] * 2, (
                measured, predicted["consumption"],
            )  # fmt: skip
        drained_ms = predicted["consumption"]["drained_ms"]
        assert drained_ms / 2 <= measured["max_ms"] <= drained_ms * 2
        assert predicted["delivery"]["max_ms"] < predicted["consumption"]["p50_ms"]
        points = predicted["points"]
        assert max(point["unconsumed"] for point in points) > TIMERS / 2
        later = predict(client, add=TIMERS, at=str(due_ms + 3_600_000), over="1h", consumers_per_second=RATE)
        assert later["consumption"]["max_ms"] < 1_000
        flooded = predict(client, add=10**9, at="2027-01-01T00:00:00Z", consumers_per_second=1)
        assert flooded["consumption"]["drained_ms"] is None
        for fields in (
            {"add": 0, "at": "5"}, {"add": 1, "at": "soon"}, {"add": 1, "at": "5", "over": "8d"}, {"add": 1},
            {"add": 1, "at": "2200-01-01T00:00:00Z"}, {"add": 1, "at": "5", "consumers_per_second": 0},
        ):  # fmt: skip
            assert client.post("/api/v1/what-if", fields).status == 422, fields
