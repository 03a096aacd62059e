"""The brokers that answer now, and the stores in a timeline whose brokers do not, so that their data is missing."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from latermq.client.session.failures import ConnectionLost, RequestTimedOut
from latermq.errors import CorruptStore, StoreError
from latermq.handover.ingest_claim import CLAIMS, claim_store
from latermq.model.pipeline_state import PipelineState
from latermq.pipeline.driver.brokers import masters
from latermq.pipeline.driver.link import BrokerLink
from latermq.pipeline.timeline.lost_entries import read_claim
from latermq.pipeline.timeline.root import Root, list_files
from latermq.pipeline.windows.attempts import stores_with_windows

PATIENCE_S = 20.0  # enough for a broker restart


@dataclass(frozen=True)
class KnownBroker:
    """The state that one broker reports, and its address."""

    name: str
    address: str
    state: PipelineState


class Brokers(NamedTuple):
    """The brokers that answer, and descriptions of those that do not."""

    present: list[KnownBroker]
    absent: tuple[str, ...] = ()  # for display: store id and broker


class AbsentStores(StoreError):
    """Brokers that hold part of the requested data are unreachable, so the answer would be incomplete."""

    retriable = False

    def __init__(self, absent: Iterable[str]) -> None:
        super().__init__(
            f"unreachable: {', '.join(absent)}; the answer would be incomplete",
            hint="Start the broker and try again, or leave it out with --partial (allow_partial=True). If a store is "
            "gone for good, remove its files in claims/ and its folder in windows/ next to the timeline",
        )


def find_brokers(root: Root, namesrv: str, *, allow_partial: bool = False, patience_s: float = PATIENCE_S) -> Brokers:
    """All brokers with their current state, flushed up to everything they have acknowledged.

    If the broker of a store in the timeline is missing or does not answer, this raises, or lists it with
    `allow_partial`.
    """
    present: list[KnownBroker] = []
    absent: list[str] = []
    for name, address in masters(namesrv).items():
        try:
            with BrokerLink(address, patience_s=patience_s) as link:
                present.append(KnownBroker(name, address, link.state(flush=True)))
        except (ConnectionLost, RequestTimedOut):  # the name server has not yet noticed that it is gone
            absent.append(f"broker {name} at {address}")
    present_ids = {broker.state.store_id for broker in present}
    absent += [
        f"store {store_id}" + (f" (broker {name})" if name else "")
        for store_id, name in sorted(known_stores(root).items())
        if store_id not in present_ids
    ]
    if absent and not allow_partial:
        raise AbsentStores(absent)
    return Brokers(present, tuple(absent))


def known_stores(root: Root) -> dict[str, str]:
    """All stores that have ever given timers to the timeline or got windows from it, with broker names where known."""
    names = dict.fromkeys(stores_with_windows(root), "")
    for store_id in {claim_store(name) for name in list_files(root, CLAIMS)}:
        try:
            claim = read_claim(root, store_id)
        except CorruptStore:  # the broker refuses this file at its start; here it only shows that the store exists
            claim = None
        names[store_id] = claim.broker if claim is not None else ""
    return names
