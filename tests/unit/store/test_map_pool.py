"""More queues than a process may open: their files take turns in being mapped, and nothing else is different."""

import errno
from pathlib import Path

import msgspec
import pytest

from latermq.broker.broker import Broker
from latermq.clock import SimulatedClock
from latermq.config import BrokerConfig, Size, StoreConfig, load_config
from latermq.errors import ConfigError, IllegalMessage, NoPermission, StoreError
from latermq.message.names import TIMER_DEAD_LETTER_TOPIC
from latermq.model.topic import Topic
from latermq.server.remoting.open_files import allowed_connections, allowed_queue_files
from latermq.store.files.memory_disk import MemoryDisk
from latermq.store.files.rehearsal_disk import RehearsalDisk
from latermq.store.log_writer import Draft
from latermq.store.retention import Retention
from tests.support.brokers_in_memory import STORE, bodies, open_broker, pass_time, send
from tests.support.stores import HOST, SMALL, append, disk_makers, open_store
from tests.support.stores import bodies as stored_bodies

OPEN = 16
QUEUES = 200
FEW = msgspec.structs.replace(SMALL, max_open_queues=OPEN)
# The log and the index have some too, and each operation one or two for a moment.
DESCRIPTORS = OPEN + 20
MANY = BrokerConfig(max_topic_queues=QUEUES, default_queues=QUEUES)


def limited(disk: MemoryDisk | None = None) -> MemoryDisk:
    disk = disk or MemoryDisk()
    disk.calls.max_descriptors = DESCRIPTORS
    return disk


def few_open(**changes: int) -> StoreConfig:
    return msgspec.structs.replace(STORE, segment=Size(1 << 20), max_open_queues=OPEN, **changes)


def topic_of(queues: int, name: str = "orders") -> Topic:
    return Topic(name=name, read_queues=queues, write_queues=queues)


def test_a_store_has_more_queues_than_a_process_may_open() -> None:
    disk = limited()
    store = open_store(disk, FEW)
    for turn in range(3):
        for number in range(QUEUES):
            append(store, b"%d/%d" % (turn, number), queue_id=number)
        assert len(store.queues.pool) <= OPEN
        assert store.statistics()["mapped_queue_files"] <= OPEN
    store.close()
    assert disk.calls.descriptors == 0
    disk = limited(disk.after_process_crash())
    store = open_store(disk, FEW)
    for number in range(QUEUES):
        append(store, b"3/%d" % number, queue_id=number)
    store.flush()  # and dies
    store = open_store(limited(disk.after_process_crash()), FEW)
    for number in range(QUEUES):
        assert stored_bodies(store, queue_id=number) == [b"%d/%d" % (turn, number) for turn in range(4)]


def test_a_start_opens_no_queue_that_nobody_uses() -> None:
    disk = MemoryDisk()
    store = open_store(disk, FEW)
    for number in range(QUEUES):
        append(store, b"%d" % number, queue_id=number)
    store.close()
    disk = disk.after_process_crash()
    store = open_store(disk, FEW)
    assert len(store.queues.pool) == 0
    Retention(store, FEW, SimulatedClock()).run()
    assert [store.reader.flushed_end(queue) for queue in store.queues] == [1] * QUEUES
    mapped_again = store.queues.pool.mapped_again
    assert [store.reader.flushed_end(queue) for queue in store.queues] == [1] * QUEUES
    for queue in store.queues:
        assert queue.forget_below(store.log.start) == []
    assert store.queues.pool.mapped_again == mapped_again


@pytest.mark.parametrize("kind", ["memory", "files"])
def test_the_files_are_the_same_however_few_are_open(kind: str, tmp_path: Path) -> None:
    contents = []
    for number, config in enumerate((SMALL, FEW)):
        folder = tmp_path / str(number)
        folder.mkdir()
        disk = disk_makers(folder)[kind]()
        store = open_store(disk, config, SimulatedClock())
        for turn in range(70):  # more than a file holds
            for queue_id in range(0, QUEUES, 8):
                append(store, b"%d" % turn, queue_id=queue_id)
        store.close()
        if isinstance(disk, MemoryDisk):
            contents.append({path: data for path, data in disk.contents().items() if "consumequeue" in path})
        else:
            files = [path for path in (folder / "consumequeue").rglob("*") if path.is_file()]
            contents.append({str(path.relative_to(folder)): path.read_bytes() for path in files})
    assert len(contents[0]) > QUEUES // 8
    assert contents[0] == contents[1]


