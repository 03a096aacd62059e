"""The rules of alerts: which figures are bad, which only keep an alert, and which no LaterMQ broker would report."""

import asyncio
import json
import re
from pathlib import Path

import msgspec
import pytest

from latermq.client import Density
from latermq.clock import SimulatedClock
from latermq.config import AlertsConfig, load_config
from latermq.errors import ConfigError, LaterMQError, ServiceUnavailable
from latermq.http.alerts.monitor import AlertMonitor
from latermq.http.alerts.recent_lateness import RecentLateness
from latermq.http.alerts.rules import RULES, examine_broker, examine_density
from latermq.http.alerts.signals import Lateness, read_signals
from latermq.http.alerts.webhooks import AlertMessage
from latermq.model.pipeline_state import PipelineState

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "operations.md").read_text(encoding="utf-8")
CONFIG = AlertsConfig()
GOOD = {
    "latermqOverdueTimers": "0",
    "latermqOverdueMs": "0",
    "latermqClockHeld": "false",
    "latermqKeptBack": "0",
    "commitLogDiskRatio": "0.4",
    "latermqTimerLateness": "[[10, 100, 1000], [0, 0, 0, 0]]",
    "latermqStalledGroups": "[]",
    "latermqNewDeadLetters": "[]",
}
PIPELINE = PipelineState("store", "a", 1, 0, 0, 0, 1_000_000, 0, 0)


def found(p99_ms: float | None = None, /, **info: str) -> dict[str, bool]:
    """The rules that a broker with these figures breaks, or of which it keeps an alert (False)."""
    signals = read_signals(GOOD | info)
    assert signals is not None
    return {finding.rule: finding.is_bad for finding in examine_broker(CONFIG, "a", signals, p99_ms)}


def test_a_healthy_broker_breaks_no_rule() -> None:
    assert found() == found(5.0) == {}


@pytest.mark.parametrize(
    ("rule", "info"),
    [
        ("timers_stuck", {"latermqOverdueMs": "31000", "latermqOverdueTimers": "5"}),
        ("delivery_held", {"latermqClockHeld": "true"}),
        ("delivery_held", {"latermqKeptBack": "7"}),
        ("group_stuck", {"latermqStalledGroups": '[["readers", "orders", 100, 300000]]'}),
        ("dead_letters", {"latermqNewDeadLetters": '[["%DLQ%readers", 3, 599000]]'}),
        ("disk", {"commitLogDiskRatio": "0.81"}),
    ],
)
def test_each_figure_above_its_threshold_is_found(rule: str, info: dict[str, str]) -> None:
    assert found(None, **info) == {rule: True}


def test_a_figure_just_below_its_threshold_keeps_an_alert_and_raises_none() -> None:
    assert found(900.0) == {"late": False}
    assert found(1_001.0) == {"late": True}
    assert found(latermqOverdueMs="29000") == {"timers_stuck": False}
    assert found(commitLogDiskRatio="0.79") == {"disk": False}


def test_a_short_or_a_small_stall_and_old_dead_letters_are_none() -> None:
    assert found(latermqStalledGroups='[["r", "t", 99, 900000], ["r", "t", 500, 299000]]') == {}
    assert found(latermqNewDeadLetters='[["%DLQ%readers", 3, 601000]]') == {}


@pytest.mark.parametrize(
    "info",
    [
        {},
        {"latermqTimerLateness": "[[10, 100], [0, 0]]"},
        {"latermqTimerLateness": "[[], [0]]"},
        {"latermqOverdueMs": "many"},
        {"latermqStalledGroups": '[["readers", 1]]'},
        {"latermqStalledGroups": "{"},
        {"commitLogDiskRatio": ""},
    ],
)
def test_what_is_not_such_a_figure_is_ignored(info: dict[str, str]) -> None:
    assert read_signals((GOOD | info) if info else {"brokerVersionDesc": "V5_3_0"}) is None


def test_names_of_strangers_are_made_visible_and_cut() -> None:
    stall = [["evil\n\u202egroup" + "x" * 5_000, "t", 500, 400_000]]
    signals = read_signals(GOOD | {"latermqStalledGroups": json.dumps(stall)})
    assert signals is not None
    [one] = examine_broker(CONFIG, "a", signals, None)
    assert "\n" not in one.text
    assert "\u202e" not in one.text
    assert len(one.text) < 1_000


def test_the_percentile_is_that_of_the_recent_span_and_starts_again_with_the_broker() -> None:
    recent = RecentLateness(60.0)
    bounds = [10.0, 100.0, 1000.0]
    assert recent.p99_ms(Lateness(bounds, [0, 0, 0, 500]), 0.0) is None  # 500 late ones before the first look
    assert recent.p99_ms(Lateness(bounds, [100, 100, 100, 600]), 10.0) == pytest.approx(9.9)
    late = recent.p99_ms(Lateness(bounds, [100, 100, 200, 700]), 20.0)
    assert late is not None
    assert 900 < late <= 1000
    assert recent.p99_ms(Lateness(bounds, [100, 100, 200, 800]), 30.0) == 1000.0  # beyond the last bound
    assert recent.p99_ms(Lateness(bounds, [100, 100, 200, 800]), 100.0) is None
    assert recent.p99_ms(Lateness(bounds, [5, 5, 5, 5]), 110.0) is None
    assert recent.p99_ms(Lateness(bounds, [15, 15, 15, 15]), 120.0) == pytest.approx(9.9)


