"""Timer log, wheel and timer checkpoint beside those that Apache RocketMQ's own classes and broker wrote."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latermq.arrays import Ints
from latermq.errors import CorruptStore
from latermq.message.slots import SLOT_MS, last_slot_start
from latermq.store.files.disk import FileDisk
from latermq.store.files.memory_disk import MemoryDisk
from latermq.timer import apache_checkpoint
from latermq.timer.apache_checkpoint import TimerCheckpoint, decode_timer_checkpoint, encode_timer_checkpoint
from latermq.timer.engine import timer_log, timer_wheel
from latermq.timer.engine.interface import Units
from latermq.timer.engine.timer_log import DELETE, ROLL, UNIT, UNIT_BYTES, TimerLog, UnitRows
from latermq.timer.engine.timer_wheel import Slots, TimerWheel
from latermq.timer.engine.wheel_engine import WheelEngine
from tests.golden.files import DATA, golden_bytes, golden_json, unpack

TIMERS = golden_json("timers.json")
CHECKPOINT = golden_json("timercheck.json")
FILES = [f"{timer_log.FOLDER}/{start:020d}" for start in (0, TIMERS["file_bytes"])]


def column(rows: list[dict[str, Any]], name: str) -> Ints:
    return np.array([row[name] for row in rows], np.int64)


def golden_units() -> UnitRows:
    """The units that Apache's class was given."""
    rows = np.zeros(len(TIMERS["units"]), UNIT)
    rows["size"], rows["write_ms"] = UNIT_BYTES, TIMERS["now_ms"]
    for field in ("previous", "magic", "offset", "topic_hash"):
        rows[field] = column(TIMERS["units"], field)
    rows["record_bytes"] = column(TIMERS["units"], "size")
    rows["delay_ms"] = column(TIMERS["units"], "slot_ms") - TIMERS["now_ms"]
    return rows


def golden_disk() -> MemoryDisk:
    """Apache's timer log, in memory."""
    disk = MemoryDisk()
    for name in FILES:
        file = disk.map_file(name, TIMERS["file_bytes"])
        file.reserve(file.size)
        file.map[:] = golden_bytes(name)
    return disk


def test_our_timer_log_is_the_bytes_that_apache_wrote() -> None:
    disk = MemoryDisk()
    log = TimerLog(disk, file_bytes=TIMERS["file_bytes"])
    log.make_room(len(TIMERS["units"]))
    assert log.append(golden_units()).tolist() == column(TIMERS["units"], "position").tolist()
    assert log.end == TIMERS["end"]
    assert disk.list_names(timer_log.FOLDER) == sorted(path.name for path in (DATA / timer_log.FOLDER).iterdir())
    for name in FILES:
        assert disk.map_file(name, TIMERS["file_bytes"]).map[:] == golden_bytes(name)


def test_apaches_timer_log_is_read() -> None:
    log = TimerLog(golden_disk(), file_bytes=TIMERS["file_bytes"])
    assert log.open_at(TIMERS["end"])
    found = np.concatenate([units for _, units in log.chunks(7)])
    assert found.tolist() == golden_units().tolist()
    positions = column(TIMERS["units"], "position").tolist()
    assert all(log.holds(position) for position in positions)
    assert [log.read(position, 1)[0] for position in positions] == list(golden_units())


def golden_slots() -> tuple[Ints, Slots]:
    slots = TIMERS["slots"]
    firsts, lasts, counts = (column(slots, name) for name in ("first", "last", "num"))
    return column(slots, "slot_ms"), Slots(firsts, lasts, counts, np.zeros_like(counts))


def golden_wheel(disk: MemoryDisk) -> TimerWheel:
    return TimerWheel(disk, slots=TIMERS["slots_total"], precision_ms=TIMERS["precision_ms"])


def test_our_wheel_is_the_bytes_that_apache_wrote() -> None:
    disk = MemoryDisk()
    wheel = golden_wheel(disk)
    wheel.reserve()
    times, slots = golden_slots()
    assert wheel.places(times).tolist() == column(TIMERS["slots"], "index").tolist()
    wheel.put(times, slots)
    content = golden_bytes("timerwheel.bin")
    assert disk.map_file(timer_wheel.PATH, len(content)).map[:] == content


def test_apaches_wheel_is_read() -> None:
    disk = MemoryDisk()
    content = golden_bytes("timerwheel.bin")
    disk.map_file(timer_wheel.PATH, len(content)).map[:] = content
    wheel = golden_wheel(disk)
    wheel.load(TIMERS["now_ms"])
    times, slots = golden_slots()
    assert [part.tolist() for part in wheel.get(times)] == [part.tolist() for part in slots]
    assert wheel.held_between(0, 1 << 50).tolist() == sorted(times.tolist())
    assert wheel.count_from(0) == int(slots.counts.sum())


def read_all(engine: WheelEngine, slot_ms: int) -> Units:
    pieces = list(engine.read(slot_ms, slot_ms + SLOT_MS))
    return Units(*(np.concatenate(parts) for parts in zip(*pieces, strict=True)))


