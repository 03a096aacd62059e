"""The JSON files under config/ as Apache RocketMQ writes them, with either of the JSON libraries it has used."""

import json
import tarfile

import pytest

from latermq.broker.tables.config_files import (
    DELAY_OFFSETS_PATH,
    GROUPS_PATH,
    OFFSETS_PATH,
    REQUEST_MODES_PATH,
    TOPICS_PATH,
    load_table,
)
from latermq.config_json.java_json import convert, encode_json
from latermq.config_json.offsets import DelayOffsetTableJson, OffsetTableJson
from latermq.config_json.request_modes import RequestModeTableJson
from latermq.group.offsets import ConsumerOffsets
from latermq.model.data_version import DataVersion
from latermq.model.group import GroupTable
from latermq.model.offset_table import DelayOffsetTable, OffsetTable
from latermq.model.request_mode import RequestMode, RequestModeTable
from latermq.model.topic import TopicTable
from latermq.store.files.memory_disk import MemoryDisk
from tests.golden.files import DATA, golden_bytes, golden_json

KNOWN = golden_json("config.json")
VERSION = DataVersion(
    counter=KNOWN["data_version"]["counter"],
    state_version=KNOWN["data_version"]["state_version"],
    timestamp_ms=KNOWN["data_version"]["timestamp_ms"],
)

each_library = pytest.mark.parametrize("folder", ["config", "config-fastjson1"])


def disk_with(path: str, content: bytes) -> MemoryDisk:
    disk = MemoryDisk()
    disk.replace(path, content)
    return disk


@each_library
def test_topics_of_apache_are_read(folder: str) -> None:
    disk = disk_with(TOPICS_PATH, golden_bytes(f"{folder}/topics.json"))
    table = load_table(disk, TOPICS_PATH, TopicTable)
    assert table.version == VERSION
    assert table.topics.keys() == KNOWN["topics"].keys()
    for name, known in KNOWN["topics"].items():
        topic = table.topics[name]
        assert topic.name == name
        assert (topic.read_queues, topic.write_queues) == (known["read_queues"], known["write_queues"])
        assert (topic.permissions, topic.is_ordered, topic.attributes) == (
            known["perm"],
            known["order"],
            known["attributes"],
        )


def test_groups_of_apache_are_read() -> None:
    disk = disk_with(GROUPS_PATH, golden_bytes("config/subscriptionGroup.json"))
    table = load_table(disk, GROUPS_PATH, GroupTable)
    assert table.version == VERSION
    assert table.groups.keys() == KNOWN["groups"].keys()
    for name, known in KNOWN["groups"].items():
        group = table.groups[name]
        assert group.name == name
        assert (group.max_retries, group.retry_queues) == (known["retry_max_times"], known["retry_queues"])


@each_library
def test_consumer_offsets_of_apache_are_read_though_their_queue_ids_have_no_quotes(folder: str) -> None:
    disk = disk_with(OFFSETS_PATH, golden_bytes(f"{folder}/consumerOffset.json"))
    table = load_table(disk, OFFSETS_PATH, OffsetTable)
    assert table.version == VERSION
    offsets = ConsumerOffsets(table, max_offsets=100)
    for key, queues in KNOWN["consumer_offsets"].items():
        topic, group = key.split("@")
        assert offsets.of_topic(group, topic) == {int(queue_id): offset for queue_id, offset in queues.items()}


@each_library
def test_consumer_offsets_survive_being_written_by_us(folder: str) -> None:
    disk = disk_with(OFFSETS_PATH, golden_bytes(f"{folder}/consumerOffset.json"))
    table = load_table(disk, OFFSETS_PATH, OffsetTable)
    disk.replace(OFFSETS_PATH, encode_json(convert(table, OffsetTableJson)))
    assert load_table(disk, OFFSETS_PATH, OffsetTable) == table


@each_library
def test_delay_offsets_of_apache_are_read_and_survive_being_written_by_us(folder: str) -> None:
    disk = disk_with(DELAY_OFFSETS_PATH, golden_bytes(f"{folder}/delayOffset.json"))
    table = load_table(disk, DELAY_OFFSETS_PATH, DelayOffsetTable)
    assert table.version == VERSION
    assert table.offsets == {int(level): offset for level, offset in KNOWN["delay_offsets"].items()}
    disk.replace(DELAY_OFFSETS_PATH, encode_json(convert(table, DelayOffsetTableJson)))
    assert json.loads(disk.read(DELAY_OFFSETS_PATH) or b"")["offsetTable"] == KNOWN["delay_offsets"]
    assert load_table(disk, DELAY_OFFSETS_PATH, DelayOffsetTable) == table


@each_library
def test_request_modes_of_apache_are_read_and_survive_being_written_by_us(folder: str) -> None:
    written = golden_bytes(f"{folder}/messageRequestMode.json")
    disk = disk_with(REQUEST_MODES_PATH, written)
    table = load_table(disk, REQUEST_MODES_PATH, RequestModeTable)
    assert table.modes == {
        topic: {group: RequestMode(topic=topic, group=group, **known) for group, known in groups.items()}
        for topic, groups in KNOWN["request_modes"].items()
    }
    own = encode_json(convert(table, RequestModeTableJson))
    assert json.loads(own) == json.loads(written)
    disk.replace(REQUEST_MODES_PATH, own)
    assert load_table(disk, REQUEST_MODES_PATH, RequestModeTable) == table


def test_an_offset_is_kept_under_topic_and_group_as_apache_names_them() -> None:
    known = golden_json("ids.json")["offset_key"]
    offsets = ConsumerOffsets(OffsetTable(), max_offsets=1)
    offsets.put(known["group"], known["topic"], 0, 7)
    offsets.encode(lambda topic, queue_id: 100, blocks=1)
    assert offsets.pieces(now_ms=0)[0] == [b'"%b":{"0":7}' % known["key"].encode()]


@pytest.mark.parametrize("name", ["apache-store", "apache-store-timers"])
def test_the_config_of_a_stopped_apache_broker_is_read(name: str) -> None:
    disk = MemoryDisk()
    with tarfile.open(DATA / f"{name}.tar.gz") as archive:
        for path in (TOPICS_PATH, GROUPS_PATH, OFFSETS_PATH):
            member = archive.extractfile(f"./{path}")
            assert member is not None
            disk.replace(path, member.read())
    topics = load_table(disk, TOPICS_PATH, TopicTable)
    assert topics.topics["TopicGolden"].write_queues == 4
    groups = load_table(disk, GROUPS_PATH, GroupTable)
    assert "golden-group" in groups.groups
    offsets = ConsumerOffsets(load_table(disk, OFFSETS_PATH, OffsetTable), max_offsets=100)
    assert offsets.of_topic("golden-group", "TopicGolden") == {0: 1, 1: 2, 2: 3, 3: 4}
