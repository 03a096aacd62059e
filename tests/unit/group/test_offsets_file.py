"""Tables are saved entry by entry: what their files hold, and how much work a change is."""

import random

import msgspec
import pytest

from latermq.broker.broker import Broker
from latermq.broker.tables.config_files import GROUPS_PATH, OFFSETS_PATH, TOPICS_PATH
from latermq.clock import SimulatedClock
from latermq.config_json.groups import GroupTableJson, encode_group
from latermq.config_json.java_json import convert
from latermq.config_json.offsets import OffsetTableJson
from latermq.config_json.topics import TopicTableJson
from latermq.errors import NoPermission, StoreError
from latermq.group.offsets import BLOCK_QUEUES, ConsumerOffsets
from latermq.model.group import Group
from latermq.model.offset_table import OffsetTable
from latermq.model.topic import Topic
from latermq.store.files.memory_disk import MemoryDisk
from tests.support.brokers_in_memory import open_broker, send

NOW_MS = 1_700_000_000_000


def written(offsets: ConsumerOffsets) -> dict[str, dict[int, int]]:
    body = b'{"offsetTable":{' + b",".join(offsets.pieces(NOW_MS)[0]) + b"}}"
    return msgspec.json.decode(body, type=OffsetTableJson, strict=False).offsets


@pytest.mark.parametrize("seed", range(5))
def test_the_text_is_the_table_whatever_changed_and_in_whatever_slices(seed: int) -> None:
    rng = random.Random(seed)
    offsets = ConsumerOffsets(OffsetTable(), max_offsets=100_000)
    wanted: dict[str, dict[int, int]] = {}
    for _ in range(400):
        group, topic = rng.choice("abc"), rng.choice(("small", "wide"))
        action = rng.random()
        if action < 0.03:
            offsets.remove_group(group)
            wanted = {key: queues for key, queues in wanted.items() if not key.endswith(f"@{group}")}
        elif action < 0.05:
            offsets.remove_topic(topic)
            wanted = {key: queues for key, queues in wanted.items() if not key.startswith(f"{topic}@")}
        elif action < 0.08:
            source = rng.choice("abc")
            offsets.copy(source, group, topic)
            if f"{topic}@{source}" in wanted:
                wanted[f"{topic}@{group}"] = dict(wanted[f"{topic}@{source}"])
        else:
            queue_id = rng.randrange(8 if topic == "small" else 3 * BLOCK_QUEUES)
            offset = rng.randrange(1_000)
            offsets.put(group, topic, queue_id, offset)
            wanted.setdefault(f"{topic}@{group}", {})[queue_id] = offset
        if rng.random() < 0.3:
            offsets.encode(lambda topic, queue_id: 1_000, rng.randrange(4))
    offsets.encode(lambda topic, queue_id: 1_000, offsets.stale_blocks)
    assert written(offsets) == wanted
    assert offsets.statistics() == {"consumer_offsets": sum(map(len, wanted.values()))}
    assert offsets.topics_of("a") == sorted(key.split("@")[0] for key in wanted if key.endswith("@a"))
    assert offsets.groups_of("wide") == sorted(key.split("@")[1] for key in wanted if key.startswith("wide@"))


def test_one_commit_in_a_wide_topic_encodes_one_block() -> None:
    offsets = ConsumerOffsets(OffsetTable(), max_offsets=100_000)
    for queue_id in range(65_535):
        offsets.put("readers", "wide", queue_id, 1)
    offsets.encode(lambda topic, queue_id: 9, offsets.stale_blocks)
    asked = []

    def end(topic: str, queue_id: int) -> int:
        asked.append(queue_id)
        return 9

    offsets.put("readers", "wide", 1_000, 2)
    offsets.encode(end, offsets.stale_blocks)
    assert len(asked) == BLOCK_QUEUES
    assert written(offsets)["wide@readers"][1_000] == 2


def test_a_slice_looks_at_no_more_than_its_blocks() -> None:
    offsets = ConsumerOffsets(OffsetTable(), max_offsets=100_000)
    for number in range(1_000):
        offsets.put(f"g{number}", "orders", 0, 1)
    asked = []

    def end(topic: str, queue_id: int) -> int:
        asked.append(queue_id)
        return 9

    offsets.encode(end, 8)
    assert (len(asked), offsets.stale_blocks) == (8, 992)


def test_what_was_cut_to_the_flushed_end_is_saved_whole_by_a_later_round() -> None:
    offsets = ConsumerOffsets(OffsetTable(), max_offsets=10)
    offsets.put("readers", "orders", 0, 5)
    offsets.encode(lambda topic, queue_id: 3, 10)
    assert written(offsets) == {"orders@readers": {0: 3}}
    assert offsets.stale_blocks == 1
    offsets.encode(lambda topic, queue_id: 7, 10)
    assert written(offsets) == {"orders@readers": {0: 5}}
    assert offsets.stale_blocks == 0


