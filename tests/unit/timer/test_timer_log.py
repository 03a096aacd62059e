"""The timer log: units one after the other over files that none of them straddles."""

from random import Random

import numpy as np
import pytest

from latermq.errors import StoreError
from latermq.store.files.memory_disk import MemoryDisk
from latermq.timer.engine.timer_log import (
    BLANK_MAGIC,
    FOLDER,
    LINK,
    UNIT,
    UNIT_BYTES,
    TimerLog,
    UnitRows,
    is_unit,
    wakes_of,
)

FILE_BYTES = 1024  # 19 units and a blank of 36 bytes
UNITS_IN_FILE = 19


def units(count: int, first: int = 0) -> UnitRows:
    rows = np.zeros(count, UNIT)
    rows["size"], rows["previous"], rows["magic"] = UNIT_BYTES, -1, 1
    rows["reserved"] = np.arange(first + 1, first + count + 1)
    return rows


def appended(log: TimerLog, rows: UnitRows) -> list[int]:
    log.make_room(len(rows))
    positions: list[int] = log.append(rows).tolist()
    return positions


def position(number: int) -> int:
    return number // UNITS_IN_FILE * FILE_BYTES + number % UNITS_IN_FILE * UNIT_BYTES


def numbers(log: TimerLog) -> list[int]:
    """The units in the log, by the number they were given."""
    return [number - 1 for _, rows in log.chunks(7) for number in rows["reserved"].tolist()]


def file_bytes(disk: MemoryDisk, start: int) -> bytes:
    return disk.map_file(f"{FOLDER}/{start:020d}", FILE_BYTES).map[:]


def test_a_hundred_and_ten_units_stand_in_six_files() -> None:
    disk = MemoryDisk()
    log = TimerLog(disk, file_bytes=FILE_BYTES)
    for number in range(10):
        assert appended(log, units(1, number)) == [52 * number]
    assert appended(log, units(100, 10)) == [position(number) for number in range(10, 110)]
    assert log.files == 6
    assert numbers(log) == list(range(110))
    while log.files > 1:
        log.drop_first()
    assert numbers(log) == list(range(95, 110))
    assert disk.list_names(FOLDER) == [f"{5 * FILE_BYTES:020d}"]


def test_one_call_writes_the_same_bytes_as_many() -> None:
    one, many = MemoryDisk(), MemoryDisk()
    appended(TimerLog(one, file_bytes=FILE_BYTES), units(50))
    log = TimerLog(many, file_bytes=FILE_BYTES)
    for number in range(50):
        appended(log, units(1, number))
    for start in (0, FILE_BYTES, 2 * FILE_BYTES):
        assert file_bytes(one, start) == file_bytes(many, start)


def test_what_is_left_of_a_file_is_blank_once_the_next_one_begins() -> None:
    disk = MemoryDisk()
    log = TimerLog(disk, file_bytes=FILE_BYTES)
    appended(log, units(UNITS_IN_FILE))
    assert log.end == FILE_BYTES
    assert file_bytes(disk, 0)[988:] == bytes(36)
    appended(log, units(1))
    assert file_bytes(disk, 0)[988:] == LINK.pack(36, 0, BLANK_MAGIC) + bytes(20)
    assert BLANK_MAGIC & 0xFFFFFFFF == 0xCBD43194


def test_units_are_read_in_both_directions_but_not_across_files() -> None:
    log = TimerLog(MemoryDisk(), file_bytes=FILE_BYTES)
    appended(log, units(30))
    assert log.read(position(15), 100)["reserved"].tolist() == [16, 17, 18, 19]
    assert log.read(position(15), 2)["reserved"].tolist() == [16, 17]
    assert log.read(position(25), 100)["reserved"].tolist() == [26, 27, 28, 29, 30]
    assert log.read_upto(position(21), 100)["reserved"].tolist() == [20, 21, 22]
    assert log.read_upto(position(21), 2)["reserved"].tolist() == [21, 22]
    assert np.frombuffer(log.raw_unit(position(21)), UNIT)["reserved"].tolist() == [22]


@pytest.mark.parametrize("nowhere", [-1, 51, 53, 988, 1000, position(30), position(30) + 52, 1 << 40])
def test_no_unit_stands_between_units_in_the_blank_or_beyond_the_end(nowhere: int) -> None:
    log = TimerLog(MemoryDisk(), file_bytes=FILE_BYTES)
    appended(log, units(30))
    assert not log.holds(nowhere)
    assert log.raw_unit(nowhere) == b""


def test_a_log_is_opened_where_a_mark_says_and_goes_on_there() -> None:
    disk = MemoryDisk()
    appended(TimerLog(disk, file_bytes=FILE_BYTES), units(50))
    log = TimerLog(disk.after_process_crash(), file_bytes=FILE_BYTES)
    assert log.open_at(position(21))
    assert numbers(log) == list(range(21))
    assert log.files == 2
    assert appended(log, units(2, 100)) == [position(21), position(22)]
    assert numbers(log) == [*range(21), 100, 101]


