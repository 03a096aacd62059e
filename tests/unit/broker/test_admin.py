"""Administration of topics and messages, and what the broker tells about itself."""

import re

import msgspec
import pytest

from latermq.config import Size, load_config
from latermq.config_json.java_json import convert
from latermq.config_json.topics import TopicJson, TopicTableJson, encode_topic
from latermq.errors import (
    Busy,
    InvalidParameter,
    LaterMQError,
    NoPermission,
    QueryNotFound,
    StoreError,
    TopicNotFound,
)
from latermq.message.record import decode_record, decode_records
from latermq.model.topic import Topic
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.groups import GroupList
from latermq.protocol.remoting.json_body import decode_body
from latermq.protocol.remoting.routes import KVTable
from latermq.protocol.remoting.topics import TopicList
from tests.support.admins import ADDRESS, Scene

FOREVER_MS = 0x7FFFFFFFFFFFFFFF


def topic_fields(topic: str, **changes: object) -> dict[str, object]:
    fields: dict[str, object] = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": 3, "writeQueueNums": 2}
    return fields | {"perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false"} | changes


# Topics


def test_a_topic_is_answered_for_once_it_is_saved_and_the_name_servers_know() -> None:
    scene = Scene()
    scene.defers_work = True
    connection = scene.begin(Request.UPDATE_AND_CREATE_TOPIC, topic_fields("orders"))
    assert (connection.sent, scene.announcements) == ([], [])
    scene.run_deferred()
    assert connection.sent == []
    assert b'"orders"' in (scene.disk.read("config/topics.json") or b"")
    [on_announced] = scene.announcements
    on_announced()
    assert [answer.code for answer in connection.sent] == [Response.SUCCESS]
    made = decode_body(scene.ask(Request.GET_TOPIC_CONFIG, {"topic": "orders"}).body, TopicJson)
    assert (made.read_queues, made.write_queues, made.permissions) == (3, 2, 6)
    assert scene.restart().broker.topics.require("orders") == convert(made, Topic)


def test_changes_that_come_while_tables_are_saved_are_saved_together_by_the_next_round() -> None:
    scene = Scene()
    scene.defers_work = True
    first = scene.begin(Request.UPDATE_AND_CREATE_TOPIC, topic_fields("first"))
    others = [scene.begin(Request.UPDATE_AND_CREATE_TOPIC, topic_fields(f"topic-{number}")) for number in range(50)]
    assert len(scene.deferred) == 1  # one copy of the table, whoever waits
    rounds = 0
    while scene.deferred:
        works, when_done = scene.deferred.pop()
        for work in works:
            work()
        when_done(None)
        rounds += 1
    assert rounds == 2
    for on_announced in scene.announcements:
        on_announced()
    assert {answer.code for connection in (first, *others) for answer in connection.sent} == {Response.SUCCESS}
    assert scene.restart().broker.topics.find("topic-49") is not None


def test_no_change_is_made_while_too_many_wait_to_be_saved() -> None:
    scene = Scene(max_unsaved=3)
    scene.defers_work = True
    for number in range(3):
        scene.begin(Request.UPDATE_AND_CREATE_TOPIC, topic_fields(f"topic-{number}"))
    with pytest.raises(Busy, match="waiting to be saved"):
        scene.begin(Request.UPDATE_AND_CREATE_TOPIC, topic_fields("too-many"))
    assert scene.broker.topics.find("too-many") is None
    scene.run_deferred()
    with pytest.raises(Busy):  # the name servers have not been told yet
        scene.begin(Request.UPDATE_AND_CREATE_TOPIC, topic_fields("too-many"))
    for on_announced in scene.announcements:
        on_announced()
    scene.begin(Request.UPDATE_AND_CREATE_TOPIC, topic_fields("one-more"))


def test_a_topic_that_cannot_be_saved_is_no_success_and_is_tried_again() -> None:
    scene = Scene()

    def fail(operation: str, path: str) -> None:
        if operation == "replace":
            raise StoreError("no disk space")

    scene.disk.before_step = fail
    answer = scene.ask(Request.UPDATE_AND_CREATE_TOPIC, topic_fields("orders"))
    assert (answer.code, answer.remark) == (Response.SERVICE_NOT_AVAILABLE, "no disk space")
    scene.disk.before_step = lambda operation, path: None
    scene.broker.tables.save()
    assert scene.restart().broker.topics.find("orders") is not None


