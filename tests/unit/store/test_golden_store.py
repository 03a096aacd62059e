"""Stores that Apache RocketMQ wrote: opened as they are, and rebuilt from their log alone."""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latermq.clock import SimulatedClock
from latermq.config import Size, StoreConfig
from latermq.message.properties import decode_properties
from latermq.message.record import decode_records
from latermq.message.tags import java_string_hash
from latermq.store.checkpoint import APACHE_PATH, Checkpoint, save_checkpoint
from latermq.store.dispatch import IndexKeys, key_hash
from latermq.store.files.disk import Disk, FileDisk
from latermq.store.files.memory_disk import MemoryDisk
from latermq.store.index.key_index import IndexFile
from latermq.store.message_store import MessageStore
from tests.golden.files import DATA, golden_bytes, golden_json, unpack

STORE = golden_json("store.json")
ALWAYS_MS = 1 << 62
LEVEL_TOPIC = "SCHEDULE_TOPIC_XXXX"
LEVEL_DELAYS_MS = {1: 1_000, 3: 10_000, 18: 7_200_000}
ROLLED_BACK = 0xC
HOST = bytes((127, 0, 0, 1, 0, 0, 0x2A, 0x9F))

each_archive = pytest.mark.parametrize("name", ["apache-store", "apache-store-timers"])


@contextmanager
def opened(disk: Disk, config: StoreConfig) -> Iterator[MessageStore]:
    store = MessageStore(disk, config, SimulatedClock(), store_host=HOST, new_store_id="golden")
    try:
        yield store
    finally:
        store.close()


def golden_config() -> StoreConfig:
    return StoreConfig(
        segment=Size(STORE["segment_bytes"]),
        reserve_step=Size(STORE["segment_bytes"]),
        queue_file_entries=STORE["entries_per_queue_file"],
        index_slots=STORE["hash_slots"],
        index_entries=STORE["index_entries"],
    )


def memory_disk(*folders: str) -> MemoryDisk:
    """These folders of the golden store, in memory."""
    disk = MemoryDisk()
    for folder in folders:
        for path in sorted((DATA / "store" / folder).rglob("*")):
            if path.is_file():
                content = path.read_bytes()
                file = disk.map_file(str(path.relative_to(DATA / "store")), len(content))
                file.reserve(len(content))
                file.map[:] = content
    return disk


def queue_files() -> list[str]:
    folder = DATA / "store" / "consumequeue"
    return sorted(str(path.relative_to(DATA / "store")) for path in folder.rglob("*") if path.is_file())


def put_keys() -> Iterator[tuple[str, str, int]]:
    """(topic, key, log offset) of every key that Apache indexed, but for those inside the batch."""
    for put in STORE["puts"]:
        properties = decode_properties(put["properties_string"])
        for key in [*properties.get("KEYS", "").split(" "), properties.get("UNIQ_KEY", "")]:
            if key and put["sys_flag"] & ROLLED_BACK != ROLLED_BACK:
                yield put["topic"], key, put["offset"]


def test_queues_built_from_apaches_log_are_the_bytes_that_apache_wrote() -> None:
    disk = memory_disk("commitlog")
    disk.replace("abort", b"")  # a crash: everything derived is built anew
    with opened(disk, golden_config()) as store:
        assert store.recovery.log_end == STORE["end_offset"]
        for name in queue_files():
            if LEVEL_TOPIC not in name:  # its tags codes are deliver times, which are the level table's to know
                content = golden_bytes(f"store/{name}")
                assert disk.map_file(name, len(content)).map[:] == content, name


def test_an_index_built_from_apaches_log_finds_what_apache_indexed() -> None:
    disk = memory_disk("commitlog")
    disk.replace("abort", b"")
    with opened(disk, golden_config()) as store:
        for topic, key, offset in put_keys():
            assert offset in store.reader.find_by_key(topic, key, 0, ALWAYS_MS), (topic, key)


def test_a_store_of_apache_is_opened_as_it_is() -> None:
    with opened(memory_disk("commitlog", "consumequeue", "index"), golden_config()) as store:
        assert not store.recovery.crashed
        assert store.recovery.rebuilt == ()
        assert store.recovery.log_end == STORE["end_offset"]
        for topic, key, offset in put_keys():
            assert offset in store.reader.find_by_key(topic, key, 0, ALWAYS_MS), (topic, key)
        many = store.queues.find("TopicMany", 0)
        assert many is not None
        assert (many.min_offset, many.next_offset) == (0, 20)
        fetched = store.reader.fetch(many, 0, max_count=32, max_bytes=1 << 20)
        messages = list(decode_records(b"".join(fetched.pieces)))
        assert [message.properties["KEYS"] for message in messages] == [f"many-{number}" for number in range(20)]


@pytest.mark.parametrize("lost", [0, 1, 3, None])
def test_what_is_missing_of_apaches_index_is_built_from_its_log(lost: int | None) -> None:
    disk = memory_disk("commitlog", "consumequeue", "index")
    disk.remove("index" if lost is None else f"index/{disk.list_names('index')[lost]}")
    with opened(disk, golden_config()) as store:
        assert store.recovery.rebuilt
        for topic, key, offset in put_keys():
            assert offset in store.reader.find_by_key(topic, key, 0, ALWAYS_MS), (topic, key)


