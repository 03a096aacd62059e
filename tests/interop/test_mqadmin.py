"""Apache's own mqadmin: topics, groups, offsets, messages and states, read from the text that it prints."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.interop.mqadmin import MqAdmin
from tests.interop.programs import Json, Program, start_java
from tests.interop.target import Cluster
from tests.interop.waiting import wait_until

TOPIC, GROUP, PRODUCERS = "admin_topic", "admin_group", "admin_producers"


@dataclass(frozen=True)
class Scene:
    """Eight messages over four queues, sent by a producer and consumed by a group that are both online."""

    sent: list[Json]
    client_id: str


@pytest.fixture(scope="module")
def admin(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MqAdmin]:
    with start_java(tmp_path_factory.mktemp("mqadmin") / "java.log", {}, log_level="OFF") as program:
        yield MqAdmin(program, cluster.namesrv)


@pytest.fixture(scope="module")
def scene(java: Program) -> Scene:
    java.call("make_topics", topics=[TOPIC], queues=4)
    sent = java.call(
        "send", topic=TOPIC, count=8, mode="selector", keys="k%d shared", tags=["A", "B"], group=PRODUCERS
    )["results"]
    started = java.call("start_consumer", name=GROUP, topic=TOPIC, group=GROUP)
    java.messages(GROUP, count=8)
    return Scene(sent, started["client_id"])


def test_cluster_list_shows_the_broker(admin: MqAdmin, cluster: Cluster) -> None:
    [row] = admin.rows("clusterList")
    assert row[:4] == [cluster.name, cluster.broker, "0", cluster.address]
    assert row[4].startswith("V")
    assert row[-1] == "true"


def test_topic_list_shows_topics_and_who_consumes_them(admin: MqAdmin, cluster: Cluster, scene: Scene) -> None:
    topics = [row[0] for row in admin.rows("topicList")]
    assert {TOPIC, f"%RETRY%{GROUP}", "TBW102"} <= set(topics)
    assert [cluster.name, TOPIC, GROUP] in admin.rows("topicList", "-c")


def test_set_consume_mode_selects_how_a_group_gets_its_messages(admin: MqAdmin, cluster: Cluster, scene: Scene) -> None:
    for mode, shared_with in (("POP", "1"), ("PULL", "0")):
        printed = admin.run(
            "setConsumeMode", "-b", cluster.address, "-t", TOPIC, "-g", GROUP, "-m", mode, "-q", shared_with
        )
        assert "success" in printed
    assert "CODE: 17" in admin.refused(
        "setConsumeMode", "-b", cluster.address, "-t", "no_such_topic", "-g", GROUP, "-m", "POP", "-q", "1"
    )


def test_topic_route_and_cluster_name_the_broker(admin: MqAdmin, cluster: Cluster, scene: Scene) -> None:
    route = _json(admin.run("topicRoute", "-t", TOPIC).replace('0:"', '"0":"'))
    [broker] = route["brokerDatas"]
    assert broker["brokerAddrs"] == {"0": cluster.address}
    assert (broker["brokerName"], broker["cluster"]) == (cluster.broker, cluster.name)
    [queues] = route["queueDatas"]
    assert (queues["readQueueNums"], queues["writeQueueNums"], queues["perm"]) == (4, 4, 6)
    assert admin.rows("topicClusterList", "-t", TOPIC) == [[cluster.name]]


def test_topic_status_shows_the_ends_of_each_queue(admin: MqAdmin, cluster: Cluster, scene: Scene) -> None:
    rows = [row for row in admin.rows("topicStatus", "-t", TOPIC) if row[0] == cluster.broker]
    assert [row[1:4] for row in rows] == [[str(queue), "0", "2"] for queue in range(4)]
    assert all(row[4].startswith("20") for row in rows), "each queue has the time of its last message"


def test_a_topic_is_made_changed_and_deleted(admin: MqAdmin, cluster: Cluster, java: Program) -> None:
    name = "made_by_mqadmin"
    made = admin.run("updateTopic", "-c", cluster.name, "-t", name, "-r", "3", "-w", "2")
    assert f"create topic to {cluster.address} success" in made
    assert _queue_counts(admin, name) == (3, 2, 6)
    admin.run("updateTopic", "-b", cluster.address, "-t", name, "-r", "5", "-w", "5", "-p", "4")
    assert _queue_counts(admin, name) == (5, 5, 4)
    deleted = admin.run("deleteTopic", "-c", cluster.name, "-t", name)
    assert f"delete topic [{name}] from cluster [{cluster.name}] success" in deleted
    assert "CODE: 17 " in admin.refused("topicRoute", "-t", name)
    assert name not in [row[0] for row in admin.rows("topicList")]


def test_the_permission_of_a_topic_is_changed(admin: MqAdmin, cluster: Cluster) -> None:
    admin.run("updateTopic", "-b", cluster.address, "-t", "read_only", "-r", "2", "-w", "2")
    admin.run("updateTopicPerm", "-b", cluster.address, "-t", "read_only", "-p", "4")
    assert _queue_counts(admin, "read_only") == (2, 2, 4)


def test_broker_status_counts_messages(admin: MqAdmin, cluster: Cluster, scene: Scene) -> None:
    status = admin.settings("brokerStatus", "-b", cluster.address)
    assert int(status["msgPutTotalTodayNow"]) >= 8
    assert int(status["commitLogMaxOffset"]) > int(status["commitLogMinOffset"]) == 0
    assert int(status["bootTimestamp"]) > 1_700_000_000_000
    assert {"brokerVersionDesc", "putTps", "getTotalTps", "runtime"} <= set(status)


def test_broker_config_is_shown(admin: MqAdmin, cluster: Cluster) -> None:
    config = admin.settings("getBrokerConfig", "-b", cluster.address)
    assert config["brokerName"] == cluster.broker
    assert config["brokerClusterName"] == cluster.name
    assert config["brokerId"] == "0"
    assert config["listenPort"] == cluster.address.rpartition(":")[2]
    assert config["messageDelayLevel"].startswith("1s 5s 10s 30s 1m")


def test_consumer_progress_shows_the_group_and_its_offsets(admin: MqAdmin, cluster: Cluster, scene: Scene) -> None:
    def caught_up() -> list[list[str]] | None:
        rows = [row for row in admin.rows("consumerProgress", "-g", GROUP) if row[0] == TOPIC]
        return rows if all(row[4] == "2" for row in rows) else None

    rows = wait_until(caught_up, 30, "the group has committed what it consumed")
    assert [row[:6] for row in rows] == [[TOPIC, cluster.broker, str(q), "2", "2", "0"] for q in range(4)]
    [row] = [row for row in admin.rows("consumerProgress") if row[0] == GROUP]
    assert (row[1], row[3], row[4], row[-1]) == ("1", "PUSH", "CLUSTERING", "0")


def test_consumer_connection_shows_client_and_subscription(admin: MqAdmin, scene: Scene) -> None:
    printed = admin.run("consumerConnection", "-g", GROUP)
    rows = [line.split() for line in printed.splitlines()]
    [client] = [row for row in rows if row and row[0] == scene.client_id]
    assert client[1].startswith("127.0.0.1:")
    assert client[2] == "JAVA"
    assert [TOPIC, "*"] in rows
    assert ["ConsumeType:", "CONSUME_PASSIVELY"] in rows
    assert ["MessageModel:", "CLUSTERING"] in rows
    assert ["ConsumeFromWhere:", "CONSUME_FROM_FIRST_OFFSET"] in rows
    assert "CODE: 17 " in admin.refused("consumerConnection", "-g", "nobody")


def test_producer_connection_shows_the_client(admin: MqAdmin, scene: Scene) -> None:
    [row] = admin.rows("producerConnection", "-g", PRODUCERS, "-t", TOPIC)
    assert "@producer-" in row[1]
    assert "JAVA" in row
    assert "CODE: 1 " in admin.refused("producerConnection", "-g", "nobody", "-t", TOPIC)


def test_a_producer_that_stops_is_forgotten(admin: MqAdmin, java: Program, scene: Scene) -> None:
    java.call("make_topics", topics=["left_behind"])
    java.call("send", topic="left_behind", group="leaving")
    connection = ["producerConnection", "-g", "leaving", "-t", "left_behind"]
    assert "@producer-" in admin.run(*connection)
    java.call("stop_producer", group="leaving")
    assert "CODE: 1 " in admin.refused(*connection)


def test_a_subscription_group_is_made_shown_and_deleted(admin: MqAdmin, cluster: Cluster) -> None:
    made = admin.run("updateSubGroup", "-c", cluster.name, "-g", "made_group", "-r", "5", "-q", "2")
    assert f"create subscription group to {cluster.address} success" in made
    config = admin.settings("getConsumerConfig", "-g", "made_group")
    assert (config["groupName"], config["retryMaxTimes"], config["retryQueueNums"]) == ("made_group", "5", "2")
    deleted = admin.run("deleteSubGroup", "-c", cluster.name, "-g", "made_group")
    assert "delete subscription group [made_group]" in deleted
    assert "success" in deleted
    # It is made anew, with defaults, by asking for it.
    assert admin.settings("getConsumerConfig", "-g", "made_group").get("retryMaxTimes", "16") == "16"


def test_consumer_status_asks_the_client_itself(admin: MqAdmin, scene: Scene) -> None:
    printed = admin.run("consumerStatus", "-g", GROUP)
    assert scene.client_id in printed
    assert "Same subscription in the same group of consumer" in printed
    assert "Rebalance OK" in printed
    one = admin.run("consumerStatus", "-g", GROUP, "-i", scene.client_id)
    assert "PROP_CONSUME_TYPE" in one
    assert TOPIC in one
    assert "not online" in admin.refused("consumerStatus", "-g", GROUP, "-i", "nobody")


def test_offsets_of_a_group_that_is_online_are_reset(admin: MqAdmin, java: Program, scene: Scene) -> None:
    """The broker tells the clients, which drop what they hold and begin again."""
    consumer = "reset_online"
    java.call("start_consumer", name=consumer, topic=TOPIC, group=consumer)
    java.messages(consumer, count=8)
    rows = admin.rows("resetOffsetByTime", "-g", consumer, "-t", TOPIC, "-s", "0")
    assert sorted(row for row in rows if row[0] == "broker-a") == [["broker-a", str(q), "0"] for q in range(4)]
    again = java.messages(consumer, count=16)
    java.call("stop_consumer", name=consumer)
    assert sorted(m["body"] for m in again[8:16]) == [f"m-{n}" for n in range(8)]


def test_offsets_of_a_group_that_is_offline_are_reset(admin: MqAdmin, java: Program, scene: Scene) -> None:
    consumer = "reset_offline"
    java.call("start_consumer", name=consumer, topic=TOPIC, group=consumer)
    java.messages(consumer, count=8)
    java.call("stop_consumer", name=consumer)
    admin.run("resetOffsetByTime", "-g", consumer, "-t", TOPIC, "-s", "0")
    rows = [row for row in admin.rows("consumerProgress", "-g", consumer) if row[0] == TOPIC]
    assert [row[3:6] for row in rows] == [["2", "0", "2"]] * 4
    admin.run("resetOffsetByTime", "-g", consumer, "-t", TOPIC, "-s", "now")
    rows = [row for row in admin.rows("consumerProgress", "-g", consumer) if row[0] == TOPIC]
    assert [row[3:6] for row in rows] == [["2", "2", "0"]] * 4


def test_offsets_are_cloned_to_another_group(admin: MqAdmin, cluster: Cluster, java: Program, scene: Scene) -> None:
    admin.run("updateSubGroup", "-c", cluster.name, "-g", "clone")
    admin.run("resetOffsetByTime", "-g", GROUP, "-t", TOPIC, "-s", "now")
    assert "clone group offset success" in admin.run("cloneGroupOffset", "-s", GROUP, "-d", "clone", "-t", TOPIC)
    offsets = java.call("group_offsets", topic=TOPIC, group="clone")["queues"]
    assert [q["offset"] for q in offsets] == [2, 2, 2, 2]


def test_messages_are_printed(admin: MqAdmin, scene: Scene) -> None:
    printed = admin.run("printMsg", "-t", TOPIC, "-d", "true")
    assert printed.count("minOffset=0, maxOffset=2") == 4
    for number, result in enumerate(scene.sent):
        assert result["msg_id"] in printed
        assert f"BODY: m-{number}" in printed
    assert printed.count("MSGID:") == 8


@pytest.mark.parametrize("command", ["queryMsgById", "queryMsgByUniqueKey", "queryMsgByOffset"])
def test_a_message_is_looked_up(admin: MqAdmin, command: str, scene: Scene) -> None:
    sent = scene.sent[3]
    options = {
        "queryMsgById": ["-i", sent["offset_msg_id"]],
        "queryMsgByUniqueKey": ["-i", sent["msg_id"]],
        "queryMsgByOffset": ["-b", sent["broker"], "-i", str(sent["queue"]), "-o", str(sent["queue_offset"])],
    }[command]
    found = admin.described(command, "-t", TOPIC, *options)
    assert (found["Topic"], found["Tags"], found["Keys"]) == (TOPIC, "[B]", "[k3 shared]")
    assert (found["Queue ID"], found["Queue Offset"], found["Reconsume Times"]) == ("3", "0", "0")
    assert f"UNIQ_KEY={sent['msg_id']}" in found["Properties"]
    # Which groups have consumed it: the broker is asked about each that has offsets in the topic.
    assert f"consumerGroup={GROUP}, trackType=CONSUMED" in found["all"]


def test_messages_are_looked_up_by_key(admin: MqAdmin, scene: Scene) -> None:
    [row] = admin.rows("queryMsgByKey", "-t", TOPIC, "-k", "k3")
    assert " ".join(row).split()[:3] == [scene.sent[3]["msg_id"], "3", "0"]
    rows = admin.rows("queryMsgByKey", "-t", TOPIC, "-k", "shared")
    assert {row[0] for row in rows} == {result["msg_id"] for result in scene.sent}


def test_stats_of_all_topics(admin: MqAdmin, scene: Scene) -> None:
    [row] = [row for row in admin.rows("statsAll", "-t", TOPIC) if row[:2] == [TOPIC, GROUP]]
    assert row[2] == "0"
    assert TOPIC in [row[0] for row in admin.rows("statsAll")]


def test_queues_are_allocated_to_addresses(admin: MqAdmin, scene: Scene) -> None:
    shares = _json(admin.run("allocateMQ", "-t", TOPIC, "-i", "10.0.0.1,10.0.0.2"))["result"]
    assert sorted(queue["queueId"] for share in shares.values() for queue in share) == [0, 1, 2, 3]
    assert [len(share) for share in shares.values()] == [2, 2]


def test_a_consume_queue_is_shown(admin: MqAdmin, cluster: Cluster, scene: Scene) -> None:
    """The tags code is the hash code of the tag: 65 for A."""
    options = ["-t", TOPIC, "-q", "0", "-i", "0", "-c", "2", "-b", cluster.address]
    printed = admin.run("queryCq", *options)
    assert "max: 2, min: 0" in printed
    assert printed.count("tagsCode=65") == 2


def test_messages_are_sent_and_consumed(admin: MqAdmin, java: Program, group: str) -> None:
    java.call("make_topics", topics=["by_hand"], queues=2)
    [sent] = admin.rows("sendMessage", "-t", "by_hand", "-p", "hello", "-k", "key", "-c", "Tag")
    assert (sent[0], sent[2]) == ("broker-a", "SEND_OK")
    printed = admin.run("consumeMessage", "-t", "by_hand", "-g", group, "-c", "4")
    assert f"MSGID: {sent[3]}" in printed
    assert "BODY: hello" in printed
    times = admin.rows("checkMsgSendRT", "-t", "by_hand", "-a", "3", "-s", "16")
    assert [row[2] for row in times if row[0] == "broker-a"] == ["true"] * 3


def test_name_server_and_broker_settings_can_be_asked_for_and_set(admin: MqAdmin, cluster: Cluster) -> None:
    assert admin.settings("getNamesrvConfig")["listenPort"] == cluster.namesrv.rpartition(":")[2]
    wiped = admin.run("wipeWritePerm", "-b", cluster.broker)
    assert f"wipe write perm of broker[{cluster.broker}] in name server[{cluster.namesrv}] OK" in wiped
    restored = admin.run("addWritePerm", "-b", cluster.broker)
    assert f"add write perm of broker[{cluster.broker}] in name server[{cluster.namesrv}] OK" in restored


def _queue_counts(admin: MqAdmin, topic: str) -> tuple[int, int, int]:
    route = _json(admin.run("topicRoute", "-t", topic).replace('0:"', '"0":"'))
    [queues] = route["queueDatas"]
    return queues["readQueueNums"], queues["writeQueueNums"], queues["perm"]


def _json(printed: str) -> Any:
    """The JSON object in what a command printed."""
    return json.loads(printed[printed.index("{") : printed.rindex("}") + 1])