def test_one_offset_too_many_is_refused_and_the_others_can_change() -> None:
    offsets = ConsumerOffsets(OffsetTable(), max_offsets=2)
    offsets.put("readers", "orders", 0, 1)
    offsets.put("readers", "orders", 1, 1)
    with pytest.raises(NoPermission, match=r"broker\.max_offsets is 2"):
        offsets.put("readers", "orders", 2, 1)
    with pytest.raises(NoPermission):
        offsets.copy("readers", "others", "orders")
    offsets.put("readers", "orders", 1, 7)
    offsets.remove_group("readers")
    offsets.put("others", "orders", 2, 1)


def test_the_files_are_what_encoding_the_whole_tables_gives() -> None:
    disk, clock = MemoryDisk(), SimulatedClock(NOW_MS)
    broker = open_broker(disk, clock)
    for number in range(5):
        send(broker, b"body", topic=f"topic{number}")
        broker.groups.require(f"g{number}")
    broker.topic_admin.delete("topic1")
    broker.groups.remove("g1")
    broker.topics.put(Topic(name="topic2", read_queues=3, write_queues=3))
    broker.groups.put(Group(name="g2", max_retries=1))
    broker.tables.save()
    topics, groups = disk.read(TOPICS_PATH), disk.read(GROUPS_PATH)
    configs = broker.groups.table.groups.values()
    assert broker.statistics()["group_config_bytes"] == sum(len(encode_group(config)) for config in configs)
    assert msgspec.json.decode(topics or b"") == msgspec.to_builtins(convert(broker.topics.table, TopicTableJson))
    assert msgspec.json.decode(groups or b"") == msgspec.to_builtins(convert(broker.groups.table, GroupTableJson))


def count_replacements(disk: MemoryDisk, wanted: str) -> list[str]:
    """The list gets an entry for each time that a file is replaced from now on."""
    replace, found = disk.replace, []

    def counted(path: str, data: bytes) -> None:
        if path == wanted:
            found.append(path)
        replace(path, data)

    disk.replace = counted  # type: ignore[method-assign]
    return found


def test_saves_that_pile_up_behind_a_slow_disk_are_one_write() -> None:
    disk, clock = MemoryDisk(), SimulatedClock(NOW_MS)
    broker = open_broker(disk, clock)
    broker.tables.save()
    waiting = []
    for number in range(20):
        broker.groups.put(Group(name=f"g{number}"))
        broker.topics.put(Topic(name=f"topic{number}"))
        waiting += broker.tables.savers()
    written_groups = count_replacements(disk, GROUPS_PATH)
    for save in waiting:
        save()
    assert len(written_groups) == 1
    assert broker.topics.is_saved("topic19")
    assert "g19" in msgspec.json.decode(disk.read(GROUPS_PATH) or b"")["subscriptionGroupTable"]


def test_a_new_topic_does_not_write_the_offsets() -> None:
    disk, clock = MemoryDisk(), SimulatedClock(NOW_MS)
    broker = open_broker(disk, clock)
    send(broker, b"body")
    broker.progress.commit("readers", "orders", 0, 1)
    broker.topics.put(Topic(name="another"))
    found = count_replacements(disk, OFFSETS_PATH)
    for save in broker.tables.savers(with_offsets=False):
        save()
    assert found == []
    assert broker.topics.is_saved("another")
    broker.store.flush()
    broker.tables.save()
    assert found == [OFFSETS_PATH]


def test_offsets_of_a_store_survive_a_save_that_comes_before_any_commit() -> None:
    disk, clock = MemoryDisk(), SimulatedClock(NOW_MS)
    broker: Broker = open_broker(disk, clock)
    send(broker, b"body")
    send(broker, b"body", topic="others")
    broker.progress.commit("readers", "orders", 0, 1)
    broker.store.flush()
    broker.close()
    broker = open_broker(disk, clock)
    broker.progress.commit("readers", "others", 0, 1)
    for save in broker.tables.savers():
        save()
    assert open_broker(disk.after_process_crash(), clock).offsets.get("readers", "orders", 0) == 1


def test_a_save_of_offsets_that_failed_is_made_up_for() -> None:
    disk, clock = MemoryDisk(), SimulatedClock(NOW_MS)
    broker = open_broker(disk, clock)
    send(broker, b"body")
    broker.progress.commit("readers", "orders", 0, 1)
    broker.store.flush()

    def fail(operation: str, path: str) -> None:
        if path.startswith(OFFSETS_PATH):
            raise StoreError("no disk space")

    disk.before_step = fail
    with pytest.raises(StoreError):
        broker.tables.save()
    disk.before_step = lambda operation, path: None
    broker.tables.save()
    assert open_broker(disk.after_process_crash(), clock).offsets.get("readers", "orders", 0) == 1
