"""A start may die at any system call, any number of times: the next one works, and nothing is lost or doubled."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import msgspec
import pytest

from latermq.broker.broker import Broker
from latermq.clock import SimulatedClock
from latermq.config import Size, TimerConfig
from latermq.errors import CorruptStore
from latermq.store.files.disk import FileDisk
from latermq.store.files.memory_disk import MemoryDisk
from latermq.store.message_store import MessageStore
from tests.support.brokers_in_memory import bodies as delivered
from tests.support.brokers_in_memory import open_broker, pass_time, send
from tests.support.faults.crashed_starts import after_crashed_starts, crash_during_start
from tests.support.needs import LONG
from tests.support.pipeline.far_broker import FAR_MS, PIPELINE, SHORT, FarBroker
from tests.support.stores import SMALL, append, bodies, open_store

SEEDS = 300 if LONG else 12
QUEUES = 4
FIRST = "0" * 20
ENGINES = ("wheel", "rocksdb")


def crashed_store(*, saved: int = 120, behind: int = 80) -> MemoryDisk:
    """A store of several segments, queues of several files, with something behind its checkpoint, killed."""
    disk = MemoryDisk()
    store = open_store(disk)
    for number in range(saved):
        append(store, b"%d" % number + b"." * 700, queue_id=number % QUEUES, key=f"k{number}")
    store.save(store.plan_checkpoint())
    for number in range(saved, saved + behind):
        append(store, b"%d" % number + b"." * 700, queue_id=number % QUEUES, key=f"k{number}")
    store.flush()
    # Garbage of a record that was on its way: there is something to be cut.
    store.log.place(500)
    at = store.log.end - store.log.file_start + 200
    store.log.map[at : at + 9] = b"on its wa"
    return disk.after_process_crash()


def numbers(store: MessageStore) -> list[int]:
    return sorted(int(body.rstrip(b".")) for queue_id in range(QUEUES) for body in bodies(store, queue_id=queue_id))


@pytest.mark.parametrize("halfway", [False, True])
@pytest.mark.parametrize("machine", [False, True], ids=["process", "machine"])
def test_a_start_may_die_at_any_call(halfway: bool, machine: bool) -> None:
    crashed = crashed_store()
    chance = Random(1)
    calls, is_done = 0, False
    while not is_done:
        disk, is_done = crash_during_start(crashed.after_process_crash(), open_store, calls, halfway=halfway)
        if machine:
            disk = disk.after_machine_crash(chance)
        again = open_store(disk)
        assert numbers(again) == list(range(200)), f"after {calls} calls"
        assert len(list(again.reader.find_by_key("orders", "k150", 0, 1 << 60))) == 1
        calls += 1
    assert calls > 10


def test_a_first_start_may_die_at_any_call() -> None:
    calls, is_done = 0, False
    while not is_done:
        disk, is_done = crash_during_start(MemoryDisk(), open_store, calls, halfway=True)
        store = open_store(disk)
        append(store, b"first")
        assert bodies(store) == [b"first"]
        calls += 1
    assert calls > 3


@pytest.mark.parametrize("kind", ["no punch", "no fallocate"])
def test_a_start_may_die_at_any_call_where_the_file_system_can_do_less(kind: str) -> None:
    crashed = crashed_store()
    calls, is_done = 0, False
    while not is_done:
        disk = crashed.after_process_crash()
        disk.calls.can_punch, disk.calls.can_allocate = kind != "no punch", kind != "no fallocate"
        disk, is_done = crash_during_start(disk, open_store, calls, halfway=True)
        assert numbers(open_store(disk)) == list(range(200)), f"after {calls} calls"
        calls += 1


@contextmanager
def started(disk: MemoryDisk, clock: SimulatedClock, engine: str) -> Iterator[Broker]:
    broker = open_broker(disk, clock, TimerConfig(engine=engine))  # type: ignore[arg-type]
    yield broker
    broker.timers.engine.close()


def start_and_die(clock: SimulatedClock, engine: str) -> Callable[[MemoryDisk], None]:
    def start(disk: MemoryDisk) -> None:
        with started(disk, clock, engine) as broker:
            broker.timers.run()

    return start


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_timers_and_messages_outlive_starts_that_die(engine: str, seed: int) -> None:
    chance, clock, disk = Random(seed), SimulatedClock(), MemoryDisk()
    sent: list[bytes] = []
    for life in range(3):
        # Timers change the engine at times: what the one left is not what the other finds.
        own = chance.choice(ENGINES) if chance.random() < 0.3 else engine
        disk = after_crashed_starts(disk, start_and_die(clock, own), chance, may_lose_unsynced=True)
        with started(disk, clock, own) as broker:
            for number in range(chance.randrange(5, 60)):
                body = b"%d/%d" % (life, number)
                delay_ms = chance.choice((0, 0, 2_000, 50_000, 400_000))
                if delay_ms:
                    send(broker, body, UNIQ_KEY=body.decode(), TIMER_DELAY_MS=str(delay_ms))
                else:
                    send(broker, body, UNIQ_KEY=body.decode())
                sent.append(body)
                if chance.random() < 0.1:
                    broker.store.save(broker.store.plan_checkpoint())
            broker.store.flush()
            pass_time(broker, clock, chance.choice((0, 3_000)))
            broker.store.flush()
            disk = disk.after_process_crash()
    disk = after_crashed_starts(disk, start_and_die(clock, engine), chance, may_lose_unsynced=True)
    with started(disk, clock, engine) as broker:
        pass_time(broker, clock, 500_000)
        assert sorted(delivered(broker)) == sorted(sent)


# What the version before left behind when it was killed while it cut


def shorten(disk: MemoryDisk, path: str, size: int) -> None:
    fd = disk.calls.open(path)
    disk.calls.truncate(fd, size)
    disk.calls.close(fd)


def test_queues_that_a_killed_start_left_short_are_mended() -> None:
    disk = crashed_store(saved=100, behind=20)  # one file a queue, and it ends with the checkpoint
    for queue_id in range(QUEUES):
        shorten(disk, f"consumequeue/orders/{queue_id}/{FIRST}", 25 * 20)
    assert numbers(open_store(disk)) == list(range(120))


def test_a_short_queue_among_others_is_mended() -> None:
    disk = crashed_store(saved=100, behind=20)
    shorten(disk, f"consumequeue/orders/2/{FIRST}", 25 * 20)
    again = open_store(disk)
    assert numbers(again) == list(range(120))
    assert again.recovery.records == 20, "only what is behind the checkpoint is read"


def test_a_queue_that_lost_what_the_checkpoint_promises_is_built_again() -> None:
    disk = crashed_store(saved=100, behind=20)
    shorten(disk, f"consumequeue/orders/2/{FIRST}", 20 * 20)
    disk, _ = crash_during_start(disk, open_store, 6, halfway=False)
    assert numbers(open_store(disk)) == list(range(120))


@pytest.mark.parametrize("saved", [30, 0])
def test_a_log_of_one_file_that_ends_with_its_last_record_is_mended(saved: int) -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    for number in range(40):
        append(store, b"%d" % number, queue_id=number % QUEUES)
        if number + 1 == saved:
            store.save(store.plan_checkpoint())
    end = store.log.end
    disk = disk.after_process_crash()
    shorten(disk, f"commitlog/{FIRST}", end)
    assert numbers(open_store(disk)) == list(range(40))


def test_a_log_that_lost_more_than_its_checkpoint_allows_is_refused() -> None:
    disk = crashed_store()
    last = max(disk.list_names("commitlog"))
    shorten(disk, f"commitlog/{last}", 100)
    store_end = int(last) + 100
    checkpoint = disk.read("latermq.checkpoint")
    assert checkpoint is not None
    again = open_store(disk)  # all that is missing lay behind the checkpoint
    assert again.log.end <= store_end
    disk = crashed_store(saved=200, behind=0)
    shorten(disk, f"commitlog/{max(disk.list_names('commitlog'))}", 100)
    before = disk.contents()
    with pytest.raises(CorruptStore, match="a segment is missing"):
        open_store(disk.after_process_crash())
    assert {path: data for path, data in disk.contents().items() if "commitlog" in path} == {
        path: data for path, data in before.items() if "commitlog" in path
    }


@pytest.mark.parametrize("change", [{"queue_file_entries": 128}, {"queue_file_entries": 32}, {"segment": 128 * 1024}])
def test_another_configured_size_is_still_an_error_and_changes_nothing(change: dict[str, int]) -> None:
    disk = crashed_store(saved=100, behind=0)
    sizes = {path: disk.file_size(path) for path in disk.contents()}
    with pytest.raises(CorruptStore, match="the configuration says"):
        open_store(disk, msgspec.structs.replace(SMALL, **change))
    assert {path: disk.file_size(path) for path in sizes} == sizes


def test_files_without_a_size_are_no_obstacle_even_before_others() -> None:
    """A power cut may keep the length of a later file and not that of an earlier one."""
    disk = crashed_store(saved=30, behind=250)
    last, before = sorted(disk.list_names("commitlog"), reverse=True)[:2]
    assert int(before) > 0
    shorten(disk, f"commitlog/{before}", 0)
    again = open_store(disk)
    assert again.log.end <= int(before)
    append(again, b"999")
    assert numbers(again)[-1] == 999
    assert not any(name >= last for name in disk.list_names("commitlog"))


def test_what_was_cut_does_not_come_back_with_a_power_cut() -> None:
    """Whole records behind a torn one: cut at the start, written over, and the machine dies before a flush."""
    chance = Random(3)
    for _ in range(40):
        disk = MemoryDisk()
        store = open_store(disk)
        store.save(store.plan_checkpoint())
        for _ in range(60):
            append(store, b"old" + b"." * 3_000)
        store.flush()
        disk = disk.after_process_crash()
        disk.map_file(f"commitlog/{FIRST}", SMALL.segment).map[4_000] ^= 0xFF  # in the second record
        store = open_store(disk)
        for _ in range(40):
            append(store, b"new" + b"." * 3_000)
        again = open_store(disk.after_machine_crash(chance))
        assert [body[:3] for body in bodies(again)[1:]].count(b"old") == 0


# What a start costs


def test_a_start_changes_nothing_that_is_right() -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    for number in range(400):
        append(store, b"%d" % number, topic=f"t{number}", key=f"k{number}")
    store.close()
    for crashed in (False, True):
        disk = disk.after_process_crash()
        disk.calls.made = []
        again = open_store(disk)
        # The mark of a running store, and nothing else: neither a queue nor the log nor the index.
        assert {path for _, path in disk.calls.made} <= {"", "abort", "abort.draft", "lock"}, crashed
        assert len(list(again.queues)) == 400


def test_a_real_start_touches_no_queue_that_is_right(tmp_path: Path) -> None:
    store = open_store(FileDisk(tmp_path))
    for number in range(50):
        append(store, b"%d" % number, topic=f"t{number}")
    store.save(store.plan_checkpoint())
    store.release()

    def changes() -> dict[str, tuple[int, int]]:
        files = [path for path in (tmp_path / "consumequeue").rglob("*") if path.is_file()]
        return {str(path): (path.stat().st_mtime_ns, path.stat().st_blocks) for path in files}

    before = changes()
    again = open_store(FileDisk(tmp_path))
    assert changes() == before
    assert len(before) == 50
    again.close()


# Far timers, and what a library keeps


def test_names_of_far_timers_outlive_starts_that_die_at_any_call() -> None:
    far = FarBroker()
    for number in range(5):
        far.schedule(f"t{number}")
    far.lose_log()
    for number in range(5, 8):
        far.schedule(f"t{number}")
    far.broker.store.flush()
    crashed = far.disk.after_process_crash()
    calls, is_done = 0, False
    while not is_done:
        disk, is_done = crash_during_start(
            crashed.after_process_crash(), start_far_and_die(far.clock), calls, halfway=True
        )
        far.replace_disk(disk)
        for number in range(5):
            assert len(list(far.broker.far_names.pending("orders", f"t{number}", 0))) == 1, f"after {calls} calls"
        calls += 1
    assert calls > 3
    far.pass_time(FAR_MS + 5_000)
    assert sorted(far.arrived()) == [b"t%d" % number for number in range(8)]
    far.close()


def start_far_and_die(clock: SimulatedClock) -> Callable[[MemoryDisk], None]:
    def start(disk: MemoryDisk) -> None:
        broker = open_broker(disk, clock, store=SHORT, pipeline=PIPELINE)
        broker.timers.run()
        broker.timers.engine.close()
        broker.far_names.close()

    return start


@pytest.mark.parametrize("kept", [0, 1, 2, 3, 5, 8])
def test_a_database_that_a_killed_start_removed_in_part_is_filled_again(kept: int) -> None:
    """An engine that is begun anew removes its folder file by file."""
    disk, clock = MemoryDisk(), SimulatedClock()
    sent = [b"%d" % number for number in range(40)]
    with started(disk, clock, "rocksdb") as broker:
        for body in sent:
            send(broker, body, UNIQ_KEY=body.decode(), TIMER_DELAY_MS="100000")
        broker.store.flush()
        pass_time(broker, clock, 2_000)
        broker.store.save(broker.store.plan_checkpoint())
    for seed in range(4):
        left = disk.after_process_crash()
        files = sorted(left.library_folder("timerrocksdb").iterdir())
        Random(seed).shuffle(files)
        for path in files[kept:]:
            path.unlink()
        own = SimulatedClock(clock.now_ms())
        with started(left, own, "rocksdb") as broker:
            pass_time(broker, own, 150_000)
            assert sorted(delivered(broker)) == sorted(sent), f"with {[path.name for path in files[:kept]]}"


def test_a_record_longer_than_what_is_read_at_once_is_found_at_a_start() -> None:
    config = msgspec.structs.replace(SMALL, segment=Size(16 << 20), reserve_step=Size(1 << 20))
    disk = MemoryDisk()
    store = open_store(disk, config)
    sent = [b"small", b"l" * (6 << 20), b"after", b"m" * (8 << 20), b"last"]
    for body in sent:
        append(store, body)
    assert bodies(open_store(disk.after_process_crash(), config)) == sent
