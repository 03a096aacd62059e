"""Names that strangers choose: none becomes a path that leads elsewhere, and the log tells who changed what."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from latermq.protocol.remoting.codes import Request, Response
from tests.integration.brokers import pull_fields, send_fields
from tests.security.attacker import Attacker, attacking
from tests.support.serving import Server, serving

# Every one of these was joined to the folder of the queues.
PATHS = [
    "../../victim",
    "../commitlog",
    "../config",
    "../../../../../../../../../../tmp",
    "..",
    ".",
    "orders/../../commitlog",
    "orders/0",
    "/etc",
    "orders\0",
    "",
    "o" * 5_000,
]


def send(attacker: Attacker, topic: str) -> None:
    assert attacker.call(Request.SEND_MESSAGE_V2, send_fields(topic), b"body").code == Response.SUCCESS


def files_of(folder: Path) -> set[str]:
    """All files but those that a running broker makes and replaces by itself."""
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(("abort", "checkpoint", "latermq.")) and path.suffix != ".draft"
    }


@dataclass(frozen=True)
class Scene:
    """A broker and a name server, and a folder beside theirs that they have nothing to do with."""

    server: Server
    data: Path
    victim: Path


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("names")
    victim = folder / "victim"
    victim.mkdir()
    (victim / "savings").write_text("all of it")
    with serving(folder / "data") as server:
        yield Scene(server, folder / "data", victim)


def test_no_name_of_a_topic_deletes_anything_but_that_topic(scene: Scene) -> None:
    data, victim = scene.data, scene.victim
    with attacking(scene.server.port) as attacker:
        send(attacker, "orders")
        # Written before, so that nothing but the attack changes files.
        fields = {"topic": "orders", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
        assert attacker.call(Request.UPDATE_AND_CREATE_TOPIC, fields).code == Response.SUCCESS
        before = files_of(data)
        assert any(name.startswith("commitlog/") for name in before)
        for name in PATHS:
            reply = attacker.call(Request.DELETE_TOPIC_IN_BROKER, {"topic": name})
            assert reply.code == Response.INVALID_PARAMETER, f"{name[:40]!r} was taken"
            assert reply.remark is not None
            assert len(reply.remark) < 400
            assert files_of(data) == before, f"{name[:40]!r} deleted files"
        assert (victim / "savings").read_text() == "all of it"
        send(attacker, "orders")
        found = attacker.call(Request.PULL_MESSAGE, pull_fields("orders", 0))
        assert found.code == Response.SUCCESS


# Every header field that names something, by the name that it has in some request.
NAMED = [
    "topic",
    "b",
    "topicList",
    "defaultTopic",
    "c",
    "group",
    "consumerGroup",
    "groupName",
    "producerGroup",
    "a",
    "srcGroup",
    "destGroup",
    "compareGroup",
    "filterGroups",
    "clientID",
    "clientId",
    "clientAddr",
    "attempt",
    "namespace",
    "key",
    "value",
    "brokerName",
    "brokerAddr",
    "clusterName",
    "cluster",
    "haServerAddr",
    "msgId",
    "originMsgId",
    "originTopic",
    "uniqueKey",
    "uniqKey",
    "recallHandle",
    "token",
    "statsName",
    "statsKey",
    "attributes",
    "i",
]
NUMBERS = [
    "queueId",
    "e",
    "offset",
    "timestamp",
    "number",
    "epoch",
    "readQueueNums",
    "writeQueueNums",
    "perm",
    "commitOffset",
    "queueOffset",
    "maxMsgNums",
    "delayLevel",
    "brokerId",
    "bornTimestamp",
    "g",
    "sysFlag",
    "f",
    "flag",
    "h",
    "d",
    "index",
    "count",
    "tableEnd",
    "dueMs",
    "maxNum",
    "beginTimestamp",
    "endTimestamp",
    "bodyCrc32",
]


def test_no_request_of_any_code_reaches_files_by_the_names_in_it(tmp_path: Path) -> None:
    data, victim = tmp_path / "data", tmp_path / "victim"
    victim.mkdir()
    (victim / "savings").write_text("all of it")
    with serving(data) as server, attacking(server.port) as other:
        send(other, "orders")
        before = sorted(path.name for path in data.iterdir())
        for name in ("../../victim", "../commitlog"):
            fields = dict.fromkeys(NAMED, name) | dict.fromkeys(NUMBERS, "1")
            body = (
                '{"groupName":"N","topicName":"N","clientID":"N","consumerGroup":"N","clientId":"N","topic":"N",'
                '"mqSet":[{"topic":"N","brokerName":"N","queueId":0}],"groupConfigList":[{"groupName":"N"}],'
                '"topicConfigList":[{"topicName":"N"}],"producerDataSet":[{"groupName":"N"}],'
                '"consumerDataSet":[{"groupName":"N","subscriptionDataSet":[{"topic":"N"}]}]}'
            ).replace("N", name)
            for port in (server.port, server.namesrv_port):
                for code in Request:
                    with attacking(port) as attacker:
                        reply = attacker.call(code, fields, body.encode())
                        assert "internal error" not in (reply.remark or ""), code
        assert (victim / "savings").read_text() == "all of it"
        assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "victim"]
        assert {path.name for path in (data / "consumequeue").iterdir()} <= {"orders", "rmq_sys_wheel_timer"}
        assert set(before) <= {path.name for path in data.iterdir()}
        send(other, "orders")
        found = other.call(Request.PULL_MESSAGE, pull_fields("orders", 0))
        assert found.code == Response.SUCCESS
    with serving(data) as server:
        assert "not understood" not in server.log()


def test_topics_that_the_broker_lives_by_stay(scene: Scene) -> None:
    with attacking(scene.server.port) as attacker:
        for topic in ("SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "TBW102", "SELF_TEST_TOPIC", "broker-a"):
            fields = {"topic": topic, "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
            for code in (Request.UPDATE_AND_CREATE_TOPIC, Request.DELETE_TOPIC_IN_BROKER):
                assert attacker.call(code, fields).code == Response.INVALID_PARAMETER, topic


def lines_of(scene: Scene, attacker: Attacker, event: str) -> list[str]:
    lines = scene.server.log().splitlines()
    return [line for line in lines if f"] {event} " in line and f"peer={attacker.name} " in f"{line} "]


def test_every_change_is_logged_once_with_who_made_it(scene: Scene) -> None:
    topic = {"topic": "orders", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
    groups = b'{"groupConfigList":[{"groupName":"g2"},{"groupName":"g3"}]}'
    changes: list[tuple[str, int, dict[str, str], bytes, str]] = [
        ("topic created or updated", Request.UPDATE_AND_CREATE_TOPIC, topic, b"", "topic=orders"),
        ("group created or updated", Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {},
         b'{"groupName":"g1"}', "names=g1"),
        ("groups created or updated", Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {}, groups, "names='g2, g3'"),
        ("offsets reset", Request.INVOKE_BROKER_TO_RESET_OFFSET,
         {"group": "g1", "topic": "orders", "timestamp": "0"}, b"", "group=g1"),
        ("group deleted", Request.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g1\n[info] all is well " + "x" * 900}, b"",
         r"g1\\n[info] all is well"),
        ("topic deleted", Request.DELETE_TOPIC_IN_BROKER, {"topic": "orders"}, b"", "topic=orders"),
        ("clean-up requested", Request.DELETE_EXPIRED_COMMITLOG, {}, b"", ""),
    ]  # fmt: skip
    with attacking(scene.server.port) as attacker:
        for event, code, fields, body, told in changes:
            assert attacker.call(code, fields, body).code == Response.SUCCESS, event
            [line] = lines_of(scene, attacker, event)
            assert told in line
            assert len(line) < 600
    with attacking(scene.server.namesrv_port) as attacker:
        key = {"namespace": "n", "key": "k", "value": "secret"}
        assert attacker.call(Request.PUT_KV_CONFIG, key).code == Response.SUCCESS
        [line] = lines_of(scene, attacker, "key set")
        assert "secret" not in line
