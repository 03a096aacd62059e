"""Jobs against a real broker: near and far timers cancelled and moved, dead letters sent again, over restarts."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from latermq import OutgoingMessage
from latermq.client import blocking
from tests.interop.waiting import wait_until
from tests.support.http_console import HttpClient, running_console
from tests.support.pipeline.plain_ingest import FAR, begin, ingest
from tests.support.serving import Server, serving

JOBS = "/api/v1/jobs"
HOUR_MS, MINUTE_MS = 3_600_000, 60_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("data") / "data") as found:
        yield found


def finished(client: HttpClient, job: str) -> dict[str, Any]:
    def ended() -> dict[str, Any] | None:
        found: dict[str, Any] = client.get(f"{JOBS}/{job}").json
        return found if found["state"] in ("done", "aborted", "failed") else None

    return wait_until(ended, 60.0, "the end of the job")


def run(client: HttpClient, **fields: object) -> dict[str, Any]:
    reply = client.post(JOBS, fields)
    assert reply.status == 202, reply.body
    assert reply.headers["location"] == f"{JOBS}/{reply.json['id']}"
    return finished(client, reply.json["id"])


def schedule(client: HttpClient, topic: str, count: int, **fields: object) -> list[dict[str, Any]]:
    lines = [
        {"topic": topic, "body": f"body {number}", "key": f"k{number}", "delay": "2h", **fields}
        for number in range(count)
    ]
    body = "\n".join(map(json.dumps, lines)).encode()
    return client.request("POST", "/api/v1/timers:batch", body, headers={"Content-Type": "application/x-ndjson"}).lines


def pending(client: HttpClient, topic: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get(f"/api/v1/timers?topic={topic}&limit=1000").json["timers"]
    return found


def test_near_and_far_timers_that_match_are_cancelled_and_moved(tmp_path: Path) -> None:
    timeline = tmp_path / "pipeline"
    options = (*FAR, "--set", f"pipeline.timeline={timeline}")
    with serving(tmp_path / "data", *options) as server, running_console(server.namesrv, "http.rate=0") as (_, client):
        begin(server, timeline)
        near = schedule(client, "t", 30, delay="10m", tag="a") + schedule(client, "t", 5, delay="10m", tag="b")
        far = schedule(client, "t", 20, delay="30h", tag="a") + schedule(client, "other", 3, delay="30h", tag="a")
        assert ingest(server, timeline / "timeline") == 23
        preview = client.post(JOBS, {"action": "cancel", "topic": "t", "tag": "a", "dry_run": True})
        assert (preview.status, preview.json["matched"], preview.json["is_exact"]) == (200, 50, True)
        assert len(preview.json["timers"]) == 10
        assert len(pending(client, "t")) == 55
        moved = run(client, action="move", topic="t", tag="a", by="5m")
        assert (moved["state"], moved["matched"], moved["done"], moved["impossible"]) == ("done", 50, 50, 0)
        assert moved["outcomes"] == {"moved": 50}
        for timer in (near[0], far[0]):
            assert client.get(f"/api/v1/timers/{timer['id']}").json["due_ms"] == timer["due_ms"] + 5 * MINUTE_MS
        assert client.get(f"/api/v1/timers/{near[-1]['id']}").json["due_ms"] == near[-1]["due_ms"]
        # What was moved is not ingested yet, so the timeline still has the former due times. The brokers know better.
        cancelled = run(client, action="cancel", topic="t", to=str(near[0]["due_ms"] + 10 * MINUTE_MS))
        assert cancelled["outcomes"] == {"cancelled": 35}
        assert client.get(f"/api/v1/timers/{near[0]['id']}").json["state"] == "cancelled"
        assert client.get(f"/api/v1/timers/{far[0]['id']}").json["state"] == "pending"
        for commit in (timeline / "timeline" / "_delta_log").iterdir():
            commit.write_bytes(b"{")
        job = client.post(JOBS, {"action": "cancel", "topic": "other"}).json["id"]
        waiting = wait_until(lambda: client.get(f"{JOBS}/{job}").json.get("problem"), 20.0, "the problem")
        assert "timeline cannot be read" in waiting["detail"]
        assert client.post(f"{JOBS}/{job}/abort", {}).json["state"] == "aborted"
        assert run(client, action="cancel", topic="other", allow_partial=True)["matched"] == 0


def test_a_job_continues_after_a_restart_of_the_console(server: Server, tmp_path: Path) -> None:
    settings = ("http.rate=0", f"http.jobs_folder={tmp_path / 'jobs'}")
    with running_console(server.namesrv, *settings) as (_, client):
        timers = schedule(client, "slow", 60)
        job = client.post(JOBS, {"action": "cancel", "topic": "slow", "per_second": 12}).json["id"]
        wait_until(lambda: client.get(f"{JOBS}/{job}").json["done"] >= 6, 30.0, "the first rows")
        with running_console(server.namesrv, *settings) as (_, second):
            assert second.get(JOBS).json["detail"] == "another console uses http.jobs_folder"
        assert client.request("DELETE", f"{JOBS}/{job}").status == 409
        done = client.get(f"{JOBS}/{job}").json["done"]
        assert done < 60
    with running_console(server.namesrv, *settings) as (_, client):
        ended = finished(client, job)
        assert ended["done"] == ended["matched"] == ended["outcomes"]["cancelled"] == 60
        assert {client.get(f"/api/v1/timers/{one['id']}").json["state"] for one in timers} == {"cancelled"}
        assert client.get(JOBS).json["is_durable"] is True
        assert not (tmp_path / "jobs" / job / "plan").exists()
        assert client.request("DELETE", f"{JOBS}/{job}").status == 204
        assert client.get(f"{JOBS}/{job}").status == 404
    assert list((tmp_path / "jobs").iterdir()) == [tmp_path / "jobs" / "lock"]


def test_what_was_not_possible_is_listed_and_a_job_can_be_aborted(server: Server) -> None:
    with running_console(server.namesrv, "http.rate=0") as (process, client):
        timers = schedule(client, "mixed", 40)
        reply = client.post(JOBS, {"action": "move", "topic": "mixed", "by": "1h", "per_second": 8})
        job = reply.json["id"]
        # The plan has all 40, of which the last ones are delivered before their turn.
        wait_until(lambda: client.get(f"{JOBS}/{job}").json["done"] >= 2, 30.0, "the first rows")
        for timer in timers[-3:]:
            assert client.request("DELETE", f"/api/v1/timers/{timer['id']}").status == 200
        ended = finished(client, job)
        assert (ended["done"], ended["impossible"]) == (40, 3)
        first = client.get(f"{JOBS}/{job}/impossible?limit=2").json
        rest = client.get(f"{JOBS}/{job}/impossible?limit=2&cursor={first['next']}").json
        assert {one["id"] for one in first["impossible"] + rest["impossible"]} == {one["id"] for one in timers[-3:]}
        assert rest["next"] == ""
        for cursor in ("7", "999999999999"):
            assert client.get(f"{JOBS}/{job}/impossible?cursor={cursor}").json == {"impossible": [], "next": ""}
        job = client.post(JOBS, {"action": "cancel", "topic": "mixed", "per_second": 1}).json["id"]
        wait_until(lambda: client.get(f"{JOBS}/{job}").json["done"] >= 1, 30.0, "the first row")
        aborted = client.post(f"{JOBS}/{job}/abort", {}).json
        assert aborted["state"] == "aborted"
        assert len(pending(client, "mixed")) == 37 - aborted["outcomes"]["cancelled"]
        assert client.post(f"{JOBS}/{job}/abort", {}).status == 409
        assert process.statistics()["jobs"] == 2


def test_a_request_that_is_not_clear_is_refused(server: Server) -> None:
    with running_console(server.namesrv, "http.rate=0", "http.max_jobs=2", "http.max_job=10") as (_, client):
        for fields in (
            {"action": "cancel"}, {"action": "cancel", "key": "k"}, {"action": "cancel", "topic": "t", "group": "g"},
            {"action": "cancel", "topic": "t", "delay": "1h"}, {"action": "move", "topic": "t"},
            {"action": "move", "topic": "t", "by": "1h", "delay": "1h"}, {"action": "move", "topic": "t", "by": "--1h"},
            {"action": "resend", "all": True}, {"action": "resend", "group": "g"},
            {"action": "resend", "group": "g", "all": True, "by": "1h"}, {"action": "destroy", "topic": "t"},
            {"action": "cancel", "topic": "t", "from": "20", "to": "10"},
            {"action": "cancel", "topic": "t", "per_second": 0},
            {"action": "move", "topic": "t", "by": "9" * 40 + "d"}, {"action": "cancel", "topic": "t", "to_topic": "u"},
        ):  # fmt: skip
            reply = client.post(JOBS, fields)
            assert (reply.status, reply.headers["content-type"]) == (422, "application/problem+json"), fields
        schedule(client, "many", 11)
        failed = run(client, action="cancel", topic="many")
        assert (failed["state"], failed["problem"]["status"]) == ("failed", 422)
        assert "http.max_job" in failed["problem"]["detail"]
        assert len(pending(client, "many")) == 11
        body = {"action": "cancel", "topic": "many", "key": "k1"}
        first = client.post(JOBS, body, **{"Idempotency-Key": "once"})
        again = client.post(JOBS, body, **{"Idempotency-Key": "once"})
        assert (again.json["id"], again.headers["idempotency-replayed"]) == (first.json["id"], "true")
        assert client.post(JOBS, {**body, "key": "k2"}, **{"Idempotency-Key": "once"}).status == 422
        assert finished(client, first.json["id"])["outcomes"] == {"cancelled": 1}
        slow = [
            client.post(JOBS, {"action": "move", "topic": "many", "key": f"k{n}", "by": "1h", "per_second": 1})
            for n in (2, 3)
        ]
        assert [one.status for one in slow] == [202, 202]  # the finished jobs made room
        assert {one["id"] for one in client.get(JOBS).json["jobs"]} == {one.json["id"] for one in slow}


def test_dead_letters_that_match_are_sent_again_once_later_and_at_a_rate(server: Server, tmp_path: Path) -> None:
    settings = ("http.rate=0", f"http.jobs_folder={tmp_path / 'jobs'}")
    with blocking.Admin(server.namesrv) as admin, blocking.Producer(server.namesrv) as producer:
        admin.create_topic("%DLQ%broken", 1)
        admin.create_topic("work", 1)
        for number in range(12):
            properties = {"RETRY_TOPIC": "nowhere" if number == 11 else "work", "region": "eu"}
            body, tag, keys = b"dead %d" % number, f"t{number % 2}", [f"d{number}"]
            producer.send(OutgoingMessage("%DLQ%broken", body, tag, keys, properties))
        with running_console(server.namesrv, *settings) as (_, client):
            odd = {"action": "resend", "group": "broken", "tag": "t1"}
            preview = client.post(JOBS, {**odd, "dry_run": True}).json
            assert (preview["matched"], preview["dead_letters"][0]["original_topic"]) == (6, "work")
            began_s = time.monotonic()
            ended = run(client, **odd, per_second=4)
            assert time.monotonic() - began_s >= 1.0  # six at four per second
            assert (ended["outcomes"], ended["impossible"]) == ({"sent": 5, "refused": 1}, 1)
            [refused] = client.get(f"{JOBS}/{ended['id']}/impossible").json["impossible"]
            assert refused["topic"] == "nowhere"
            [sent] = wait_until(lambda: admin.query_by_key("work", "d3"), 10.0, "the message that was sent again")
            assert (sent.body, sent.properties["region"], sent.properties["TAGS"]) == (b"dead 3", "eu", "t1")
            before_ms = time.time_ns() // 1_000_000
            later = run(client, action="resend", group="broken", key="d2", delay="1h")
            assert later["outcomes"] == {"sent": 1}
            [timer] = client.get("/api/v1/timers?topic=work&key=d2").json["timers"]
            assert timer["due_ms"] >= before_ms + HOUR_MS
            other = run(client, action="resend", group="broken", key="d4", to_topic="work")
            assert other["outcomes"] == {"sent": 1}
        # A console that died before it noted what it had sent sends nothing twice.
        state = tmp_path / "jobs" / ended["id"] / "job.json"
        kept = json.loads(state.read_bytes())
        kept.update(is_planned=False, plan_bytes=0, impossible_bytes=0)
        kept["job"].update(state="running", done=0, impossible=0, outcomes={})
        state.write_text(json.dumps(kept))
        with running_console(server.namesrv, *settings) as (_, client):
            repeated = finished(client, ended["id"])
            assert repeated["outcomes"] == {"sent": 5, "refused": 1}
            assert len(client.get(f"{JOBS}/{ended['id']}/impossible").json["impossible"]) == 1
            assert len(admin.query_by_key("work", "d3")) == 1
