"""Config files that a start does not understand are set aside: what is understood counts, and nothing is lost."""

from pathlib import Path

import msgspec
import pytest

from latermq.broker.tables.config_files import DELAY_OFFSETS_PATH, GROUPS_PATH, OFFSETS_PATH, TOPICS_PATH, load_table
from latermq.cli.doctor.store_checks import check_store
from latermq.clock import SimulatedClock
from latermq.config import Config, NameServerConfig
from latermq.config_json.groups import GroupJson, GroupTableJson
from latermq.config_json.members import members
from latermq.message.names import TIMER_DEAD_LETTER_TOPIC
from latermq.model.group import GroupTable
from latermq.model.offset_table import DelayOffsetTable, OffsetTable
from latermq.model.topic import Topic, TopicTable
from latermq.server.namesrv.known_brokers import KnownBrokers
from latermq.server.namesrv.kv_configs import KVConfigs
from latermq.server.namesrv.name_server import NameServer
from latermq.store.files.memory_disk import MemoryDisk
from latermq.store.files.set_aside import Trouble
from tests.support.admins import Scene

DEEP = b"[" * 100_000 + b"]" * 100_000
BROKEN = [b"7", b"{", b"[1]", b'{"topicConfigTable":7}', b"\xff\xfe", b"null", DEEP, b'{"a":' + DEEP + b"}"]


def load_topics(disk: MemoryDisk) -> tuple[TopicTable, list[Trouble]]:
    troubles: list[Trouble] = []
    return load_table(disk, TOPICS_PATH, TopicTable, troubles), troubles


@pytest.mark.parametrize("content", BROKEN, ids=range(len(BROKEN)))
def test_a_file_that_is_no_table_is_set_aside_as_it_was(content: bytes) -> None:
    disk = MemoryDisk()
    disk.replace(TOPICS_PATH, content)
    for _ in range(2):  # the second start finds it set aside already
        table, [trouble] = load_topics(disk)
        assert table.topics == {}
        assert trouble.is_lost
        assert trouble.kept_as == f"{TOPICS_PATH}.unreadable-1"
        assert disk.read(trouble.kept_as) == content
        assert len(trouble.reason) < 500
    disk.replace(TOPICS_PATH, content + b" ")
    assert load_topics(disk)[1][0].kept_as == f"{TOPICS_PATH}.unreadable-2"
    assert disk.read(f"{TOPICS_PATH}.unreadable-1") == content


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        (b"bad", DEEP),
        (b"bad", b"7"),
        (b"bad", b'{"topicName":"bad","readQueueNums":"many"}'),
        (b"bad", b'{"topicName":"other"}'),
        (b"bad", b'{"topicName":"bad","readQueueNums":2000000000}'),
        (b"../../victim", b'{"topicName":"../../victim"}'),
        (b"bad", b'{"topicName":"../../victim"}'),
        (b"\xff", b'{"topicName":"bad"}'),
    ],
)
def test_one_entry_that_is_not_understood_costs_no_other(name: bytes, entry: bytes) -> None:
    disk = MemoryDisk()
    content = (
        b'{"dataVersion":{"counter":7},"topicConfigTable":{"a":{"topicName":"a","readQueueNums":3},"%s":%s,'
        b'"b":{"topicName":"b","attributes":{"message.type":"DELAY"}}}}' % (name, entry)
    )
    disk.replace(TOPICS_PATH, content)
    table, [trouble] = load_topics(disk)
    assert sorted(table.topics) == ["a", "b"]
    assert table.topics["a"].read_queues == 3
    assert table.topics["b"].attributes == {"message.type": "DELAY"}
    assert table.version.counter == 7
    assert trouble.lost == (name.decode(errors="replace"),)
    assert disk.read(trouble.kept_as) == content


def test_a_file_that_breaks_off_gives_what_stands_before() -> None:
    whole = b'{"topicConfigTable":{"a":{"topicName":"a"},"b":{"topicName":"b"}},"dataVersion":{"counter":7}}'
    for end in range(len(whole)):
        disk = MemoryDisk()
        disk.replace(TOPICS_PATH, whole[:end])
        table, troubles = load_topics(disk)
        found = [name for name in ("a", "b") if b'{"topicName":"%s"}' % name.encode() in whole[:end]]
        assert sorted(table.topics) == found
        assert len(troubles) == (end > 0), end


