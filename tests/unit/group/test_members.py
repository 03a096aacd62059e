"""Connected clients: how many there may be, and that nothing is left of those that have gone."""

import msgspec
import pytest

from latermq.clock import SimulatedClock
from latermq.config import BrokerConfig, Size
from latermq.errors import Busy, InvalidParameter
from latermq.group.locks import QueueLocks
from latermq.group.members import Members
from latermq.protocol.remoting.clients import (
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
    read_heartbeat,
)


class Line:
    """A connection."""

    peer_name = "127.0.0.1:1"
    is_closing = is_paused = False

    def send(self, frame: bytes) -> None:
        raise AssertionError("nobody is told anything here")

    def disconnect(self, reason: str) -> None:
        raise AssertionError(reason)


class Scene:
    def __init__(self, **changes: object) -> None:
        self.clock = SimulatedClock(1_700_000_000_000)
        self.members = Members(msgspec.structs.replace(BrokerConfig(), **changes))

    def beat(self, line: Line, client_id: str, *, consumes: str = "", produces: str = "", topics: int = 1) -> set[str]:
        wanted = [SubscriptionData(topic=f"topic{number}", tagsSet=["a"]) for number in range(topics)]
        data = HeartbeatData(
            clientID=client_id,
            producerDataSet=[ProducerData(groupName=name) for name in produces.split()],
            consumerDataSet=[ConsumerData(groupName=name, subscriptionDataSet=wanted) for name in consumes.split()],
        )
        self.members.check(line, read_heartbeat(data), "JAVA")
        return self.members.heartbeat(line, read_heartbeat(data), language="JAVA", version=400, clock=self.clock)

    def nothing_left(self) -> bool:
        return (
            not any(self.members.statistics().values()) and self.members._count == 0 and not self.members._memberships
        )


def test_one_connection_has_a_bound_whatever_its_clients_are_called() -> None:
    scene, line = Scene(max_connection_groups=3), Line()
    for number in range(3):
        scene.beat(line, f"client{number}", produces="p")
    with pytest.raises(InvalidParameter, match="more than 3 groups"):
        scene.beat(line, "another", produces="p")
    scene.beat(line, "client1", produces="p")
    scene.beat(Line(), "another", produces="p")


def test_clients_that_fell_silent_make_room_on_a_connection_that_stays() -> None:
    scene, line = Scene(max_connection_groups=2), Line()
    scene.beat(line, "first", produces="p", consumes="g")
    scene.clock.advance(1_000)
    scene.members.expire(scene.clock.monotonic_s() - 0.5)
    assert scene.nothing_left()
    scene.beat(line, "second", produces="p", consumes="g")


def test_very_many_silent_clients_are_forgotten_a_part_at_a_time() -> None:
    scene = Scene(max_clients=12_000)
    for number in range(12):
        scene.beat(Line(), f"client{number}", produces=" ".join(f"p{number}-{index}" for index in range(1_000)))
    scene.clock.advance(1_000)
    left = []
    while not scene.nothing_left():
        scene.members.expire(scene.clock.monotonic_s() - 0.5)
        left.append(scene.members.statistics()["producers"])
    assert left == [9_500, 7_000, 4_500, 2_000, 0]


def test_a_client_that_produces_and_consumes_under_one_name_leaves_both_when_it_goes() -> None:
    scene, line = Scene(), Line()
    scene.beat(line, "client", produces="same", consumes="same")
    scene.members.unregister("client", producer_group="same", consumer_group=None)
    assert scene.members.disconnected(line) == {"same"}
    assert scene.nothing_left()


def test_a_client_that_came_back_over_another_connection_stays_when_the_first_closes() -> None:
    scene, first, second = Scene(), Line(), Line()
    scene.beat(first, "client", consumes="g", produces="p")
    assert scene.beat(second, "client", consumes="g", produces="p") == {"g"}
    assert scene.members.disconnected(first) == set()
    assert scene.members.statistics()["consumers"] == 1
    scene.members.disconnected(second)
    assert scene.nothing_left()


def test_all_clients_together_and_those_of_one_group_have_bounds() -> None:
    scene = Scene(max_clients=4, max_group_members=2)
    lines = [Line(), Line()]
    scene.beat(lines[0], "a", consumes="g", produces="p")
    scene.beat(lines[0], "b", consumes="g")
    with pytest.raises(Busy, match="max_group_members"):
        scene.beat(lines[1], "c", consumes="g")
    scene.beat(lines[1], "a", consumes="g")
    scene.beat(lines[1], "c", produces="p")
    with pytest.raises(Busy, match="4 clients are connected"):
        scene.beat(lines[1], "d", produces="q")
    for line in lines:
        scene.members.disconnected(line)
    assert scene.nothing_left()


def test_subscriptions_have_a_bound_in_bytes_that_changes_do_not_wear_away() -> None:
    scene, line = Scene(max_subscriptions=Size(20_000)), Line()
    for topics in (1, 30, 2, 30) * 50:
        scene.beat(line, "client", consumes="g", topics=topics)
    with pytest.raises(Busy, match="max_subscriptions"):
        scene.beat(line, "client", consumes="h", topics=30)
    with pytest.raises(Busy):
        scene.beat(line, "client", consumes="g", topics=100)
    scene.members.disconnected(line)
    assert scene.nothing_left()


def test_queue_locks_have_a_bound_and_are_renewed_at_it() -> None:
    clock = SimulatedClock(1_700_000_000_000)
    locks = QueueLocks(clock, timeout_ms=60_000, max_locks=2)
    both = [("orders", 0), ("orders", 1)]
    assert locks.lock("g", "client", both) == both
    with pytest.raises(Busy, match="max_queue_locks"):
        locks.lock("h", "client", [("orders", 0)])
    assert locks.lock("g", "client", both) == both
    locks.unlock("g", "client", both[:1])
    assert locks.lock("h", "client", [("orders", 0)]) == [("orders", 0)]
    clock.advance(61_000)
    locks.expire()
    assert locks.statistics() == {"queue_locks": 0}
