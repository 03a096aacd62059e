"""What is RocksDB's own among the engines: its hands, its counts, and folders that are lost, old or damaged."""

import os
import resource
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from latermq.errors import StoreError
from latermq.message.slots import SLOT_MS
from latermq.store.files.disk import FileDisk
from latermq.store.files.memory_disk import MemoryDisk
from latermq.timer.engine import read_ahead, rocksdb_engine, rocksdb_rows
from latermq.timer.engine.interface import Units
from latermq.timer.engine.read_ahead import HOUR_MS, MINUTE_MS
from latermq.timer.engine.rocksdb_engine import RocksEngine
from latermq.timer.engine.rocksdb_rows import ROW, rows_of

BASE_MS = 1_699_999_200_000  # a whole hour


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return FileDisk(tmp_path).library_folder("timers")


@pytest.fixture
def engine(folder: Path) -> Iterator[RocksEngine]:
    engine = RocksEngine(folder, mark="", from_ms=BASE_MS)
    yield engine
    engine.close()


def units(*rows: tuple[int, int]) -> Units:
    """Units from (entry, milliseconds after the base)."""
    entries, afters = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    return Units(entries, BASE_MS + afters, entries * 300, entries + 100, entries % 2 == 1)


def every(step_ms: int, span_ms: int, first_entry: int = 0) -> Units:
    """One unit each so many milliseconds."""
    return units(*((first_entry + number, at) for number, at in enumerate(range(step_ms, span_ms + 1, step_ms))))


def entries_of(engine: RocksEngine, start_ms: int, stop_ms: int) -> list[int]:
    """Entries that wake between two times after the base, sorted."""
    pieces = [piece.entries for piece in engine.read(BASE_MS + start_ms, BASE_MS + stop_ms)]
    return sorted(np.concatenate(pieces).tolist()) if pieces else []


def second(engine: RocksEngine, start_ms: int) -> list[int]:
    return entries_of(engine, start_ms, start_ms + SLOT_MS)


def ahead_seconds(engine: RocksEngine) -> int:
    """How many seconds came from what was read ahead."""
    return engine.statistics()["engine_read_ahead_seconds"]


def reopen(engine: RocksEngine, folder: Path, mark: str) -> RocksEngine:
    engine.close()
    return RocksEngine(folder, mark=mark, from_ms=BASE_MS)


def saved(engine: RocksEngine) -> str:
    mark = engine.mark()
    engine.sync()
    return mark


# The row


def test_a_row_is_sixteen_bytes_of_key_and_thirteen_of_value() -> None:
    entry, wake, offset, size = (np.array([number]) for number in (2, 1, 3, 4))
    row = rows_of(Units(entry, wake, offset, size, np.array([True])))
    expected = "0000000000000001000000000000000200000000000000030000000401"
    assert row.tobytes().hex() == expected
    assert ROW.itemsize == 29


# The hands


def test_a_minute_is_read_once_and_its_seconds_come_from_memory(engine: RocksEngine) -> None:
    given = every(250, 3 * MINUTE_MS)
    engine.put(given, BASE_MS)
    for number in range(180):
        assert second(engine, number * SLOT_MS) == list(range(number * 4, number * 4 + 4))
        assert engine.statistics()["engine_read_ahead_rows"] == 240
    assert ahead_seconds(engine) == 180


def test_what_is_put_into_a_second_that_was_read_ahead_is_seen(engine: RocksEngine) -> None:
    engine.put(every(500, MINUTE_MS), BASE_MS)
    assert second(engine, 0) == [0, 1]
    engine.put(units((900, 2_700), (901, 5_000)), BASE_MS)
    assert second(engine, 1_000) == [2, 3]
    assert second(engine, 2_000) == [4, 5, 900]
    assert second(engine, 3_000) == [6, 7]
    assert second(engine, 4_000) == [8, 9, 901]
    assert ahead_seconds(engine) == 3


def test_what_is_removed_from_a_second_that_was_read_ahead_is_gone(engine: RocksEngine) -> None:
    given = every(500, MINUTE_MS)
    engine.put(given, BASE_MS)
    assert second(engine, 0) == [0, 1]
    engine.remove(given.where(given.entries == 5), BASE_MS)
    assert second(engine, 1_000) == [2, 3]
    assert second(engine, 2_000) == [4]
    assert ahead_seconds(engine) == 2


def test_clearing_takes_what_was_read_ahead_too(engine: RocksEngine) -> None:
    engine.put(every(500, MINUTE_MS), BASE_MS)
    assert second(engine, 0) == [0, 1]
    engine.clear()
    assert second(engine, 1_000) == []
    engine.put(units((7, 2_500)), BASE_MS)
    assert second(engine, 2_000) == [7]


