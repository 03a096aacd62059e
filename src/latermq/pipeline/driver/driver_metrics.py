"""Metrics of the Spark driver for Prometheus, from the description that it also gives to commands."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class DriverFamily(NamedTuple):
    """Metrics of one name, for the driver as a whole or for each of its brokers."""

    name: str
    kind: str
    meaning: str
    key: str  # in the description
    label: str = ""


FAMILIES = (
    DriverFamily("latermq_driver_brokers", "gauge", "Brokers that the driver serves", "brokers"),
    DriverFamily("latermq_driver_lag_entries", "gauge", "Entries that are not ingested yet", "lag_entries", "broker"),
    DriverFamily("latermq_driver_lag_milliseconds", "gauge", "Age of the oldest of them", "lag_ms", "broker"),
    DriverFamily("latermq_driver_ingested_entries", "gauge", "Entries in the timeline", "ingested", "broker"),
    DriverFamily("latermq_driver_stalled", "gauge", "1 while an error stalls the work for a broker", "error", "broker"),
    DriverFamily("latermq_driver_windows_waiting", "gauge", "Windows without an attempt", "windows_waiting", "broker"),
    DriverFamily(
        "latermq_driver_windows_built_total", "counter", "Windows built by this driver", "windows_built", "broker"
    ),
    DriverFamily("latermq_driver_compactions_total", "counter", "Finished compactions", "compactions"),
    DriverFamily("latermq_driver_compaction_seconds", "gauge", "Duration of the last compaction", "last_compaction"),
    DriverFamily(
        "latermq_driver_control_connections", "gauge", "Connections of commands to the driver", "control_connections"
    ),
    DriverFamily("latermq_driver_control_refused_total", "counter", "Requests without the token", "control_refused"),
)


class DriverMetrics(Collector):
    """Reads the driver's description at each scrape."""

    def __init__(self, describe: Callable[[], Mapping[str, Any]]) -> None:
        self._describe = describe

    def read(self) -> Collector:
        return self

    def collect(self) -> Iterator[Metric]:
        """Every family with its samples."""
        found = self._describe()
        for family in FAMILIES:
            make = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
            metric = make(family.name, family.meaning, labels=[family.label] if family.label else [])
            if family.label:
                for broker in found["brokers"]:
                    if family.key in broker:
                        metric.add_metric([broker["broker"]], _number(broker[family.key]))
            else:
                metric.add_metric([], _number(found.get(family.key)))
            yield metric


def _number(value: Any) -> float:
    if isinstance(value, Mapping):
        return float(value["duration_s"])
    if isinstance(value, list):
        return len(value)
    return float(bool(value) if isinstance(value, str) else value or 0)
