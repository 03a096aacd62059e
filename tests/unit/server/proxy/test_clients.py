"""The clients of a proxy: which are known, for how long, and what one of them can do to others."""

from typing import Any

import pytest

from latermq.config import ProxyConfig, load_config
from latermq.errors import Busy
from latermq.protocol.messaging import messaging_pb2 as pb
from latermq.protocol.messaging.refusals import CallRefused
from latermq.server.proxy.clients.client_settings import Role
from latermq.server.proxy.clients.clients import MAX_STREAMS, Client, Clients

HERE, THERE = "10.0.0.1", "10.0.0.2"


class FakeStream:
    """A stream that notes what is sent."""

    def __init__(self, peer: str = HERE) -> None:
        self.peer = peer
        self.is_writable = True
        self.sent: list[pb.TelemetryCommand] = []
        self.end_reason = ""

    def send(self, command: pb.TelemetryCommand) -> None:
        self.sent.append(command)

    def end(self, reason: str) -> None:
        self.end_reason = reason


class Watched:
    """Clients on a simulated clock, and what they report."""

    def __init__(self, **settings: Any) -> None:
        self.now_s = 1000.0
        texts = [f"proxy.{name}={value}" for name, value in settings.items()]
        config: ProxyConfig = load_config(settings=texts, environment={}).proxy
        self.clients = Clients(config, lambda: self.now_s)
        self.new: list[Client] = []
        self.gone: list[Client] = []
        self.topics: list[str] = []
        self.clients.on_new_consumer = self.new.append
        self.clients.on_goodbye = self.clients.on_lost = self.gone.append
        self.clients.on_new_topic = self.topics.append

    def consumer(self, client_id: str, group: str = "g", peer: str = HERE) -> FakeStream:
        stream = FakeStream(peer)
        self.clients.register(client_id, Role(group, ("t",), "JAVA", 300), stream)
        return stream

    def producer(self, client_id: str, *topics: str, peer: str = HERE) -> FakeStream:
        stream = FakeStream(peer)
        self.clients.register(client_id, Role("", topics, "JAVA", 300), stream)
        return stream

    def names(self) -> list[str]:
        return sorted(client.client_id for client in self.clients.consumers())


def test_a_consumer_is_reported_at_once_and_released_when_it_says_goodbye() -> None:
    watched = Watched()
    watched.consumer("c")
    assert [client.key for client in watched.new] == [("c", "g")]
    watched.clients.terminate("c", "g", HERE)
    assert [client.key for client in watched.gone] == [("c", "g")]
    assert watched.clients.statistics() == {
        "clients": 0,
        "address_clients": 0,
        "client_streams": 0,
        "settings_bytes": 0,
        "displaced_clients": 0,
    }


def test_a_client_expires_without_heartbeats_and_its_stream_ends() -> None:
    watched = Watched(client_timeout="120s")
    stream = watched.consumer("c")
    watched.now_s += 119
    watched.clients.expire()
    watched.clients.see("c", "g", HERE)
    watched.now_s += 119
    watched.clients.expire()
    assert watched.names() == ["c"]
    watched.now_s += 1
    watched.clients.expire()
    assert (watched.names(), stream.end_reason) == ([], "no heartbeat arrived")
    assert [client.key for client in watched.gone] == [("c", "g")]


def test_a_client_that_lost_its_stream_expires_sooner_but_heartbeats_keep_it() -> None:
    watched = Watched(client_timeout="120s", lost_client_timeout="40s")
    for name in ("dead", "alive"):
        stream = watched.consumer(name)
        watched.clients.detach(watched.new[-1], stream)
    watched.now_s += 30
    watched.clients.see("alive", "g", HERE)
    watched.now_s += 30
    watched.clients.expire()
    assert watched.names() == ["alive"]


def test_a_heartbeat_makes_a_client_known_whose_settings_are_not() -> None:
    watched = Watched()
    watched.clients.see("c", "g", HERE)
    watched.clients.see("c", "g", HERE)
    assert [client.key for client in watched.new] == [("c", "g")]


def test_nobody_with_the_same_id_and_another_group_changes_a_client() -> None:
    watched = Watched()
    watched.consumer("c", "g")
    watched.consumer("c", "other", peer=THERE)
    watched.clients.terminate("c", "other", THERE)
    assert [(client.client_id, client.group) for client in watched.clients.consumers()] == [("c", "g")]


