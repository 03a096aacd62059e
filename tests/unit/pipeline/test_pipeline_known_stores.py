"""Brokers that are away: whose timers an answer would lack is told, and without a word nothing is answered by half."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from latermq.client.session.failures import ConnectionLost
from latermq.handover.ingest_claim import IngestClaim
from latermq.model.pipeline_state import PipelineState
from latermq.pipeline.driver import known_stores
from latermq.pipeline.driver.known_stores import AbsentStores, find_brokers
from latermq.pipeline.driver.known_stores import known_stores as stores_of
from latermq.pipeline.timeline.lost_entries import read_claim, write_claim
from latermq.pipeline.timeline.root import Root, open_root


@pytest.fixture
def root(tmp_path: Path) -> Root:
    """A timeline that two stores have fed, and a third one has windows of."""
    root = open_root(str(tmp_path))
    write_claim(root, "s1", IngestClaim(end=5, epoch=1, broker="broker-a"))
    write_claim(root, "s2", IngestClaim(end=7, epoch=1, broker="broker-b"))
    (tmp_path / "windows" / "s3").mkdir(parents=True)
    return root


class Network:
    """Brokers that answer for the stores s1 to s3 at ports 1 to 3; the one at port 9 does not."""

    def __init__(self) -> None:
        self.flushed: list[str] = []

    @contextlib.contextmanager
    def link(self, address: str, *, patience_s: float) -> Iterator["Link"]:
        yield Link(self, address)

    @contextlib.contextmanager
    def registered(self, **ports: int) -> Iterator[None]:
        """Only these are known to the name server."""
        with pytest.MonkeyPatch.context() as patch:
            addresses = {name.replace("_", "-"): f"h:{port}" for name, port in ports.items()}
            patch.setattr(known_stores, "masters", lambda namesrv: addresses)
            patch.setattr(known_stores, "BrokerLink", self.link)
            yield


class Link:
    """The connection to one of them."""

    def __init__(self, network: Network, address: str) -> None:
        self._network, self._address = network, address

    def state(self, *, flush: bool) -> PipelineState:
        port = self._address[-1]
        if port == "9":
            raise ConnectionLost(f"cannot reach {self._address}")
        if flush:
            self._network.flushed.append(self._address)
        return PipelineState(f"s{port}", "b", 1, 0, 0, 10, 0, 0, 0)


@pytest.fixture
def network() -> Network:
    return Network()


def test_all_stores_of_a_timeline_are_there(root: Root, network: Network) -> None:
    with network.registered(broker_a=1, broker_b=2, broker_c=3):
        found = find_brokers(root, "n:1")
    assert [broker.state.store_id for broker in found.present] == ["s1", "s2", "s3"]
    assert found.absent == ()
    assert network.flushed == ["h:1", "h:2", "h:3"]  # what was acknowledged is what is seen


def test_a_store_whose_broker_is_away_is_an_error_that_names_it(root: Root, network: Network) -> None:
    with network.registered(broker_a=1), pytest.raises(AbsentStores) as caught:
        find_brokers(root, "n:1")
    assert "store s2 (broker broker-b), store s3;" in caught.value.message
    assert "--partial" in caught.value.hint


def test_whoever_goes_on_without_it_is_told_what_is_missing(root: Root, network: Network) -> None:
    with network.registered(broker_a=1, broker_b=9):
        found = find_brokers(root, "n:1", allow_partial=True)
        with pytest.raises(AbsentStores, match="broker broker-b at h:9"):
            find_brokers(root, "n:1")
    assert [broker.name for broker in found.present] == ["broker-a"]
    assert found.absent == ("broker broker-b at h:9", "store s2 (broker broker-b)", "store s3")


def test_a_timeline_that_nobody_has_fed_misses_nobody(tmp_path: Path, network: Network) -> None:
    with network.registered(broker_a=1):
        assert find_brokers(open_root(str(tmp_path)), "n:1").absent == ()


def test_claims_without_a_name_and_damaged_ones_tell_of_a_store_all_the_same(root: Root, tmp_path: Path) -> None:
    write_claim(root, "old", IngestClaim(end=1, epoch=1))
    (tmp_path / "claims" / "torn").write_text("{")
    (tmp_path / "claims" / "s9.12ab.draft").write_text("{}")
    assert stores_of(root) == {"s1": "broker-a", "s2": "broker-b", "s3": "", "old": "", "torn": ""}


def test_a_claim_keeps_the_name_of_its_broker(root: Root) -> None:
    write_claim(root, "s1", IngestClaim(end=9, epoch=1))
    assert read_claim(root, "s1") == IngestClaim(end=9, epoch=1, broker="broker-a")
