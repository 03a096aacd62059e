"""Hazards of the store that were met once: each of these lost something, or kept a broker from starting."""

import threading
from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec
import pytest

from latermq.broker.broker import Broker
from latermq.clock import SimulatedClock
from latermq.config import Config, Duration, Size
from latermq.errors import CorruptStore, StoreError
from latermq.store.commit_log import CommitLog
from latermq.store.files.disk import Disk, FileDisk, MappedFile
from latermq.store.files.memory_disk import MemoryDisk
from latermq.store.message_store import MessageStore
from latermq.store.retention import Retention
from tests.support.stores import HOST, SMALL, append, bodies, open_store

FIRST_SEGMENT = "commitlog/" + "0" * 20


def test_a_sender_cannot_say_that_its_host_is_ipv6() -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    append(store, b"before")
    store.writer.append("orders", 0, b"liar", b"", 1, HOST, 0, 0x30)
    append(store, b"after")
    assert bodies(open_store(disk.after_process_crash())) == [b"before", b"liar", b"after"]


def test_a_segment_made_ahead_while_the_writer_rolls_is_not_used_twice() -> None:
    disk = MemoryDisk()
    log = CommitLog(disk, segment_bytes=65_536, reserve_step_bytes=16_384)
    log.open_at(0, 0)

    def put(fill: int) -> int:
        at = log.place(1_000)
        log.write(at, bytearray([fill]) * 1_000, is_block=True)
        return at

    for _ in range(60):
        put(1)
    entered, go_on = threading.Event(), threading.Event()
    map_file = disk.map_file

    def slow_map_file(path: str, size: int) -> MappedFile:
        file = map_file(path, size)
        if threading.current_thread() is not threading.main_thread():
            entered.set()
            go_on.wait(1)
        return file

    disk.map_file = slow_map_file  # type: ignore[method-assign]
    ahead = threading.Thread(target=log.prepare_ahead)
    ahead.start()
    assert entered.wait(5)
    while log.end < 65_536:
        put(2)
    first = log.end - 1_000
    go_on.set()
    ahead.join()
    while log.end < 131_072:
        put(3)
    assert log.read(first, 1_000) == b"\2" * 1_000


def test_a_log_written_while_another_thread_flushes_it_is_whole(tmp_path: Path) -> None:
    config = msgspec.structs.replace(SMALL, segment=Size(1 << 20), reserve_step=Size(256 << 10))
    store = open_store(FileDisk(tmp_path), config)
    stopping = threading.Event()

    def flush() -> None:
        while not stopping.is_set():
            store.flush()

    flushing = threading.Thread(target=flush)
    flushing.start()
    sent = [b"%06d" % number + b"x" * 30_000 for number in range(600)]
    try:
        for body in sent:
            append(store, body)
    finally:
        stopping.set()
        flushing.join()
    assert bodies(store) == sent
    store.close()


def test_a_flush_without_space_ahead_syncs_what_there_is() -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    while store.log.end < 10_000:
        append(store, b"." * 500)
    disk.capacity_bytes = disk.used_bytes
    append(store, b"there is still room for this")
    store.flush()
    assert store.log.flushed == store.log.end


def test_a_full_disk_costs_one_old_segment_at_a_time() -> None:
    disk = MemoryDisk(capacity_bytes=2_000_000)
    clock = SimulatedClock()
    store = open_store(disk, SMALL, clock)
    while disk.used_ratio() <= 0.86:
        append(store, b"." * 3_000)
        clock.advance(1)
    store.save(store.plan_checkpoint())
    closed = len(store.log.closed_segments())
    removed = Retention(store, SMALL, clock).run()
    assert [gone.path for gone in removed if gone.path.startswith("commitlog/")] == [FIRST_SEGMENT]
    assert len(store.log.closed_segments()) == closed - 1 > 10


def test_a_queue_entry_torn_between_two_pages_costs_nothing() -> None:
    config = msgspec.structs.replace(SMALL, queue_file_entries=2_000)
    disk = MemoryDisk()
    store = open_store(disk, config)
    for number in range(614):  # the next entry begins 8 bytes before a page ends
        append(store, b"%d" % number)
    store.save(store.plan_checkpoint())
    for number in range(614, 640):
        append(store, b"%d" % number)
    store.flush()
    after = disk.after_process_crash()
    after.map_file("consumequeue/orders/0/" + "0" * 20, 40_000).map[12_280:12_288] = bytes(8)
    assert bodies(open_store(after, config)) == [b"%d" % number for number in range(640)]