def test_attributes_are_added_changed_and_removed() -> None:
    scene = Scene()

    def attributes(change: str) -> dict[str, str]:
        scene.ask(Request.UPDATE_AND_CREATE_TOPIC, topic_fields("orders", attributes=change))
        return scene.broker.topics.require("orders").attributes

    assert attributes("+message.type=DELAY,+cleanup.policy=DELETE") == {
        "message.type": "DELAY",
        "cleanup.policy": "DELETE",
    }
    assert attributes("") == {"message.type": "DELAY", "cleanup.policy": "DELETE"}
    assert attributes("+message.type=FIFO,-cleanup.policy") == {"message.type": "FIFO"}
    for wrong in ("+unknown=1", "message.type=FIFO", "+cleanup.policy=COMPACTION", "+message.type=A,+message.type=B"):
        with pytest.raises(InvalidParameter):
            attributes(wrong)


@pytest.mark.parametrize("topic", ["TBW102", "rmq_sys_wheel_timer", "DefaultCluster", "broker-a", "SELF_TEST_TOPIC"])
def test_the_brokers_own_topics_are_neither_changed_nor_deleted(topic: str) -> None:
    scene = Scene()
    with pytest.raises(InvalidParameter, match="is reserved for the broker"):
        scene.ask(Request.UPDATE_AND_CREATE_TOPIC, topic_fields(topic))
    with pytest.raises(InvalidParameter, match="is reserved for the broker"):
        scene.ask(Request.DELETE_TOPIC_IN_BROKER, {"topic": topic})


@pytest.mark.parametrize(
    "changes", [{"topic": "no blanks"}, {"topic": " "}, {"perm": 8}, {"readQueueNums": 0}, {"writeQueueNums": 70_000}]
)
def test_a_topic_that_cannot_be_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidParameter):
        Scene().ask(Request.UPDATE_AND_CREATE_TOPIC, topic_fields("orders") | changes)


def test_several_topics_are_made_at_once() -> None:
    scene = Scene()
    body = b'{"topicConfigList":[{"topicName":"a","attributes":{"+message.type":"FIFO"}},{"topicName":"b"}]}'
    assert scene.ask(Request.UPDATE_AND_CREATE_TOPIC_LIST, body=body).code == Response.SUCCESS
    answer = scene.ask(Request.GET_ALL_TOPIC_CONFIG, {"topicSeq": 0, "maxTopicNum": 100, "dataVersion": ""})
    table = decode_body(answer.body, TopicTableJson).topics
    assert table["a"].attributes == {"message.type": "FIFO"}
    assert "b" in table
    assert answer.text_fields() == {"totalTopicNum": str(len(table))}


def test_a_deleted_topic_is_gone_and_the_others_are_not() -> None:
    scene = Scene()
    for topic in ("orders", "others"):
        scene.make_topic(topic)
        scene.send(topic)
        scene.broker.progress.commit("readers", topic, 0, 1)
    scene.broker.store.flush()
    scene.broker.tables.save()
    scene.ask(Request.DELETE_TOPIC_IN_BROKER, {"topic": "orders"})
    for after in (scene, scene.restart()):
        assert after.broker.topics.find("orders") is None
        assert after.broker.store.queues.find("orders", 0) is None
        assert after.broker.offsets.get("readers", "orders", 0) == -1
        queue = after.broker.store.queues.find("others", 0)
        assert queue is not None
        assert queue.next_offset == 1
        assert after.broker.offsets.get("readers", "others", 0) == 1


def test_a_topic_is_made_again_only_when_its_files_are_gone() -> None:
    scene = Scene()
    scene.make_topic("orders")
    scene.send("orders", b"old")
    scene.defers_work = True
    scene.begin(Request.DELETE_TOPIC_IN_BROKER, {"topic": "orders"})
    with pytest.raises(Busy):
        scene.send("orders", b"too early")
    scene.run_deferred()
    scene.send("orders", b"new")
    restarted = scene.restart()
    pulled = restarted.broker.reader.pull("orders", 0, 0, 32)
    assert [message.body for message in decode_records(b"".join(pulled.pieces))] == [b"new"]


def test_deleting_what_is_not_there_is_no_error() -> None:
    assert Scene().ask(Request.DELETE_TOPIC_IN_BROKER, {"topic": "nothing"}).code == Response.SUCCESS


