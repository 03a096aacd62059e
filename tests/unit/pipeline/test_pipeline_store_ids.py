"""Two live brokers with one store id are both refused; one that is gone, or one with two addresses, is not two."""

import pytest

from latermq.client.session.failures import ConnectionLost
from latermq.errors import CorruptStore
from latermq.model.pipeline_state import PipelineState
from latermq.pipeline.driver.store_ids import KEEP_S, QUERY_EVERY_S, StoreIds

ONE, OTHER = "10.0.0.1:10911", "10.0.0.2:10911"


class Brokers:
    """Brokers by address, and how often each was asked."""

    def __init__(self) -> None:
        self.states: dict[str, PipelineState] = {}
        self.asked: list[str] = []
        self.now_s = 1000.0
        self.store_ids = StoreIds(self._ask, now_s=lambda: self.now_s)

    def _ask(self, address: str) -> PipelineState:
        self.asked.append(address)
        if address not in self.states:
            raise ConnectionLost(f"cannot reach {address}")
        return self.states[address]

    def start(self, address: str, store_id: str, instance: str, name: str = "broker-a") -> None:
        self.states[address] = PipelineState(store_id, name, 1, 0, 0, 0, 0, 0, 0, instance=instance)

    def check(self, address: str) -> None:
        self.store_ids.check(address, self.states[address])


@pytest.fixture
def brokers() -> Brokers:
    brokers = Brokers()
    brokers.start(ONE, "s", "first")
    return brokers


@pytest.mark.parametrize("name", ["broker-a", "broker-b"])
@pytest.mark.parametrize("instance", ["second", ""])
def test_both_are_refused_while_both_answer(brokers: Brokers, name: str, instance: str) -> None:
    brokers.start(OTHER, "s", instance, name)
    brokers.store_ids.add_addresses([ONE])
    brokers.check(ONE)
    brokers.store_ids.add_addresses([OTHER])  # under the same name it takes the other's place with the name server
    for address in (ONE, OTHER):
        with pytest.raises(CorruptStore, match="have the same store id, s: one is a copy of the other") as caught:
            brokers.check(address)
        assert "Stop the copy" in caught.value.hint


def test_a_copy_goes_on_as_soon_as_the_original_is_gone(brokers: Brokers) -> None:
    brokers.start(OTHER, "s", "second")
    brokers.store_ids.add_addresses([ONE, OTHER])
    with pytest.raises(CorruptStore):
        brokers.check(OTHER)
    del brokers.states[ONE]  # its registration is still there
    brokers.store_ids.add_addresses([ONE, OTHER])
    brokers.check(OTHER)


def test_a_broker_that_comes_back_at_another_address_is_one(brokers: Brokers) -> None:
    brokers.check(ONE)
    del brokers.states[ONE]
    brokers.start(OTHER, "s", "second")
    brokers.store_ids.add_addresses([OTHER])
    brokers.check(OTHER)


def test_one_broker_with_two_addresses_is_one(brokers: Brokers) -> None:
    brokers.start(OTHER, "s", "first")
    brokers.store_ids.add_addresses([ONE, OTHER])
    brokers.check(ONE)
    brokers.check(OTHER)


def test_brokers_with_stores_of_their_own_are_asked_now_and_then(brokers: Brokers) -> None:
    brokers.start(OTHER, "t", "second", "broker-b")
    brokers.store_ids.add_addresses([ONE, OTHER])
    for _ in range(10):
        brokers.check(ONE)
        brokers.check(OTHER)
    assert brokers.asked == [OTHER]  # each check tells of the broker itself
    brokers.now_s += QUERY_EVERY_S + 1
    brokers.start(OTHER, "s", "third", "broker-b")
    with pytest.raises(CorruptStore):
        brokers.check(ONE)


def test_an_address_that_does_not_answer_is_not_asked_at_each_look(brokers: Brokers) -> None:
    brokers.store_ids.add_addresses([ONE, OTHER])
    for _ in range(10):
        brokers.check(ONE)
    assert brokers.asked == [OTHER]


def test_registrations_of_long_ago_are_forgotten(brokers: Brokers) -> None:
    brokers.start(OTHER, "s", "second")
    brokers.store_ids.add_addresses([OTHER])
    brokers.now_s += KEEP_S + 1
    brokers.store_ids.add_addresses([ONE])
    brokers.check(ONE)
    assert brokers.asked == []