def test_descriptors_that_others_take_are_made_up_for() -> None:
    disk = MemoryDisk()
    store = open_store(disk, FEW)
    for number in range(QUEUES):
        append(store, b"%d" % number, queue_id=number)
    disk.calls.max_descriptors = disk.calls.descriptors  # as if connections had taken all that were left
    for number in range(QUEUES):
        assert stored_bodies(store, queue_id=number) == [b"%d" % number]
    assert len(store.queues.pool) < OPEN


def test_where_nothing_can_be_let_go_of_a_message_is_refused_and_the_next_one_taken() -> None:
    disk = MemoryDisk()
    store = open_store(disk, FEW)
    append(store, b"first")
    disk.calls.max_descriptors = 0
    with pytest.raises(StoreError, match="Too many open files") as caught:
        append(store, b"second", queue_id=1)
    assert "doctor" in caught.value.hint
    disk.calls.max_descriptors = None
    append(store, b"third", queue_id=1)
    assert stored_bodies(store, queue_id=1) == [b"third"]


def test_a_simulated_process_has_no_more_descriptors_than_it_may() -> None:
    disk = MemoryDisk()
    disk.calls.max_descriptors = 2
    file = disk.map_file("one", 4096)
    assert disk.calls.descriptors == 1
    fd = disk.calls.open("one")
    with pytest.raises(OSError, match="Too many") as caught:
        disk.calls.open("one")
    assert caught.value.errno == errno.EMFILE
    disk.calls.close(fd)
    file.close_map()
    assert disk.calls.descriptors == 0
    file.open_map()
    file.close()
    assert disk.calls.descriptors == 0


def test_a_second_full_of_timers_for_many_queues_is_delivered() -> None:
    disk, clock = limited(), SimulatedClock()
    broker = open_broker(disk, clock, store=few_open(), settings=MANY)
    broker.topics.put(topic_of(QUEUES))
    for number in range(QUEUES):
        send(broker, b"%d" % number, queue_id=number, TIMER_DELAY_MS="5000")
        send(broker, b"level %d" % number, queue_id=number, DELAY="2")
    pass_time(broker, clock, 8_000)
    for number in range(QUEUES):
        assert sorted(bodies(broker, queue_id=number)) == [b"%d" % number, b"level %d" % number]


# How many queues there may be


def bounded(disk: MemoryDisk, clock: SimulatedClock, max_queues: int = 8) -> Broker:
    return open_broker(disk, clock, store=few_open(max_queues=max_queues), settings=BrokerConfig(default_queues=4))


def fill(broker: Broker) -> None:
    """Send to as many queues as there may be: the timer topic's own counts too."""
    for number in range(broker.config.store.max_queues):
        broker.topics.put(topic_of(4, f"t{number // 4}"))
        if len(list(broker.store.queues)) < broker.config.store.max_queues:
            send(broker, b"first", f"t{number // 4}", number % 4)


def test_at_the_bound_only_what_needs_a_new_queue_is_refused() -> None:
    disk, clock = MemoryDisk(), SimulatedClock()
    broker = bounded(disk, clock)
    fill(broker)
    broker.topics.put(topic_of(4, "late"))
    for properties in ({}, {"TIMER_DELAY_MS": "5000"}, {"DELAY": "3"}):
        with pytest.raises(NoPermission, match=r"8 queues, the limit set by store\.max_queues") as caught:
            send(broker, b"refused", "late", 0, **properties)
        assert "raise store.max_queues" in caught.value.hint
    before = broker.store.log.end
    with pytest.raises(NoPermission):
        send(broker, b"refused", "late", 0)
    assert broker.store.log.end == before
    send(broker, b"second", "t0", 0)
    send(broker, b"timer", "t0", 1, TIMER_DELAY_MS="5000")
    send(broker, b"level", "t0", 2, DELAY="2")
    pass_time(broker, clock, 7_000)
    assert bodies(broker, "t0", 0) == [b"first", b"second"]
    assert bodies(broker, "t0", 1) == [b"first", b"timer"]
    assert bodies(broker, "t0", 2) == [b"first", b"level"]
    broker.topic_admin.delete("t0")[0]()
    send(broker, b"there is room again", "late", 0)


