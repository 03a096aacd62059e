"""Reads metrics as a monitoring system does: out of their text."""

import urllib.request

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.interop.ports import HOST


class Figures:
    """What one look at a server's metrics told."""

    def __init__(self, text: bytes) -> None:
        self.kinds: dict[str, str] = {}
        self.samples: list[Sample] = []
        for family in text_string_to_metric_families(text.decode()):
            # The parser takes the ending off the names of counters.
            ending = "_total" if family.type == "counter" else ""
            self.kinds[family.name.removesuffix(ending) + ending] = family.type
            self.samples += family.samples

    def value(self, name: str, **labels: str) -> float:
        """The one sample of this name with these labels, whatever others it has."""
        (found,) = self._with(name, labels)
        return found.value

    def values(self, name: str, label: str) -> dict[str, float]:
        """Every sample of this name by one of its labels."""
        return {sample.labels[label]: sample.value for sample in self._with(name, {})}

    def _with(self, name: str, labels: dict[str, str]) -> list[Sample]:
        return [s for s in self.samples if s.name == name and labels.items() <= s.labels.items()]


def scrape(port: int) -> Figures:
    """Look at the metrics of a process on this machine."""
    with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=10) as response:
        assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        return Figures(response.read())
