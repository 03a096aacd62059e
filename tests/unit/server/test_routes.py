"""The name server's tables: who is registered, what clients are told, and when a broker is forgotten."""

import struct
import zlib
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from latermq.clock import SimulatedClock
from latermq.config import Config, NameServerConfig, Size
from latermq.config_json.topics import DataVersionJson, TopicJson, TopicTableJson
from latermq.errors import InvalidParameter, MalformedRequest, NoPermission, ServiceUnavailable, TopicNotFound
from latermq.model.topic import READ, WRITE
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.frames import FrameReader, encode_frame
from latermq.protocol.remoting.json_body import encode_body
from latermq.protocol.remoting.routes import RegisterBrokerBody, RegisterBrokerHeader
from latermq.server.namesrv.known_brokers import KnownBrokers
from latermq.server.namesrv.name_server import NameServer
from latermq.server.namesrv.registration import read_registration
from latermq.server.namesrv.routes import Registered, Routes
from latermq.server.remoting.connection import Connection
from latermq.store.files.memory_disk import MemoryDisk

TIMEOUT_S = 120.0
BOUNDS = NameServerConfig()


class Setting:
    """Routes on a simulated clock, and registrations with the fields that a test is not about filled in."""

    def __init__(self, **bounds: int) -> None:
        self.clock = SimulatedClock()
        known = KnownBrokers(self.clock, TIMEOUT_S)
        self.routes = Routes(self.clock, TIMEOUT_S, NameServerConfig(**bounds), known)  # type: ignore[arg-type]

    def register(
        self,
        *topics: str,
        name: str = "a",
        address: str = "host-a:1",
        cluster: str = "c",
        broker_id: int = 0,
        version: int = 1,
        state: int = 0,
        perm: int = READ | WRITE,
        timeout_ms: int | None = None,
        acting_master: bool | None = False,
        owner: object = None,
        host: str = "h",
    ) -> Registered:
        header = RegisterBrokerHeader(
            brokerName=name,
            brokerAddr=address,
            clusterName=cluster,
            haServerAddr=f"{address}-ha",
            brokerId=broker_id,
            heartbeatTimeoutMillis=timeout_ms,
            enableActingMaster=acting_master,
        )
        table = TopicTableJson(
            topics={topic: TopicJson(name=topic, permissions=perm) for topic in topics},
            version=DataVersionJson(counter=version, state_version=state),
        )
        return self.routes.register(header, RegisterBrokerBody(topicConfigSerializeWrapper=table), owner, host)

    def addresses(self, topic: str) -> dict[str, dict[int, str]]:
        return {broker.brokerName: broker.brokerAddrs for broker in self.routes.route(topic).brokerDatas}

    def perm(self, topic: str) -> int:
        (queue,) = self.routes.route(topic).queueDatas
        return queue.perm


@pytest.fixture
def setting() -> Setting:
    return Setting()


def test_a_registered_topic_has_a_route(setting: Setting) -> None:
    assert setting.register("orders").is_new
    route = setting.routes.route("orders")
    assert [(queue.brokerName, queue.readQueueNums, queue.perm) for queue in route.queueDatas] == [("a", 8, 6)]
    assert [(broker.cluster, broker.brokerAddrs) for broker in route.brokerDatas] == [("c", {0: "host-a:1"})]
    assert not setting.register("orders").is_new


def test_a_topic_that_nobody_has_is_refused_with_what_to_do(setting: Setting) -> None:
    setting.register("payments")
    with pytest.raises(TopicNotFound, match="'orders'") as refusal:
        setting.routes.route("orders")
    assert refusal.value.code == 17
    assert refusal.value.hint


def test_a_topic_is_not_called_unknown_before_a_broker_has_registered(setting: Setting) -> None:
    with pytest.raises(ServiceUnavailable, match="no broker is registered"):
        setting.routes.route("orders")


