"""Metrics of a server, scraped and parsed as by a monitoring system."""

import urllib.request

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.interop.ports import HOST


class ScrapedMetrics:
    """The metrics of one scrape."""

    def __init__(self, text: bytes) -> None:
        self.kinds: dict[str, str] = {}
        self.samples: list[Sample] = []
        for family in text_string_to_metric_families(text.decode()):
            # The parser removes the suffix from the names of counters.
            suffix = "_total" if family.type == "counter" else ""
            self.kinds[family.name.removesuffix(suffix) + suffix] = family.type
            self.samples += family.samples

    def value(self, name: str, **labels: str) -> float:
        """The value of the only sample with this name and these labels. It may have other labels too."""
        (found,) = self._with(name, labels)
        return found.value

    def values(self, name: str, label: str) -> dict[str, float]:
        """The values of all samples with this name, by one label."""
        return {sample.labels[label]: sample.value for sample in self._with(name, {})}

    def _with(self, name: str, labels: dict[str, str]) -> list[Sample]:
        return [s for s in self.samples if s.name == name and labels.items() <= s.labels.items()]


def scrape(port: int) -> ScrapedMetrics:
    """Scrape the metrics of a process on this machine."""
    with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=10) as response:
        assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        return ScrapedMetrics(response.read())