def test_a_minute_with_too_many_rows_is_read_second_by_second(
    engine: RocksEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_ahead, "MINUTE_ROWS", 100)
    crowd = units(*((1_000 + number, MINUTE_MS + 1 + number * 590) for number in range(101)))
    engine.put(every(10_000, 4 * MINUTE_MS), BASE_MS)
    engine.put(crowd, BASE_MS)
    for number in range(240):
        found = second(engine, number * SLOT_MS)
        assert len([entry for entry in found if entry < 1_000]) == (number % 10 == 9)
        assert engine.statistics()["engine_read_ahead_rows"] <= 100
    assert ahead_seconds(engine) == 180


def test_puts_can_fill_a_counted_minute(engine: RocksEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "MINUTE_ROWS", 100)
    engine.put(every(10_000, 2 * MINUTE_MS), BASE_MS)
    assert second(engine, 0) == []
    engine.put(units(*((1_000 + number, MINUTE_MS + 1 + number) for number in range(100))), BASE_MS)
    assert second(engine, MINUTE_MS) == list(range(1_000, 1_100))
    assert engine.statistics()["engine_read_ahead_rows"] == 0


def test_hours_follow_one_another(engine: RocksEngine) -> None:
    engine.put(every(20_000, 2 * HOUR_MS + MINUTE_MS), BASE_MS)
    found = []
    for start_ms in range(0, 2 * HOUR_MS + MINUTE_MS, SLOT_MS):
        engine.forget_below(BASE_MS + start_ms)
        found += second(engine, start_ms)
    assert found == list(range(363))
    assert ahead_seconds(engine) == 7_260


def test_looking_elsewhere_does_not_turn_the_hands(engine: RocksEngine) -> None:
    engine.put(every(500, 20 * MINUTE_MS), BASE_MS)
    assert second(engine, 5 * MINUTE_MS) == [600, 601]
    for elsewhere_ms in (0, 9 * MINUTE_MS, 3 * HOUR_MS):
        second(engine, elsewhere_ms)
    assert len(entries_of(engine, 0, 20 * MINUTE_MS)) == 2_400
    assert ahead_seconds(engine) == 1
    second(engine, 5 * MINUTE_MS + 1_000)
    assert ahead_seconds(engine) == 2


def test_the_hands_leap_when_what_they_hold_is_done_with(engine: RocksEngine) -> None:
    engine.put(every(500, 20 * MINUTE_MS), BASE_MS)
    second(engine, 0)
    engine.forget_below(BASE_MS + 10 * MINUTE_MS)
    assert second(engine, 10 * MINUTE_MS) == [1_200, 1_201]
    assert ahead_seconds(engine) == 2


def test_a_time_within_a_slot_hides_what_wakes_before_it(engine: RocksEngine) -> None:
    engine.put(every(100, MINUTE_MS), BASE_MS)
    second(engine, 0)
    engine.forget_below(BASE_MS + 30_500)
    assert second(engine, 30_000) == list(range(304, 310))
    assert entries_of(engine, 0, 31_000) == list(range(304, 310))
    assert engine.next_slot_ms(0) == BASE_MS + 30_000
    assert engine.count(BASE_MS + 30_000) == 6


def test_what_was_read_ahead_is_not_shown_again_when_an_earlier_timer_comes(engine: RocksEngine) -> None:
    engine.put(every(500, MINUTE_MS), BASE_MS)
    second(engine, 0)
    engine.forget_below(BASE_MS + 30_001)
    engine.put(units((900, 10_700)), BASE_MS)
    assert entries_of(engine, 0, 30_000) == [900]
    assert [second(engine, start_ms) for start_ms in range(9_000, 13_000, SLOT_MS)] == [[], [900], [], []]
    assert engine.density(BASE_MS, BASE_MS + 31_000).tolist() == [0] * 10 + [1] + [0] * 19 + [1]


# Counting


def test_a_second_is_counted_once_and_kept_up(engine: RocksEngine) -> None:
    def count() -> int:
        return engine.count(BASE_MS)

    given = every(10, SLOT_MS)
    engine.put(given, BASE_MS)
    assert count() == 100
    engine.put(units((100, 500), (101, 1_500), (102, 501)), BASE_MS)
    assert count() == 102
    engine.put(given, BASE_MS)  # again
    assert count() == 102
    for _ in range(2):
        engine.remove(units((0, 10), (0, 10), (100, 500), (777, 700), (1_000, 90_000)), BASE_MS)
        assert count() == 100
    engine.put(units((0, 10)), BASE_MS)
    assert count() == 101