def test_a_backup_stands_in_for_what_is_not_understood() -> None:
    disk = MemoryDisk()
    disk.replace(OFFSETS_PATH + ".bak", b'{"offsetTable":{"t@g":{0:5},"t@h":{0:6}}}')
    disk.replace(OFFSETS_PATH, b'{"offsetTable":{"t@g":{0:"x"},"t@i":{0:8,1:9}}}')
    troubles: list[Trouble] = []
    table = load_table(disk, OFFSETS_PATH, OffsetTable, troubles)
    assert table.offsets == {"t@g": {0: 5}, "t@i": {0: 8, 1: 9}}
    assert (troubles[0].backup, troubles[0].lost) == (OFFSETS_PATH + ".bak", ())
    disk.replace(OFFSETS_PATH, b"\0\0\0")
    table = load_table(disk, OFFSETS_PATH, OffsetTable, troubles)
    assert table.offsets == {"t@g": {0: 5}, "t@h": {0: 6}}
    disk.remove(OFFSETS_PATH)
    table = load_table(disk, OFFSETS_PATH, OffsetTable, troubles)
    assert table.offsets == {"t@g": {0: 5}, "t@h": {0: 6}}
    assert troubles[-1].reason == "it is missing"


def test_delay_offsets_are_salvaged_by_level() -> None:
    disk = MemoryDisk()
    disk.replace(DELAY_OFFSETS_PATH + ".bak", b'{"offsetTable":{2:20}}')
    disk.replace(DELAY_OFFSETS_PATH, b'{"offsetTable":{1:10,2:[],3:"30","x":4}}')
    troubles: list[Trouble] = []
    table = load_table(disk, DELAY_OFFSETS_PATH, DelayOffsetTable, troubles)
    assert table.offsets == {1: 10, 2: 20, 3: 30}
    assert troubles[0].lost == ("x",)


def test_a_group_that_an_earlier_release_saved_does_not_hinder_a_start() -> None:
    disk = MemoryDisk()
    groups = b'{"subscriptionGroupTable":{"good":{"groupName":"good","retryMaxTimes":3},"evil":{"groupName":"evil",'
    disk.replace(GROUPS_PATH, groups + b'"retryMaxTimes":5,"groupRetryPolicy":{"a":%s}}}}' % DEEP)
    scene = Scene(disk)
    good = scene.broker.groups.find("good")
    assert good is not None
    assert good.max_retries == 3
    # Of the other one what is understood counts.
    evil = scene.broker.groups.find("evil")
    assert evil is not None
    assert (evil.max_retries, evil.retry_policy.type) == (5, "CUSTOMIZED")
    assert scene.broker.statistics()["config_files_set_aside"] == 1
    scene.broker.tables.save()
    scene = scene.restart()
    assert scene.broker.troubles == []
    disk = scene.disk
    assert DEEP in (disk.read(f"{GROUPS_PATH}.unreadable-1") or b"")
    saved = msgspec.json.decode(disk.read(GROUPS_PATH) or b"", type=GroupTableJson)
    assert saved.groups["good"].max_retries == 3


@pytest.mark.parametrize("field", [one.encode_name for one in msgspec.structs.fields(GroupJson)])
@pytest.mark.parametrize("value", [b"7.5", b'"text"', b"[7]", b'{"a":[]}', b"9" * 30, b"1e400", DEEP, b"no JSON"])
def test_no_field_of_a_group_hinders_a_start_whatever_it_holds(field: str, value: bytes) -> None:
    disk = MemoryDisk()
    entries = b'"fine":{"groupName":"fine"},"odd":{"groupName":"odd","%b":%b}' % (field.encode(), value)
    disk.replace(GROUPS_PATH, b'{"subscriptionGroupTable":{%b}}' % entries)
    table = load_table(disk, GROUPS_PATH, GroupTable)
    assert table.groups["fine"].name == "fine"
    assert ("odd" in table.groups) == (field not in ("groupName", "consumeEnable"))


def test_a_topic_whose_entry_is_lost_keeps_its_messages_and_takes_more() -> None:
    scene = Scene(auto_create_topics=False)
    scene.make_topic("orders", queues=12)
    scene.send("orders", queue_id=11)
    scene.make_topic("empty", queues=3)
    scene.broker.close()
    content = scene.disk.read(TOPICS_PATH) or b""
    scene.disk.replace(TOPICS_PATH, content.replace(b'"perm":6', b'"perm":"all"'))
    scene = Scene(scene.disk, auto_create_topics=False)
    scene.send("orders", queue_id=11)
    scene.send("empty", queue_id=0)
    assert scene.broker.topics.require("orders").read_queues == 12


def test_a_group_that_was_not_to_consume_does_not_begin_to_where_that_is_not_understood() -> None:
    disk = MemoryDisk()
    disk.replace(GROUPS_PATH, b'{"subscriptionGroupTable":{"g":{"groupName":"g","consumeEnable":"perhaps"}}}')
    troubles: list[Trouble] = []
    table = load_table(disk, GROUPS_PATH, GroupTable, troubles)
    assert table.groups == {}
    assert troubles[0].lost == ("g",)