def test_nobody_at_another_address_says_goodbye_for_a_connected_client() -> None:
    watched = Watched()
    watched.consumer("c")
    with pytest.raises(CallRefused) as caught:
        watched.clients.terminate("c", "g", THERE)
    assert caught.value.status_code == pb.FORBIDDEN
    assert (watched.names(), watched.gone) == (["c"], [])


def test_the_newest_stream_is_used_and_the_older_one_when_it_has_ended() -> None:
    watched = Watched()
    older = watched.producer("p", "t")
    newer = watched.producer("p", "t")
    assert watched.clients.publisher("t") is newer
    client = watched.clients.see("p", "", HERE)
    watched.clients.detach(client, newer)
    assert watched.clients.publisher("t") is older
    watched.clients.detach(client, older)
    assert watched.clients.publisher("t") is None


def test_a_client_has_few_streams() -> None:
    watched = Watched()
    streams = [watched.producer("p", "t") for _ in range(MAX_STREAMS + 3)]
    assert [bool(stream.end_reason) for stream in streams] == [True] * 3 + [False] * MAX_STREAMS
    assert watched.clients.statistics()["client_streams"] == MAX_STREAMS


def test_streams_from_another_address_do_not_end_those_of_a_client() -> None:
    watched = Watched()
    own = watched.producer("p", "t")
    others = [watched.producer("p", "t", peer=THERE) for _ in range(10)]
    assert not own.end_reason
    assert sum(not stream.end_reason for stream in others) == MAX_STREAMS - 1
    watched.producer("p", "t")
    assert own.end_reason, "its own newer streams do"


def test_publishers_of_a_topic_take_turns_and_one_that_does_not_read_is_passed_over() -> None:
    watched = Watched()
    first, second, slow = (watched.producer(name, "t", "u") for name in ("first", "second", "slow"))
    slow.is_writable = False
    found = [watched.clients.publisher("t") for _ in range(4)]
    assert found == [first, second, first, second]
    assert watched.topics == ["t", "u"]


def test_a_producer_that_changes_its_topics_is_found_for_the_new_ones_only() -> None:
    watched = Watched()
    stream = watched.producer("p", "old")
    watched.clients.register("p", Role("", ("new",), "JAVA", 300), stream)
    assert watched.clients.publisher("old") is None
    assert watched.clients.publisher("new") is stream
    assert watched.clients.published_topics == ["new"]


def test_a_flood_of_ids_from_one_address_displaces_only_its_own() -> None:
    watched = Watched(max_clients=1000, max_clients_per_address=100)
    watched.clients.see("mine", "g", THERE)
    connected = watched.consumer("connected", peer=HERE)
    for number in range(100_000):
        watched.clients.see(f"flood-{number}", "g", HERE)
    assert watched.clients.is_known("mine", "g")
    assert watched.clients.is_known("connected", "g")
    assert not connected.end_reason
    assert watched.clients.statistics()["clients"] == 101
    assert watched.clients.statistics()["displaced_clients"] == 100_000 - 99
    assert watched.gone == [], "a displaced client keeps its lease, because it may be alive"


def test_when_all_clients_have_streams_a_new_one_is_refused() -> None:
    watched = Watched(max_clients=3, max_clients_per_address=0)
    for name in "abc":
        watched.consumer(name)
    with pytest.raises(Busy, match="too many clients"):
        watched.clients.see("d", "g", THERE)


def test_floods_from_many_addresses_displace_clients_of_the_address_with_the_most() -> None:
    watched = Watched(max_clients=10, max_clients_per_address=0)
    watched.clients.see("mine", "g", "10.9.9.9")
    for number in range(50):
        watched.clients.see(f"flood-{number}", "g", HERE if number % 2 else THERE)
    assert watched.clients.is_known("mine", "g")
    assert watched.clients.statistics()["clients"] == 10


def test_the_settings_of_all_clients_are_bounded() -> None:
    watched = Watched(max_all_settings="1KiB")
    for name in "abc":
        watched.consumer(name)
    with pytest.raises(Busy, match="the settings of all clients take 900 bytes; the limit is 1024"):
        watched.consumer("d")
    watched.clients.terminate("a", "g", HERE)
    watched.consumer("d")
