"""QUERY_ASSIGNMENT and SET_MESSAGE_REQUEST_MODE: queues for clients that leave rebalancing to the broker."""

from typing import Any

import msgspec
import pytest

from latermq.broker.messages import assignments
from latermq.broker.tables.config_files import REQUEST_MODES_PATH
from latermq.errors import GroupNotFound, InvalidParameter, MalformedRequest, NoPermission, TopicNotFound
from latermq.protocol.remoting.codes import Request, Response
from tests.support.admins import Scene

BROKER = "broker-a"


def scene_with(members: int = 1, queues: int = 4, **settings: Any) -> Scene:
    scene = Scene(**settings)
    scene.make_topic("orders", queues=queues)
    for member in range(members):
        scene.connect(f"c{member}", consumer="readers")
    return scene


def query(scene: Scene, client_id: str = "c0", **changes: str) -> list[tuple[int, str]] | None:
    fields = {
        "topic": "orders", "consumerGroup": "readers", "clientId": client_id, "strategyName": "AVG",
        "messageModel": "CLUSTERING",
    }  # fmt: skip
    answer = scene.ask(Request.QUERY_ASSIGNMENT, body=msgspec.json.encode(fields | changes))
    assert answer.code == Response.SUCCESS
    found = msgspec.json.decode(answer.body)["messageQueueAssignments"]
    if found is None:
        return None
    for one in found:
        assert one["messageQueue"]["topic"] == changes.get("topic", "orders")
        assert one["messageQueue"]["brokerName"] == BROKER
    return [(one["messageQueue"]["queueId"], one["mode"]) for one in found]


def set_mode(
    scene: Scene, mode: str = "POP", shared_with: int = -1, topic: str = "orders", group: str = "readers"
) -> None:
    body = {"topic": topic, "consumerGroup": group, "mode": mode, "popShareQueueNum": shared_with}
    assert scene.ask(Request.SET_MESSAGE_REQUEST_MODE, body=msgspec.json.encode(body)).code == Response.SUCCESS


def test_each_member_gets_its_share_of_the_queues() -> None:
    scene = scene_with(members=2)
    assert query(scene, "c0") == [(0, "PULL"), (1, "PULL")]
    assert query(scene, "c1") == [(2, "PULL"), (3, "PULL")]
    assert query(scene, "c1", strategyName="AVG_BY_CIRCLE") == [(1, "PULL"), (3, "PULL")]


def test_a_broadcasting_member_gets_all_queues() -> None:
    assert query(scene_with(members=2), "c1", messageModel="BROADCASTING") == [(n, "PULL") for n in range(4)]


def test_a_client_keeps_its_queues_if_strategy_topic_or_members_are_unknown() -> None:
    scene = scene_with()
    assert query(scene, strategyName="CONSISTENT_HASH") is None
    assert query(scene, topic="nowhere") is None
    assert query(scene, consumerGroup="nobody") is None


@pytest.mark.parametrize("field", ["topic", "consumerGroup", "clientId"])
def test_names_that_are_not_valid_are_refused(field: str) -> None:
    scene = scene_with()
    with pytest.raises(InvalidParameter):
        query(scene, **{field: "x" * 5_000})
    with pytest.raises(MalformedRequest):
        query(scene, strategyName="A" * 65)


def test_a_topic_that_cannot_be_read_has_no_queues() -> None:
    scene = scene_with()
    topic = scene.broker.topics.require("orders")
    topic.permissions = 2
    assert query(scene) == []


def test_a_group_that_pops_shares_all_queues() -> None:
    scene = scene_with(members=3)
    set_mode(scene)
    assert query(scene, "c0") == query(scene, "c2") == [(-1, "POP")]
    set_mode(scene, shared_with=1)
    assert query(scene, "c0") == [(0, "POP"), (1, "POP"), (2, "POP")]
    set_mode(scene, mode="PULL")
    assert query(scene, "c2") == [(3, "PULL")]


def test_the_default_mode_is_a_setting_and_retry_topics_are_always_pulled() -> None:
    scene = scene_with(default_request_mode="POP")
    scene.broker.topics.create_retry_topic("%RETRY%readers", 1, b"")
    assert query(scene) == [(-1, "POP")]
    assert query(scene, topic="%RETRY%readers") == [(0, "PULL")]