def test_a_topic_is_not_called_unknown_while_a_broker_that_may_have_it_is_away(setting: Setting) -> None:
    setting.register("orders")
    setting.register("payments", name="b", address="host-b:1")
    setting.routes.unregister("c", "host-a:1", None)
    with pytest.raises(ServiceUnavailable, match="a may have it and is offline"):
        setting.routes.route("orders")
    setting.clock.advance(int(TIMEOUT_S * 1000) + 1)
    setting.register("payments", name="b", address="host-b:1")
    with pytest.raises(TopicNotFound):
        setting.routes.route("orders")


def test_a_name_server_remembers_its_brokers_over_a_restart_and_forgets_one_that_stays_away() -> None:
    disk, clock = MemoryDisk(), SimulatedClock()
    known = KnownBrokers(clock, TIMEOUT_S, disk)
    known.add("a")
    known.add("b")
    known = KnownBrokers(clock, TIMEOUT_S, disk)
    known.add("b")
    assert list(known.offline()) == ["a"]
    clock.advance(int(TIMEOUT_S * 1000) + 1)
    assert not known.offline()
    assert list(KnownBrokers(clock, TIMEOUT_S, disk).offline()) == ["b"]


@pytest.mark.parametrize("content", [b"", b"{", b'{"brokers": 7}', b"\xff"])
def test_a_damaged_list_of_brokers_stops_no_name_server(content: bytes) -> None:
    disk = MemoryDisk()
    disk.replace("brokers.json", content)
    assert not KnownBrokers(SimulatedClock(), TIMEOUT_S, disk).offline()


def test_a_topic_on_two_brokers_is_routed_to_both(setting: Setting) -> None:
    setting.register("orders")
    setting.register("orders", name="b", address="host-b:1")
    assert setting.addresses("orders") == {"a": {0: "host-a:1"}, "b": {0: "host-b:1"}}


def test_a_replica_learns_its_master_and_brings_no_topics_of_its_own(setting: Setting) -> None:
    setting.register("orders")
    answer = setting.register("orders", "stray", address="host-a:2", broker_id=1, perm=READ)
    assert (answer.master_address, answer.ha_address) == ("host-a:1", "host-a:1-ha")
    assert setting.addresses("orders") == {"a": {0: "host-a:1", 1: "host-a:2"}}
    assert setting.perm("orders") == READ | WRITE
    assert setting.routes.topics().topicList == ["orders"]


def test_a_replica_without_master_keeps_its_topics_readable(setting: Setting) -> None:
    assert setting.register("orders", broker_id=1).master_address is None
    assert setting.addresses("orders") == {"a": {1: "host-a:1"}}


def test_a_replica_too_old_to_stand_in_brings_no_topics(setting: Setting) -> None:
    setting.register("orders", broker_id=1, acting_master=None)
    assert setting.routes.topics().topicList == []


def test_a_replica_that_becomes_the_master_keeps_one_id(setting: Setting) -> None:
    setting.register("orders")
    setting.register("orders", address="host-a:2", broker_id=1)
    setting.routes.unregister("c", "host-a:1", None)
    setting.register("orders", address="host-a:2", broker_id=0)
    assert setting.addresses("orders") == {"a": {0: "host-a:2"}}


def test_a_broker_that_comes_back_at_another_address_replaces_the_old_one(setting: Setting) -> None:
    setting.register("orders")
    assert setting.register("orders", address="host-a:9").replaced == "host-a:1"
    assert setting.addresses("orders") == {"a": {0: "host-a:9"}}
    setting.routes.unregister("c", "host-a:1", None)
    assert setting.addresses("orders") == {"a": {0: "host-a:9"}}


def test_while_a_broker_lives_no_other_connection_has_its_place(setting: Setting) -> None:
    true, stranger = object(), object()
    setting.register("orders", owner=true)
    for claim in (
        {"address": "evil:1", "state": 1 << 60},
        {"address": "evil:1", "cluster": "d"},
        {"cluster": "d"},
        {"name": "b"},
        {"broker_id": 1},
        {},
    ):
        with pytest.raises(NoPermission, match="another connection") as refusal:
            setting.register("orders", owner=stranger, **claim)
        assert refusal.value.hint
        assert setting.addresses("orders") == {"a": {0: "host-a:1"}}
    with pytest.raises(NoPermission):
        setting.routes.unregister("c", "host-a:1", stranger)
    assert setting.routes.remove_owner(stranger) == []
    assert setting.routes.remove_owner(true)


