"""Alerts of a real console over a real broker: in the API, in the live state, in the metrics, and at a webhook."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.waiting import wait_until
from tests.support.http_console import HttpClient, running_console
from tests.support.metrics_scrape import scrape
from tests.support.serving import Server, serving
from tests.support.webhook_receiver import Receiver, answer, receiving

FAST = ("alerts.every=1s", "alerts.heavy_second=2", "alerts.resolve_after=1s", "alerts.offline=1s")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("data") / "data") as running:
        yield running


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as running:
        yield running


def schedule_heavy_second(client: HttpClient, topic: str, due_ms: int) -> list[str]:
    """Schedule three timers for one second, and return their ids."""
    timer = {"topic": topic, "body": "x", "due_ms": due_ms}
    replies = [client.post("/api/v1/timers", timer) for _ in range(3)]
    assert [reply.status for reply in replies] == [201] * 3
    return [reply.json["id"] for reply in replies]


def soon_ms(client: HttpClient) -> int:
    """Twenty minutes from now, by the broker."""
    return int(client.get("/api/v1/density").json["now_ms"]) + 1_200_000


def heavy(receiver: Receiver) -> list[str]:
    return [state for rule, state in (request.alert for request in receiver.requests) if rule == "heavy_second"]


def test_a_heavy_second_reaches_the_webhook_though_nobody_looks_and_ends_with_its_timers(
    server: Server, receiver: Receiver, tmp_path: Path
) -> None:
    settings = (*FAST, f"alerts.webhook={receiver.url}", f"alerts.state_file={tmp_path / 'alerts.json'}")
    with running_console(server.namesrv, *settings) as (process, client):
        ids = schedule_heavy_second(client, "heavy", soon_ms(client))
        wait_until(lambda: heavy(receiver) == ["firing"], 20, "the message")
        body = next(request.json for request in receiver.requests if request.alert[0] == "heavy_second")
        assert body["alert"]["value"] == 3
        assert body["console"] == process.address
        report = client.get("/api/v1/alerts").json
        assert report["is_watching"]
        [shown] = [alert for alert in report["firing"] if alert["rule"] == "heavy_second"]
        assert shown["id"] == body["alert"]["id"]
        assert shown in client.get("/api/v1/state").json["alerts"]
        figures = scrape(process.listener.port)
        assert figures.value("latermq_alerts_firing", rule="heavy_second") == 1
        wait_until(
            lambda: scrape(process.listener.port).value("latermq_alert_messages_total", result="delivered") >= 1,
            10,
            "the count",
        )
    # A console that starts again says nothing twice, and says what ended meanwhile.
    with running_console(server.namesrv, *settings) as (_, client):
        wait_until(lambda: client.get("/api/v1/alerts").json["firing"] != [], 10, "the kept alert")
        for timer_id in ids:
            assert client.request("DELETE", f"/api/v1/timers/{timer_id}").status == 200
        wait_until(lambda: heavy(receiver) == ["firing", "resolved"], 20, "the end")
        wait_until(lambda: client.get("/api/v1/alerts").json["resolved"] != [], 10, "the resolved alert")


def test_a_message_that_was_not_sent_before_a_restart_is_sent_after_it(
    server: Server, receiver: Receiver, tmp_path: Path
) -> None:
    state = tmp_path / "alerts.json"
    settings = (*FAST, f"alerts.webhook={receiver.url}", f"alerts.state_file={state}")
    receiver.script = [answer(503)] * 1_000
    with running_console(server.namesrv, *settings) as (_, client):
        ids = schedule_heavy_second(client, "unsent", soon_ms(client) + 300_000)
        wait_until(lambda: heavy(receiver) != [], 20, "a try")
    assert state.stat().st_mode & 0o777 == 0o600
    assert "secret-path" not in state.read_text()
    receiver.script.clear()
    receiver.requests.clear()
    with running_console(server.namesrv, *settings) as (_, client):
        wait_until(lambda: heavy(receiver) == ["firing"], 20, "the message")
        for timer_id in ids:
            client.request("DELETE", f"/api/v1/timers/{timer_id}")


def test_without_a_webhook_the_api_asks_the_brokers_itself(server: Server) -> None:
    with running_console(server.namesrv, *FAST) as (process, client):
        assert process.alerts.observed_ms == 0
        ids = schedule_heavy_second(client, "looked", soon_ms(client) + 600_000)
        report = client.get("/api/v1/alerts").json
        assert not report["is_watching"]
        assert {alert["rule"] for alert in report["firing"]} == {"heavy_second"}
        for timer_id in ids:
            client.request("DELETE", f"/api/v1/timers/{timer_id}")


def test_a_damaged_state_file_is_ignored(server: Server, tmp_path: Path) -> None:
    state = tmp_path / "alerts.json"
    for damaged in (b"{", b'{"firing": [{"id": 1}]}', b"\xff", json.dumps({"brokers": 1}).encode()):
        state.write_bytes(damaged)
        with running_console(server.namesrv, f"alerts.state_file={state}") as (_, client):
            assert client.get("/api/v1/alerts").status == 200


def test_a_broker_and_then_a_name_server_that_are_gone_are_alerts(tmp_path: Path, receiver: Receiver) -> None:
    with serving(tmp_path / "data") as own:
        settings = (*FAST, f"alerts.webhook={receiver.url}", "http.broker_timeout=500ms")
        with running_console(own.namesrv, *settings) as (_, client):
            wait_until(lambda: client.get("/api/v1/alerts").json["observed_ms"] > 0, 10, "a first round")
            own.kill()
            wait_until(
                lambda: ("cluster_unreachable", "firing") in [request.alert for request in receiver.requests],
                30,
                "the message",
            )
            report = client.get("/api/v1/alerts").json
            assert "cluster_unreachable" in [alert["rule"] for alert in report["firing"]]
