"""Detection of live brokers that share a store id. One is then a copy of the other, and neither is ingested.

The entries of the two have the same numbers and different contents, so one timeline cannot hold both. A broker on a
cloned machine registers under a new name, or alternates with the original under the same name. A registration may
outlive its broker. The driver therefore queries every recently registered address, and counts only those that answer.
"""

import threading
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from latermq.errors import CorruptStore, LaterMQError
from latermq.model.pipeline_state import PipelineState
from latermq.pipeline.driver.link import BrokerLink

KEEP_S = 300.0  # brokers that share a name alternate as they register; a name server forgets them within 120 s
QUERY_EVERY_S = 15.0  # for an address that has no feed or does not answer
_TIMEOUT_S = 2.0


class _Known(NamedTuple):
    store_id: str  # empty if it did not answer
    instance: str
    broker: str
    at_s: float


def _fetch_state(address: str) -> PipelineState:
    with BrokerLink(address, timeout_s=_TIMEOUT_S, patience_s=0.0) as link:
        return link.state()


class StoreIds:
    """The store id of each address, shared by the feeds of all brokers. Any thread may call it."""

    def __init__(
        self, fetch: Callable[[str], PipelineState] = _fetch_state, *, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._fetch = fetch
        self._now_s = now_s
        self._registered: dict[str, float] = {}  # address → time last seen
        self._known: dict[str, _Known] = {}
        self._lock = threading.Lock()

    def add_addresses(self, addresses: Iterable[str]) -> None:
        """Record the addresses that are registered now."""
        now_s = self._now_s()
        with self._lock:
            self._registered.update(dict.fromkeys(addresses, now_s))
            for address in [one for one, seen_s in self._registered.items() if seen_s < now_s - KEEP_S]:
                del self._registered[address]
                self._known.pop(address, None)

    def check(self, address: str, state: PipelineState) -> None:
        """Refuse a broker that has just answered if another live broker has the same store id."""
        own = _Known(state.store_id, state.instance, state.broker_name, self._now_s())
        with self._lock:
            self._registered.setdefault(address, own.at_s)
            self._known[address] = own
            others = [one for one in self._registered if one != address]
        for other in others:
            known = self._query(other, own.store_id)
            if known.store_id == own.store_id and not (known.instance and known.instance == own.instance):
                raise CorruptStore(
                    f"broker {own.broker} at {address} and broker {known.broker} at {other} have the same store id, "
                    f"{own.store_id}: one is a copy of the other, and neither is ingested while both run",
                    hint="Stop the copy. To run a separate broker, start it with an empty data directory",
                )

    def _query(self, address: str, store_id: str) -> _Known:
        """What is known about an address. Queries it now if it may have the same store."""
        with self._lock:
            known = self._known.get(address)
            if known is not None and known.store_id != store_id and known.at_s > self._now_s() - QUERY_EVERY_S:
                return known
        try:
            state = self._fetch(address)
            known = _Known(state.store_id, state.instance, state.broker_name, self._now_s())
        except LaterMQError:  # it is gone, or is not a LaterMQ broker
            known = _Known("", "", "", self._now_s())
        with self._lock:
            self._known[address] = known
        return known
