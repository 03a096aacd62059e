"""Strangers at the name server: no route is taken over, no broker expelled, and what they leave there is bounded."""

import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from latermq.config_json.topics import DataVersionJson, TopicJson, TopicTableJson
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.frames import Command
from latermq.protocol.remoting.json_body import decode_body, encode_body
from latermq.protocol.remoting.routes import RegisterBrokerBody, TopicRoute
from tests.integration.brokers import send_fields
from tests.security.attacker import Attacker, attacking, resident_bytes
from tests.support.serving import Server, serving

TOPIC = "TBW102"  # a topic that the broker has from its start
EVIL = "203.0.113.9:666"
MIB = 1 << 20


@contextmanager
def served(tmp_path: Path, *settings: str) -> Iterator[Server]:
    options = [option for setting in settings for option in ("--set", setting)]
    with serving(tmp_path / "data", *options) as server:
        yield server


def identity(server: Server, **changes: str) -> dict[str, str]:
    """The header of the true broker's registration, or of one that is like it."""
    fields = {"brokerName": "broker-a", "brokerAddr": server.broker, "clusterName": "DefaultCluster", "brokerId": "0"}
    return fields | changes


def table(*topics: str, state: int = 0, counter: int = 0, queues: int = 8) -> bytes:
    configs = {name: TopicJson(name=name, read_queues=queues, write_queues=queues) for name in topics}
    version = DataVersionJson(counter=counter, state_version=state)
    wrapper = TopicTableJson(topics=configs, version=version)
    return encode_body(RegisterBrokerBody(topicConfigSerializeWrapper=wrapper))


def register(stranger: Attacker, fields: dict[str, str], body: bytes = b"") -> Command:
    return stranger.call(Request.REGISTER_BROKER, fields, body)


