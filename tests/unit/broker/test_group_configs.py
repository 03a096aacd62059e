"""What a broker takes as the configuration of a group or a topic: typed, bounded, and nothing that it does not know."""

import msgspec
import pytest

from latermq.config import Size
from latermq.config_json.groups import GroupJson
from latermq.errors import InvalidParameter, MalformedRequest, NoPermission
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.json_body import decode_body, encode_body
from tests.support.admins import Scene


def put(scene: Scene, **fields: object) -> None:
    body = msgspec.json.encode({"groupName": "readers", **fields})
    assert scene.ask(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body).code == Response.SUCCESS


def test_what_mqadmin_sends_of_a_group_comes_back() -> None:
    sent = {
        "groupRetryPolicy": {
            "type": "EXPONENTIAL",
            "exponentialRetryPolicy": {"initial": 5000, "max": 7_200_000, "multiplier": 2},
        },
        "subscriptionDataSet": [{"topic": "orders", "expressionType": "TAG", "expression": "*", "version": 12}],
        "attributes": {"+retry.levels": "3 4"},
        "retryMaxTimes": 3,
    }
    scene = Scene()
    put(scene, **sent)
    answer = scene.restart().ask(Request.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "readers"})
    found = msgspec.json.decode(answer.body)
    assert {name: found[name] for name in sent} == sent | {"attributes": {"retry.levels": "3 4"}}


def test_a_group_with_defaults_is_written_as_java_writes_it() -> None:
    written = msgspec.json.decode(encode_body(GroupJson(name="readers")))
    assert written["groupRetryPolicy"] == {"type": "CUSTOMIZED"}


def test_fields_that_nobody_knows_are_dropped() -> None:
    scene = Scene()
    put(scene, future={"nested": [1, [2]]}, groupRetryPolicy={"type": "CUSTOMIZED", "future": [[1]]})
    assert b"future" not in (scene.disk.read("config/subscriptionGroup.json") or b"")


@pytest.mark.parametrize(
    "fields",
    [
        {"groupRetryPolicy": {"type": "RANDOM"}},
        {"groupRetryPolicy": [1]},
        {"groupRetryPolicy": {"customizedRetryPolicy": {"next": [1] * 65}}},
        {"subscriptionDataSet": [["nested"]]},
        {"subscriptionDataSet": [{"version": 10**30}]},
        {"attributes": {"+retry.levels": ["3"]}},
        {"retryQueueNums": 10**10},
    ],
)
def test_what_is_of_another_type_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(MalformedRequest):
        put(Scene(), **fields)


@pytest.mark.parametrize("queues", [-1, 65_536, 2_000_000_000])
def test_a_group_cannot_ask_for_more_retry_queues_than_a_topic_has(queues: int) -> None:
    with pytest.raises(InvalidParameter, match="cannot have"):
        put(Scene(), retryQueueNums=queues)


def test_a_configuration_has_a_bound_which_is_told_and_configured() -> None:
    wanted = [{"topic": f"topic-{number}", "expression": "x" * 100} for number in range(60)]
    scene = Scene()
    with pytest.raises(InvalidParameter, match="the limit is 8192") as caught:
        put(scene, subscriptionDataSet=wanted)
    assert "broker.max_group_config" in caught.value.hint
    assert scene.broker.groups.find("readers") is None
    before = scene.broker.statistics()["group_config_bytes"]
    put(scene, subscriptionDataSet=wanted[:20])
    assert scene.broker.statistics()["group_config_bytes"] > before + 2_000


def test_the_configurations_of_all_groups_have_a_bound() -> None:
    scene = Scene(max_group_configs=Size.parse("8KiB"))
    wanted = [{"topic": "x" * 100} for _ in range(10)]
    for number in range(2):
        put(scene, groupName=f"group-{number}", subscriptionDataSet=wanted)
    with pytest.raises(NoPermission) as caught:
        put(scene, subscriptionDataSet=wanted * 3)
    assert "broker.max_group_configs" in caught.value.message
    held = scene.broker.statistics()["group_config_bytes"]
    assert 4_096 < held <= 8_192
    put(scene, groupName="group-0")  # less than before
    assert scene.broker.statistics()["group_config_bytes"] < held


@pytest.mark.parametrize("odd", [{"topicFilterType": "x" * 1000}, {"topicSysFlag": str(10**30)}, {"perm": "8"}])
def test_a_topic_that_java_could_not_read_is_refused(odd: dict[str, str]) -> None:
    fields = {"topic": "orders", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
    scene = Scene()
    with pytest.raises((MalformedRequest, InvalidParameter)):
        scene.ask(Request.UPDATE_AND_CREATE_TOPIC, fields | odd)
    assert scene.broker.topics.find("orders") is None


def test_a_body_that_is_nested_deeply_is_an_ordinary_error() -> None:
    for levels in (1_000, 100_000):
        with pytest.raises(MalformedRequest):
            decode_body(b'{"groupName":"g","unknown":' + b"[" * levels + b"]" * levels + b"}", GroupJson)