def test_the_state_of_a_topics_queues_is_told() -> None:
    scene = Scene()
    scene.make_topic("orders")
    scene.send("orders")
    scene.clock.advance(30_000)
    scene.send("orders")
    body = scene.ask(Request.GET_TOPIC_STATS_INFO, {"topic": "orders"}).body.decode()
    queue = '{"topic":"orders","brokerName":"broker-a","queueId":%d}'
    state = '{"minOffset":0,"maxOffset":%d,"lastUpdateTimestamp":%d}'
    first = f"{queue % 0}:{state % (2, scene.clock.now_ms())}"
    assert body.endswith('"offsetTable":{' + f"{first},{queue % 1}:{state % (0, 0)}" + "}}")
    assert float(re.findall(r'"topicPutTps":([\d.]+)', body)[0]) == pytest.approx(2 / 30)
    with pytest.raises(TopicNotFound):
        scene.ask(Request.GET_TOPIC_STATS_INFO, {"topic": "nothing"})


def test_own_topics_and_who_consumes_what_are_listed() -> None:
    scene = Scene()
    scene.make_topic("orders")
    scene.broker.progress.commit("past", "orders", 0, 0)
    scene.connect("c1", consumer="present")
    own = decode_body(scene.ask(Request.GET_SYSTEM_TOPIC_LIST_FROM_BROKER).body, TopicList)
    assert {"TBW102", "DefaultCluster", "broker-a"} <= set(own.topicList)
    assert "orders" not in own.topicList
    groups = scene.ask(Request.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "orders"})
    assert decode_body(groups.body, GroupList).groupList == ["past", "present"]
    topics = decode_body(scene.ask(Request.QUERY_TOPICS_BY_CONSUMER, {"group": "past"}).body, TopicList)
    assert (topics.topicList, topics.brokerAddr) == (["orders"], ADDRESS)


# Queues


def test_a_queue_tells_its_ends_and_the_offsets_of_times() -> None:
    scene = Scene()
    scene.make_topic("orders")
    start_ms = scene.clock.now_ms()
    for _ in range(4):
        scene.send("orders")
        scene.clock.advance(1000)

    def ask(code: int, queue_id: int = 0, **fields: object) -> int:
        [value] = scene.ask(code, {"topic": "orders", "queueId": queue_id, **fields}).text_fields().values()
        return int(value)

    assert (ask(Request.GET_MIN_OFFSET), ask(Request.GET_MAX_OFFSET)) == (0, 4)
    assert ask(Request.GET_EARLIEST_MSG_STORETIME) == start_ms
    search = Request.SEARCH_OFFSET_BY_TIMESTAMP
    assert [ask(search, timestamp=start_ms + ms) for ms in (-5, 0, 1, 1000, 3001)] == [0, 0, 1, 1, 4]
    upper = [ask(search, timestamp=start_ms + ms, boundaryType="UPPER") for ms in (0, 999, 1000, 9000)]
    assert upper == [0, 0, 1, 3]
    assert ask(Request.GET_MAX_OFFSET, queue_id=1) == ask(search, queue_id=1, timestamp=start_ms) == 0
    assert ask(Request.GET_EARLIEST_MSG_STORETIME, queue_id=1) == -1


@pytest.mark.parametrize("code", [Request.GET_MAX_OFFSET, Request.GET_MIN_OFFSET, Request.GET_EARLIEST_MSG_STORETIME])
def test_a_queue_or_topic_that_is_not_there_has_no_ends(code: int) -> None:
    scene = Scene()
    scene.make_topic("orders", queues=2)
    with pytest.raises(InvalidParameter) as refused:
        scene.ask(code, {"topic": "orders", "queueId": 2})
    assert refused.value.remark == "topic 'orders' has no queue 2. Its queues are 0 to 1"
    with pytest.raises(TopicNotFound):
        scene.ask(code, {"topic": "nothing", "queueId": 0})


def test_entries_of_a_queue_are_shown_as_they_lie_on_disk() -> None:
    scene = Scene()
    scene.make_topic("orders", queues=1)
    for number in range(100):  # more than one file of the queue
        scene.send("orders", TAGS="A" if number % 2 else "B")
    scene.connect("c1", consumer="readers")
    fields = {"topic": "orders", "queueId": 0, "index": 60, "count": 10, "consumerGroup": "readers"}
    shown = msgspec.json.decode(scene.ask(Request.QUERY_CONSUME_QUEUE, fields).body)
    assert (shown["minQueueIndex"], shown["maxQueueIndex"]) == (0, 100)
    assert [entry["tagsCode"] for entry in shown["queueData"]] == [66, 65] * 5
    assert shown["subscriptionData"]["subString"] == "*"
    assert all(entry["eval"] for entry in shown["queueData"])
    nobody = msgspec.json.decode(scene.ask(Request.QUERY_CONSUME_QUEUE, fields | {"consumerGroup": "x"}).body)
    assert nobody["filterData"] == "x@orders is not online!"


