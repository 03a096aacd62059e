"""The page Brokers: what each broker receives, delivers and stores."""

from latermq.http.api.cluster import BrokerState
from latermq.http.console.page import Page, PageRow, View, Visit

FULL_FROM = 0.85  # the share of a disk from which a page warns


async def show(visit: Visit) -> View:
    """All brokers."""
    state = await visit.api.state()
    return View("brokers.html", {"brokers": state.brokers, "now_ms": state.density.now_ms, "state_of": state_of})


def state_of(broker: BrokerState) -> tuple[str, str]:
    """Return how a broker does, in a word, and the class that colours it."""
    if broker.error:
        return "no answer", "bad"
    if broker.disk_used_ratio >= FULL_FROM:
        return "disk nearly full", "warn"
    if broker.late_ms >= 1_000:
        return "late", "warn"
    return "running", "good"


PAGE = Page("Brokers", [PageRow("GET", "/brokers", show)], needs=("/api/v1/state",))
