"""Metrics of a server at one moment in Prometheus' text format: families of samples with kinds and labels.

The name server uses this module too and does not need numpy, so nothing here imports the broker.
"""

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from latermq.timer.delivery.lateness import Counts

    Value = float | Counts | Mapping[str, float] | Mapping[str, Counts] | Mapping[tuple[str, str], int]


class Kind(Enum):
    """The kind of a family's values."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


class Family(NamedTuple):
    """Metrics of one name. The name of a counter ends with `_total`."""

    name: str
    kind: Kind
    meaning: str
    # The label that distinguishes its samples, if there are several, or two labels.
    label: str | tuple[str, str] = ""
    of_storage: bool = False  # RocketMQ adds the kind of storage to the labels of its store's metrics
    scale: int = 1  # of a histogram: milliseconds per unit


class Reading(Collector):
    """The values of some families at one moment."""

    def __init__(self, families: tuple[Family, ...], labels: Mapping[str, str], values: "Mapping[str, Value]") -> None:
        self._families = families
        self._labels = labels
        self._values = values

    def collect(self) -> Iterator[Metric]:
        """Every family with its samples."""
        for family in self._families:
            value = self._values[family.name]
            samples = value if isinstance(value, Mapping) else {"": value}
            labels = dict(self._labels)
            if family.of_storage:
                labels |= {"storage_type": "local", "storage_medium": "disk"}
            names = [*labels, *(_texts(family.label) if family.label else ())]
            metric = _metric(family, names)
            for own, sample in samples.items():
                texts = [*labels.values(), *(_texts(own) if family.label else ())]
                if isinstance(metric, HistogramMetricFamily):
                    assert not isinstance(sample, float | int)
                    metric.add_metric(texts, _buckets(sample, family.scale), sample.sum_ms / family.scale)
                else:
                    assert isinstance(sample, float | int)
                    metric.add_metric(texts, sample)
            yield metric


def _texts(one_or_two: str | tuple[str, str]) -> tuple[str, ...]:
    return one_or_two if isinstance(one_or_two, tuple) else (one_or_two,)


def _metric(family: Family, labels: list[str]) -> CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily:
    match family.kind:
        case Kind.COUNTER:
            return CounterMetricFamily(family.name, family.meaning, labels=labels)
        case Kind.GAUGE:
            return GaugeMetricFamily(family.name, family.meaning, labels=labels)
        case Kind.HISTOGRAM:
            return HistogramMetricFamily(family.name, family.meaning, labels=labels)


def _buckets(counts: "Counts", scale: int) -> list[tuple[str, float]]:
    bounds = [str(bound / scale) for bound in counts.bounds_ms]
    return [*zip(bounds, map(float, counts.upto), strict=True), ("+Inf", float(counts.total))]
