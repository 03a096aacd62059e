"""What is coming, near and far, and how late deliveries were, against a real broker and a real timeline."""

import itertools
import time
from pathlib import Path
from typing import Any

import structlog

from tests.interop.waiting import wait_until
from tests.support.http_console import running_console
from tests.support.pipeline.plain_ingest import FAR, begin, ingest
from tests.support.serving import serving

DAY_MS, HOUR_MS, MINUTE_MS = 86_400_000, 3_600_000, 60_000


def test_the_forecast_has_near_and_far_timers_and_the_heaviest_seconds(tmp_path: Path) -> None:
    timeline = tmp_path / "pipeline"
    options = (*FAR, "--set", f"pipeline.timeline={timeline}")
    with serving(tmp_path / "data", *options) as server, running_console(server.namesrv, "http.rate=0") as (_, client):
        begin(server, timeline)
        now_ms = client.get("/api/v1/forecast").json["now_ms"]
        heavy_near_ms = now_ms // 1000 * 1000 + 20 * MINUTE_MS
        heavy_far_ms = now_ms // 1000 * 1000 + 20 * DAY_MS
        dues = [heavy_near_ms] * 5 + [heavy_far_ms + number for number in range(9)]
        dues += [now_ms + 2 * HOUR_MS, now_ms + 400 * DAY_MS, now_ms + 5 * MINUTE_MS]
        timers = [client.post("/api/v1/timers", {"topic": "t", "body": "b", "due_ms": due}).json for due in dues]
        assert client.get("/api/v1/forecast?per=day").json["far"] == 0  # nothing is ingested yet
        assert ingest(server, timeline / "timeline") == 11
        far = [timer for timer in timers if timer["due_ms"] > now_ms + HOUR_MS]

        ends = itertools.count(now_ms // DAY_MS + 500)  # counts of far timers are kept for a minute, by their span

        def counted() -> dict[str, Any]:
            reply = client.get(f"/api/v1/forecast?per=day&from={now_ms}&to={next(ends) * DAY_MS}")
            assert reply.status == 200, reply.body
            found: dict[str, Any] = reply.json
            return found

        report = wait_until(lambda: one if (one := counted())["near"] == 6 else None, 20.0, "near timers")
        assert (report["near"], report["far"], report["pending"], report["far_missing"]) == (6, len(far), 17, "")
        by_span = {span["at_ms"]: (span["near"], span["far"]) for span in report["spans"]}
        assert by_span == {now_ms: (6, 1), now_ms + 20 * DAY_MS: (0, 9), now_ms + 400 * DAY_MS: (0, 1)} or by_span == {
            now_ms: (6, 1), now_ms + 19 * DAY_MS: (0, 9), now_ms + 400 * DAY_MS: (0, 1)
        }  # fmt: skip
        busiest = {one["at_ms"]: (one["near"], one["far"]) for one in report["busiest"][:2]}
        assert busiest == {heavy_far_ms: (0, 9), heavy_near_ms: (5, 0)}
        assert client.request("DELETE", f"/api/v1/timers/{far[0]['id']}").status == 200
        hours = client.get(f"/api/v1/forecast?to={now_ms + 30 * DAY_MS}").json
        assert sum(span["near"] for span in hours["spans"]) == 6
        assert [span["far"] for span in hours["spans"] if span["far"]] == [1, 9]
        assert hours["spans"][0]["at_ms"] % HOUR_MS == 0
        for query, status in (
            ("from=5&to=4", 422), ("to=9999-01-01T00:00:00Z", 422), ("per=week", 422), ("busiest=101", 422),
            ("from=x", 422), ("per=minute&to=2101-01-01T00:00:00Z", 422), ("busiest=0", 200),
        ):  # fmt: skip
            assert client.get(f"/api/v1/forecast?{query}").status == status, query
        with structlog.testing.capture_logs():
            for commit in (timeline / "timeline" / "_delta_log").iterdir():
                commit.write_bytes(b"{")
            broken = counted()
        assert broken["near"] == 6
        assert str(broken["far_missing"]).startswith("the timeline cannot be read")


def test_deliveries_of_the_last_minutes_are_in_the_lateness(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server, running_console(server.namesrv) as (_, client):
        empty = client.get("/api/v1/lateness").json
        assert (empty["hour"]["deliveries"], empty["minutes"], empty["silent"]) == (0, [], [])
        began_ms = time.time() * 1000
        for _ in range(20):
            assert client.post("/api/v1/timers", {"topic": "t", "body": "b", "delay": "1s"}).status == 201
        report = wait_until(
            lambda: one if (one := client.get("/api/v1/lateness").json)["hour"]["deliveries"] == 20 else None,
            30.0,
            "all deliveries",
        )
        assert 0 <= report["hour"]["p50_ms"] <= report["hour"]["p99_ms"] <= report["hour"]["max_ms"] < 10_000
        assert sum(minute["deliveries"] for minute in report["minutes"]) == 20
        assert report["minutes"][0]["start_ms"] >= began_ms - 61_000
