"""Administration of consumer groups: configuration, progress, offsets, and who is connected."""

import msgspec
import pytest

from latermq.broker.admin import group_admin
from latermq.client.consumer.keyed_tables import keyed_table
from latermq.config_json.groups import GroupJson, GroupTableJson
from latermq.config_json.offsets import OffsetTableJson
from latermq.errors import ConsumerOffline, GroupNotFound, InvalidParameter, LaterMQError, TopicNotFound
from latermq.protocol.remoting.clients import ConsumerConnection, ProducerConnection
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.json_body import decode_body, encode_body
from tests.support.admins import ADDRESS, Scene


@pytest.fixture
def scene() -> Scene:
    """Topic `orders` with two queues of ten messages, one a second; `readers` have consumed three and none."""
    scene = Scene()
    scene.make_topic("orders", queues=2)
    for _ in range(10):
        scene.send("orders", queue_id=0)
        scene.send("orders", queue_id=1)
        scene.clock.advance(1000)
    scene.broker.progress.commit("readers", "orders", 0, 3)
    scene.broker.store.flush()
    return scene


def reset(scene: Scene, **changes: object) -> dict[int, int]:
    fields: dict[str, object] = {"group": "readers", "topic": "orders", "timestamp": -1, "isForce": "true"}
    answer = scene.ask(Request.INVOKE_BROKER_TO_RESET_OFFSET, fields | changes)
    return {queue.queueId: offset for queue, offset in keyed_table(answer.body, "offsetTable")}


def stored(scene: Scene, group: str = "readers") -> dict[int, int]:
    return scene.broker.offsets.of_topic(group, "orders")


# Configuration


def test_a_group_is_made_changed_and_saved_before_the_answer() -> None:
    scene = Scene()
    body = encode_body(GroupJson(name="readers", max_retries=5))
    assert scene.ask(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body).code == Response.SUCCESS
    answer = scene.restart().ask(Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    groups = decode_body(answer.body, GroupTableJson).groups
    assert groups["readers"].max_retries == 5
    assert answer.text_fields() == {"totalGroupNum": str(len(groups))}


def test_several_groups_are_made_at_once() -> None:
    scene = Scene()
    body = b'{"groupConfigList":[{"groupName":"a"},{"groupName":"b","consumeEnable":false}]}'
    scene.ask(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body=body)
    made = scene.broker.groups.find("b")
    assert made is not None
    assert not made.can_consume


def test_a_group_that_cannot_be_is_refused() -> None:
    with pytest.raises(InvalidParameter):
        Scene().ask(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b'{"groupName":"no blanks"}')


def test_asking_for_a_group_does_not_make_it() -> None:
    scene = Scene()
    answer = scene.ask(Request.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "readers"})
    assert decode_body(answer.body, GroupJson) == GroupJson(name="readers")
    assert scene.broker.groups.find("readers") is None
    with pytest.raises(GroupNotFound):
        Scene(auto_create_groups=False).ask(Request.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "readers"})


@pytest.mark.parametrize("clean", [True, False])
def test_a_deleted_group_keeps_its_offsets_unless_asked_otherwise(scene: Scene, clean: bool) -> None:
    fields = {"groupName": "readers", "cleanOffset": str(clean).lower()}
    assert scene.ask(Request.DELETE_SUBSCRIPTIONGROUP, fields).code == Response.SUCCESS
    after = scene.restart()
    assert after.broker.groups.find("readers") is None
    assert stored(after) == ({} if clean else {0: 3})


# Who is connected


def test_the_members_of_a_group_are_listed(scene: Scene) -> None:
    scene.connect("c1", consumer="readers")
    scene.connect("client2", consumer="readers", language="GO")
    answer = scene.ask(Request.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "readers"})
    connections = decode_body(answer.body, ConsumerConnection)
    assert [(one.clientId, one.clientAddr, one.language) for one in connections.connectionSet] == [
        ("c1", "127.0.0.1:6002", "JAVA"),
        ("client2", "127.0.0.1:6007", "GO"),
    ]
    assert connections.subscriptionTable["orders"].subString == "*"
    assert (connections.consumeType, connections.messageModel) == ("CONSUME_PASSIVELY", "CLUSTERING")
    subscription = scene.ask(Request.QUERY_SUBSCRIPTION_BY_CONSUMER, {"group": "readers", "topic": "orders"})
    assert msgspec.json.decode(subscription.body)["subscriptionData"]["topic"] == "orders"
    none = scene.ask(Request.QUERY_SUBSCRIPTION_BY_CONSUMER, {"group": "nobody", "topic": "orders"})
    assert msgspec.json.decode(none.body)["subscriptionData"] is None


