"""Strangers who join ever new groups under ever new names, and set offsets wherever they can."""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from latermq.config_json.groups import GroupJson
from latermq.protocol.remoting.clients import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.json_body import encode_body
from tests.integration.brokers import pull_fields, send_fields
from tests.interop.waiting import wait_until
from tests.security.attacker import TIMEOUT_S, Attacker, attacking, resident_bytes
from tests.support.serving import Server, serving

pytestmark = pytest.mark.real


@contextlib.contextmanager
def stranger(port: int) -> Iterator[Attacker]:
    """One on another host than everybody else."""
    with socket.socket() as sock:
        sock.settimeout(TIMEOUT_S)
        sock.bind(("127.0.0.2", 0))
        sock.connect(("127.0.0.1", port))
        yield Attacker(sock)


def beat(client_id: str, groups: list[str], *topics: str) -> bytes:
    subscriptions = [SubscriptionData(topic=topic) for topic in topics]
    consumers = [ConsumerData(groupName=group, subscriptionDataSet=subscriptions) for group in groups]
    return encode_body(HeartbeatData(clientID=client_id, consumerDataSet=consumers))


def names(client: Attacker, code: int, table: str) -> set[str]:
    return set(msgspec.json.decode(client.call(code).body)[table])


def topics(server: Server) -> set[str]:
    with attacking(server.port) as client:
        return names(client, Request.GET_ALL_TOPIC_CONFIG, "topicConfigTable")


def groups(server: Server) -> set[str]:
    with attacking(server.port) as client:
        return names(client, Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, "subscriptionGroupTable")


def test_heartbeats_of_a_stranger_leave_topics_and_groups_for_others(tmp_path: Path) -> None:
    settings = ("broker.max_topics=200", "broker.max_groups=200", "broker.max_auto_created=50")
    with serving(tmp_path, *(option for one in settings for option in ("--set", one))) as server:
        remarks = set()
        for number in range(8):
            with stranger(server.port) as attacker:
                joined = [f"g{number}-{index}" for index in range(40)]
                reply = attacker.call(Request.HEART_BEAT, body=beat(f"client{number}", joined))
                remarks.add((reply.code, (reply.remark or "").partition(" ")[0]))
                pulled = attacker.call(Request.PULL_MESSAGE, pull_fields("BenchmarkTest", 0, group=f"p{number}"))
                assert number < 2 or pulled.code == Response.NO_PERMISSION
        assert remarks == {(Response.SUCCESS, ""), (Response.NO_PERMISSION, "clients")}
        assert sum(topic.startswith("%RETRY%") for topic in topics(server)) == 49
        assert sum(group.startswith(("g", "p")) for group in groups(server)) == 50
        with attacking(server.port) as other:
            assert other.call(Request.SEND_MESSAGE_V2, send_fields("orders"), b"body").code == Response.SUCCESS
            assert other.call(Request.HEART_BEAT, body=beat("reader", ["readers"], "orders")).code == Response.SUCCESS
        assert {"orders", "%RETRY%readers"} <= topics(server)


def test_what_heartbeats_made_and_nobody_used_goes_away_though_the_broker_was_killed(tmp_path: Path) -> None:
    with serving(tmp_path, "--set", "broker.offset_save_every=100ms") as server:
        with attacking(server.port) as client:
            client.call(Request.SEND_MESSAGE_V2, send_fields("orders"), b"body")
            client.call(Request.HEART_BEAT, body=beat("c", ["idle", "reading", "failing", "there"], "orders"))
            fields = {"consumerGroup": "reading", "topic": "orders", "queueId": "0", "commitOffset": "1"}
            assert client.call(Request.UPDATE_CONSUMER_OFFSET, fields).code == Response.SUCCESS
            retry = send_fields("%RETRY%failing", properties="DELAY\x011\x02", j="1")
            assert client.call(Request.SEND_MESSAGE_V2, retry, b"again").code == Response.SUCCESS
            client.call(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=encode_body(GroupJson(name="own")))
        offsets = tmp_path / "config" / "consumerOffset.json"
        wait_until(lambda: offsets.exists() and b"orders@reading" in offsets.read_bytes(), 20, "the offset is saved")
        server.kill()
    with serving(tmp_path, "--set", "broker.keep_unused=1s") as server, attacking(server.port) as client:
        client.call(Request.HEART_BEAT, body=beat("c", ["there"], "orders"))
        wait_until(lambda: "idle" not in groups(server), 20, "the group that nobody used is gone")
        left = topics(server)
        assert "%RETRY%idle" not in left
        assert {"%RETRY%reading", "%RETRY%failing", "%RETRY%there", "orders"} <= left
        assert {"reading", "failing", "there", "own"} <= groups(server)
        # It is made again by whoever comes back.
        client.call(Request.HEART_BEAT, body=beat("c", ["idle"], "orders"))
        assert "%RETRY%idle" in topics(server)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("data"), "--set", "broker.max_topic_queues=65535") as running:
        yield running