# Messages


def query(topic: str, key: str, **changes: object) -> dict[str, object]:
    fields: dict[str, object] = {"topic": topic, "key": key, "maxNum": 32, "beginTimestamp": 0}
    return fields | {"endTimestamp": FOREVER_MS} | changes


def test_messages_are_found_by_key_newest_first_and_never_by_a_hash_alone() -> None:
    scene = Scene()
    for topic in ("orders", "others"):
        scene.make_topic(topic)
        scene.send(topic, b"Aa", KEYS="x Aa", UNIQ_KEY="u1")
        scene.send(topic, b"BB", KEYS="BB")  # Java gives both keys the same hash
        scene.send(topic, b"Aa again", KEYS="Aa")
    answer = scene.ask(Request.QUERY_MESSAGE, query("orders", "Aa"))
    found = list(decode_records(answer.body))
    assert [(message.topic, message.body) for message in found] == [("orders", b"Aa again"), ("orders", b"Aa")]
    newest = decode_record(scene.ask(Request.QUERY_MESSAGE, query("others", "Aa")).body)
    assert answer.text_fields() == {
        "indexLastUpdateTimestamp": str(scene.clock.now_ms()),
        "indexLastUpdatePhyoffset": str(newest.physical_offset),
    }


def test_a_unique_key_is_told_from_a_message_key() -> None:
    scene = Scene()
    scene.make_topic("orders")
    scene.send("orders", b"by key", KEYS="one")
    scene.send("orders", b"by unique key", UNIQ_KEY="one")
    unique = scene.ask(Request.QUERY_MESSAGE, query("orders", "one", _UNIQUE_KEY_QUERY="true"))
    assert [message.body for message in decode_records(unique.body)] == [b"by unique key"]
    either = scene.ask(Request.QUERY_MESSAGE, query("orders", "one", _UNIQUE_KEY_QUERY="false"))
    assert [message.body for message in decode_records(either.body)] == [b"by unique key", b"by key"]


def test_a_search_by_key_is_bounded() -> None:
    scene = Scene()
    scene.make_topic("orders", queues=1)
    for _ in range(100):
        scene.send("orders", KEYS="hot")
    assert len(list(decode_records(scene.ask(Request.QUERY_MESSAGE, query("orders", "hot", maxNum=5)).body))) == 5
    assert len(list(decode_records(scene.ask(Request.QUERY_MESSAGE, query("orders", "hot", maxNum=999)).body))) == 64


def test_a_key_nobody_used_finds_nothing() -> None:
    scene = Scene()
    scene.make_topic("orders")
    scene.send("orders", KEYS="one")
    with pytest.raises(QueryNotFound):
        scene.ask(Request.QUERY_MESSAGE, query("orders", "two"))


def test_a_message_is_found_by_its_place() -> None:
    scene = Scene()
    scene.make_topic("orders")
    place = int(scene.send("orders", b"hello")[-16:], 16)
    answer = scene.ask(Request.VIEW_MESSAGE_BY_ID, {"offset": place})
    assert decode_record(answer.body).body == b"hello"
    for nowhere in (place + 1, -1, 1 << 50):
        with pytest.raises(QueryNotFound):
            scene.ask(Request.VIEW_MESSAGE_BY_ID, {"offset": nowhere})


# The broker itself


def test_the_broker_tells_its_state() -> None:
    scene = Scene()
    scene.make_topic("orders")
    started_ms = scene.clock.now_ms()
    scene.broker.traffic.sample(scene.clock.monotonic_s())
    for _ in range(50):
        scene.send("orders")
    scene.broker.reader.pull("orders", 0, 0, 20)
    scene.clock.advance(93_784_000)
    scene.broker.traffic.sample(scene.clock.monotonic_s())
    info = decode_body(scene.ask(Request.GET_BROKER_RUNTIME_INFO).body, KVTable).table
    assert (info["brokerVersionDesc"], info["latermqVersion"], info["brokerActive"]) == ("V5_5_0", "1.2.3", "true")
    assert (info["msgPutTotalTodayNow"], info["msgGetTotalTodayNow"]) == ("50", "20")
    assert info["bootTimestamp"] == info["earliestMessageTimeStamp"] == str(started_ms)
    assert info["runtime"] == "[ 1 days, 2 hours, 3 minutes, 4 seconds ]"
    assert info["commitLogMaxOffset"] == info["putMessageSizeTotal"] == str(scene.broker.store.log.end)
    assert len(info["putTps"].split()) == len(info["getTransferredTps"].split()) == 3
    assert all(isinstance(value, str) for value in info.values())


