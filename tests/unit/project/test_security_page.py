"""docs/security.md names every bound that a setting puts, no setting that is not there, and a metric for each."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from latermq.broker.metrics.limits import BROKER_LIMITS
from latermq.config import Config
from latermq.http.metrics import LIMITS as CONSOLE_LIMITS
from latermq.server.namesrv.name_server_metrics import NAME_SERVER_LIMITS
from latermq.server.proxy.proxy_metrics import PROXY_LIMITS
from tests.interop.ports import free_port
from tests.support.metrics_scrape import ScrapedMetrics, scrape
from tests.support.serving import serving

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "security.md").read_text()
SETTINGS = {
    f"{section.name}.{key}" for section in msgspec.structs.fields(Config) for key in section.type.__struct_fields__
}
# Of time, not of what somebody holds; and what a message may be, which operations.md tells.
ELSEWHERE = {
    "timer.max_delay",
    "clock.max_step",
    "pop.max_hold",
    "broker.max_message",
    "broker.max_batch_messages",
    "broker.pull_max_messages",
}
NOTHING_HELD = {
    "a property read as a number",  # neither held nor refused: the message does not match
    "pop.max_reported_topics",  # nobody is refused: further topics are not shown
    "log.max_value",  # nobody is refused, and the line says that it was cut
}
MAY_BE_LOWERED = {"server.max_connections", "proxy.max_connections", "store.max_open_queues"}
NAMED = {name for name in re.findall(r"`(\w+\.\w+)`", PAGE) if name.split(".")[0] in Config.__struct_fields__}
_METRIC = re.compile(r'`(latermq_\w+)(?:\{(\w+)="(\w+)"\})?`')


class Row(NamedTuple):
    """A bound as the page has it."""

    section: str
    bound: str
    settings: list[str]
    metric: str

    def is_of(self, process: str) -> bool:
        """Whether a process has this bound; those on sockets are of both."""
        for section, of in (
            ("Name server", "namesrv"),
            ("gRPC proxy", "proxy"),
            ("HTTP API", "console"),
            ("Webhooks", "console"),
        ):
            if self.section == section:
                return process == of
        is_of_sockets = any(name.startswith("server.") for name in self.settings)
        return process == "broker" or (is_of_sockets and process == "namesrv")


def rows() -> Iterator[Row]:
    """Every row of every table that has defaults."""
    section = ""
    columns: list[str] = []
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if line.startswith("## "):
            section = line.removeprefix("## ")
        if not cells:
            columns = []
        elif not columns:
            columns = cells
        elif "default" in columns and not line.startswith("|--"):
            assert columns[-1] == "metric", line
            settings = re.findall(r"`(\w+\.\w+)`", "|".join(cells[: columns.index("default")]))
            yield Row(section, cells[0].strip("`"), settings, cells[-1])


ROWS = list(rows())


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, ScrapedMetrics]]:
    """What a real broker, name server, proxy and console tell when they have just started."""
    settings = {"broker": "metrics.port", "namesrv": "metrics.namesrv_port", "proxy": "metrics.proxy_port"}
    ports = {process: (setting, free_port()) for process, setting in settings.items()}
    options = [word for setting, port in ports.values() for word in ("--set", f"{setting}={port}")]
    with serving(tmp_path_factory.mktemp("data") / "data", *options, grpc=True, http=True) as server:
        told = {process: scrape(port) for process, (_, port) in ports.items()}
        yield told | {"console": scrape(int(server.http.rpartition(":")[2]))}


def test_the_page_names_every_bound() -> None:
    bounds = {setting for setting in SETTINGS if ".max_" in setting} - ELSEWHERE
    assert bounds - NAMED == set()
    in_tables = {setting for row in ROWS for setting in row.settings}
    assert bounds - in_tables - NOTHING_HELD == set()


def test_the_page_names_no_setting_that_is_not_there() -> None:
    unknown = NAMED - SETTINGS - {"pipeline.secret"}  # the last is a file's name
    assert unknown == set()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.bound)
def test_the_metric_of_a_bound_is_told_by_each_process_that_has_it(row: Row, told: dict[str, ScrapedMetrics]) -> None:
    metrics = _METRIC.findall(row.metric)
    assert metrics or row.bound in NOTHING_HELD
    for process in filter(row.is_of, told):
        figures = told[process]
        limits = figures.values("latermq_limit", "setting").keys() & figures.values("latermq_limit_used", "setting")
        for name, label, value in metrics:
            if name == "latermq_limit_used" and not label:
                assert set(row.settings) <= limits, process
            elif name == "latermq_limit_used":
                assert value in limits, process
            elif label:
                assert value in figures.values(name, label), process
            else:
                assert name in figures.kinds, process


def test_the_page_names_every_bound_that_a_process_tells(told: dict[str, ScrapedMetrics]) -> None:
    tables = {"broker": BROKER_LIMITS, "namesrv": NAME_SERVER_LIMITS, "proxy": PROXY_LIMITS}
    names = {process: {limit.name for limit in known} for process, known in tables.items()}
    for process, known in (names | {"console": set(CONSOLE_LIMITS)}).items():
        bounds = told[process].values("latermq_limit", "setting")
        assert bounds.keys() == known
        of_rows: set[str] = set()
        for row in filter(lambda row: "latermq_limit_used" in row.metric, ROWS):
            of_rows |= {*row.settings, *(value for _, label, value in _METRIC.findall(row.metric) if label)}
        assert bounds.keys() - of_rows == set()


def test_the_bounds_are_those_of_the_settings_and_not_reached_at_a_start(told: dict[str, ScrapedMetrics]) -> None:
    for figures in told.values():
        bounds, used = (figures.values(name, "setting") for name in ("latermq_limit", "latermq_limit_used"))
        assert bounds.keys() == used.keys()
        assert all(0 <= used[name] < bound for name, bound in bounds.items())
        for name in bounds.keys() & SETTINGS - MAY_BE_LOWERED:
            section, _, key = name.partition(".")
            assert bounds[name] == getattr(getattr(Config(), section), key)
    assert told["broker"].value("latermq_limit_used", setting="broker.max_topics") > 0
    assert told["namesrv"].value("latermq_limit_used", setting="namesrv.max_host_brokers") == 1