def test_ever_new_clients_on_one_connection_are_refused_and_cost_no_memory(server: Server) -> None:
    with attacking(server.port) as attacker:
        before = resident_bytes(server.broker_pid())
        replies = []
        for number in range(4_000):
            data = HeartbeatData(
                clientID=f"{number}-" + "x" * 1_000, producerDataSet=[ProducerData(groupName=f"{number}" + "p" * 200)]
            )
            replies.append(attacker.call(Request.HEART_BEAT, body=encode_body(data)).code)
        assert replies.count(Response.SUCCESS) == 1_000
        producers = msgspec.json.decode(attacker.call(Request.GET_ALL_PRODUCER_INFO).body)["data"]
        assert len(producers) == 1_000
        assert resident_bytes(server.broker_pid()) - before < 16 << 20


def test_a_heartbeat_cannot_leave_long_texts_behind(server: Server) -> None:
    with attacking(server.port) as attacker:
        for data in (
            HeartbeatData(clientID="c" * 2_000),
            HeartbeatData(clientID="c", producerDataSet=[ProducerData(groupName="p" * 300)]),
            HeartbeatData(clientID="c", consumerDataSet=[ConsumerData(groupName="g", messageModel="M" * 100)]),
            HeartbeatData(clientID="c" * 600_000),
        ):
            reply = attacker.call(Request.HEART_BEAT, body=encode_body(data))
            assert (reply.code, "the limit is" in (reply.remark or "")) == (Response.INVALID_PARAMETER, True)
        locks = {"consumerGroup": "g" * 300, "clientId": "c", "mqSet": []}
        assert attacker.call(Request.LOCK_BATCH_MQ, body=encode_body(locks)).code != Response.SUCCESS


def test_resets_in_a_topic_of_many_queues_store_nothing_for_those_without_messages(server: Server) -> None:
    with attacking(server.port) as attacker:
        wide = {
            "topic": "wide", "defaultTopic": "TBW102", "readQueueNums": "65535", "writeQueueNums": "65535",
            "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
        }  # fmt: skip
        assert attacker.call(Request.UPDATE_AND_CREATE_TOPIC, wide).code == Response.SUCCESS
        attacker.call(Request.SEND_MESSAGE_V2, send_fields("wide", queue_id=7), b"body")
        for number in range(25):
            group = encode_body(GroupJson(name=f"g{number}"))
            attacker.call(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group)
            fields = {"topic": "wide", "group": f"g{number}", "timestamp": "-1", "isForce": "true"}
            assert attacker.call(Request.INVOKE_BROKER_TO_RESET_OFFSET, fields).code == Response.SUCCESS
        stored = msgspec.json.decode(attacker.call(Request.GET_ALL_CONSUMER_OFFSET).body)["offsetTable"]
        assert {key: list(queues) for key, queues in stored.items()} == {
            f"wide@g{number}": ["7"] for number in range(25)
        }


def test_offsets_have_a_bound_and_those_that_are_there_go_on(tmp_path: Path) -> None:
    with serving(tmp_path, "--set", "broker.max_offsets=100") as server, attacking(server.port) as client:
        client.call(Request.SEND_MESSAGE_V2, send_fields("orders"), b"body")

        def commit(number: int) -> int:
            fields = {"consumerGroup": f"g{number}", "topic": "orders", "queueId": "0", "commitOffset": "1"}
            return client.call(Request.UPDATE_CONSUMER_OFFSET, fields).code

        codes = [commit(number) for number in range(150)]
        assert codes == [Response.SUCCESS] * 100 + [Response.NO_PERMISSION] * 50
        assert commit(99) == Response.SUCCESS
        nowhere = {"consumerGroup": "g1", "topic": "nowhere", "queueId": "0", "commitOffset": "1"}
        assert client.call(Request.UPDATE_CONSUMER_OFFSET, nowhere).code == Response.TOPIC_NOT_EXIST
