"""Which brokers there are now, and which stores a timeline knows whose brokers are not: what they hold is not seen."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from pyarrow import fs

from latermq.client.session.failures import ConnectionLost, RequestTimedOut
from latermq.errors import CorruptStore, StoreError
from latermq.model.pipeline_state import PipelineState
from latermq.pipeline.driver.brokers import masters
from latermq.pipeline.driver.link import BrokerLink
from latermq.pipeline.timeline.lost_entries import read_claim
from latermq.pipeline.timeline.root import Root, file_errors

PATIENCE_S = 20.0  # for a broker that is being restarted


@dataclass(frozen=True)
class KnownBroker:
    """What one broker says of itself, and where it listens."""

    name: str
    address: str
    state: PipelineState


class Brokers(NamedTuple):
    """The brokers that answer, and what is known of those that do not."""

    present: list[KnownBroker]
    absent: tuple[str, ...] = ()  # as users read it: store id and broker


class AbsentStores(StoreError):
    """Brokers are away that hold some of what was asked for; without them the answer would be a part of it."""

    retriable = False

    def __init__(self, absent: Iterable[str]) -> None:
        super().__init__(
            f"not there: {', '.join(absent)}; an answer without what is in it would not be whole",
            hint="Start its broker and ask again, or go on without it by --partial (allow_partial=True). If a store is "
            "gone for good, remove its file in claims/ and its folder in windows/ beside the timeline",
        )


def find_brokers(root: Root, namesrv: str, *, allow_partial: bool = False, patience_s: float = PATIENCE_S) -> Brokers:
    """All brokers, each with its state as it is now, flushed up to what it had acknowledged.

    Where the broker of a store is missing that the timeline knows of, or does not answer, it is an error, or told.
    """
    present: list[KnownBroker] = []
    absent: list[str] = []
    for name, address in masters(namesrv).items():
        try:
            with BrokerLink(address, patience_s=patience_s) as link:
                present.append(KnownBroker(name, address, link.state(flush=True)))
        except (ConnectionLost, RequestTimedOut):  # the name server has not noticed yet that it is gone
            absent.append(f"broker {name} at {address}")
    there = {broker.state.store_id for broker in present}
    absent += [
        f"store {store_id}" + (f" (broker {name})" if name else "")
        for store_id, name in sorted(known_stores(root).items())
        if store_id not in there
    ]
    if absent and not allow_partial:
        raise AbsentStores(absent)
    return Brokers(present, tuple(absent))


def known_stores(root: Root) -> dict[str, str]:
    """The stores that ever gave timers to a timeline or got windows of it, and the names of their brokers if told."""
    names = dict.fromkeys(_listed(root, "windows", fs.FileType.Directory), "")
    for store_id in _listed(root, "claims", fs.FileType.File):
        try:
            claim = read_claim(root, store_id)
        except CorruptStore:  # the broker refuses it at its start; here it only tells that there is a store
            claim = None
        names[store_id] = claim.broker if claim is not None else ""
    return names


def _listed(root: Root, folder: str, kind: fs.FileType) -> list[str]:
    with file_errors(root.at(folder)):
        found = root.files.get_file_info(fs.FileSelector(root.at(folder), allow_not_found=True))
    return [info.base_name for info in found if info.type == kind and not info.base_name.endswith(".draft")]
