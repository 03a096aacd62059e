"""The engine over timer log and wheel: what is its own beside what both engines promise (test_engines.py)."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import numpy as np
import pytest

from latermq.errors import CorruptStore, StoreError
from latermq.message.slots import SLOT_MS, slot_of
from latermq.store.files.disk import Disk, FileDisk
from latermq.store.files.memory_disk import MemoryDisk
from latermq.timer.engine import timer_log, timer_wheel
from latermq.timer.engine.interface import Units
from latermq.timer.engine.timer_log import UNIT, UNIT_BYTES
from latermq.timer.engine.wheel_engine import SlotOccupied, WheelEngine

BASE_MS = 1_700_000_000_000
FILE_BYTES = 52 * 100 + 16  # a hundred units and the smallest blank
ROUND_MS = 14 * 86_400_000
WHEEL_BYTES = 38_707_200
Shown = dict[int, tuple[int, int, int, bool]]


def opened(disk: Disk, mark: str = "", *, from_ms: int = BASE_MS, is_clean: bool = False) -> WheelEngine:
    return WheelEngine(disk, mark=mark, from_ms=from_ms, is_clean=is_clean, file_bytes=FILE_BYTES)


def units(entries: list[int], afters_ms: list[int]) -> Units:
    columns = np.array(entries, np.int64), BASE_MS + np.array(afters_ms, np.int64)
    return Units(*columns, columns[0] * 300, columns[0] + 100, columns[0] % 5 == 0)


def spread(count: int, span_ms: int, first: int = 0) -> Units:
    """Units over a span, some of which come to stand side by side."""
    afters = np.random.RandomState(count + first).randint(1, span_ms + 1, count)
    return units(list(range(first, first + count)), afters.tolist())


def model(*parts: Units) -> Shown:
    shown: Shown = {}
    for part in parts:
        rows = zip(*(column.tolist() for column in part[1:]), strict=True)
        shown.update(zip(part.entries.tolist(), rows, strict=True))
    return shown


def show(engine: WheelEngine, start_ms: int = BASE_MS, stop_ms: int = BASE_MS + 10 * ROUND_MS) -> Shown:
    pieces = list(engine.read(start_ms, stop_ms))
    shown = model(*pieces)
    assert len(shown) == sum(len(piece.entries) for piece in pieces)
    return shown


def unit_at(disk: MemoryDisk, number: int) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    """A unit as it lies in its file, to be looked at or changed."""
    file, row = divmod(number, 100)
    path = f"{timer_log.FOLDER}/{file * FILE_BYTES:020d}"
    return np.frombuffer(disk.map_file(path, FILE_BYTES).map, UNIT, 1, row * UNIT_BYTES)


def files_in(mark: str) -> tuple[str, ...]:
    """What a mark says of the files: their end, the first one, and how late each one's units are."""
    end, _, *files = mark.split(";")
    return end, *files


def saved(disk: MemoryDisk, *parts: Units) -> tuple[WheelEngine, str]:
    """An engine with these, and the mark of a checkpoint."""
    engine = opened(disk)
    for part in parts:
        engine.put(part, BASE_MS)
    mark = engine.mark()
    engine.sync()
    return engine, mark


# What is written