def test_an_empty_log_begins_now() -> None:
    scene = Scene()
    scene.clock.advance(5000)
    info = decode_body(scene.ask(Request.GET_BROKER_RUNTIME_INFO).body, KVTable).table
    assert info["earliestMessageTimeStamp"] == str(scene.clock.now_ms())


def test_a_new_day_moves_the_marks() -> None:
    scene = Scene()
    scene.make_topic("orders")
    for messages in (1, 2, 4):
        for _ in range(messages):
            scene.send("orders")
        scene.clock.advance(86_400_000)
        scene.service.sample()
    info = decode_body(scene.ask(Request.GET_BROKER_RUNTIME_INFO).body, KVTable).table
    assert (info["msgPutTotalYesterdayMorning"], info["msgPutTotalTodayMorning"]) == ("3", "7")


def test_settings_are_shown_under_rocketmqs_names_and_so_that_they_can_be_given_back() -> None:
    scene = Scene(max_message=Size(16_384), auto_create_groups=False)
    lines = scene.ask(Request.GET_BROKER_CONFIG).body.decode().splitlines()
    settings = dict(line.split("=", 1) for line in lines)
    assert (settings["brokerName"], settings["brokerClusterName"], settings["listenPort"]) == (
        "broker-a",
        "DefaultCluster",
        "10911",
    )
    assert (settings["fileReservedTime"], settings["flushDiskType"]) == ("72", "ASYNC_FLUSH")
    own = [line for line in lines if "." in line.split("=")[0]]
    assert load_config(settings=own, environment={}) == scene.broker.config


def test_settings_are_not_changed_while_the_broker_runs() -> None:
    with pytest.raises(NoPermission) as refused:
        Scene().ask(Request.UPDATE_BROKER_CONFIG, body=b"flushDiskType=SYNC_FLUSH")
    assert "TOML" in refused.value.remark


def test_a_broker_without_replicas_says_so() -> None:
    status = msgspec.json.decode(Scene().ask(Request.GET_BROKER_HA_STATUS).body)
    assert (status["master"], status["inSyncSlaveNums"], status["haConnectionInfo"]) == (True, 0, [])


@pytest.mark.parametrize(
    "code", [Request.CLEAN_EXPIRED_CONSUMEQUEUE, Request.CLEAN_UNUSED_TOPIC, Request.DELETE_EXPIRED_COMMITLOG]
)
def test_cleaning_up_leaves_what_is_in_use(code: int) -> None:
    scene = Scene()
    scene.make_topic("orders")
    scene.send("orders")
    assert scene.ask(code).code == Response.SUCCESS
    assert scene.broker.reader.pull("orders", 0, 0, 32).messages == 1


def test_counts_are_told_by_topic_and_by_group() -> None:
    scene = Scene()
    scene.make_topic("orders")
    for _ in range(6):
        scene.send("orders")
    scene.broker.topic_traffic.count_pulled("orders", "readers", 4)
    scene.clock.advance(60_000)

    def day_sum(name: str, key: str) -> int:
        stats = msgspec.json.decode(
            scene.ask(Request.VIEW_BROKER_STATS_DATA, {"statsName": name, "statsKey": key}).body
        )
        return int(stats["statsDay"]["sum"])

    assert day_sum("TOPIC_PUT_NUMS", "orders") == 6
    assert day_sum("GROUP_GET_NUMS", "orders@readers") == 4
    assert day_sum("GROUP_GET_NUMS", "orders@nobody") == 0
    with pytest.raises(TopicNotFound):
        day_sum("TOPIC_PUT_NUMS", "nothing")
    with pytest.raises(LaterMQError, match="no statistics"):
        day_sum("TOPIC_PUT_SIZE", "orders")


def test_an_answer_to_the_topic_list_is_what_apache_reads() -> None:
    scene = Scene()
    scene.make_topic("orders")
    topic = scene.broker.topics.require("orders")
    assert scene.ask(Request.GET_TOPIC_CONFIG, {"topic": "orders", "lo": "true"}).body == encode_topic(topic)