def test_a_mode_survives_a_restart_and_is_on_disk_before_the_answer() -> None:
    scene = scene_with()
    set_mode(scene, shared_with=3)
    saved = msgspec.json.decode(scene.disk.read(REQUEST_MODES_PATH) or b"")
    assert saved == {
        "messageRequestModeMap": {
            "orders": {"readers": {"topic": "orders", "consumerGroup": "readers", "mode": "POP", "popShareQueueNum": 3}}
        }
    }
    again = scene.restart()
    assert again.broker.assignments.mode_of("orders", "readers").shared_with == 3


def test_the_mode_of_a_deleted_topic_or_group_is_forgotten() -> None:
    scene = scene_with()
    scene.make_topic("others", queues=1)
    set_mode(scene)
    set_mode(scene, topic="others")
    scene.ask(Request.DELETE_TOPIC_IN_BROKER, {"topic": "others"})
    assert scene.broker.statistics()["request_modes"] == 1
    scene.ask(Request.DELETE_SUBSCRIPTIONGROUP, {"groupName": "readers"})
    assert scene.broker.statistics()["request_modes"] == 0
    assert scene.restart().broker.statistics()["request_modes"] == 0


def test_modes_of_missing_topics_and_groups_and_of_retry_topics_are_refused() -> None:
    scene = scene_with()
    with pytest.raises(TopicNotFound):
        set_mode(scene, topic="nowhere")
    with pytest.raises(NoPermission):
        set_mode(scene, topic="%RETRY%readers")
    with pytest.raises(MalformedRequest):
        set_mode(scene, mode="PUSH")
    assert scene.broker.statistics()["request_modes"] == 0


def test_a_missing_group_is_created_with_its_mode_unless_groups_must_be_created_first() -> None:
    scene = scene_with()
    set_mode(scene, group="newcomers")
    scene.clock.advance(10 * 3_600_000)
    scene.broker.unused_names.remove()
    assert scene.broker.groups.find("newcomers") is not None
    closed = scene_with(members=0, auto_create_groups=False)
    with pytest.raises(GroupNotFound):
        set_mode(closed)


def test_the_number_of_modes_is_limited_and_existing_ones_still_change() -> None:
    scene = scene_with(max_request_modes=1)
    scene.make_topic("others", queues=1)
    set_mode(scene)
    with pytest.raises(NoPermission, match="max_request_modes"):
        set_mode(scene, topic="others")
    set_mode(scene, mode="PULL")
    assert query(scene) == [(queue_id, "PULL") for queue_id in range(4)]


def test_a_topic_with_too_many_queues_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assignments, "MAX_QUEUES", 3)
    with pytest.raises(InvalidParameter, match="4 queues"):
        scene_with().broker.assignments.query("orders", "readers", "c0", "AVG", "CLUSTERING", {})


def test_queues_of_other_brokers_are_part_of_the_assignment() -> None:
    scene = scene_with(members=2, queues=2)
    found = scene.broker.assignments.query("orders", "readers", "c1", "AVG", "CLUSTERING", {"broker-0": 3})
    assert found.queues == [("broker-a", 0), ("broker-a", 1)]
    found = scene.broker.assignments.query("orders", "readers", "c0", "AVG", "CLUSTERING", {"broker-0": 3})
    assert found.queues == [("broker-0", 0), ("broker-0", 1), ("broker-0", 2)]
    set_mode(scene)
    found = scene.broker.assignments.query("orders", "readers", "c0", "AVG", "CLUSTERING", {"broker-0": 3})
    assert found.queues == [("broker-0", -1), ("broker-a", -1)]


def test_a_damaged_entry_of_the_file_does_not_affect_the_others() -> None:
    scene = scene_with()
    scene.disk.replace(
        REQUEST_MODES_PATH,
        b'{"messageRequestModeMap":{"orders":{"readers":{"topic":"orders","consumerGroup":"readers","mode":"POP"}},'
        b'"broken":{"readers":{"topic":"other","consumerGroup":"readers","mode":"POP"}},'
        b'"unknown":{"readers":{"topic":"unknown","consumerGroup":"readers","mode":"PUSH"}}}}',
    )
    again = scene.restart()
    assert again.broker.assignments.mode_of("orders", "readers").mode == "POP"
    assert again.broker.statistics()["request_modes"] == 1
    assert again.broker.statistics()["config_files_set_aside"] == 1