def test_a_broker_that_died_and_comes_back_elsewhere_is_taken_once_its_connection_is_closed(setting: Setting) -> None:
    old, new = object(), object()
    setting.register("orders", owner=old)
    setting.routes.remove_owner(old)
    setting.register("orders", address="host-a:9", owner=new)
    assert setting.addresses("orders") == {"a": {0: "host-a:9"}}


def test_a_broker_whose_connection_hangs_is_replaced_after_its_time(setting: Setting) -> None:
    old, new = object(), object()
    setting.register("orders", owner=old)
    setting.clock.advance(int(TIMEOUT_S * 1000) + 1)
    assert setting.routes.expire()
    setting.register("orders", address="host-a:9", owner=new)
    assert setting.addresses("orders") == {"a": {0: "host-a:9"}}


def test_a_replica_registers_on_a_connection_of_its_own(setting: Setting) -> None:
    setting.register("orders", owner=object())
    setting.register(address="host-a:2", broker_id=1, owner=object())
    assert setting.addresses("orders") == {"a": {0: "host-a:1", 1: "host-a:2"}}


def test_nobody_lives_longer_than_the_name_server_allows_or_by_the_word_of_others(setting: Setting) -> None:
    setting.register("orders", owner=object(), timeout_ms=(1 << 63) - 1)
    setting.clock.advance(int(TIMEOUT_S * 1000) + 1)
    setting.routes.heartbeat("c", "host-a:1", object())
    assert len(setting.routes.expire()) == 1


def test_an_address_that_gets_another_name_leaves_the_old_one(setting: Setting) -> None:
    setting.register("orders")
    setting.register("orders", name="b")
    assert setting.addresses("orders") == {"b": {0: "host-a:1"}}


def test_a_broker_that_unregisters_takes_its_topics_along(setting: Setting) -> None:
    setting.register("orders", "bills")
    setting.register("orders", name="b", address="host-b:1")
    assert setting.routes.unregister("c", "host-a:1", None) is not None
    assert setting.routes.unregister("c", "host-a:1", None) is None
    assert setting.addresses("orders") == {"b": {0: "host-b:1"}}
    assert setting.routes.topics().topicList == ["orders"]
    assert setting.routes.cluster_info().clusterAddrTable == {"c": ["b"]}


def test_a_silent_broker_leaves_after_its_time_and_not_before(setting: Setting) -> None:
    owner = object()
    setting.register("orders", owner=owner)
    setting.clock.advance(int(TIMEOUT_S * 1000))
    assert setting.routes.expire() == []
    setting.clock.advance(1)
    (gone,) = setting.routes.expire()
    assert (gone.name, gone.address, gone.owner) == ("a", "host-a:1", owner)
    statistics = setting.routes.statistics()
    assert (statistics["brokers"], statistics["broker_names"], statistics["topics"]) == (0, 0, 0)


def test_a_broker_may_ask_for_a_shorter_time(setting: Setting) -> None:
    setting.register("orders", timeout_ms=10_000)
    setting.clock.advance(10_001)
    assert len(setting.routes.expire()) == 1


def test_heartbeats_keep_a_broker(setting: Setting) -> None:
    setting.register("orders")
    for _ in range(10):
        setting.clock.advance(100_000)
        setting.routes.heartbeat("c", "host-a:1", None)
        assert setting.routes.expire() == []


def test_a_wall_clock_that_steps_expires_nobody(setting: Setting) -> None:
    setting.register("orders")
    setting.clock.step(10_000_000)
    assert setting.routes.expire() == []


def test_a_connection_that_goes_takes_only_brokers_that_registered_on_it(setting: Setting) -> None:
    one, other = object(), object()
    setting.register("orders", owner=one)
    setting.register("orders", name="b", address="host-b:1", owner=other)
    assert [gone.address for gone in setting.routes.remove_owner(one)] == ["host-a:1"]
    assert setting.addresses("orders") == {"b": {0: "host-b:1"}}