@pytest.mark.parametrize("seed", range(10))
def test_queues_of_many_pages_survive_a_power_cut(seed: int) -> None:
    config = msgspec.structs.replace(SMALL, queue_file_entries=4_000)
    chance = Random(seed)
    disk = MemoryDisk()
    store = open_store(disk, config)
    sent: dict[int, int] = {}

    def burst(queue_id: int, count: int) -> None:
        for _ in range(count):
            store.writer.append("orders", queue_id, b"x", b"", 1, HOST)
        sent[queue_id] = sent.get(queue_id, 0) + count

    for queue_id in range(20):
        burst(queue_id, 600 + queue_id)
    store.save(store.plan_checkpoint())
    for queue_id in range(20):
        burst(queue_id, chance.randrange(1, 60))
    store.flush()
    again = open_store(disk.after_machine_crash(chance), config)
    for queue_id, count in sent.items():
        queue = again.queues.ensure("orders", queue_id)
        assert (queue.min_offset, queue.next_offset) == (0, count)


def test_a_topic_torn_between_two_pages_is_no_record() -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    before_topic = 4_096 - 3 - 1 - 88
    store.writer.append("orders", 0, b"b" * before_topic, b"", 1, HOST)
    disk.map_file(FIRST_SEGMENT, SMALL.segment).map[4_096:8_192] = bytes(4_096)
    again = open_store(disk.after_process_crash())
    assert again.log.end == 0
    assert {queue.topic for queue in again.queues} <= {"orders"}


def test_the_newest_index_file_is_synced_also_after_old_ones_were_removed() -> None:
    disk = MemoryDisk()
    clock = SimulatedClock()
    config = msgspec.structs.replace(SMALL, index_entries=50, retention=Duration.parse("1h"))
    store = open_store(disk, config, clock)
    for number in range(200):
        append(store, b"%d" % number + b"." * 1_000, key=f"k{number}")
    store.save(store.plan_checkpoint())
    clock.advance(3_700_000)
    append(store, b"roll" + b"." * 60_000)
    store.save(store.plan_checkpoint())
    assert Retention(store, config, clock).run()
    append(store, b"new", key="fresh")
    plan = store.plan_checkpoint()
    synced: list[str] = []
    disk.before_step = lambda operation, path: synced.append(path) if operation == "sync" else None
    store.save(plan)
    assert f"index/{plan.checkpoint().index_file}" in synced


@pytest.mark.parametrize("path", [f"commitlog/{65_536:020d}", "consumequeue/orders/1/" + "0" * 20])
def test_a_file_that_was_made_but_never_sized_is_no_obstacle(tmp_path: Path, path: str) -> None:
    store = open_store(FileDisk(tmp_path))
    append(store, b"x")
    store.release()
    (tmp_path / path).parent.mkdir(exist_ok=True)
    (tmp_path / path).touch()
    again = open_store(FileDisk(tmp_path))
    assert bodies(again) == [b"x"]
    again.close()


def test_a_log_that_ends_before_its_checkpoint_is_refused() -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    for _ in range(100):
        append(store, b"." * 1_500)
    last = f"commitlog/{store.log.end // SMALL.segment * SMALL.segment:020d}"
    store.close()
    disk.remove(last)
    with pytest.raises(CorruptStore, match="a segment is missing"):
        open_store(disk)


def test_queues_that_are_gone_are_built_again_from_the_log() -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    for number in range(100):
        append(store, b"%d" % number, key=f"k{number}")
    store.close()
    disk.remove("consumequeue/orders/0")
    again = open_store(disk)
    assert bodies(again) == [b"%d" % number for number in range(100)]
    assert len(list(again.reader.find_by_key("orders", "k7", 0, 1 << 60))) == 1


def test_a_topic_whose_removal_was_interrupted_is_gone_after_the_start() -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    for number in range(50):
        append(store, b"%d" % number)
        append(store, b"%d" % number, topic="bills")

    class KilledError(Exception):
        """The process ends here."""

    def kill(operation: str, path: str) -> None:
        if operation == "remove":
            raise KilledError

    remove = store.remove_topic("orders")
    disk.before_step = kill
    with pytest.raises(KilledError):
        remove()
    disk.before_step = lambda operation, path: None
    again = open_store(disk.after_process_crash())
    assert bodies(again) == []
    assert len(bodies(again, "bills")) == 50


def test_an_append_that_fails_after_a_roll_lets_nothing_be_removed() -> None:
    disk = MemoryDisk()
    clock = SimulatedClock()
    store = open_store(disk, SMALL, clock)
    while store.log.end < 60_000:
        append(store, b"." * 1_000)
    kept = len(bodies(store))
    with pytest.raises(Exception, match="format"):
        store.writer.append("orders", 0, b"x" * 8_000, b"", 1, HOST, 1 << 40)
    store.save(store.plan_checkpoint())
    assert Retention(store, SMALL, clock).run() == []
    assert len(bodies(store)) == kept


def test_index_files_of_another_size_are_refused_and_left_alone(tmp_path: Path) -> None:
    store = open_store(FileDisk(tmp_path))
    append(store, b"x", key="k")
    store.close()
    with pytest.raises(CorruptStore, match="configuration says"):
        open_store(FileDisk(tmp_path), msgspec.structs.replace(SMALL, index_slots=11))


