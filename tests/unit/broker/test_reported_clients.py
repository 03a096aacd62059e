"""Clients that proxies report: limits of one of them do not affect the others."""

from latermq.broker.broker import Broker
from latermq.broker.pop.pop_request import PopRequest
from latermq.broker.pop.reported_clients import MAX_TOPICS, ReportedClient, lease_of
from latermq.clock import SimulatedClock
from latermq.config import load_config
from latermq.model.topic import Topic
from latermq.store.files.memory_disk import MemoryDisk
from tests.support.admins import HOST, FakeConnection

SETTINGS = ("store.segment=1MiB", "store.reserve_step=64KiB", "broker.max_message=500KiB", "broker.max_group_members=2")


def open_broker(clock: SimulatedClock) -> Broker:
    config = load_config(settings=[*SETTINGS], environment={})
    return Broker(
        config, MemoryDisk(), clock, host="127.0.0.1", port=10911, new_store_id="s" * 32, random_fraction=lambda: 0.5
    )


def test_a_full_group_does_not_end_the_leases_of_other_clients() -> None:
    clock = SimulatedClock()
    broker = open_broker(clock)
    broker.topics.put(Topic(name="orders", read_queues=1, write_queues=1))
    broker.tables.save()
    broker.groups.require("readers")
    broker.writer.send("orders", 0, b"one", "", clock.now_ms(), HOST)
    broker.pops.pop(PopRequest("readers", "orders", -1, 1, 1_000, lease=lease_of("readers", "holder")))
    broker.pop_positions.commit()
    clients = [ReportedClient(f"client-{number}", "crowd", ["orders"]) for number in range(3)]
    clients.append(ReportedClient("holder", "readers", ["orders"]))
    connection = FakeConnection("127.0.0.1:5")
    for _ in range(30):
        clock.advance(5_000)
        broker.reported_clients.report("proxy", connection, clients)
        broker.pop_expiry.run()
    assert broker.in_flight.held == 1
    group = broker.members.consumer_group("readers")
    assert group is not None
    assert list(group.members) == ["holder"]
    assert broker.reported_clients.statistics()["refused_reports"] == 30


def test_the_topics_of_a_reported_group_are_bounded() -> None:
    broker = open_broker(SimulatedClock())
    for number in range(2):
        client = ReportedClient(f"client-{number}", "readers", [f"topic-{number}-{one}" for one in range(MAX_TOPICS)])
        broker.reported_clients.report("proxy", FakeConnection("127.0.0.1:5"), [client])
    group = broker.members.consumer_group("readers")
    assert group is not None
    assert len(group.members) == 2
    assert len(group.subscriptions) == MAX_TOPICS