def route(asking: Attacker, topic: str = TOPIC) -> dict[str, dict[int, str]]:
    reply = asking.call(Request.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
    if reply.code != Response.SUCCESS:
        return {}
    return {broker.brokerName: broker.brokerAddrs for broker in decode_body(reply.body, TopicRoute).brokerDatas}


def test_a_live_broker_is_not_taken_over(one_server: Server) -> None:
    server = one_server
    with attacking(server.namesrv_port) as client:
        true = {"broker-a": {0: server.broker}}
        assert route(client) == true
        attempts = [
            identity(server, brokerAddr=EVIL),  # in a newer state
            identity(server, brokerAddr=EVIL, clusterName="Elsewhere"),
            identity(server, clusterName="Elsewhere"),
            identity(server, brokerName="broker-z"),
            identity(server, brokerName="broker-z", clusterName="Elsewhere"),
            identity(server, brokerId="7"),
            identity(server, brokerAddr=EVIL, brokerId="-1", enableActingMaster="true"),
            identity(server),  # and then away, as if the broker had gone
        ]
        for fields in attempts:
            with attacking(server.namesrv_port) as stranger:
                reply = register(stranger, fields, table(TOPIC, state=1 << 40, queues=1))
                assert reply.code != Response.SUCCESS, fields
                assert reply.remark
                assert route(stranger) == true, fields
            assert route(client) == true, fields


def test_a_stranger_unregisters_no_live_broker(one_server: Server) -> None:
    with attacking(one_server.namesrv_port) as stranger:
        reply = stranger.call(Request.UNREGISTER_BROKER, identity(one_server))
        assert reply.code == Response.NO_PERMISSION
        assert "another connection" in (reply.remark or "")
        assert route(stranger) == {"broker-a": {0: one_server.broker}}


def test_a_registration_for_ever_leaves_no_ghost(tmp_path: Path) -> None:
    with (
        served(tmp_path, "server.broker_timeout=2s", "broker.register_every=500ms") as server,
        attacking(server.namesrv_port) as stranger,
        attacking(server.namesrv_port) as friend,
    ):
        ghost = identity(server, brokerName="ghost", brokerAddr=EVIL)
        for forever in (f"{10**400}", "1e400", "-1", "0"):
            reply = register(stranger, ghost | {"heartbeatTimeoutMillis": forever}, table("haunted"))
            assert reply.code != Response.SUCCESS
        # The longest that a number can say, and a stranger that lets others speak for it.
        register(stranger, ghost | {"heartbeatTimeoutMillis": str((1 << 63) - 1)}, table("haunted"))
        assert route(friend, "haunted") == {"ghost": {0: EVIL}}
        deadline = time.monotonic() + 20
        while route(friend, "haunted"):
            friend.call(Request.BROKER_HEARTBEAT, ghost)
            friend.call(Request.QUERY_DATA_VERSION, ghost, encode_body(DataVersionJson()))
            assert time.monotonic() < deadline, "the ghost's route stays"
            time.sleep(0.1)
        assert route(friend) == {"broker-a": {0: server.broker}}


def test_a_broker_whose_registration_has_become_too_long_keeps_its_route(tmp_path: Path) -> None:
    settings = ["server.broker_timeout=2s", "broker.register_every=300ms", "namesrv.max_registration=8KiB"]
    with served(tmp_path, *settings) as server, attacking(server.namesrv_port) as client:
        true = {"broker-a": {0: server.broker}}
        with attacking(server.port) as stranger:
            for number in range(60):
                stranger.call(Request.SEND_MESSAGE_V2, send_fields(f"long{number}"), b"makes a topic")
        until = time.monotonic() + 3
        while time.monotonic() < until:
            assert route(client) == true
            time.sleep(0.1)
        assert route(client, "long59") == {}
        assert "namesrv.max_registration" in server.log()


def test_full_tables_expel_no_broker_and_hold_no_more_than_they_may(tmp_path: Path) -> None:
    settings = ["server.broker_timeout=3s", "broker.register_every=500ms"]
    with served(tmp_path, *settings) as server, attacking(server.namesrv_port) as stranger:
        pid = server.namesrv_pid()
        before = resident_bytes(pid)
        taken = []
        for number in range(200):
            names = [f"swelling-{number}-{topic}-{'x' * 80}" for topic in range(1000)]
            fields = identity(server, brokerName=f"evil-{number}", brokerAddr=f"203.0.113.9:{number + 1}")
            reply = register(stranger, fields, table(*names))
            if reply.code == Response.SUCCESS:
                taken.append(fields)
            else:
                assert "namesrv.max_host_topics" in (reply.remark or ""), reply.remark
        assert len(taken) == 19
        assert resident_bytes(pid) - before < 60 * MIB
        # The broker makes a topic that has no room, and goes on being heard for longer than its time.
        with attacking(server.port) as operator:
            made = {"topic": "late", "defaultTopic": TOPIC, "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
            operator.call(Request.UPDATE_AND_CREATE_TOPIC, made)
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            for fields in taken:  # its own stay, and keep the table full
                stranger.call(Request.BROKER_HEARTBEAT, fields)
            assert route(stranger)["broker-a"] == {0: server.broker}
            time.sleep(0.25)


def test_brokers_that_come_and_go_leave_little_behind(tmp_path: Path) -> None:
    with served(tmp_path, "namesrv.max_host_brokers=50") as server:
        accepted = 0
        for number in range(300):
            with attacking(server.namesrv_port) as stranger:
                fields = identity(
                    server, brokerName=f"evil-{number}" + "x" * 200, brokerAddr=f"203.0.113.9:{number + 1}"
                )
                accepted += register(stranger, fields, table("t")).code == Response.SUCCESS
        assert accepted < 60
        assert len((tmp_path / "data" / "namesrv" / "brokers.json").read_bytes()) < 60 * 300
        with attacking(server.namesrv_port) as client:
            assert route(client) == {"broker-a": {0: server.broker}}
            remark = client.call(Request.GET_ROUTEINFO_BY_TOPIC, {"topic": "nowhere"}).remark or ""
            assert len(remark) < 2000


def test_a_deflated_registration_does_not_swell_the_name_server(one_server: Server) -> None:
    bomb = zlib.compress(bytes(57 * MIB), 9)
    with attacking(one_server.namesrv_port) as stranger:
        pid = one_server.namesrv_pid()
        before = resident_bytes(pid)
        for _ in range(4):
            fields = identity(one_server, brokerName="b", brokerAddr=EVIL, compressed="true")
            reply = register(stranger, fields, bomb)
            assert reply.code != Response.SUCCESS
            assert "namesrv.max_registration" in (reply.remark or "")
        peak = int(Path(f"/proc/{pid}/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024
        now = int(Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()[0]) * 1024
        assert resident_bytes(pid) - before < 12 * MIB
        assert peak - now < 24 * MIB


@pytest.mark.parametrize(
    "changes",
    [
        {"brokerName": ""}, {"brokerName": "x" * 300}, {"brokerName": "a\nb"}, {"brokerName": "a\0"},
        {"clusterName": "c" * 300}, {"clusterName": " "}, {"brokerAddr": "nowhere"}, {"brokerAddr": "x" * 300 + ":1"},
        {"brokerAddr": "h:99999"}, {"haServerAddr": "h" * 300}, {"brokerId": "-1"}, {"brokerId": str(1 << 63)},
    ],
)  # fmt: skip
def test_a_registration_with_a_name_that_cannot_be_is_refused(one_server: Server, changes: dict[str, str]) -> None:
    with attacking(one_server.namesrv_port) as stranger:
        fields = identity(one_server, brokerName="other", brokerAddr=EVIL) | changes
        assert register(stranger, fields, table("t")).code != Response.SUCCESS
        assert not route(stranger, "t")


@pytest.mark.parametrize(
    "body",
    [
        table("t", queues=1 << 20), table("t", queues=-1), table("x" * 300), table("a b"), table("a\nb"), table(""),
        encode_body(RegisterBrokerBody(filterServerList=["f:1"] * 1000)),
        encode_body(RegisterBrokerBody(filterServerList=["f" * 1000])),
    ],
    ids=["many queues", "minus one queue", "long", "space", "line", "empty", "many filters", "long filter"],
)  # fmt: skip
def test_a_registration_with_topics_that_cannot_be_is_refused(one_server: Server, body: bytes) -> None:
    with attacking(one_server.namesrv_port) as stranger:
        fields = identity(one_server, brokerName="other", brokerAddr=EVIL)
        assert register(stranger, fields, body).code != Response.SUCCESS
        assert not route(stranger, "t")


def test_the_key_value_table_is_bounded_in_entries_bytes_and_namespaces(one_server: Server, kv_file: Path) -> None:
    with attacking(one_server.namesrv_port) as stranger:

        def put(namespace: str, key: str, value: str) -> Command:
            return stranger.call(Request.PUT_KV_CONFIG, {"namespace": namespace, "key": key, "value": value})

        for namespace, key in (("", "k"), ("n" * 300, "k"), ("n\n", "k"), ("n", ""), ("n", "k" * 300), ("n", "\0")):
            assert put(namespace, key, "v").code != Response.SUCCESS
        assert "namesrv.max_kv" in (put("n", "k", "v" * 150_000).remark or "")
        # 300 keys against a bound of 100, written one after the other without waiting.
        for number in range(300):
            stranger.push(stranger.request(Request.PUT_KV_CONFIG, {"namespace": "n", "key": str(number), "value": "v"}))
        answers = [stranger.receive() for _ in range(300)]
        assert sum(answer.code == Response.SUCCESS for answer in answers) == 100
        for number in range(100):
            stranger.push(stranger.request(Request.DELETE_KV_CONFIG, {"namespace": "n", "key": str(number)}))
        # A namespace that is emptied is gone: else names of namespaces would fill the table.
        for number in range(200):
            entry = {"namespace": f"space-{number}", "key": "k"}
            stranger.push(stranger.request(Request.PUT_KV_CONFIG, entry | {"value": "v"}))
            stranger.push(stranger.request(Request.DELETE_KV_CONFIG, entry))
        assert {stranger.receive().code for _ in range(500)} == {Response.SUCCESS}
        assert kv_file.stat().st_size < 1000


def test_a_refusal_is_shorter_than_what_it_refuses(one_server: Server) -> None:
    for port in (one_server.namesrv_port, one_server.port):
        with attacking(port) as stranger:
            for reply in (
                stranger.call(Request.GET_ROUTEINFO_BY_TOPIC, {"topic": "\0" * 40_000}),
                stranger.call(Request.UPDATE_NAMESRV_CONFIG, body=b"\x01" * MIB),
                stranger.call(Request.GET_MAX_OFFSET, {"topic": "\0" * 40_000, "queueId": "0"}),
                stranger.call(Request.DELETE_KV_CONFIG, {"namespace": "\0" * 40_000, "key": "k"}),
            ):
                assert len((reply.remark or "").encode()) < 10_000


def test_a_topic_flag_that_java_cannot_read_is_refused(one_server: Server) -> None:
    with attacking(one_server.port) as stranger, attacking(one_server.namesrv_port) as client:
        made = {"topic": "odd", "defaultTopic": TOPIC, "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
        for flag in (str(10**30), str(1 << 31), "1e400", "NaN"):
            reply = stranger.call(Request.UPDATE_AND_CREATE_TOPIC, made | {"topicSysFlag": flag})
            assert reply.code != Response.SUCCESS
        assert not route(client, "odd")


@pytest.fixture(scope="module")
def one_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with served(
        tmp_path_factory.getbasetemp() / "one", "namesrv.max_kv_entries=100", "namesrv.max_kv=100KiB"
    ) as server:
        yield server


@pytest.fixture
def kv_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.getbasetemp() / "one" / "data" / "namesrv" / "kvConfig.json"