def test_a_timer_that_was_accepted_has_its_queue() -> None:
    disk, clock = MemoryDisk(), SimulatedClock()
    broker = bounded(disk, clock)
    broker.topics.put(topic_of(4, "early"))
    send(broker, b"timer", "early", 3, TIMER_DELAY_MS="60000")
    fill(broker)
    broker.close()
    broker = bounded(disk.after_process_crash(), clock)
    assert broker.store.queues.has("early", 3)
    pass_time(broker, clock, 61_000)
    assert bodies(broker, "early", 3) == [b"timer"]


@pytest.mark.parametrize("wait", [{"TIMER_DELAY_MS": "60000"}, {"DELAY": "5"}], ids=["timer", "level"])
def test_what_was_accepted_has_its_queue_after_a_crash_too(wait: dict[str, str]) -> None:
    disk, clock = MemoryDisk(), SimulatedClock()
    broker = bounded(disk, clock)
    for topic in ("early", "flood", "gone"):
        broker.topics.put(topic_of(4, topic))
    send(broker, b"never", "gone", 0, **wait)
    for save in broker.topic_admin.delete("gone")[1:]:  # the checkpoint that would know of it is still to be saved
        save()
    for queue_id in range(4):
        send(broker, b"flood", "flood", queue_id, DELAY="4")
    send(broker, b"waited", "early", 3, **wait)
    broker.store.flush()
    broker = bounded(disk.after_process_crash(), clock)
    fill(broker)  # as far as it goes
    assert broker.store.queues.has("early", 3)
    pass_time(broker, clock, 61_000)
    assert bodies(broker, "early", 3) == [b"waited"]
    assert broker.topics.find("gone") is None
    assert not broker.store.queues.has("gone", 0)


def test_a_store_that_has_more_queues_than_allowed_goes_on() -> None:
    disk, clock = MemoryDisk(), SimulatedClock()
    broker = bounded(disk, clock, max_queues=20)
    fill(broker)
    broker.close()
    broker = bounded(disk.after_process_crash(), clock, max_queues=8)
    assert broker.statistics()["queues"] == 20
    assert broker.statistics()["max_queues"] == 8
    send(broker, b"second", "t4", 3)
    send(broker, b"timer", "t4", 2, TIMER_DELAY_MS="5000")
    pass_time(broker, clock, 7_000)
    assert bodies(broker, "t4", 3)[1:] == [b"second"]
    assert bodies(broker, "t4", 2)[1:] == [b"timer"]


def test_topics_that_are_made_again_do_not_multiply_the_queues() -> None:
    """Their timers come as dead letters beyond a quarter more than allowed: none is lost, none holds others up."""
    disk, clock = MemoryDisk(), SimulatedClock()
    broker = bounded(disk, clock)
    for number in range(6):
        broker.topics.put(topic_of(4, f"again{number}"))
        for queue_id in range(4):
            send(broker, b"%d/%d" % (number, queue_id), f"again{number}", queue_id, TIMER_DELAY_MS="60000")
        broker.topic_admin.delete(f"again{number}")[0]()
    for number in range(6):
        broker.topics.put(topic_of(4, f"again{number}"))
    send(broker, b"other", "again0", 0, TIMER_DELAY_MS="60001")
    pass_time(broker, clock, 62_000)
    arrived = [
        body for number in range(6) for queue_id in range(4) for body in bodies(broker, f"again{number}", queue_id)
    ]
    dead = bodies(broker, TIMER_DEAD_LETTER_TOPIC)
    assert len(arrived) + len(dead) == 25
    assert b"other" in arrived
    assert dead
    # A block finds its queues before it is appended: it may pass the bound by its own ones.
    assert broker.statistics()["queues"] <= 8 + 2 + 24