def golden_engine() -> WheelEngine:
    """Apache's log with a wheel that is built from it."""
    by_file = [[unit["slot_ms"] for unit in TIMERS["units"] if unit["position"] // 1024 == file] for file in range(2)]
    mark = f"{TIMERS['end']};;0;{max(by_file[0])} {max(by_file[1])}"
    return WheelEngine(
        golden_disk(), mark=mark, from_ms=TIMERS["now_ms"], is_clean=False, file_bytes=TIMERS["file_bytes"]
    )


def test_a_wheel_built_from_apaches_log_is_apaches_wheel() -> None:
    engine = golden_engine()
    assert engine.is_whole
    for slot in TIMERS["slots"]:
        assert engine.density(slot["slot_ms"], slot["slot_ms"] + SLOT_MS).tolist() == [slot["num"]]
    assert engine.statistics()["engine_units"] == sum(slot["num"] for slot in TIMERS["slots"])


def test_the_units_of_apaches_slots_come_without_entries_and_wake_when_the_slot_ends() -> None:
    engine = golden_engine()
    for slot in TIMERS["slots"]:
        found = read_all(engine, slot["slot_ms"])
        expected = [unit for unit in TIMERS["units"] if unit["slot_ms"] == slot["slot_ms"]][::-1]
        assert found.physical_offsets.tolist() == [unit["offset"] for unit in expected]
        assert found.sizes.tolist() == [unit["size"] for unit in expected]
        assert found.renews.tolist() == [unit["magic"] & ROLL != 0 for unit in expected]
        assert set(found.entries.tolist()) == {-1}
        assert set(found.wakes.tolist()) == {slot["slot_ms"] + SLOT_MS}
    assert any(unit["magic"] & DELETE for unit in TIMERS["units"])


def test_our_units_go_on_in_apaches_lists() -> None:
    engine = golden_engine()
    slot_ms = TIMERS["slots"][1]["slot_ms"]
    before = read_all(engine, slot_ms)
    entry, wake, offset, size = (np.array([number]) for number in (77, slot_ms + 400, 9_000, 300))
    ours = Units(entry, wake, offset, size, np.array([False]))
    engine.put(ours, TIMERS["now_ms"])
    found = read_all(engine, slot_ms)
    assert found.entries.tolist() == [77, *before.entries.tolist()]
    assert found.wakes.tolist() == [slot_ms + 400, *before.wakes.tolist()]


def test_timer_files_of_apaches_broker_are_opened(tmp_path: Path) -> None:
    unpack(DATA / "apache-store-timers.tar.gz", tmp_path)
    disk = FileDisk(tmp_path)
    raw = disk.read(apache_checkpoint.PATH)
    assert raw is not None
    checkpoint = decode_timer_checkpoint(raw)
    known = golden_json("apache-store-timers.json")["topics"]["rmq_sys_wheel_timer"]["0"]
    assert checkpoint.queue_offset == checkpoint.master_queue_offset == len(known)
    file_bytes = disk.file_size(f"{timer_log.FOLDER}/{0:020d}")
    mark = f"{checkpoint.log_flushed};;0;{1 << 62}"
    shown: list[list[tuple[int, int]]] = []
    for is_clean in (True, False):
        engine = WheelEngine(disk, mark=mark, from_ms=checkpoint.last_read_ms, is_clean=is_clean, file_bytes=file_bytes)
        assert engine.is_whole
        pieces = list(engine.read(last_slot_start(checkpoint.last_read_ms) - SLOT_MS, 1 << 50))
        shown.append(
            [(o, s) for p in pieces for o, s in zip(p.physical_offsets.tolist(), p.sizes.tolist(), strict=True)]
        )
        engine.close()
    records = {(record["offset"], record["size"]): record["body"] for record in known}
    assert shown[0] == shown[1]
    assert "timer, delivered" not in {records[found] for found in shown[0]}
    assert {"timer, due in 36 h", "timer, due in 70 h", "timer, cancelled"} <= {records[found] for found in shown[0]}


# The checkpoint


def test_our_timer_checkpoint_is_the_bytes_that_apache_wrote() -> None:
    fields = {name: value for name, value in CHECKPOINT.items() if name != "body"}
    checkpoint = TimerCheckpoint(**fields)
    assert encode_timer_checkpoint(checkpoint).hex() == CHECKPOINT["body"]
    assert apache_checkpoint.timer_checkpoint_file(checkpoint) == golden_bytes("timercheck.bin")
    assert decode_timer_checkpoint(golden_bytes("timercheck.bin")) == checkpoint
    assert decode_timer_checkpoint(bytes.fromhex(CHECKPOINT["body"])) == checkpoint


def test_a_new_timer_checkpoint_is_all_zeros() -> None:
    assert decode_timer_checkpoint(bytes(4096)) == TimerCheckpoint()
    assert apache_checkpoint.timer_checkpoint_file(TimerCheckpoint()) == bytes(4096)


def test_a_timer_checkpoint_may_come_without_its_data_version() -> None:
    old = TimerCheckpoint(1000, 1100, 1200, 1300)
    new = TimerCheckpoint(1000, 1100, 1200, 1300, 1400, 1500, 1600)
    assert decode_timer_checkpoint(encode_timer_checkpoint(new)[:32]) == old
    for checkpoint in (old, new):
        assert decode_timer_checkpoint(encode_timer_checkpoint(checkpoint)) == checkpoint
        assert decode_timer_checkpoint(apache_checkpoint.timer_checkpoint_file(checkpoint)) == checkpoint


@pytest.mark.parametrize("size", [0, 31, 33, 55])
def test_a_timer_checkpoint_cut_short_is_refused(size: int) -> None:
    with pytest.raises(CorruptStore, match=f"has {size} bytes"):
        decode_timer_checkpoint(bytes(size))