def test_a_log_is_cut_where_a_file_ends() -> None:
    disk = MemoryDisk()
    log = TimerLog(disk, file_bytes=FILE_BYTES)
    appended(log, units(50))
    log.cut(988)  # RocketMQ would name the blank, not the next file
    assert log.end == FILE_BYTES
    assert numbers(log) == list(range(19))
    assert appended(log, units(1, 19)) == [FILE_BYTES]


@pytest.mark.parametrize("end", [position(57), 1 << 40])
def test_a_log_that_is_too_short_for_a_mark_says_so(end: int) -> None:
    disk = MemoryDisk()
    log = TimerLog(disk, file_bytes=FILE_BYTES)
    appended(log, units(20))
    log.drop_first()
    assert not log.open_at(end + 1)
    assert not log.open_at(FILE_BYTES - 1)
    assert log.open_at(FILE_BYTES)


def test_without_space_nothing_is_changed() -> None:
    disk = MemoryDisk(capacity_bytes=2 * FILE_BYTES)
    log = TimerLog(disk, file_bytes=FILE_BYTES)
    appended(log, units(10))
    for _ in range(2):
        with pytest.raises(StoreError, match="no disk space"):
            log.make_room(40)
        assert log.end == position(10)
        assert numbers(log) == list(range(10))
    disk.capacity_bytes *= 2
    appended(log, units(40, 10))
    assert numbers(log) == list(range(50))


def test_what_is_synced_outlives_the_machine() -> None:
    disk = MemoryDisk()
    log = TimerLog(disk, file_bytes=1 << 20)
    for number in range(5):
        appended(log, units(10_000, number * 10_000))
        log.sync()
    appended(log, units(30_000, 50_000))
    for seed in range(3):
        found = TimerLog(disk.after_machine_crash(Random(seed)), file_bytes=1 << 20)
        assert found.open_at(position_of(found, 50_000))
        assert numbers(found) == list(range(50_000))
        assert found.looks_sound()


def position_of(log: TimerLog, number: int) -> int:
    return number // log.file_units * log.file_bytes + number % log.file_units * UNIT_BYTES


def test_a_failed_sync_is_made_up_for() -> None:
    disk = MemoryDisk()
    log = TimerLog(disk, file_bytes=FILE_BYTES)
    appended(log, units(30))

    def fail(operation: str, path: str) -> None:
        if operation == "sync":
            raise StoreError("the disk is gone")

    disk.before_step = fail
    with pytest.raises(StoreError):
        log.sync()
    disk.before_step = lambda operation, path: None
    log.sync()
    found = TimerLog(disk.after_machine_crash(Random(0)), file_bytes=FILE_BYTES)
    assert found.open_at(position(30))
    assert numbers(found) == list(range(30))


def test_a_log_begins_anew_behind_a_position() -> None:
    disk = MemoryDisk()
    log = TimerLog(disk, file_bytes=FILE_BYTES)
    appended(log, units(30))
    log.restart_at(position(30))
    assert (log.start, log.end, log.files) == (2 * FILE_BYTES, 2 * FILE_BYTES, 0)
    assert disk.list_names(FOLDER) == []
    assert appended(log, units(1, 7)) == [2 * FILE_BYTES]
    assert numbers(log) == [7]


def test_a_file_that_is_zeros_at_an_edge_does_not_look_sound() -> None:
    disk = MemoryDisk()
    log = TimerLog(disk, file_bytes=FILE_BYTES)
    appended(log, units(50))
    assert log.looks_sound()
    file = disk.map_file(f"{FOLDER}/{FILE_BYTES:020d}", FILE_BYTES)
    for number in (19, 37):
        at = position(number) - FILE_BYTES
        saved, file.map[at : at + UNIT_BYTES] = file.map[at : at + UNIT_BYTES], bytes(UNIT_BYTES)
        assert not log.looks_sound()
        file.map[at : at + UNIT_BYTES] = saved
    assert log.looks_sound()


def test_magic_and_size_tell_a_unit() -> None:
    rows = units(6)
    rows["magic"] = [0, 15, 16, -1, BLANK_MAGIC, 1]
    rows["size"][5] = 51
    assert is_unit(rows).tolist() == [True, True, False, False, False, False]


def test_what_rocketmq_rounded_down_wakes_when_its_slot_ends() -> None:
    rows = units(2)
    rows["write_ms"], rows["delay_ms"], rows["reserved"] = 1_700_000_000_000, [5_000, -5_001], [0, 1]
    assert wakes_of(rows).tolist() == [1_700_000_006_000, 1_699_999_994_999]
