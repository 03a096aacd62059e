"""Far timers over HTTP: on the timeline, whose ingest the test does without Spark, and in one list with near ones."""

import base64
import json
import re
from pathlib import Path
from typing import Any

import structlog

from tests.support.http_console import HttpClient, running_console
from tests.support.pipeline.plain_ingest import FAR, begin, ingest
from tests.support.serving import serving


def listed(client: HttpClient, query: str, limit: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor = ""
    while True:
        reply = client.get(f"/api/v1/timers?{query}&limit={limit}&cursor={cursor}")
        assert reply.status == 200, reply.body
        assert len(reply.json["timers"]) <= limit
        found += reply.json["timers"]
        cursor = reply.json["next"]
        if not cursor:
            return found


def test_far_and_near_timers_are_one_list_in_the_order_of_due_times(tmp_path: Path) -> None:
    timeline = tmp_path / "pipeline"
    options = (*FAR, "--set", f"pipeline.timeline={timeline}")
    with serving(tmp_path / "data", *options) as server, running_console(server.namesrv, "http.rate=0") as (_, client):
        begin(server, timeline)
        delays = [f"{5 + number}m" for number in range(5)] + [f"{number * 37 % 41 + 2}h" for number in range(41)]
        timers = []
        for number, delay in enumerate(delays):
            topic = "first" if number % 2 else "second"
            fields = {"topic": topic, "body": f"body {number}", "delay": delay, "key": f"k{number}", "tag": "t"}
            timers.append(client.post("/api/v1/timers", fields).json)
        assert len(listed(client, "topic=first", 50)) < len(timers) // 2  # nothing is ingested yet
        assert ingest(server, timeline / "timeline") == 41
        expected = [timer["id"] for timer in sorted(timers, key=lambda timer: timer["due_ms"])]
        for limit in (4, 50):
            assert [timer["id"] for timer in listed(client, "", limit)] == expected
        by_topic = listed(client, "topic=first", 7)
        assert [timer["id"] for timer in by_topic] == [
            one for one in expected if one in {timer["id"] for timer in timers if timer["topic"] == "first"}
        ]
        far = by_topic[-1]
        assert (far["is_far"], far["tag"], far["broker"]) == (True, "t", "broker-a")
        assert far["body_start"].startswith("body ")
        span = listed(client, f"from={far['due_ms']}&to={far['due_ms'] + 1}", 50)
        assert [timer["id"] for timer in span] == [far["id"]]
        # The timeline does not have these changes yet, but the broker has.
        assert client.request("DELETE", f"/api/v1/timers/{far['id']}").json["state"] == "cancelled"
        assert [timer["id"] for timer in listed(client, "", 10)] == [one for one in expected if one != far["id"]]


def test_a_list_without_the_far_timers_says_so(tmp_path: Path) -> None:
    timeline = tmp_path / "pipeline"
    options = (*FAR, "--set", f"pipeline.timeline={timeline}")
    with serving(tmp_path / "data", *options) as server, running_console(server.namesrv) as (_, client):
        assert client.get("/api/v1/timers").json["far_missing"] == ""
        begin(server, timeline)
        near, *far = (
            client.post("/api/v1/timers", {"topic": "t", "body": "b", "delay": f"{d}h"}).json for d in (0.1, 2, 3)
        )
        assert ingest(server, timeline / "timeline") == 2
        with running_console(server.namesrv, f"pipeline.timeline={tmp_path / 'elsewhere'}") as (_, other):
            page = other.get("/api/v1/timers?topic=t").json
            assert [timer["id"] for timer in page["timers"]] == [near["id"]]
            assert "is not on the machine of the console. Set pipeline.timeline" in page["far_missing"]
        page = client.get("/api/v1/timers?limit=2").json
        assert [timer["id"] for timer in page["timers"]] == [near["id"], far[0]["id"]]
        assert (bool(page["next"]), page["far_missing"]) == (True, "")
        following = f"/api/v1/timers?limit=2&cursor={page['next']}"
        assert [timer["id"] for timer in client.get(following).json["timers"]] == [far[1]["id"]]
        mark, positions, place = json.loads(base64.urlsafe_b64decode(page["next"] + "=="))
        assert (positions, place[0]) == ({}, far[0]["due_ms"])
        forged: list[tuple[list[object], int]] = [
            ([0, "' OR 1=1 --", 0], 2), ([-1 << 70, "", 0], 2), ([0, "\x00", -1 << 70], 2), ([0, "", 1 << 70], 2),
            ([1 << 200, "", 0], 0),
        ]  # fmt: skip
        for place, count in forged:
            cursor = base64.urlsafe_b64encode(json.dumps([mark, {}, place]).encode()).decode().rstrip("=")
            assert len(client.get(f"/api/v1/timers?cursor={cursor}").json["timers"]) == count
        for commit in (timeline / "timeline" / "_delta_log").iterdir():
            commit.write_bytes(b"{")
        with structlog.testing.capture_logs() as logs:
            page = client.get("/api/v1/timers").json
            reply = client.get(following)
        assert [timer["id"] for timer in page["timers"]] == [near["id"]]
        assert page["far_missing"].startswith("the timeline cannot be read.")
        assert (reply.status, reply.json["detail"]) == (503, "the timeline cannot be read")
        assert str(timeline) not in f"{page} {reply.json}"
        assert [line["event"] for line in logs].count("the timeline cannot be read") == 2


def test_windows_and_runs_of_the_pipeline_are_shown(tmp_path: Path) -> None:
    timeline = tmp_path / "pipeline"
    options = (*FAR, "--set", f"pipeline.timeline={timeline}")
    with serving(tmp_path / "data", *options) as server, running_console(server.namesrv) as (_, client):
        assert client.get("/api/v1/pipeline/runs").json == {"runs": [], "missing": ""}
        begin(server, timeline)
        for hours in (2, 3, 30):
            assert client.post("/api/v1/timers", {"topic": "t", "body": "b", "delay": f"{hours}h"}).status == 201
        assert ingest(server, timeline / "timeline") == 3
        latest, *_ = client.get("/api/v1/pipeline/runs").json["runs"]
        assert (latest["run"], latest["rows"]) == ("ingest", 3)
        assert len(client.get("/api/v1/pipeline/runs?limit=1").json["runs"]) == 1
        assert client.get("/api/v1/pipeline/runs?limit=0").status == 422
        [report] = client.get("/api/v1/pipeline").json["brokers"]
        assert report["epoch"] == 1
        page = client.get("/pipeline?zone=UTC", Accept="text/html").body.decode()
        assert "The days ahead" in page
        assert re.search(r'data-label="On Spark" class="number">[123]<', page), "the far timers by day"
        assert "Ingest <span" in page
        with running_console(server.namesrv, f"pipeline.timeline={tmp_path / 'elsewhere'}") as (_, other):
            assert "is not on the machine of the console" in other.get("/api/v1/pipeline/runs").json["missing"]
            assert "is not on the machine of the console" in other.get("/pipeline").body.decode()
