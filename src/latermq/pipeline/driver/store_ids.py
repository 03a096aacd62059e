"""Which live brokers have which store id: two of them with one id are a store and a copy of it, and neither is fed.

Their entries have the same numbers and different meanings, so one timeline cannot hold both. A broker whose machine
was cloned registers under a name of its own, or under the same name in turn with the other; a registration may outlive
its broker. So whoever was registered lately is asked, and only who answers counts.
"""

import threading
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from latermq.errors import CorruptStore, LaterMQError
from latermq.model.pipeline_state import PipelineState
from latermq.pipeline.driver.link import BrokerLink

REMEMBERED_S = 300.0  # two brokers under one name take turns, as they register; a name server forgets within 120 s
ASKED_EVERY_S = 15.0  # of an address that nobody feeds, or that does not answer
_ANSWER_S = 2.0


class _Known(NamedTuple):
    store_id: str  # empty: it did not answer
    instance: str
    broker: str
    at_s: float


def _ask(address: str) -> PipelineState:
    with BrokerLink(address, timeout_s=_ANSWER_S, patience_s=0.0) as link:
        return link.state()


class StoreIds:
    """Shared by the feeds of all brokers. Any thread may call it."""

    def __init__(
        self, ask: Callable[[str], PipelineState] = _ask, *, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask_broker = ask
        self._now_s = now_s
        self._registered: dict[str, float] = {}  # address: when it was seen last
        self._known: dict[str, _Known] = {}
        self._lock = threading.Lock()

    def found(self, addresses: Iterable[str]) -> None:
        """These are registered now."""
        now_s = self._now_s()
        with self._lock:
            self._registered.update(dict.fromkeys(addresses, now_s))
            for address in [one for one, seen_s in self._registered.items() if seen_s < now_s - REMEMBERED_S]:
                del self._registered[address]
                self._known.pop(address, None)

    def check(self, address: str, state: PipelineState) -> None:
        """Refuse a broker, which answered just now, while another one that has its store id answers too."""
        own = _Known(state.store_id, state.instance, state.broker_name, self._now_s())
        with self._lock:
            self._registered.setdefault(address, own.at_s)
            self._known[address] = own
            others = [one for one in self._registered if one != address]
        for other in others:
            known = self._look_at(other, own.store_id)
            if known.store_id == own.store_id and not (known.instance and known.instance == own.instance):
                raise CorruptStore(
                    f"broker {own.broker} at {address} and broker {known.broker} at {other} have the same store id, "
                    f"{own.store_id}: one is a copy of the other, and neither is ingested while both run",
                    hint="Stop the copy. A broker of its own needs an empty data directory, which gives it a new id",
                )

    def _look_at(self, address: str, store_id: str) -> _Known:
        """What is known of an address; asked now where it may be the same store."""
        with self._lock:
            known = self._known.get(address)
            if known is not None and known.store_id != store_id and known.at_s > self._now_s() - ASKED_EVERY_S:
                return known
        try:
            state = self._ask_broker(address)
            known = _Known(state.store_id, state.instance, state.broker_name, self._now_s())
        except LaterMQError:  # it is gone, or not a broker of ours
            known = _Known("", "", "", self._now_s())
        with self._lock:
            self._known[address] = known
        return known