def test_the_data_version_is_that_of_the_last_registration(setting: Setting) -> None:
    assert setting.routes.data_version("c", "host-a:1") is None
    setting.register("orders", version=3)
    assert setting.routes.data_version("c", "host-a:1") == DataVersionJson(counter=3)


def test_a_wiped_write_permission_stays_wiped_until_the_topics_change(setting: Setting) -> None:
    setting.register("orders", "bills")
    assert setting.routes.set_writable("a", False) == 2
    setting.register("orders", "bills")
    assert setting.perm("orders") == READ
    assert setting.routes.set_writable("a", True) == 2
    assert setting.perm("orders") == READ | WRITE
    setting.routes.set_writable("a", False)
    setting.register("orders", "bills", version=2)
    assert setting.perm("orders") == READ | WRITE
    assert setting.routes.set_writable("nobody", False) == 0


def test_topics_are_listed_by_cluster(setting: Setting) -> None:
    setting.register("orders", "bills")
    setting.register("orders", "logs", name="b", address="host-b:1", cluster="d")
    assert setting.routes.topics_of_cluster("c").topicList == ["orders", "bills"]
    assert setting.routes.topics_of_cluster("d").topicList == ["orders", "logs"]
    assert setting.routes.topics_of_cluster("e").topicList == []
    system = setting.routes.system_topics()
    assert (system.topicList, system.brokerAddr) == (["c", "a", "d", "b"], "host-a:1")


def test_a_topic_is_deleted_in_one_cluster_or_in_all(setting: Setting) -> None:
    setting.register("orders")
    setting.register("orders", name="b", address="host-b:1", cluster="d")
    setting.routes.delete_topic("orders", "d")
    assert setting.addresses("orders") == {"a": {0: "host-a:1"}}
    setting.routes.delete_topic("orders")
    setting.routes.delete_topic("orders")
    assert setting.routes.topics().topicList == []
    setting.register("orders")
    assert setting.addresses("orders") == {"a": {0: "host-a:1"}}


def test_members_are_the_ids_of_one_name(setting: Setting) -> None:
    setting.register("orders")
    setting.register("orders", address="host-a:2", broker_id=1)
    assert setting.routes.members("c", "a").brokerAddrs == {0: "host-a:1", 1: "host-a:2"}
    assert setting.routes.members("c", "nobody").brokerAddrs == {}


@pytest.mark.parametrize("bound", ["max_topics", "max_host_topics"])
def test_topics_above_a_limit_are_refused_as_a_whole_and_expel_nobody(bound: str) -> None:
    setting = Setting(**{bound: 2})
    setting.register("one")
    with pytest.raises(ServiceUnavailable, match=f"namesrv.{bound}"):
        setting.register("two", "three", name="b", address="host-b:1")
    statistics = setting.routes.statistics()
    assert (statistics["brokers"], statistics["topics"], statistics["broker_topics"], statistics[bound]) == (1, 1, 1, 2)
    setting.register("one", name="b", address="host-b:1")
    # It has more than there is room for: it stays with what it had, for as long as it speaks.
    for _ in range(10):
        setting.clock.advance(int(TIMEOUT_S * 500))
        setting.register("one", name="b", address="host-b:1")
        with pytest.raises(ServiceUnavailable):
            setting.register("one", "two", version=2)
        assert setting.routes.expire() == []
    assert setting.addresses("one") == {"a": {0: "host-a:1"}, "b": {0: "host-b:1"}}
    assert setting.routes.data_version("c", "host-a:1") == DataVersionJson(counter=1)