def test_a_topic_may_not_have_any_number_of_queues() -> None:
    broker = open_broker(MemoryDisk(), SimulatedClock(), settings=BrokerConfig(max_topic_queues=10))
    broker.topics.put(topic_of(10))
    for queues in (0, 11, 65_535):
        with pytest.raises(IllegalMessage, match="the number must be 1 to 10") as caught:
            broker.topics.put(topic_of(queues, "other"))
        assert "broker.max_topic_queues" in caught.value.hint
    # One that had more before keeps them, and may be changed otherwise.
    broker.topics.adopt(topic_of(500, "old"))
    broker.topics.put(Topic(name="old", read_queues=500, write_queues=400))
    with pytest.raises(IllegalMessage, match="the number must be 1 to 500"):
        broker.topics.put(topic_of(501, "old"))


# What the process may have


@pytest.mark.parametrize(
    ("limit", "maps", "connections", "files"),
    [
        (1 << 20, 65_530, 16_000, 8_192),
        (65_536, 65_530, 16_000, 8_192),
        (1_024, 65_530, 512, 256),
        (4_096, 65_530, 3_072, 512),
        (1 << 20, 6_000, 16_000, 1_000),
        (20, 65_530, 10, OPEN),
    ],
)
def test_descriptors_and_maps_are_shared_out(limit: int, maps: int, connections: int, files: int) -> None:
    assert allowed_connections(16_000, limit) == connections
    assert allowed_queue_files(8_192, 16_000, limit, maps) == files


def test_settings_that_contradict_each_other_are_refused() -> None:
    for queues in (4, 65_536):
        with pytest.raises(
            ConfigError, match=r"broker\.max_topic_queues must be at least broker\.default_queues and at most 65535"
        ):
            load_config(settings=[f"broker.max_topic_queues={queues}"], environment={})
    with pytest.raises(ConfigError, match=r"store\.max_open_queues must be at least"):
        load_config(settings=["store.max_open_queues=1"], environment={})


def test_a_rehearsal_holds_no_file_that_rests(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old" + bytes(8189))
    descriptors = Path("/proc/self/fd")
    with RehearsalDisk(tmp_path) as disk:
        file = disk.lazy_file("file", 8192, is_complete=True)
        before = len(list(descriptors.iterdir()))
        assert file.read(0, 3) == b"old"
        file.open_map()
        assert len(list(descriptors.iterdir())) == before + 1
        assert file.map[:3] == b"old"
        file.close_map()
        assert len(list(descriptors.iterdir())) == before
        file.open_map()
        file.reserve(4096)
        file.map[:3] = b"new"
        file.close_map()
        assert len(list(descriptors.iterdir())) == before
        assert file.read(0, 4) == b"new\0"
        file.open_map()
        assert file.map[:4] == b"new\0"
        file.close()
    assert (tmp_path / "file").read_bytes()[:3] == b"old"


def test_a_checkpoint_syncs_the_folders_above_all_queues_once() -> None:
    disk = MemoryDisk()
    store = open_store(disk, FEW)
    for number in range(QUEUES):
        append(store, b"%d" % number, queue_id=number)
    disk.calls.made = []
    store.save(store.plan_checkpoint())
    synced = [path for call, path in disk.calls.made if call == "sync folder"]
    assert synced.count("consumequeue/orders") == synced.count("consumequeue") == 1
    assert len({path for path in synced if path.startswith("consumequeue/orders/")}) == QUEUES


def test_a_segment_that_is_full_holds_one_descriptor() -> None:
    disk = MemoryDisk()
    store = open_store(disk, FEW)
    while len(store.log.closed_segments()) < 20:
        store.writer.append_all([Draft("orders", 0, bytes(20_000), b"", 1, HOST)])  # as a block
    assert disk.calls.descriptors < 20 + 8
    store.close()
    assert disk.calls.descriptors == 0