def test_heavy_seconds_of_a_minute_are_one_finding_within_the_time_ahead() -> None:
    seconds = [0] * 3_600
    seconds[30], seconds[31], seconds[600], seconds[1_000], seconds[3_000] = 100_001, 200_000, 100_000, 90_000, 150_000
    config = AlertsConfig(
        heavy_ahead=load_config(settings=["alerts.heavy_ahead=45m"], environment={}).alerts.heavy_ahead
    )
    findings = list(examine_density(config, Density(start_ms=1_800_000_000_000, seconds=seconds, minutes=[], hours=[])))
    assert [(one.value, one.is_bad) for one in findings] == [(200_000, True), (100_000, False), (90_000, False)]
    assert len({one.id for one in findings}) == 3


class Cluster:
    """A monitor whose cluster is made up."""

    def __init__(self, *settings: str) -> None:
        self.clock = SimulatedClock()
        config = load_config(settings=[*settings], environment={}).alerts
        self.monitor = AlertMonitor(config, self.clock, self._pipeline, lambda: "here")
        self.pipeline = PIPELINE

    async def _pipeline(self, address: str) -> PipelineState:
        return self.pipeline

    def rounds(self, seconds: int, **infos: dict[str, str] | LaterMQError) -> None:
        for _ in range(seconds // 10 + 1):
            self.monitor.observe(dict.fromkeys(infos, "127.0.0.1:1"), infos, None)
            self.clock.advance(10_000)

    @property
    def firing(self) -> list[tuple[str, str]]:
        return [(one.rule, one.subject.get("broker", "")) for one in self.monitor.engine.firing()]


def test_a_broker_that_was_there_and_is_not_is_missed_until_it_is_back_or_forgotten() -> None:
    async def scenario() -> None:
        cluster = Cluster("alerts.forget_broker=1h")
        cluster.rounds(10, a=GOOD, b=GOOD)
        cluster.rounds(20, a=GOOD)
        assert cluster.firing == []
        cluster.rounds(20, a=GOOD)
        assert cluster.firing == [("broker_offline", "b")]
        cluster.rounds(70, a=GOOD, b=GOOD)
        assert cluster.firing == []
        cluster.rounds(3_000, a=GOOD, b=ServiceUnavailable("it hangs"))
        assert cluster.firing == [("broker_offline", "b")]
        cluster.rounds(900, a=GOOD)
        assert cluster.firing == []
        cluster.rounds(900, a=GOOD)
        assert cluster.firing == []

    asyncio.run(scenario())


def test_a_window_past_its_deadline_is_found_by_the_broker_s_own_clock() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        cluster.pipeline = PipelineState("store", "a", 1, 0, 0, 0, 1_000_000, 0, 0, deadline_ms=1_000_000 - 60_001)
        cluster.rounds(0, a=GOOD)
        await asyncio.sleep(0)  # the broker is asked in a task
        await asyncio.sleep(0)
        cluster.rounds(0, a=GOOD)
        assert cluster.firing == [("window_overdue", "a")]

    asyncio.run(scenario())


def test_no_name_server_is_an_alert_and_changes_no_other() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        cluster.rounds(0, a=GOOD | {"latermqOverdueMs": "60000"})
        for _ in range(60):
            cluster.monitor.observe_failure(ServiceUnavailable("no name server answers"))
            cluster.clock.advance(10_000)
        assert cluster.firing == [("timers_stuck", "a"), ("cluster_unreachable", "")]
        cluster.rounds(70, a=GOOD)
        assert cluster.firing == []
        assert set(cluster.monitor.firing_by_rule()) == set(RULES)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "setting",
    [
        "alerts.webhook=ftp://host/secret-path",
        "alerts.webhook=http:///secret-path",
        "alerts.webhook=https://user:secret-path@host/",
        "alerts.webhook=https://host/secret-path with space",
        "alerts.webhook=https://host:0/secret-path",
        "alerts.webhook=https://host:99999/secret-path",
        "alerts.webhook=https://host/#secret-path",
        "alerts.webhook=https://ok/;http://[::1/secret-path",
        "alerts.webhook=" + ";".join(["http://h/secret-path"] * 11),
        "alerts.webhook_secret=secret-path",
        "alerts.disk=0",
        "alerts.heavy_ahead=2h",
        "alerts.every=10ms",
        "alerts.max_unsent=0",
    ],
)
def test_a_wrong_setting_is_refused_without_showing_a_secret(setting: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(settings=[setting], environment={})
    assert setting.partition("=")[0] in refused.value.message
    assert "secret-path" not in f"{refused.value.message} {refused.value.hint}"


def test_the_page_lists_every_rule_and_shows_a_message_as_it_is_sent() -> None:
    section = PAGE.partition("\n## Alerts\n")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `(\w+)` \| .* \| (`alerts\.\w+`(?:, `alerts\.\w+`)*) \|$", section, re.MULTILINE)
    assert {rule for rule, _ in listed} == set(RULES)
    settings = {name for _, names in listed for name in re.findall(r"`alerts\.(\w+)`", names)}
    assert settings <= set(AlertsConfig.__struct_fields__)
    [shown] = re.findall(r"```json\n(.+)\n```", section)
    message = msgspec.json.decode(shown, type=AlertMessage)
    assert json.loads(msgspec.json.encode(message)) == json.loads(shown)