def test_one_host_does_not_take_the_room_of_others() -> None:
    setting = Setting(max_host_topics=3, max_host_brokers=2)
    setting.register("one", "two", "three", name="evil", address="evil:1", host="evil")
    with pytest.raises(ServiceUnavailable, match="max_host_topics"):
        setting.register("four", name="evil2", address="evil:2", host="evil")
    setting.register(name="evil2", address="evil:2", host="evil")
    with pytest.raises(ServiceUnavailable, match="max_host_brokers"):
        setting.register(name="evil3", address="evil:3", host="evil")
    setting.register("one", "two", "three")
    statistics = setting.routes.statistics()
    assert (statistics["host_brokers"], statistics["host_topics"]) == (2, 3)
    assert (statistics["brokers_held"], statistics["broker_topics_held"]) == (3, 6)
    setting.routes.unregister("c", "evil:1", None)  # its room is kept, and still counts
    assert setting.routes.statistics().items() >= {
        ("host_brokers", 2), ("host_topics", 3), ("brokers_held", 3), ("broker_topics_held", 6),
    }  # fmt: skip


def test_a_broker_that_restarts_finds_its_place_and_its_topics_kept() -> None:
    setting = Setting(max_topics=2, max_brokers=2)
    setting.register("one", "two")
    setting.routes.unregister("c", "host-a:1", None)
    with pytest.raises(ServiceUnavailable, match="max_topics"):
        setting.register("evil", name="evil", address="evil:1")
    setting.register(name="evil", address="evil:1")
    with pytest.raises(ServiceUnavailable, match="max_brokers"):
        setting.register(name="evil2", address="evil:2")
    setting.register("one", "two")
    assert setting.addresses("one") == {"a": {0: "host-a:1"}}


def test_names_that_come_and_go_are_bounded_too() -> None:
    setting = Setting(max_brokers=10)
    for number in range(10):
        setting.register("t", name=f"n{number}")  # one address, every time under another name
    with pytest.raises(ServiceUnavailable, match="max_brokers"):
        setting.register("t", name="n10")
    statistics = setting.routes.statistics()
    assert (statistics["brokers"], statistics["brokers_away"]) == (1, 9)
    with pytest.raises(ServiceUnavailable) as refusal:
        setting.routes.route("nowhere")
    assert "one of 6 more" in refusal.value.message


# Registrations on the wire.


def header_for(body: bytes, *, compressed: bool = False, checksum: int | None = None) -> RegisterBrokerHeader:
    return RegisterBrokerHeader(
        brokerName="a",
        brokerAddr="host-a:1",
        clusterName="c",
        brokerId=0,
        compressed=compressed,
        bodyCrc32=zlib.crc32(body) & 0x7FFFFFFF if checksum is None else checksum,
    )


def packed(*parts: bytes | int) -> bytes:
    return b"".join(
        struct.pack(">i", part) if isinstance(part, int) else struct.pack(">i", len(part)) + part for part in parts
    )


VERSION_JSON = b'{"counter":4,"stateVersion":1,"timestamp":1800000000000}'


def test_a_registration_is_read_out_of_json() -> None:
    wanted = RegisterBrokerBody(
        topicConfigSerializeWrapper=TopicTableJson(topics={"t": TopicJson(name="t", permissions=4)})
    )
    body = encode_body(wanted)
    assert read_registration(header_for(body), body, BOUNDS) == wanted
    assert read_registration(header_for(b""), b"", BOUNDS) == RegisterBrokerBody()


@pytest.mark.parametrize("says_so", [True, False])
def test_a_registration_is_read_out_of_its_packed_form(says_so: bool) -> None:
    mappings = 0
    data = packed(VERSION_JSON, 2, b"t 4 8 6 SINGLE_TAG {}", b"u 1 2 4 MULTI_TAG ", b'["f:1"]', mappings)
    body = zlib.compress(data, 9)
    read = read_registration(header_for(body, compressed=says_so), body, BOUNDS)
    table = read.topicConfigSerializeWrapper
    assert table.version == DataVersionJson(counter=4, state_version=1, timestamp_ms=1_800_000_000_000)
    assert table.topics == {
        "t": TopicJson(name="t", read_queues=4, write_queues=8, permissions=6),
        "u": TopicJson(name="u", read_queues=1, write_queues=2, permissions=4, filter_type="MULTI_TAG"),
    }
    assert read.filterServerList == ["f:1"]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        packed(VERSION_JSON),
        packed(VERSION_JSON, 5, b"t 4 8 6 SINGLE_TAG {}"),
        packed(VERSION_JSON, 1, b"t four 8 6 SINGLE_TAG", b"[]"),
        packed(VERSION_JSON, 1, b"t\xff 4 8 6 SINGLE_TAG", b"[]"),
        packed(VERSION_JSON, 1, b"t", b"[]"),
        packed(b"{", 0, b"[]"),
        struct.pack(">i", -1) + b"xxxx",
    ],
)
def test_a_packed_registration_that_does_not_parse_is_refused(data: bytes) -> None:
    body = zlib.compress(data)
    with pytest.raises(MalformedRequest):
        read_registration(header_for(body, compressed=True), body, BOUNDS)