def test_the_counted_seconds_are_bounded(engine: RocksEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rocksdb_engine, "COUNTED_SECONDS", 3)
    engine.put(every(100, 10 * SLOT_MS), BASE_MS)
    for _ in range(2):
        for start_ms in range(BASE_MS, BASE_MS + 10_000, SLOT_MS):
            assert engine.count(start_ms) == 10
    engine.forget_below(BASE_MS + 5_000)
    assert engine.count(BASE_MS) == 0
    assert engine.density(BASE_MS, BASE_MS + 4_000).tolist() == [0, 0, 0, 0]


def test_a_large_range_is_counted_in_part_and_sampled_further_on(
    engine: RocksEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rocksdb_engine, "COUNT_RANGE", 1_000)
    engine.put(every(10, 100 * SLOT_MS), BASE_MS)
    assert engine.density(BASE_MS, BASE_MS + 200_000)[:9].tolist() == [50] * 9
    assert engine.density(BASE_MS, BASE_MS + 200_000)[101:].max() <= 100
    assert 9_500 <= engine.density(BASE_MS, BASE_MS + 200_000).sum() <= 10_400


# Folders


def test_what_is_stopped_cleanly_is_found_again(engine: RocksEngine, folder: Path) -> None:
    engine.put(every(100, MINUTE_MS), BASE_MS)
    again = reopen(engine, folder, saved(engine))
    assert again.is_whole
    assert entries_of(again, 0, MINUTE_MS) == list(range(600))
    again.close()


def test_a_lost_folder_is_noticed_and_so_it_is_until_a_new_checkpoint(engine: RocksEngine, folder: Path) -> None:
    engine.put(every(1_000, MINUTE_MS), BASE_MS)
    mark = saved(engine)
    engine.close()
    shutil.rmtree(folder)
    for _ in range(2):
        engine = RocksEngine(folder, mark=mark, from_ms=BASE_MS)
        assert not engine.is_whole
        assert entries_of(engine, 0, MINUTE_MS) == []
        engine.put(every(100, MINUTE_MS), BASE_MS)  # more than the mark counts
        new_mark = saved(engine)
        engine.close()
    engine = RocksEngine(folder, mark=new_mark, from_ms=BASE_MS)
    assert engine.is_whole
    assert len(entries_of(engine, 0, MINUTE_MS)) == 600
    engine.close()


def test_an_older_copy_of_the_folder_is_noticed(engine: RocksEngine, folder: Path, tmp_path: Path) -> None:
    engine.put(every(1_000, MINUTE_MS), BASE_MS)
    engine.sync()
    shutil.copytree(folder, tmp_path / "old")
    engine.put(every(700, MINUTE_MS, first_entry=60), BASE_MS)
    old = RocksEngine(tmp_path / "old", mark=saved(engine), from_ms=BASE_MS)
    assert not old.is_whole
    assert entries_of(old, 0, MINUTE_MS) == []
    old.close()


def test_a_log_that_lost_its_end_is_noticed(engine: RocksEngine, folder: Path, tmp_path: Path) -> None:
    engine.put(every(1_000, MINUTE_MS), BASE_MS)
    engine.put(every(700, MINUTE_MS, first_entry=60), BASE_MS)
    mark = saved(engine)
    shutil.copytree(folder, tmp_path / "cut")
    (log,) = (tmp_path / "cut").glob("*.log")
    os.truncate(log, log.stat().st_size - 10)
    cut = RocksEngine(tmp_path / "cut", mark=mark, from_ms=BASE_MS)
    assert not cut.is_whole
    cut.close()


@pytest.mark.parametrize("pattern", ["CURRENT", "MANIFEST-*", "*.sst"])
@pytest.mark.parametrize("damage", ["missing", "empty", "garbage"])
def test_a_damaged_folder_is_built_again(engine: RocksEngine, folder: Path, pattern: str, damage: str) -> None:
    engine.put(every(100, MINUTE_MS), BASE_MS)
    mark = saved(engine)
    engine.close()
    victims = list(folder.glob(pattern))
    assert victims
    for path in victims:
        path.unlink() if damage == "missing" else path.write_bytes(b"" if damage == "empty" else b"garbage\n" * 500)
    again = RocksEngine(folder, mark=mark, from_ms=BASE_MS)
    assert not again.is_whole
    again.put(every(100, MINUTE_MS), BASE_MS)
    assert len(entries_of(again, 0, MINUTE_MS)) == 600
    again.close()