def test_more_topics_than_allowed_do_not_keep_a_store_from_opening() -> None:
    disk = MemoryDisk()

    def open_broker(max_topics: int) -> Broker:
        config = Config(store=SMALL, broker=msgspec.structs.replace(Config().broker, max_topics=max_topics))
        return Broker(config, disk, SimulatedClock(), host="127.0.0.1", port=1, new_store_id="s")

    broker = open_broker(100)
    for number in range(20):
        broker.writer.send(f"topic-{number}", 0, b"x", "", 1, HOST)
    broker.store.release()
    disk.remove("config/topics.json")
    assert len(open_broker(10).adopted_topics) == 20


def test_what_a_checkpoint_does_not_cover_is_not_removed() -> None:
    disk = MemoryDisk()
    clock = SimulatedClock()
    store: MessageStore = open_store(disk, SMALL, clock)
    store.save(store.plan_checkpoint())
    for _ in range(100):
        append(store, b"." * 1_500)
    clock.advance(100 * 3_600_000)
    assert len(store.log.closed_segments()) > 1
    assert Retention(store, SMALL, clock).run() == []


def test_a_batch_of_which_the_first_bytes_are_missing_is_not_there_at_all() -> None:
    """The order of writing: whatever of a block is on its way, it begins with nothing until all the rest is there."""
    disk = MemoryDisk()
    log = CommitLog(disk, segment_bytes=65_536, reserve_step_bytes=16_384)
    log.open_at(0, 0)
    at = log.place(100)
    block = bytearray(b"size" + b"r" * 96)
    seen: list[bytes] = []
    disk.before_step = lambda operation, path: seen.append(log.read(at, 100))

    log.write(at, block, is_block=True)
    assert [data[:4] for data in seen] == [bytes(4)]
    assert log.read(at, 100) == block

    def torn(operation: str, path: str) -> None:
        raise StoreError("the disk is gone")

    at = log.place(100)
    disk.before_step = torn
    with pytest.raises(StoreError):
        log.write(at, block, is_block=True)
    assert log.end == at
    assert log.read(at, 100) == bytes(100)


@pytest.mark.parametrize("make_disk", [lambda folder: MemoryDisk(), FileDisk], ids=["memory", "real"])
def test_a_block_that_is_written_shows_in_the_map_and_outlives_the_file(
    make_disk: Callable[[Path], Disk], tmp_path: Path
) -> None:
    disk = make_disk(tmp_path)
    file = disk.map_file("commitlog/0", 1 << 20)
    file.reserve(1 << 20)
    block = bytes(range(256)) * 2_000
    file.map[90:100] = b"." * 10
    file.write(100, memoryview(block))
    assert file.map[90:100] == b"." * 10
    assert file.map[100 : 100 + len(block)] == block
    file.write(200, memoryview(b"again"))
    file.sync()
    file.close()
    assert disk.map_file("commitlog/0", 1 << 20).map[195:210] == block[95:100] + b"again" + block[105:110]


def test_a_disk_that_fails_while_a_block_is_written_says_so(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path)
    file = disk.map_file("commitlog/0", 1 << 16)
    (tmp_path / "commitlog/0").rename(tmp_path / "gone")
    with pytest.raises(StoreError, match="cannot write to commitlog/0"):
        file.write(0, memoryview(b"block"))


def test_a_full_disk_refuses_to_forget_a_topic_half() -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    for number in range(10):
        append(store, b"%d" % number, key="k")

    def full(operation: str, path: str) -> None:
        if operation in ("reserve", "map") and path.startswith("index"):
            raise StoreError("injected")

    disk.before_step = full
    with pytest.raises(StoreError):
        store.remove_topic("orders")
    disk.before_step = lambda operation, path: None
    assert len(bodies(store)) == 10


@pytest.mark.parametrize("make_disk", [lambda folder: MemoryDisk(), FileDisk], ids=["memory", "real"])
def test_a_topic_with_the_longest_name_can_be_removed(make_disk: Callable[[Path], Disk], tmp_path: Path) -> None:
    disk = make_disk(tmp_path)
    store = open_store(disk)
    topic = "t" * 255
    append(store, b"x", topic=topic)
    store.remove_topic(topic)()
    assert disk.list_names("consumequeue") == []
    assert not any(name.startswith("removing") for name in disk.list_names(""))
    store.close()


def test_a_small_file_in_a_new_folder_outlives_a_power_cut() -> None:
    for seed in range(20):
        disk = MemoryDisk()
        disk.replace("config/topics.json", b"{}")
        assert disk.after_machine_crash(Random(seed)).read("config/topics.json") == b"{}"


def test_a_small_file_outlives_a_power_cut_though_its_folder_was_made_by_a_process_that_died() -> None:
    for seed in range(20):
        disk = MemoryDisk()
        disk.map_file("config/other", 4096)  # makes the folder, and syncs nothing
        disk = disk.after_process_crash()
        disk.replace("config/topics.json", b"{}")
        assert disk.after_machine_crash(Random(seed)).read("config/topics.json") == b"{}"