def test_a_registration_that_does_not_inflate_is_refused() -> None:
    whole = zlib.compress(packed(VERSION_JSON, 0, b"[]"))
    for body in (b"no deflate", whole[:-6]):
        with pytest.raises(MalformedRequest):
            read_registration(header_for(body, compressed=True), body, BOUNDS)


@pytest.mark.parametrize("body", [zlib.compress(bytes(100_000)), b"[" * 2000])
def test_a_registration_that_is_too_large_is_refused(body: bytes) -> None:
    with pytest.raises(ServiceUnavailable, match="exceeds 1000 bytes"):
        read_registration(header_for(body), body, NameServerConfig(max_registration=Size(1000)))


def test_the_length_of_a_name_is_that_of_its_bytes() -> None:
    for name, is_taken in (("x" * 255, True), ("é" * 127, True), ("é" * 128, False), ("\U0001f600" * 64, False)):
        table = TopicTableJson(topics={name: TopicJson(name=name)})
        body = encode_body(RegisterBrokerBody(topicConfigSerializeWrapper=table))
        if is_taken:
            read_registration(header_for(body), body, BOUNDS)
        else:
            with pytest.raises(InvalidParameter, match="topic name") as caught:
                read_registration(header_for(body), body, BOUNDS)
            assert "255 bytes" in caught.value.hint


def test_a_registration_with_too_many_topics_is_refused_before_they_are_read() -> None:
    body = zlib.compress(packed(VERSION_JSON, 3, b"not read"))
    with pytest.raises(ServiceUnavailable, match="3 topics; the limit is 2"):
        read_registration(header_for(body), body, NameServerConfig(max_host_topics=2))


@pytest.mark.parametrize("number", [str(1 << 31), "1" + "0" * 30, "1e400", "-1", "65536", "nan", ""])
def test_a_packed_topic_with_a_number_that_cannot_be_is_refused(number: str) -> None:
    body = zlib.compress(packed(VERSION_JSON, 1, f"t {number} 8 6 SINGLE_TAG ".encode(), b"[]"))
    with pytest.raises((MalformedRequest, InvalidParameter)):
        read_registration(header_for(body), body, BOUNDS)


def test_a_registration_with_a_wrong_checksum_is_refused() -> None:
    body = encode_body(RegisterBrokerBody())
    with pytest.raises(MalformedRequest, match="checksum"):
        read_registration(header_for(body, checksum=1), body, BOUNDS)
    assert read_registration(header_for(body, checksum=0), body, BOUNDS) == RegisterBrokerBody()


def test_who_has_one_address_of_an_ipv6_network_has_the_share_of_one() -> None:
    bounds = msgspec.structs.replace(BOUNDS, max_host_brokers=2)
    server = NameServer(Config(namesrv=bounds), SimulatedClock())

    def register(number: int, ip: str) -> None:
        connection = SimpleNamespace(peer=(ip, 1), attachment=None, enable_keepalive=lambda: None)
        fields = {"brokerName": f"b{number}", "brokerAddr": f"h:{number}", "clusterName": "c", "brokerId": "0"}
        [command] = FrameReader().feed(encode_frame(Request.REGISTER_BROKER, 1, fields=fields))
        server.serve(cast(Connection, connection), command)

    register(1, "2001:db8::1")
    register(2, "2001:db8::2")
    with pytest.raises(ServiceUnavailable, match="max_host_brokers"):
        register(3, "2001:db8::ffff:3")
    register(3, "2001:db8:0:1::3")