def test_damage_found_while_reading_is_an_error_and_mended_at_the_next_start(engine: RocksEngine, folder: Path) -> None:
    engine.put(every(10, 10 * MINUTE_MS), BASE_MS)
    mark = saved(engine)
    engine.close()
    (table,) = folder.glob("*.sst")
    content = bytearray(table.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 64] = bytes(64)
    table.write_bytes(content)
    engine = RocksEngine(folder, mark=mark, from_ms=BASE_MS)
    assert engine.is_whole
    with pytest.raises(StoreError, match="Corruption") as refused:
        entries_of(engine, 0, 10 * MINUTE_MS)
    assert "Restart" in refused.value.hint
    with pytest.raises(StoreError, match="Corruption"):
        engine.density(BASE_MS, BASE_MS + 10 * MINUTE_MS)
    engine = reopen(engine, folder, saved(engine))
    assert not engine.is_whole
    engine.close()


def test_a_read_that_ends_early_is_an_error_and_not_the_end(
    engine: RocksEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.put(every(1_000, MINUTE_MS), BASE_MS)
    with monkeypatch.context() as failing:
        failing.setattr(rocksdb_rows, "islice", lambda found, limit: islice(found, 10))
        with pytest.raises(StoreError, match="aborted a read"):
            entries_of(engine, 0, MINUTE_MS)
    assert len(entries_of(engine, 0, MINUTE_MS)) == 60


def test_a_folder_in_use_is_refused_and_left_alone(engine: RocksEngine, folder: Path) -> None:
    engine.put(every(1_000, MINUTE_MS), BASE_MS)
    with pytest.raises(StoreError, match="lock"):
        RocksEngine(folder, mark=engine.mark(), from_ms=BASE_MS)
    assert len(entries_of(engine, 0, MINUTE_MS)) == 60


# Space


def test_what_is_forgotten_gives_its_space_back(engine: RocksEngine) -> None:
    count = 50_000
    for number in range(20):
        entries = np.arange(count) + number * count
        wakes = BASE_MS + number * 20_000 + 1 + np.arange(count) % 20_000
        flags = np.zeros(count, bool)
        engine.put(Units(entries, wakes, entries * 7919 % (1 << 40), entries % 997, flags), BASE_MS)
        engine.forget_below(BASE_MS + number * 20_000)
    statistics = engine.statistics()
    assert statistics["engine_memory_bytes"] <= 3 * (32 << 20)
    assert statistics["engine_disk_bytes"] <= 10 << 20  # all of them take 25 MB


def test_a_stalled_write_is_refused_at_once_and_taken_later(engine: RocksEngine) -> None:
    engine.put(every(1_000, MINUTE_MS), BASE_MS)
    database = engine._rows._database
    database.set_options({"level0_file_num_compaction_trigger": "9", "level0_stop_writes_trigger": "1"})
    database.flush()
    with pytest.raises(StoreError, match="stall"):
        engine.put(every(1_000, MINUTE_MS), BASE_MS)
    assert engine.statistics()["engine_write_stalls"] == 1
    assert len(entries_of(engine, 0, MINUTE_MS)) == 60
    database.set_options({"level0_stop_writes_trigger": "36"})
    del database
    engine.put(every(1_000, MINUTE_MS, first_entry=100), BASE_MS)
    assert len(entries_of(engine, 0, MINUTE_MS)) == 120


def test_writes_that_are_gone_after_a_failure_are_noticed(engine: RocksEngine, folder: Path) -> None:
    engine.put(every(1_000, MINUTE_MS), BASE_MS)
    mark = saved(engine)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(StoreError):
            engine.put(every(1_000, MINUTE_MS), BASE_MS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    for log in folder.glob("*.log"):
        os.truncate(log, 0)
    with pytest.raises(StoreError, match="lost"):
        engine.put(every(1_000, MINUTE_MS), BASE_MS)
    engine = reopen(engine, folder, mark)
    assert not engine.is_whole
    engine.close()


# The folder that a disk gives


def test_a_memory_disk_has_a_real_folder_that_goes_with_it() -> None:
    disk = MemoryDisk()
    folder = disk.library_folder("timers")
    assert disk.library_folder("timers") == folder
    (folder / "x").write_bytes(b"1")
    copy = disk.after_process_crash()
    assert (copy.library_folder("timers") / "x").read_bytes() == b"1"
    copied = copy.library_folder("timers")
    disk.remove("timers")
    disk.sync_names("")  # until then a power cut could bring it back
    assert not folder.exists()
    del copy
    assert not copied.exists()


def test_a_file_disk_makes_the_folder_inside_itself_and_removes_it(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path)
    folder = disk.library_folder("timers")
    (folder / "x").write_bytes(b"1")
    assert FileDisk(tmp_path).library_folder("timers") == folder == tmp_path / "timers"
    disk.remove("timers")
    assert not folder.exists()
    (tmp_path / "blocked").write_bytes(b"")
    with pytest.raises(StoreError):
        disk.library_folder("blocked")