def test_units_are_written_as_the_format_says() -> None:
    disk = MemoryDisk()
    engine = opened(disk)
    engine.put(units([7, 10, 8], [1_500, 100, 1_000]), BASE_MS - 200)
    engine.remove(units([8], [1_000]), BASE_MS + 5)
    expected = [
        # size, previous, magic, write time, delay, offset, record size, topic hash, reserved
        (52, -1, 3, BASE_MS - 200, 300, 3_000, 110, 0, 11),
        (52, 0, 1, BASE_MS - 200, 1_200, 2_400, 108, 0, 9),
        (52, -1, 1, BASE_MS - 200, 1_700, 2_100, 107, 0, 8),
        (52, 52, 5, BASE_MS + 5, 995, 2_400, 108, 0, 9),
    ]
    assert [tuple(unit_at(disk, number)[0].tolist()) for number in range(4)] == expected
    slots = np.frombuffer(disk.map_file(timer_wheel.PATH, WHEEL_BYTES).map, timer_wheel.SLOT)
    at = BASE_MS // 1_000 % (14 * 86_400)
    found = [tuple(row.tolist()) for row in slots[at : at + 3]]
    assert found == [(BASE_MS // 1_000, 0, 156, 1, 1), (BASE_MS // 1_000 + 1, 104, 104, 1, 0), (0, 0, 0, 0, 0)]


def test_a_wake_too_far_off_for_the_delay_is_still_exact() -> None:
    engine = opened(MemoryDisk(), from_ms=0)
    wakes = [BASE_MS - 100 * 86_400_000 + 1, BASE_MS - 1, BASE_MS + 27 * 86_400_000 + 7]
    given = units([1, 2, 3], [wake_ms - BASE_MS for wake_ms in wakes])
    engine.put(given, BASE_MS)
    assert show(engine, 0) == model(given)


def test_lists_are_read_however_runs_and_single_units_follow_each_other() -> None:
    engine = opened(MemoryDisk())
    chance = Random(3)
    parts: list[Units] = []
    entry = 0
    for _ in range(120):
        count = chance.choice([1, 1, 2, 7, 8, 9, 40, 150, 333])
        seconds = chance.choice([1, 1, 1, 2, 50])
        afters = [chance.randrange(seconds) * 1_000 + chance.randint(1, 1_000) for _ in range(count)]
        parts.append(units(list(range(entry, entry + count)), afters))
        entry += count
        engine.put(parts[-1], BASE_MS)
    assert show(engine) == model(*parts)


def test_an_entry_is_shown_once_whatever_was_put_and_removed_around_it() -> None:
    engine = opened(MemoryDisk())
    given = spread(300, 2_000)
    for rows in (given, spread(200, 2_000, first=300), given):
        engine.put(rows, BASE_MS)
    some = given.where(given.entries % 3 == 0)
    for _ in range(2):
        engine.remove(some, BASE_MS)
    assert show(engine) == model(given.where(given.entries % 3 != 0), spread(200, 2_000, first=300))
    engine.put(some, BASE_MS)
    assert show(engine) == model(given, spread(200, 2_000, first=300))
    assert (engine.density(BASE_MS, BASE_MS + 2_000) >= 0).all()


def test_a_count_never_falls_below_zero() -> None:
    engine = opened(MemoryDisk())
    engine.put(units([1, 2], [5, 6]), BASE_MS)
    for _ in range(5):
        engine.remove(units([1], [5]), BASE_MS)
    assert engine.density(BASE_MS, BASE_MS + 1_000).tolist() == [0]
    assert show(engine).keys() == {2}
    assert engine.next_slot_ms(BASE_MS) == BASE_MS


def test_what_is_not_there_needs_no_delete_unit() -> None:
    engine = opened(MemoryDisk())
    engine.put(units([1], [5]), BASE_MS)
    before = engine.statistics()
    engine.remove(units([2, 3], [5_000, ROUND_MS + 5]), BASE_MS)
    assert engine.statistics() == before == {"engine_units": 1, "engine_log_bytes": 52, "engine_log_files": 1}


# Bounds


def test_a_slot_taken_by_another_round_is_refused_with_nothing_changed() -> None:
    disk = MemoryDisk()
    engine = opened(disk)
    overdue, coming = units([1], [500]), units([2, 3], [ROUND_MS + 1_500, ROUND_MS + 500])
    engine.put(overdue, BASE_MS)
    mark, statistics = engine.mark(), engine.statistics()
    for _ in range(2):
        with pytest.raises(SlotOccupied) as refused:
            engine.put(coming, BASE_MS + ROUND_MS)
        assert refused.value.retriable
        assert (engine.mark(), engine.statistics()) == (mark, statistics)
    assert show(engine) == model(overdue)
    engine.forget_below(BASE_MS + 1_001)
    engine.put(coming, BASE_MS + ROUND_MS)
    assert show(engine) == model(coming)
    assert engine.next_slot_ms(0) == BASE_MS + ROUND_MS


def test_two_rounds_of_one_place_cannot_be_put_together() -> None:
    engine = opened(MemoryDisk())
    both = units([1, 2, 3], [500, 1_500, 3 * ROUND_MS + 700])
    with pytest.raises(SlotOccupied):
        engine.put(both, BASE_MS)
    assert show(engine) == {}
    engine.put(both.where(both.entries < 3), BASE_MS)
    assert show(engine).keys() == {1, 2}


@pytest.mark.parametrize("room_bytes", [0, 100, FILE_BYTES, WHEEL_BYTES])
def test_without_space_nothing_is_changed(room_bytes: int) -> None:
    disk = MemoryDisk(capacity_bytes=room_bytes)
    engine = opened(disk)
    given = spread(250, 60_000)
    for _ in range(2):
        with pytest.raises(StoreError, match="no disk space"):
            engine.put(given, BASE_MS)
        assert show(engine) == {}
        assert engine.next_slot_ms(0) is None
    disk.capacity_bytes = WHEEL_BYTES + 10 * FILE_BYTES
    engine.put(given, BASE_MS)
    assert show(engine) == model(given)


def test_files_go_when_all_their_units_are_done_with() -> None:
    disk = MemoryDisk()
    engine = opened(disk)
    for number in range(10):
        entries = list(range(number * 50, number * 50 + 50))
        engine.put(units(entries, [number * 1_000 + 1 + after for after in range(50)]), BASE_MS)
    assert len(disk.list_names(timer_log.FOLDER)) == 5
    for wake_ms, files in ((1_001, 5), (2_000, 5), (2_001, 4), (9_000, 1), (60_000, 0)):
        engine.forget_below(BASE_MS + wake_ms)
        assert len(disk.list_names(timer_log.FOLDER)) == files
        kept = [entry for entry in range(500) if slot_of(entry // 50 * 1_000 + 1) >= wake_ms - 1_000]
        assert show(engine).keys() >= set(kept)
    engine.put(units([900], [90_000]), BASE_MS)
    assert show(engine).keys() == {900}


def test_a_delete_unit_is_kept_as_long_as_what_it_deletes() -> None:
    disk = MemoryDisk()
    engine = opened(disk)
    engine.put(units([1, 2], [50_500, 50_600]), BASE_MS)
    engine.put(spread(150, 5_000, first=10), BASE_MS)
    engine.remove(units([1], [50_500]), BASE_MS)
    engine.put(spread(150, 5_000, first=400), BASE_MS)
    engine.forget_below(BASE_MS + 30_000)
    mark = engine.mark()
    engine.sync()
    engine = opened(disk.after_process_crash(), mark, from_ms=BASE_MS + 30_000)
    assert show(engine).keys() == {2}


# Opening again


@pytest.mark.parametrize("is_clean", [True, False])
def test_after_a_start_everything_is_as_it_was(is_clean: bool) -> None:
    disk = MemoryDisk()
    given = spread(1_000, 100_000)
    engine, _ = saved(disk, given, spread(500, 5_000, first=1_000))
    engine.remove(given.where(given.entries % 2 == 0), BASE_MS)
    engine.forget_below(BASE_MS + 2_000)
    mark = engine.mark()
    engine.sync()
    again = opened(disk.after_process_crash(), mark, from_ms=BASE_MS + 2_000, is_clean=is_clean)
    assert again.is_whole
    assert files_in(again.mark()) == files_in(mark)
    assert again.statistics() == engine.statistics()
    assert show(again) == show(engine)
    window = BASE_MS + 1_000, BASE_MS + 100_000
    assert again.density(*window).tolist() == engine.density(*window).tolist()
    for from_ms in range(BASE_MS, BASE_MS + 110_000, 777):
        assert again.next_slot_ms(from_ms) == engine.next_slot_ms(from_ms)
    for each in (engine, again):
        each.put(spread(300, 100_000, first=5_000), BASE_MS)
    assert show(again) == show(engine)


@pytest.mark.parametrize("seed", range(10))
def test_a_death_takes_no_more_than_what_came_after_the_mark(seed: int) -> None:
    chance = Random(seed)
    disk = MemoryDisk()
    kept, lost = spread(chance.randint(1, 900), 50_000), spread(600, 50_000, first=1_000)
    engine, mark = saved(disk, kept)
    engine.put(lost, BASE_MS)
    engine.remove(kept, BASE_MS)
    for _ in range(3):
        disk = disk.after_machine_crash(chance) if chance.random() < 0.7 else disk.after_process_crash()
        engine = opened(disk, mark)
        assert engine.is_whole
        assert show(engine) == model(kept)
        engine.put(spread(chance.randint(1, 300), 50_000, first=5_000), BASE_MS)
        if chance.random() < 0.5:
            engine.sync()
    engine = opened(disk.after_process_crash(), mark)
    engine.put(lost, BASE_MS)
    assert show(engine) == model(kept, lost)


def lose_wheel(disk: MemoryDisk) -> None:
    disk.remove(timer_wheel.PATH)


def shorten_wheel(disk: MemoryDisk) -> None:
    disk.remove(timer_wheel.PATH)
    disk.map_file(timer_wheel.PATH, WHEEL_BYTES // 2)


def empty_wheel(disk: MemoryDisk) -> None:
    disk.remove(timer_wheel.PATH)
    disk.replace(timer_wheel.PATH, b"")


def spoil_wheel(disk: MemoryDisk) -> None:
    slots = np.frombuffer(disk.map_file(timer_wheel.PATH, WHEEL_BYTES).map, timer_wheel.SLOT)
    slots["last"][slots["time"] == BASE_MS // 1_000 + 3] = 1 << 40


@pytest.mark.parametrize("harm", [lose_wheel, shorten_wheel, empty_wheel, spoil_wheel])
@pytest.mark.parametrize("is_clean", [True, False])
def test_a_lost_or_damaged_wheel_is_built_again(harm: Callable[[MemoryDisk], None], is_clean: bool) -> None:
    disk = MemoryDisk()
    given = spread(1_000, 50_000)
    _, mark = saved(disk, given)
    disk = disk.after_process_crash()
    harm(disk)
    engine = opened(disk, mark, is_clean=is_clean)
    assert engine.is_whole
    assert show(engine) == model(given)
    assert int(engine.density(BASE_MS, BASE_MS + 50_000).sum()) == int(np.count_nonzero(~given.renews))
    assert sum(engine.count(BASE_MS + second * SLOT_MS) for second in range(50)) == 1_000


def test_a_wheel_that_is_newer_than_the_mark_is_built_again() -> None:
    disk = MemoryDisk()
    engine, mark = saved(disk, spread(150, 5_000))
    engine.put(spread(150, 5_000, first=150), BASE_MS)
    engine = opened(disk.after_process_crash(), mark, is_clean=True)
    assert engine.is_whole
    assert show(engine) == model(spread(150, 5_000))


Damage = tuple[str, int]


@pytest.mark.parametrize(
    "damage",
    [
        ("size", 0),
        ("size", 51),
        ("magic", 16),
        ("magic", -1),
        ("previous", 250 // 100 * FILE_BYTES + 50 * 52),  # itself
        ("previous", 250 // 100 * FILE_BYTES + 52 * 60),  # a later one
        ("previous", 52),  # of another slot, or one that another links to
        ("previous", 53),  # no unit at all
        ("previous", -1),  # a second list for the slot
        ("previous", -52),
        ("write_ms", BASE_MS + 70_000),  # in another slot than its list
    ],
)
def test_a_damaged_unit_is_noticed_after_a_crash(damage: Damage) -> None:
    disk = MemoryDisk()
    _, mark = saved(disk, spread(150, 3_000), spread(150, 3_000, first=150))
    disk = disk.after_process_crash()
    unit = unit_at(disk, 250)
    field, value = damage
    assert unit[field][0] != value
    unit[field] = value
    engine = opened(disk, mark)
    assert not engine.is_whole
    assert show(engine) == {}
    engine.put(spread(300, 3_000), BASE_MS)
    assert show(engine) == model(spread(300, 3_000))


def test_two_units_that_link_to_one_are_noticed_after_a_crash() -> None:
    disk = MemoryDisk()
    _, mark = saved(disk, units(list(range(10)), [500] * 10))
    disk = disk.after_process_crash()
    unit_at(disk, 7)["previous"] = unit_at(disk, 6)["previous"]
    assert not opened(disk, mark).is_whole


def test_two_rounds_in_one_place_are_noticed_after_a_crash() -> None:
    disk = MemoryDisk()
    _, mark = saved(disk, units([1, 2], [500, 1_500]))
    disk = disk.after_process_crash()
    unit_at(disk, 1)["write_ms"] += ROUND_MS - 1_000
    assert not opened(disk, mark).is_whole


def test_a_damaged_list_stops_the_reader() -> None:
    for number, field, value in (
        (250, "size", 0),
        (120, "magic", 77),
        (250, "previous", 1 << 40),
        (250, "previous", 7),
    ):
        disk = MemoryDisk()
        engine, _ = saved(disk, units(list(range(300)), [500] * 300))
        unit_at(disk, number)[field] = value
        with pytest.raises(CorruptStore, match="no valid unit"):
            show(engine)


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_lost_file_of_the_log_is_noticed(lost: int, is_clean: bool) -> None:
    disk = MemoryDisk()
    engine, mark = saved(disk, spread(300, 3_000))
    disk = disk.after_process_crash()
    disk.remove(f"{timer_log.FOLDER}/{lost * FILE_BYTES:020d}")
    engine = opened(disk, mark, is_clean=is_clean)
    assert not engine.is_whole
    assert show(engine) == {}
    engine.put(spread(300, 3_000), BASE_MS)
    assert show(engine) == model(spread(300, 3_000))


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_lost_log_is_noticed(is_clean: bool) -> None:
    disk = MemoryDisk()
    _, mark = saved(disk, spread(300, 3_000))
    disk = disk.after_process_crash()
    disk.remove(timer_log.FOLDER)
    assert not opened(disk, mark, is_clean=is_clean).is_whole


def test_zeros_at_the_edge_of_a_file_are_noticed_after_a_clean_stop() -> None:
    disk = MemoryDisk()
    _, mark = saved(disk, spread(300, 3_000))
    disk = disk.after_process_crash()
    unit_at(disk, 199)["size"] = 0
    assert not opened(disk, mark, is_clean=True).is_whole


def test_files_of_another_size_are_not_taken_for_ours() -> None:
    disk = MemoryDisk()
    _, mark = saved(disk, spread(300, 3_000))
    disk = disk.after_process_crash()
    engine = WheelEngine(disk, mark=mark, from_ms=BASE_MS, is_clean=True, file_bytes=2 * FILE_BYTES)
    assert not engine.is_whole
    engine.put(spread(300, 3_000), BASE_MS)
    assert show(engine) == model(spread(300, 3_000))


@pytest.mark.parametrize("is_clean", [True, False])
def test_files_that_are_done_with_may_be_gone(is_clean: bool) -> None:
    disk = MemoryDisk()
    engine = opened(disk)
    early, late = spread(200, 5_000), units(list(range(200, 250)), [20_000 + n for n in range(50)])
    engine.put(early, BASE_MS)
    engine.put(late, BASE_MS)
    mark = engine.mark()
    engine.sync()
    engine.forget_below(BASE_MS + 10_000)  # after the mark, which still names the files
    assert len(disk.list_names(timer_log.FOLDER)) == 1
    again = opened(disk.after_process_crash(), mark, from_ms=BASE_MS + 10_000, is_clean=is_clean)
    assert again.is_whole
    assert show(again) == model(late)
    assert files_in(again.mark()) == files_in(engine.mark())


@pytest.mark.parametrize("is_clean", [True, False])
def test_an_engine_whose_units_are_all_done_with_needs_no_files(is_clean: bool) -> None:
    disk = MemoryDisk()
    _, mark = saved(disk, spread(300, 3_000))
    disk.remove(timer_log.FOLDER)
    engine = opened(disk, mark, from_ms=BASE_MS + 3_001, is_clean=is_clean)
    assert engine.is_whole
    assert show(engine) == {}
    engine.put(spread(10, 1_000, first=400), BASE_MS)
    assert show(engine).keys() == set(range(400, 410))
    mark = engine.mark()
    assert show(opened(disk.after_process_crash(), mark)).keys() == set(range(400, 410))


def test_an_empty_engine_is_found_empty() -> None:
    disk = MemoryDisk()
    engine = opened(disk)
    mark = engine.mark()
    engine.put(spread(300, 3_000), BASE_MS)
    for is_clean in (True, False):
        again = opened(disk.after_process_crash(), mark, is_clean=is_clean)
        assert again.is_whole
        assert show(again) == {}


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_time_that_steps_back_brings_nothing_back(is_clean: bool) -> None:
    disk = MemoryDisk()
    engine, _ = saved(disk, spread(120, 9_000))
    entry = 500
    for from_ms in (10_001, 7_001, 8_001, 4_001, 4_001, 1):
        mark = engine.mark()
        engine.sync()
        engine.forget_below(BASE_MS + from_ms)
        disk = disk.after_process_crash()
        engine = opened(disk, mark, from_ms=BASE_MS + from_ms, is_clean=is_clean)
        assert engine.is_whole
        late = units([entry, entry + 1, entry + 2], [3_500, 8_500, 3_600])
        entry += 3
        known = show(engine)
        assert all(row[0] >= BASE_MS + from_ms and number >= 500 for number, row in known.items())
        for row in range(3):
            engine.put(late.where(np.array([row])), BASE_MS)
        assert show(engine) == {**known, **model(late)}
    engine.forget_below(BASE_MS + 60_000)
    assert show(engine) == {}
    assert engine.mark().split(";")[1].count("@") == 1


def test_a_mark_from_before_clearing_fits_nothing_that_comes_after() -> None:
    disk = MemoryDisk()
    engine, mark = saved(disk, spread(100, 3_000))
    for count in (20, 300):
        engine.clear()
        engine.put(spread(count, 3_000, first=1_000), BASE_MS)
        engine.sync()
        again = opened(disk.after_process_crash(), mark)
        assert not again.is_whole
        assert show(again) == {}


# On a real disk


def test_everything_holds_on_a_real_disk(tmp_path: Path) -> None:
    given, more = spread(1_000, 50_000), spread(500, 50_000, first=1_000)
    engine = opened(FileDisk(tmp_path))
    engine.put(given, BASE_MS)
    mark = engine.mark()
    engine.sync()
    engine.put(more, BASE_MS)
    engine.close()
    engine = opened(FileDisk(tmp_path), mark)
    assert engine.is_whole
    assert show(engine) == model(given)
    engine.put(more, BASE_MS)
    engine.forget_below(BASE_MS + 20_000)
    reading = engine.read(BASE_MS + 20_000, BASE_MS + 60_000)
    next(reading)  # left where it is, as when the broker stops
    mark = engine.mark()
    engine.sync()
    engine.close()
    engine = opened(FileDisk(tmp_path), mark, from_ms=BASE_MS + 20_000, is_clean=True)
    assert engine.is_whole
    wanted = {entry: row for entry, row in model(given, more).items() if row[0] > BASE_MS + 20_000}
    assert show(engine, BASE_MS + 20_000) == wanted
    engine.clear()
    assert show(engine) == {}
    engine.put(given, BASE_MS)
    assert show(engine) == model(given)
    engine.close()


@pytest.fixture
def real_engine(tmp_path: Path) -> Iterator[WheelEngine]:
    engine = opened(FileDisk(tmp_path))
    yield engine
    engine.close()


def test_syncing_runs_beside_putting_and_forgetting(real_engine: WheelEngine) -> None:
    stop = threading.Event()
    failures: list[BaseException] = []

    def keep_syncing() -> None:
        try:
            while not stop.is_set():
                real_engine.sync()
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=keep_syncing)
    thread.start()
    try:
        for number in range(60):
            real_engine.put(units([number] * 50, [number * SLOT_MS + 1 + n for n in range(50)]), BASE_MS)
            real_engine.forget_below(BASE_MS + (number - 5) * SLOT_MS)
    finally:
        stop.set()
        thread.join()
    assert not failures
    assert real_engine.statistics()["engine_log_files"] <= 6