def test_producers_are_listed_by_group_and_all_together(scene: Scene) -> None:
    scene.connect("p1", producer="senders")
    answer = scene.ask(Request.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "senders"})
    [connection] = decode_body(answer.body, ProducerConnection).connectionSet
    assert (connection.clientId, connection.version) == ("p1", 513)
    everyone = msgspec.json.decode(scene.ask(Request.GET_ALL_PRODUCER_INFO).body)["data"]
    assert everyone["senders"][0]["lastUpdateTimestamp"] == scene.clock.now_ms()


def test_a_group_without_members_is_offline(scene: Scene) -> None:
    with pytest.raises(ConsumerOffline):
        scene.ask(Request.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "readers"})
    with pytest.raises(LaterMQError, match="does not exist"):
        scene.ask(Request.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "senders"})


# Progress


def test_progress_is_told_queue_by_queue(scene: Scene) -> None:
    body = scene.ask(Request.GET_CONSUME_STATS, {"consumerGroup": "readers"}).body
    entries = {queue.queueId: entry for queue, entry in keyed_table(body, "offsetTable")}
    assert (entries[0]["brokerOffset"], entries[0]["consumerOffset"]) == (10, 3)
    assert entries[0]["lastTimestamp"] == scene.clock.now_ms() - 8000
    assert (entries[1]["brokerOffset"], entries[1]["consumerOffset"], entries[1]["lastTimestamp"]) == (10, 0, 0)


def test_progress_covers_what_the_members_subscribe_to_or_what_is_named(scene: Scene) -> None:
    scene.make_topic("others")
    scene.broker.progress.commit("readers", "others", 0, 0)

    def topics(**fields: str) -> set[str]:
        body = scene.ask(Request.GET_CONSUME_STATS, {"consumerGroup": "readers", **fields}).body
        return {queue.topic for queue, _ in keyed_table(body, "offsetTable")}

    assert topics() == {"orders", "others"}
    assert topics(topic="others") == {"others"}
    scene.connect("c1", consumer="readers", topic="orders")
    assert topics() == {"orders"}
    assert topics(topicList="orders;others;nothing;") == {"orders", "others"}


def test_what_is_left_for_all_groups_is_added_up(scene: Scene) -> None:
    scene.broker.progress.commit("others", "orders", 1, 10)
    body = scene.ask(Request.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}).body.decode()
    assert '"totalDiff":27' in body
    assert f'"brokerAddr":"{ADDRESS}"' in body
    assert '{"readers":[{"consumeTps":0.0,"offsetTable":{{"topic":"orders"' in body
    ordered = scene.ask(Request.GET_BROKER_CONSUME_STATS, {"isOrder": "true"}).body.decode()
    assert '"totalDiff":0' in ordered


def test_an_answer_of_too_many_queues_is_refused(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_admin, "MAX_LISTED_QUEUES", 1)
    for code, fields in (
        (Request.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}),
        (Request.GET_CONSUME_STATS, {"consumerGroup": "readers"}),
    ):
        with pytest.raises(LaterMQError, match="would list 2 queues"):
            scene.ask(code, fields)


def test_times_tell_how_late_a_group_is(scene: Scene) -> None:
    body = scene.ask(Request.QUERY_CONSUME_TIME_SPAN, {"group": "readers", "topic": "orders"}).body
    first, second = msgspec.json.decode(body)["consumeTimeSpanSet"]
    now_ms = scene.clock.now_ms()
    assert (first["minTimeStamp"], first["maxTimeStamp"]) == (now_ms - 10_000, now_ms - 1000)
    assert (first["consumeTimeStamp"], first["delayTime"]) == (now_ms - 8000, 7000)
    assert (second["consumeTimeStamp"], second["delayTime"]) == (now_ms - 10_000, 10_000)


# Offsets


def test_offsets_are_set_to_the_end_to_a_time_and_back_to_the_start(scene: Scene) -> None:
    assert reset(scene) == stored(scene) == {0: 10, 1: 10}
    assert reset(scene, timestamp=scene.clock.now_ms() - 5000) == stored(scene) == {0: 5, 1: 5}
    assert reset(scene, timestamp=0) == stored(scene) == {0: 0, 1: 0}


