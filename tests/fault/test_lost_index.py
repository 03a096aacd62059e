"""The key index is the directory of timers: whatever of it is lost is noticed at the start and built again."""

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from latermq.clock import SimulatedClock
from latermq.errors import CorruptStore
from latermq.handover.checked_file import encode_checked
from latermq.message.names import TIMER_TOPIC
from latermq.model.timers import Verdict
from latermq.store.checkpoint import load_checkpoint, save_checkpoint
from latermq.store.files.disk import FileDisk
from latermq.store.files.memory_disk import MemoryDisk
from tests.support.brokers_in_memory import open_broker, send
from tests.support.faults.aging_broker import AGING, AgingBroker

CHECKPOINT = "latermq.checkpoint"
NEW_FIELDS = ("queue_starts", "unfinished", "index_files", "index_file_bytes")
Damage = Callable[[MemoryDisk], None]


def files(disk: MemoryDisk) -> list[str]:
    return [f"index/{name}" for name in disk.list_names("index")]


def lose_folder(disk: MemoryDisk) -> None:
    disk.remove("index")


def lose_first(disk: MemoryDisk) -> None:
    disk.remove(files(disk)[0])


def lose_middle(disk: MemoryDisk) -> None:
    disk.remove(files(disk)[len(files(disk)) // 2])


def lose_newest(disk: MemoryDisk) -> None:
    disk.remove(files(disk)[-1])


def lose_all_but_newest(disk: MemoryDisk) -> None:
    for path in files(disk)[:-1]:
        disk.remove(path)


def zero(disk: MemoryDisk, path: str, start: int, end: int | None = None) -> None:
    file = disk.mapped(path)
    end = file.size if end is None else end
    file.map[start:end] = bytes(end - start)


def zero_headers(disk: MemoryDisk) -> None:
    zero(disk, files(disk)[1], 0, 40)


def zero_slots(disk: MemoryDisk) -> None:
    zero(disk, files(disk)[1], 40, 40 + 4 * AGING.index_slots)


def zero_entries(disk: MemoryDisk) -> None:
    file = disk.mapped(files(disk)[1])
    zero(disk, file.path, 40 + 4 * AGING.index_slots + 20 * AGING.index_entries // 2)


def zero_newest(disk: MemoryDisk) -> None:
    zero(disk, files(disk)[-1], 0)


def write_over(disk: MemoryDisk) -> None:
    file = disk.mapped(files(disk)[0])
    file.map[:] = b"\xa5" * file.size


DAMAGES = [
    lose_folder, lose_first, lose_middle, lose_newest, lose_all_but_newest, zero_headers, zero_slots, zero_entries,
    zero_newest, write_over,
]  # fmt: skip


def forget_new_fields(disk: MemoryDisk) -> None:
    """Make the checkpoint one of a broker that did not know them."""
    data = disk.read(CHECKPOINT)
    assert data is not None
    fields = msgspec.json.decode(data.partition(b"\n")[0])
    disk.replace(CHECKPOINT, encode_checked({name: fields[name] for name in fields if name not in NEW_FIELDS}))


def restart(aging: AgingBroker, damage: Damage, *, clean: bool, is_old: bool = False) -> None:
    if clean:
        aging.broker.close()
    else:
        aging.broker.store.save(aging.broker.store.plan_checkpoint())
        aging.close()
    disk = aging.disk.after_process_crash()
    if is_old:
        forget_new_fields(disk)
    damage(disk)
    aging.disk = disk.after_process_crash()
    aging.broker = aging.open()


@pytest.mark.parametrize(
    ("clean", "is_old", "aged"), [(True, False, False), (False, False, True), (True, True, False), (False, True, True)]
)
@pytest.mark.parametrize("damage", DAMAGES)
def test_waiting_timers_are_found_whatever_of_the_index_is_lost(
    damage: Damage, clean: bool, is_old: bool, aged: bool
) -> None:
    aging = AgingBroker()
    if aged:
        for number in range(30):
            aging.schedule(f"old {number}", 1_000)
        aging.age()
    names = [f"t{number}" for number in range(40)]
    for name in names:
        aging.schedule(name, 15_000)
    restart(aging, damage, clean=clean, is_old=is_old)
    pending = aging.broker.pending
    assert [pending.status("orders", name).verdict for name in names] == [Verdict.PENDING] * 40
    assert pending.cancel("orders", "t7").verdict == Verdict.CANCELLED
    assert pending.move("orders", "t8", aging.clock.now_ms() + 5_000).verdict == Verdict.MOVED
    aging.pass_time(5_000)
    assert aging.bodies() == ["t8"]
    restart(aging, lambda disk: None, clean=clean)
    assert aging.broker.store.recovery.rebuilt == ()
    aging.pass_time(20_000)
    assert sorted(aging.bodies()) == sorted(name for name in names if name != "t7")
    aging.close()


@pytest.mark.parametrize("engine", [("timerlog", "timerwheel"), ("timerrocksdb",)])
@pytest.mark.parametrize("damage", [lose_folder, lose_first, lose_middle, zero_entries])
def test_a_cancelled_timer_stays_cancelled_though_its_engine_is_lost_too(
    damage: Damage, engine: tuple[str, ...]
) -> None:
    aging = AgingBroker("rocksdb" if engine[0] == "timerrocksdb" else "wheel")
    for number in range(40):
        aging.schedule(f"t{number}", 15_000)
    for number in range(0, 40, 2):
        assert aging.broker.pending.cancel("orders", f"t{number}").verdict == Verdict.CANCELLED
    aging.broker.store.flush()
    aging.pass_time(1_000)

    def lose(disk: MemoryDisk) -> None:
        damage(disk)
        for path in engine:
            disk.remove(path)

    restart(aging, lose, clean=True)
    aging.pass_time(20_000)
    assert sorted(aging.bodies()) == sorted(f"t{number}" for number in range(1, 40, 2))
    aging.close()


def test_an_index_that_is_whole_is_not_built_again_and_the_log_is_not_read_for_it() -> None:
    aging = AgingBroker()
    for _ in range(4):
        for number in range(30):
            aging.schedule(f"old {number}", 1_000)
            aging.send("no key")
        aging.age()
        restart(aging, lambda disk: None, clean=True)
        assert aging.broker.store.recovery.rebuilt == ()
        assert aging.broker.store.recovery.records == 0
    aging.close()


def cut_short(path: Path) -> None:
    os.truncate(path, 1_000)


def make_empty(path: Path) -> None:
    os.truncate(path, 0)


@pytest.mark.parametrize("harm", [cut_short, make_empty, Path.unlink])
def test_a_file_that_is_cut_short_is_built_again(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    clock = SimulatedClock()
    for number in range(3):
        broker = open_broker(FileDisk(tmp_path), clock, store=AGING)
        if number:
            assert len(list(broker.store.reader.find_by_key("orders", "k", 0, 1 << 62))) == 1
        else:
            send(broker, b"x", UNIQ_KEY="k")
        broker.close()
        (path,) = (tmp_path / "index").iterdir()
        harm(path)


def test_the_hint_to_remove_the_index_works(tmp_path: Path) -> None:
    clock = SimulatedClock()
    broker = open_broker(FileDisk(tmp_path), clock, store=AGING)
    send(broker, b"x", UNIQ_KEY="k")
    broker.close()
    other = msgspec.structs.replace(AGING, index_slots=11)
    disk = FileDisk(tmp_path)
    with pytest.raises(CorruptStore) as caught:
        open_broker(disk, clock, store=other)
    assert "remove index/" in caught.value.hint
    disk.unlock()
    disk.remove("index")
    broker = open_broker(disk, clock, store=other)
    assert len(list(broker.store.reader.find_by_key("orders", "k", 0, 1 << 62))) == 1
    broker.close()


def test_an_index_that_an_earlier_version_went_on_without_is_built_again() -> None:
    """It was removed, a start noticed nothing, and no key came before the stop: the checkpoint knows no file."""
    disk, clock = MemoryDisk(), SimulatedClock(1_700_000_000_000)
    broker = open_broker(disk, clock)
    send(broker, b"timer", TIMER_DELAY_SEC="3600", UNIQ_KEY="order-1")
    broker.store.flush()
    broker.close()
    checkpoint = load_checkpoint(disk)
    assert checkpoint is not None
    save_checkpoint(disk, msgspec.structs.replace(checkpoint, index_file="", index_next_entry=1))
    forget_new_fields(disk)
    lose_folder(disk)
    broker = open_broker(disk, clock)
    assert [rebuilt.partition(":")[0] for rebuilt in broker.store.recovery.rebuilt] == ["index"]
    assert len(list(broker.store.reader.find_by_key(TIMER_TOPIC, "order-1", 0, 1 << 62))) == 1
