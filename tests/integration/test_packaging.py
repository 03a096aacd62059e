"""The files for Prometheus and Grafana: every expression is about metrics that exist, and the rules fire."""

import json
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from latermq.client import Message, OutgoingMessage, blocking
from latermq.pipeline.driver import driver_metrics
from tests.interop.ports import HOST, free_port
from tests.interop.waiting import wait_until
from tests.support.metrics_scrape import ScrapedMetrics, scrape
from tests.support.needs import need_tool
from tests.support.serving import Server, serving

PACKAGING = Path(__file__).parents[2] / "packaging"
RULES = PACKAGING / "prometheus" / "rules.yml"
CONFIG = PACKAGING / "prometheus" / "prometheus.yml"
DASHBOARD: dict[str, Any] = json.loads((PACKAGING / "grafana" / "latermq.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
ALERTS = {rule["alert"]: rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]}
EXPRESSIONS = {f"rule {name}": str(rule["expr"]) for name, rule in ALERTS.items()} | {
    f"panel {panel['title']} {target['refId']}": target["expr"] for panel in PANELS for target in panel["targets"]
}
VARIABLES = {"$__rate_interval": "1m", "$node": ".*", "$job": "latermq"}
_METRIC = re.compile(r"\b((?:latermq|rocketmq|process)_\w+)(?:\{([^}]*)\})?")
_GROUPED = re.compile(r"\bby \(([^)]*)\)")
NO_LABELS_OF_OURS = {"le", "job", "instance", "part"}  # of histograms and of Prometheus

# For each rule the series that make it fire, and the minute at which it must.
BAD = {
    "LaterMQDown": ('up{job="latermq",part="broker"}', "0x20", 2),
    "LaterMQEarlyDelivery": ("latermq_early_deliveries_total", "1x20", 1),
    "LaterMQTimersLate": (None, "", 5),
    "LaterMQTimersStuck": ("rocketmq_timer_dequeue_latency", "31000x20", 1),
    "LaterMQDeliveryHeld": ("latermq_clock_held", "1x20", 2),
    "LaterMQGroupsStalled": ("latermq_stalled_groups", "2x20", 6),
    "LaterMQDeadLetters": ("rocketmq_send_to_dlq_messages_total", "0 1 2 2x20", 3),
    "LaterMQHeavySecondAhead": ("latermq_busiest_second", "100001x20", 1),
    "LaterMQIngestLags": ("latermq_ingest_lag_milliseconds", "700000x20", 6),
    "LaterMQDriverStalled": ('latermq_driver_stalled{broker="a"}', "1x20", 6),
    "LaterMQDiskNearlyFull": ("latermq_disk_used_ratio", "0.81x20", 2),
    "LaterMQLimitNearlyReached": (None, "", 6),
    "LaterMQWebhookFails": ('latermq_alert_messages_total{result="failed"}', "0 1 2 2x20", 3),
}
OTHERS = {
    "LaterMQTimersLate": [
        ('latermq_timer_lateness_milliseconds_bucket{kind="timer",node_id="a",le="1000"}', "0x20"),
        ('latermq_timer_lateness_milliseconds_bucket{kind="timer",node_id="a",le="5000"}', "0+60x20"),
        ('latermq_timer_lateness_milliseconds_bucket{kind="timer",node_id="a",le="+Inf"}', "0+60x20"),
    ],
    "LaterMQLimitNearlyReached": [
        ('latermq_limit_used{setting="http.max_streams"}', "90x20"),
        ('latermq_limit{setting="http.max_streams"}', "100x20"),
        ('latermq_limit_used{setting="proxy.max_connections_per_address"}', "5x20"),
        ('latermq_limit{setting="proxy.max_connections_per_address"}', "0x20"),  # no limit
    ],
}


@pytest.fixture(scope="module")
def ports() -> dict[str, int]:
    return {process: free_port() for process in ("metrics.port", "metrics.namesrv_port", "metrics.proxy_port")}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, ports: dict[str, int]) -> Iterator[Server]:
    options = [word for setting, port in ports.items() for word in ("--set", f"{setting}={port}")]
    with serving(tmp_path_factory.mktemp("data") / "data", *options, grpc=True, http=True) as running:
        yield running


@pytest.fixture(scope="module")
def exported(server: Server, ports: dict[str, int]) -> dict[str, set[str]]:
    """The labels of each metric that the processes export; of the driver, which takes long to start, by its code."""
    found: dict[str, set[str]] = {family.name: {family.label} for family in driver_metrics.FAMILIES}
    figures = [scrape(port) for port in (*ports.values(), int(server.http.rpartition(":")[2]))]
    for one in figures:
        found |= {name: found.get(name, set()) for name in one.kinds}
        for sample in one.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    assert isinstance(figures[0], ScrapedMetrics)
    return found


def prometheus_tool(name: str) -> str:
    return need_tool(name, "the files for Prometheus are checked by Prometheus itself")