@pytest.mark.parametrize("restarts", [0, 1])
def test_timers_are_delivered_though_all_topics_were_lost(restarts: int) -> None:
    """Their topic has no queue yet, by which it would be found."""
    scene = Scene()
    scene.make_topic("orders", queues=2)
    scene.send("orders", TIMER_DELAY_SEC="600")
    scene.broker.close()
    scene.disk.replace(TOPICS_PATH, DEEP)
    scene = Scene(scene.disk)
    for _ in range(restarts):
        scene.broker.tables.save()
        scene = scene.restart()
    for _ in range(700):
        scene.clock.advance(1_000)
        scene.broker.store.flush()
        scene.broker.timers.run()
    queues = {queue.topic for queue in scene.broker.store.queues}
    assert "orders" in queues
    assert TIMER_DEAD_LETTER_TOPIC not in queues


def test_levels_are_delivered_though_all_topics_were_lost() -> None:
    scene = Scene()
    scene.make_topic("orders", queues=2)
    scene.send("orders", DELAY="3")
    scene.broker.close()
    scene.disk.replace(TOPICS_PATH, b"\0" * 100)
    scene = Scene(scene.disk)
    for _ in range(20):
        scene.clock.advance(1_000)
        scene.broker.timers.run()
    queues = {queue.topic for queue in scene.broker.store.queues}
    assert "orders" in queues
    assert TIMER_DEAD_LETTER_TOPIC not in queues


def test_offsets_of_the_last_start_stand_in_for_damaged_ones() -> None:
    scene = Scene()
    scene.make_topic("orders", queues=1)
    for _ in range(9):
        scene.send("orders", queue_id=0)
    scene.broker.progress.commit("readers", "orders", 0, 5)
    scene.broker.close()
    scene = Scene(scene.disk)
    scene.broker.progress.commit("readers", "orders", 0, 7)
    scene.broker.store.flush()
    scene.broker.tables.save()
    scene.broker.progress.commit("readers", "orders", 0, 8)
    scene.broker.close()
    scene.disk.replace(OFFSETS_PATH, b"")
    scene = Scene(scene.disk)
    assert scene.broker.offsets.get("readers", "orders", 0) == 5
    scene.broker.tables.save()
    assert b'"orders@readers":{"0":5}' in (scene.disk.read(OFFSETS_PATH) or b"")


def test_the_name_server_starts_with_what_it_understands() -> None:
    disk = MemoryDisk()
    disk.replace("kvConfig.json", b'{"configTable":{"good":{"k":"v"},"evil":{"k":%s},"odd":{"k":7}}}' % DEEP)
    disk.replace("brokers.json", b'{"brokers":%s}' % DEEP)
    server = NameServer(Config(), SimulatedClock(), disk)
    assert server.kv_configs.entries("good") == {"k": "v"}
    assert server.statistics()["config_files_set_aside"] == 2
    assert server.kv_configs.trouble is not None
    assert server.kv_configs.trouble.lost == ("evil", "odd")
    assert DEEP in (disk.read("kvConfig.json.unreadable-1") or b"")
    server = NameServer(Config(), SimulatedClock(), disk)
    assert server.kv_configs.trouble is None
    assert server.kv_configs.entries("good") == {"k": "v"}
    disk.replace("kvConfig.json", b"\0")
    with pytest.raises(Exception, match="has no namespace"):
        KVConfigs(NameServerConfig(), disk).entries("good")
    assert KnownBrokers(SimulatedClock(), 1.0, disk).offline() == {}


def test_the_doctor_tells_of_a_file_that_is_not_understood_and_leaves_it(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "config" / "topics.json").write_bytes(DEEP)
    found = check_store(tmp_path, Config())
    assert any(check.check == TOPICS_PATH and check.status == "warn" for check in found), found
    assert [path.name for path in (tmp_path / "config").iterdir()] == ["topics.json"]


def test_members_are_found_without_reading_values() -> None:
    text = rb'{"a":{"x":[1,{"y":2}]},"b\"c":"},{",12:[],"e":}'
    assert list(members(text)) == [
        (b"a", b'{"x":[1,{"y":2}]}'),
        (rb"b\"c", b'"},{"'),
        (b"12", b"[]"),
        (b"e", b""),
    ]
    for odd in (b"", b"7", b"[1]", b'"text"', b"}{", b"::", b'{"a"', b"{,,}"):
        assert list(members(odd)) == []


def test_a_topic_is_not_made_again_for_a_message_while_nothing_is_lost() -> None:
    scene = Scene()
    assert scene.broker.topics.readable_queue("gone", 0) == "topic 'gone' does not exist"
    scene.broker.topics.put(Topic(name="there"))
    assert scene.broker.topics.readable_queue("there", 0) == 0


def test_a_string_that_never_ends_is_gone_through_once() -> None:
    name = b'\\"' * 500_000  # quotes that strangers put into a name
    assert list(members(b'{"a":1,"b":"' + name)) == [(b"a", b"1"), (b"b", b'"' + name)]