def test_a_level_queue_of_apache_holds_deliver_times() -> None:
    with opened(memory_disk("commitlog", "consumequeue", "index"), golden_config()) as store:
        for put in STORE["puts"]:
            if put["topic"] == LEVEL_TOPIC:
                queue = store.queues.find(LEVEL_TOPIC, put["queue_id"])
                assert queue is not None
                delay_ms = LEVEL_DELAYS_MS[put["queue_id"] + 1]
                assert queue.entry(0) == (put["offset"], put["size"], put["store_ms"] + delay_ms)


def test_an_index_file_is_the_bytes_that_apache_wrote() -> None:
    known = golden_json("index-file.json")
    file = IndexFile(MemoryDisk(), "0", slots=known["hash_slots"], max_entries=known["index_entries"])
    puts = known["puts"]
    accepted = sum(put["accepted"] for put in puts)
    done = file.put(
        IndexKeys(
            np.array([positive_hash(put["key"]) for put in puts], np.int32),
            np.array([put["offset"] for put in puts], np.int64),
            np.array([put["store_ms"] for put in puts], np.int64),
        )
    )
    assert (done, file.is_full) == (accepted, True)
    assert file.file.map[:].hex() == golden_bytes("index-file.bin").hex()
    file.close()


def test_an_index_file_of_apache_is_searched_as_apache_searches_it() -> None:
    known = golden_json("index-file.json")
    content = golden_bytes("index-file.bin")
    disk = MemoryDisk()
    disk.map_file("index/0", len(content)).map[:] = content
    file = IndexFile(disk, "0", slots=known["hash_slots"], max_entries=known["index_entries"])
    for lookup in known["lookups"]:
        found = list(file.find(positive_hash(lookup["key"]), lookup["begin_ms"], lookup["end_ms"]))
        # Entries know the second only. Apache takes its first millisecond, we offer all that may lie in the range.
        assert set(lookup["offsets"]) <= set(found)
        if lookup["begin_ms"] == 0:
            assert found[: lookup["most"]] == lookup["offsets"]
    file.close()


def positive_hash(text: str) -> int:
    topic, separator, key = text.partition("#")
    if separator:
        return key_hash(topic, key)
    value = abs(java_string_hash(text))
    return value if value < 1 << 31 else 0


def test_the_checkpoint_beside_ours_has_apaches_shape() -> None:
    known = golden_json("checkpoint.json")
    golden = golden_bytes("checkpoint.bin")
    fields = ("physic_msg_ms", "logics_msg_ms", "index_msg_ms", "master_flushed_offset", "confirm_offset")
    assert struct.unpack_from(">6q", golden) == (*(known[field] for field in fields), known["logics_physical_offset"])
    assert not any(golden[48:])

    disk = MemoryDisk()
    save_checkpoint(disk, Checkpoint(log_offset=9, index_file="1", index_next_entry=1, store_timestamp_ms=1_700))
    written = disk.read(APACHE_PATH)
    assert written is not None
    assert len(written) == len(golden)
    assert struct.unpack_from(">6q", written) == (1_700, 1_700, 1_700, 0, 0, 0)


def unpacked(name: str, folder: Path) -> tuple[FileDisk, StoreConfig, dict[str, Any]]:
    unpack(DATA / f"{name}.tar.gz", folder)
    known = golden_json(f"{name}.json")
    config = StoreConfig(
        segment=Size(known["segment_bytes"]),
        reserve_step=Size(known["segment_bytes"]),
        queue_file_entries=known["queue_file_bytes"] // 20,
        index_slots=known["hash_slots"],
        index_entries=known["index_entries"],
    )
    return FileDisk(folder), config, known


@each_archive
def test_the_directory_of_a_stopped_apache_broker_is_opened_with_everything_in_it(name: str, tmp_path: Path) -> None:
    disk, config, known = unpacked(name, tmp_path)
    with opened(disk, config) as store:
        assert store.recovery.log_end == known["end_offset"]
        assert {queue.topic for queue in store.queues} == set(known["topics"])
        for topic, queues in known["topics"].items():
            for queue_id, entries in queues.items():
                queue = store.queues.find(topic, int(queue_id))
                assert queue is not None
                assert queue.next_offset == len(entries)
                for entry in entries:
                    where = queue.entry(entry["queue_offset"])
                    assert where == (entry["offset"], entry["size"], entry["tags_code"])
                    message = store.reader.read_message(entry["offset"])
                    assert message is not None
                    assert message.topic == topic
                    assert message.body.decode() == entry["body"]
                    assert message.properties == entry["properties"]
                    assert message.store_timestamp_ms == entry["store_ms"]


@each_archive
def test_the_directory_of_a_stopped_apache_broker_goes_on_where_it_stopped(name: str, tmp_path: Path) -> None:
    disk, config, known = unpacked(name, tmp_path)
    before = len(known["topics"]["TopicGolden"]["0"])
    with opened(disk, config) as store:
        physical_offset, queue_offset, _ = store.writer.append("TopicGolden", 0, b"ours", b"KEYS\x01ours\x02", 1, HOST)
        assert (physical_offset, queue_offset) == (known["end_offset"], before)
    with opened(FileDisk(tmp_path), config) as store:
        queue = store.queues.find("TopicGolden", 0)
        assert queue is not None
        assert queue.next_offset == before + 1
        assert list(store.reader.find_by_key("TopicGolden", "ours", 0, ALWAYS_MS)) == [physical_offset]
        assert len(list(store.reader.find_by_key("TopicGolden", "key-0", 0, ALWAYS_MS))) == 1
