"""Clients that proxies report: limits of one of them do not affect the others."""

import pytest

from latermq.broker.broker import Broker
from latermq.broker.pop import reported_clients
from latermq.broker.pop.pop_request import PopRequest
from latermq.broker.pop.reported_clients import ReportedClient, lease_of
from latermq.clock import SimulatedClock
from latermq.config import load_config
from latermq.model.topic import Topic
from latermq.store.files.memory_disk import MemoryDisk
from tests.support.admins import HOST, FakeConnection

SETTINGS = (
    "store.segment=1MiB",
    "store.reserve_step=64KiB",
    "broker.max_message=500KiB",
    "broker.max_group_members=2",
    "pop.max_reported_topics=9",
)


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
        client = ReportedClient(f"client-{number}", "readers", [f"topic-{number}-{one}" for one in range(9)])
        broker.reported_clients.report("proxy", FakeConnection("127.0.0.1:5"), [client])
    group = broker.members.consumer_group("readers")
    assert group is not None
    assert len(group.members) == 2
    assert len(group.subscriptions) == 9


def members_of(broker: Broker, group: str) -> list[str]:
    found = broker.members.consumer_group(group)
    return list(found.members) if found is not None else []


def test_a_client_that_said_goodbye_to_one_proxy_is_no_member_while_another_still_reports_it() -> None:
    clock = SimulatedClock()
    broker = open_broker(clock)
    clients, connection = broker.reported_clients, FakeConnection("127.0.0.1:5")
    for proxy in ("a", "b"):
        clients.report(proxy, connection, [ReportedClient("one", "readers", ["orders"])])
    clock.advance(1_000)
    clients.end("readers", "one")
    assert members_of(broker, "readers") == []
    for _ in range(8):  # the other proxy has heard nothing since then
        clock.advance(5_000)
        idle_ms = clock.now_ms() - SimulatedClock().now_ms()
        assert clients.report("a", connection, [ReportedClient("one", "readers", ["orders"], idle_ms=idle_ms)]) == set()
        assert members_of(broker, "readers") == []


def test_a_client_that_starts_again_after_its_goodbye_is_a_member_at_once() -> None:
    clock = SimulatedClock()
    broker = open_broker(clock)
    clients, connection = broker.reported_clients, FakeConnection("127.0.0.1:5")
    clients.report("a", connection, [ReportedClient("one", "readers", ["orders"])])
    clients.end("readers", "one")
    clock.advance(1_000)
    clients.report("a", connection, [ReportedClient("one", "readers", ["orders"], idle_ms=100)])
    assert members_of(broker, "readers") == ["one"]
    clock.advance(5_000)
    clients.report("a", connection, [ReportedClient("one", "readers", ["orders"], idle_ms=5_100)])
    assert members_of(broker, "readers") == ["one"]
    assert clients.statistics()["goodbyes"] == 0


def test_the_goodbyes_that_a_broker_remembers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reported_clients, "MAX_GOODBYES", 3)
    clock = SimulatedClock()
    broker = open_broker(clock)
    clients, connection = broker.reported_clients, FakeConnection("127.0.0.1:5")
    for number in range(9):
        clients.report("a", connection, [ReportedClient(f"client-{number}", "readers", ["orders"])])
        clients.end("readers", f"client-{number}")
        clients.end("readers", "never-seen")
    assert clients.statistics()["goodbyes"] == 3
    clock.advance(int(reported_clients.GOODBYE_S * 1000) + 1)
    for number in range(2):  # each goodbye removes an outdated one
        clients.report("a", connection, [ReportedClient(f"late-{number}", "readers", ["orders"])])
        clients.end("readers", f"late-{number}")
    assert clients.statistics()["goodbyes"] == 3


def test_an_unchanged_client_is_renewed_with_its_lease_and_any_other_must_be_reported() -> None:
    clock = SimulatedClock()
    broker = open_broker(clock)
    clients, connection = broker.reported_clients, FakeConnection("127.0.0.1:5")
    client = ReportedClient("one", "readers", ["orders"])
    assert not clients.renew("proxy", client)
    clients.report("proxy", connection, [client])
    broker.topics.put(Topic(name="orders", read_queues=1, write_queues=1))
    broker.tables.save()
    broker.groups.require("readers")
    broker.writer.send("orders", 0, b"one", "", clock.now_ms(), HOST)
    broker.pops.pop(PopRequest("readers", "orders", -1, 1, 1_000, lease=lease_of("readers", "one")))
    for _ in range(30):
        clock.advance(5_000)
        assert clients.renew("proxy", client)
        assert clients.expire() | broker.members.expire(clock.monotonic_s() - 15.0) == set()
        broker.pop_expiry.run()
    assert broker.in_flight.held == 1
    assert not clients.renew("proxy", ReportedClient("one", "readers", ["orders", "bills"]))
    assert not clients.renew("proxy", ReportedClient("one", "readers", ["orders"], language="GO"))
    assert not clients.renew("proxy", ReportedClient("two", "readers", ["orders"]))
    clients.end("readers", "one")
    assert not clients.renew("proxy", client)