def checked(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def plain(expression: str) -> str:
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    return expression


@pytest.mark.parametrize("where", EXPRESSIONS)
def test_an_expression_is_about_metrics_and_labels_that_are_exported(where: str, exported: dict[str, set[str]]) -> None:
    expression = EXPRESSIONS[where]
    found = _METRIC.findall(expression)
    assert found or "up{" in expression
    labels: set[str] = set()
    for name, matchers in found:
        assert name in exported, name
        labels |= exported[name]
        if exported[name]:  # some metrics have no samples at a start
            used = set(re.findall(r"(\w+)\s*[=!]~?", matchers))
            assert used - NO_LABELS_OF_OURS <= exported[name], name
    if labels - {"cluster", "node_type", "node_id", "storage_type", "storage_medium"}:
        for group in _GROUPED.findall(expression):
            assert set(group.split(", ")) - NO_LABELS_OF_OURS <= labels


def test_prometheus_accepts_the_configuration_the_rules_and_every_expression(tmp_path: Path) -> None:
    promtool = prometheus_tool("promtool")
    checked(promtool, "check", "rules", str(RULES))
    checked(promtool, "check", "config", str(CONFIG))
    rules = [{"record": f"panel:{number}", "expr": plain(text)} for number, text in enumerate(EXPRESSIONS.values())]
    of_panels = tmp_path / "panels.yml"
    of_panels.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    checked(promtool, "check", "rules", str(of_panels))


def test_each_rule_fires_when_its_figure_is_bad_and_not_before(tmp_path: Path) -> None:
    promtool = prometheus_tool("promtool")
    assert BAD.keys() == ALERTS.keys()
    tests = []
    for name, (series, values, minute) in BAD.items():
        inputs = [(series, values)] if series else OTHERS[name]
        wanted = {"alertname": name, "eval_time": f"{minute}m"}
        healthy = {"alertname": name, "eval_time": "0m", "exp_alerts": []}
        is_immediate = "for" not in ALERTS[name] and "increase" not in str(ALERTS[name]["expr"])
        tests.append(
            {
                "interval": "1m",
                "input_series": [{"series": one, "values": numbers} for one, numbers in inputs],
                "alert_rule_test": [] if is_immediate else [healthy],
                "promql_expr_test": [
                    {
                        "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}})',
                        "eval_time": wanted["eval_time"],
                        "exp_samples": [{"labels": "{}", "value": 1}],
                    }
                ],
            }
        )
    file = tmp_path / "tests.yml"
    file.write_text(
        yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}, sort_keys=False)
    )
    assert "SUCCESS" in checked(promtool, "test", "rules", str(file))


def bury(server: Server) -> None:
    """Let a group fail on a message that it may not retry."""

    def fail(message: Message) -> None:
        raise RuntimeError("never")

    with (
        blocking.Producer(server.namesrv) as producer,
        blocking.PushConsumer(
            server.namesrv, "failing", fail, consume_from="first", max_reconsume_times=0, concurrency=1
        ) as consumer,
    ):
        producer.send(OutgoingMessage("packaged", b"body"))
        consumer.subscribe("packaged")
        wait_until(lambda: consumer.statistics()["sent_back"] == 1, 30, "it is sent back")


def ask(port: int, path: str) -> Any:
    with urllib.request.urlopen(f"http://{HOST}:{port}/api/v1/{path}", timeout=10) as response:
        return json.load(response)["data"]


def test_a_real_prometheus_scrapes_all_processes_and_raises_an_alert(
    server: Server, ports: dict[str, int], tmp_path: Path
) -> None:
    prometheus = prometheus_tool("prometheus")
    config = yaml.safe_load(CONFIG.read_text())
    config["global"] = {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"}
    config["rule_files"] = [str(RULES)]
    own = {"5557": "metrics.port", "5558": "metrics.namesrv_port", "5559": "metrics.proxy_port"}
    targets = []
    for entry in config["scrape_configs"][0]["static_configs"]:
        port = entry["targets"][0].rpartition(":")[2]
        if port == "5560":
            continue  # no driver runs here
        address = server.http if port == "8080" else f"{HOST}:{ports[own[port]]}"
        targets.append({**entry, "targets": [address]})
    assert len(targets) == 4
    config["scrape_configs"][0]["static_configs"] = targets
    file, port = tmp_path / "prometheus.yml", free_port()
    file.write_text(yaml.safe_dump(config))
    command = [prometheus, f"--config.file={file}", f"--storage.tsdb.path={tmp_path / 'data'}"]
    command += [f"--web.listen-address={HOST}:{port}", "--log.level=error"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_until(lambda: is_up(port, 4), 60, "all targets are up")
            bury(server)
            wait_until(lambda: "LaterMQDeadLetters" in firing(port), 60, "the alert")
            assert firing(port) <= {"LaterMQDeadLetters", "LaterMQDiskNearlyFull"}  # the latter depends on the machine
        finally:
            process.terminate()
            process.communicate(timeout=30)


def is_up(port: int, count: int) -> bool:
    try:
        targets = ask(port, "targets")["activeTargets"]
    except OSError:  # it has not started yet
        return False
    return len(targets) == count and all(target["health"] == "up" for target in targets)


def firing(port: int) -> set[str]:
    return {alert["labels"]["alertname"] for alert in ask(port, "alerts")["alerts"] if alert["state"] == "firing"}


def test_grafana_s_own_models_know_every_field_of_the_dashboard() -> None:
    register_default_plugins()
    known = json.loads(JSONEncoder().encode(Dashboard.from_json(DASHBOARD)))
    assert list(lost(DASHBOARD, known, "")) == []


def lost(ours: Any, known: Any, path: str) -> Iterator[str]:
    """Fields that the models do not have, or have with another value. They leave out empty ones."""
    if isinstance(ours, dict):
        for name, value in ours.items():
            if isinstance(known, dict) and name in known:
                yield from lost(value, known[name], f"{path}.{name}")
            elif value not in (None, False, "", [], {}):
                yield f"{path}.{name}"
    elif isinstance(ours, list):
        for number, value in enumerate(ours):
            yield from lost(value, known[number] if number < len(known) else None, f"{path}[{number}]")
    elif ours != known:
        yield f"{path}: {ours!r}, {known!r}"


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({panel["title"] for panel in panels}) == len(panels)
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        own = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not own & cells, panel["title"]
        cells |= own