def test_without_force_a_group_is_only_taken_back(scene: Scene) -> None:
    assert reset(scene, isForce="false") == {0: 3, 1: 10}
    assert reset(scene, isForce="false", timestamp=0) == {0: 0, 1: 0}


def test_one_queue_is_set_to_an_offset(scene: Scene) -> None:
    assert reset(scene, queueId=1, offset=7, timestamp=0, isForce="false") == {1: 7}
    assert stored(scene) == {0: 3, 1: 7}
    assert reset(scene, queueId=1, offset=-1) == {1: 10}
    for wrong in ({"queueId": 1, "offset": 11}, {"queueId": 2, "offset": 0}):
        with pytest.raises(InvalidParameter):
            reset(scene, **wrong)


def test_offsets_of_what_is_not_there_are_not_set(scene: Scene) -> None:
    with pytest.raises(GroupNotFound):
        reset(scene, group="nobody")
    with pytest.raises(TopicNotFound):
        reset(scene, topic="nothing")


def test_members_are_told_their_new_offsets_each_in_its_form(scene: Scene) -> None:
    java = scene.connect("c1", consumer="readers")
    cpp = scene.connect("c2", consumer="readers", language="CPP")
    reset(scene, queueId=0, offset=4)
    [told] = java.sent
    assert told.code == Request.RESET_CONSUMER_CLIENT_OFFSET
    assert told.text_fields()["group"] == "readers"
    assert [(queue.queueId, offset) for queue, offset in keyed_table(told.body, "offsetTable")] == [(0, 4)]
    [told] = cpp.sent
    queue = {"topic": "orders", "brokerName": "broker-a", "queueId": 0, "offset": 4}
    assert msgspec.json.decode(told.body) == {"offsetTable": [queue]}


def test_offsets_that_were_set_survive_a_crash(scene: Scene) -> None:
    reset(scene)
    assert stored(scene.restart()) == {0: 10, 1: 10}


def test_offsets_saved_before_their_messages_were_flushed_are_saved_again(scene: Scene) -> None:
    scene.send("orders")
    reset(scene)
    assert stored(scene.restart())[0] == 10  # the eleventh message is not safe yet, so it may come again
    scene.broker.store.flush()
    scene.broker.tables.save()
    assert stored(scene.restart())[0] == 11
    assert scene.broker.tables.savers() == []


def test_offsets_are_copied_to_another_group(scene: Scene) -> None:
    fields = {"srcGroup": "readers", "destGroup": "copies", "topic": "orders", "offline": "true"}
    scene.ask(Request.CLONE_GROUP_OFFSET, fields)
    assert stored(scene.restart(), "copies") == {0: 3}
    scene.ask(Request.CLONE_GROUP_OFFSET, {"srcGroup": "readers", "destGroup": "more", "offline": "false"})
    assert stored(scene, "more") == {0: 3}
    with pytest.raises(GroupNotFound, match="has no offsets"):
        scene.ask(Request.CLONE_GROUP_OFFSET, fields | {"srcGroup": "nobody"})


def test_all_offsets_are_told_at_once(scene: Scene) -> None:
    table = decode_body(scene.ask(Request.GET_ALL_CONSUMER_OFFSET).body, OffsetTableJson)
    assert table.offsets == {"orders@readers": {0: 3}}


def test_corrections_compare_a_group_with_all_others(scene: Scene) -> None:
    for group, offset in (("fast", 9), ("slow", 1)):
        scene.broker.progress.commit(group, "orders", 0, offset)

    def correction(compared: str, ignored: str = "") -> dict[str, int]:
        fields = {"compareGroup": compared, "topic": "orders", "filterGroups": ignored}
        offsets: dict[str, int] = msgspec.json.decode(scene.ask(Request.QUERY_CORRECTION_OFFSET, fields).body)[
            "correctionOffsets"
        ]
        return offsets

    assert correction("fast") == {"0": 1}
    assert correction("fast", "slow") == {"0": 3}
    assert correction("slow", "slow") == {"0": 0x7FFFFFFFFFFFFFFF}
    assert stored(scene, "slow") == {0: 1}, "asking changes nothing"
