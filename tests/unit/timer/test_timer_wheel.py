"""The timer wheel: where each second's list begins and ends, and which second is next."""

from random import Random

import numpy as np
import pytest

from latermq.errors import CorruptStore, StoreError
from latermq.store.files.memory_disk import MemoryDisk
from latermq.timer.engine.timer_wheel import PATH, SLOT_BYTES, SLOTS, Slots, TimerWheel

SLOT_COUNT = 30
PRECISION_MS = 500
ROUND_MS = 2 * SLOT_COUNT * PRECISION_MS
BASE_MS = 1_700_000_000_000
Row = tuple[int, int, int, int]  # time, first, last, count


def make(disk: MemoryDisk | None = None, *, slots: int = SLOT_COUNT) -> TimerWheel:
    wheel = TimerWheel(disk or MemoryDisk(), slots=slots, precision_ms=PRECISION_MS)
    wheel.reserve()
    return wheel


def put(wheel: TimerWheel, *rows: Row) -> None:
    times, firsts, lasts, counts = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    wheel.put(times, Slots(firsts, lasts, counts, np.zeros_like(times)))


def get(wheel: TimerWheel, time_ms: int) -> tuple[int, int, int]:
    first, last, count, _ = (int(column[0]) for column in wheel.get(np.array([time_ms])))
    return first, last, count


def test_a_slot_is_empty_until_it_is_put() -> None:
    wheel = make()
    time_ms = BASE_MS + PRECISION_MS
    assert get(wheel, time_ms) == (-1, -1, 0)
    put(wheel, (time_ms, 1, 2, 3))
    assert get(wheel, time_ms) == (1, 2, 3)
    assert get(wheel, time_ms + PRECISION_MS - 1) == (1, 2, 3)
    assert get(wheel, time_ms + PRECISION_MS) == (-1, -1, 0)
    assert get(wheel, time_ms + ROUND_MS) == (-1, -1, 0)


def test_slots_are_counted_one_by_one_and_together() -> None:
    wheel = make()
    time_ms = BASE_MS + PRECISION_MS
    put(wheel, (time_ms, 1, 2, 3))
    assert wheel.counts(time_ms, time_ms + PRECISION_MS).tolist() == [3]
    assert wheel.count_from(time_ms) == 3
    put(wheel, (time_ms + 5 * PRECISION_MS, 5, 6, 7))
    assert wheel.counts(time_ms, time_ms + 6 * PRECISION_MS).tolist() == [3, 0, 0, 0, 0, 7]
    assert wheel.count_from(time_ms) == 10
    assert wheel.count_from(time_ms + PRECISION_MS) == 7


def test_lists_that_end_beyond_the_log_are_found_by_where_they_begin() -> None:
    wheel = make()
    put(wheel, *((BASE_MS + 5 * PRECISION_MS * n, n, 100 * n, n) for n in (1, 2, 3)))
    assert [wheel.first_beyond(position) for position in (50, 100, 200)] == [1, 2, 3]
    assert wheel.first_beyond(300) is None
    assert wheel.first_beyond(400) is None
    wheel.forget_below(BASE_MS + 10 * PRECISION_MS)
    assert [wheel.first_beyond(position) for position in (50, 100, 200)] == [2, 2, 3]


def test_a_slot_that_is_put_again_keeps_its_place_and_counts_rolls_in_its_last_field() -> None:
    disk = MemoryDisk()
    wheel = make(disk)
    put(wheel, (BASE_MS, 1, 2, 1))
    at = BASE_MS // PRECISION_MS % (2 * SLOT_COUNT) * SLOT_BYTES
    raw = disk.map_file(PATH, 2 * SLOT_COUNT * SLOT_BYTES).map
    wheel.put(np.array([BASE_MS]), Slots(*(np.array([number]) for number in (1, 4, 5, 4))))
    expected = (BASE_MS // PRECISION_MS, 1, 4)
    assert raw[at : at + 24] == b"".join(number.to_bytes(8, "big") for number in expected)
    assert raw[at + 24 : at + 32] == bytes((0, 0, 0, 5, 0, 0, 0, 4))
    assert wheel.counts(BASE_MS, BASE_MS + PRECISION_MS).tolist() == [1]
    wheel.forget_below(BASE_MS + PRECISION_MS)
    put(wheel, (BASE_MS + ROUND_MS, 5, 5, 1))
    assert get(wheel, BASE_MS) == (-1, -1, 0)
    assert get(wheel, BASE_MS + ROUND_MS) == (5, 5, 1)
    assert raw[at + 28 : at + 32] == bytes(4)


def test_a_place_is_taken_until_its_time_is_forgotten() -> None:
    wheel = make()
    put(wheel, (BASE_MS, 1, 2, 3))
    times = BASE_MS + np.array([0, PRECISION_MS, ROUND_MS])
    assert wheel.occupied(times[:2]).tolist() == []
    assert wheel.occupied(times[2:]).tolist() == [BASE_MS + ROUND_MS]
    assert wheel.holds(times).tolist() == [True, False, False]
    wheel.forget_below(BASE_MS)
    assert wheel.occupied(times[2:]).tolist() == [BASE_MS + ROUND_MS]
    wheel.forget_below(BASE_MS + PRECISION_MS)
    assert wheel.occupied(times[2:]).tolist() == []
    assert wheel.holds(times).tolist() == [False, False, False]


def test_of_two_times_for_one_place_the_second_finds_it_taken() -> None:
    times = BASE_MS + np.array([0, PRECISION_MS, ROUND_MS - PRECISION_MS, ROUND_MS, 3 * ROUND_MS + PRECISION_MS])
    assert make().occupied(times).tolist() == times[3:].tolist()


def test_a_wheel_is_found_as_it_was_left() -> None:
    disk = MemoryDisk()
    put(make(disk), (BASE_MS, 1, 2, 3), (BASE_MS + PRECISION_MS, 4, 5, 6))
    wheel = make(disk.after_process_crash())
    assert not wheel.is_blank
    assert wheel.next_held_ms(0) is None
    wheel.load(BASE_MS)
    assert (get(wheel, BASE_MS), get(wheel, BASE_MS + PRECISION_MS)) == ((1, 2, 3), (4, 5, 6))
    wheel.load(BASE_MS + PRECISION_MS)
    assert (get(wheel, BASE_MS), get(wheel, BASE_MS + PRECISION_MS)) == ((-1, -1, 0), (4, 5, 6))


def test_of_what_was_forgotten_only_later_lists_are_found_again() -> None:
    disk = MemoryDisk()
    put(make(disk), (BASE_MS, 1, 2, 3), (BASE_MS + PRECISION_MS, 4, 50, 6), (BASE_MS + 2 * PRECISION_MS, 7, 8, 9))
    wheel = make(disk.after_process_crash())
    wheel.load(BASE_MS, [(BASE_MS + 2 * PRECISION_MS, 20)])
    assert wheel.held_between(0, 1 << 50).tolist() == [BASE_MS + PRECISION_MS, BASE_MS + 2 * PRECISION_MS]


def test_what_is_synced_outlives_the_machine() -> None:
    disk = MemoryDisk()
    wheel = make(disk, slots=600)
    put(wheel, *((BASE_MS + PRECISION_MS * n, n, n, n) for n in range(600)))
    wheel.sync()
    put(wheel, *((BASE_MS + PRECISION_MS * n, n, n, n) for n in range(600, 1200)))
    for seed in range(3):
        found = make(disk.after_machine_crash(Random(seed)), slots=600)
        found.load(BASE_MS)
        assert found.counts(BASE_MS, BASE_MS + 600 * PRECISION_MS).tolist() == list(range(600))


def test_a_failed_sync_is_made_up_for() -> None:
    disk = MemoryDisk()
    wheel = make(disk)
    put(wheel, (BASE_MS, 1, 2, 3))

    def fail(operation: str, path: str) -> None:
        raise StoreError("the disk is gone")

    disk.before_step = fail
    with pytest.raises(StoreError):
        wheel.sync()
    disk.before_step = lambda operation, path: None
    wheel.sync()
    found = make(disk.after_machine_crash(Random(0)))
    found.load(BASE_MS)
    assert get(found, BASE_MS) == (1, 2, 3)


def test_a_file_of_another_length_is_refused() -> None:
    disk = MemoryDisk()
    make(disk)
    with pytest.raises(CorruptStore, match=r"1920 bytes instead of 1984"):
        make(disk, slots=SLOT_COUNT + 1)


def test_the_file_is_as_long_as_rocketmqs() -> None:
    disk = MemoryDisk()
    TimerWheel(disk)
    assert disk.file_size(PATH) == 2 * SLOTS * SLOT_BYTES == 38_707_200


def test_without_space_nothing_is_put() -> None:
    disk = MemoryDisk(capacity_bytes=1000)
    with pytest.raises(StoreError, match="no disk space"):
        make(disk)


def test_a_cleared_wheel_is_blank() -> None:
    disk = MemoryDisk()
    wheel = make(disk)
    put(wheel, (BASE_MS, 1, 2, 3))
    wheel.clear()
    assert wheel.is_blank
    assert wheel.next_held_ms(0) is None
    assert disk.map_file(PATH, 1920).map[:] == bytes(1920)
    wheel.reserve()
    put(wheel, (BASE_MS, 4, 5, 6))
    assert get(wheel, BASE_MS) == (4, 5, 6)


@pytest.mark.parametrize("seed", range(20))
def test_looking_around_agrees_with_a_model(seed: int) -> None:
    chance = Random(seed)
    slots = chance.choice([30, 3_000, 50_000])
    wheel = make(slots=slots)
    held: dict[int, int] = {}
    low_ms = BASE_MS
    for _ in range(60):
        span = chance.choice([1, 20, 2 * slots, 5 * slots])
        time_ms = low_ms + chance.randrange(span) * PRECISION_MS
        if not len(wheel.occupied(np.array([time_ms]))):
            held[time_ms] = chance.randrange(100)
            put(wheel, (time_ms, 1, 2, held[time_ms]))
        if chance.random() < 0.1:
            low_ms += chance.choice([1, 10, slots]) * PRECISION_MS
            wheel.forget_below(low_ms)
            held = {time: count for time, count in held.items() if time >= low_ms}
        start_ms = low_ms + chance.randint(-5, span) * PRECISION_MS
        stop_ms = start_ms + chance.choice([0, 1, 10, 2 * slots, 9 * slots]) * PRECISION_MS
        inside = sorted(time for time in held if start_ms <= time < stop_ms)
        assert wheel.held_between(start_ms, stop_ms).tolist() == inside
        from_ms = start_ms + chance.choice([-1, 0, 1])
        assert wheel.next_held_ms(from_ms) == min((time for time in held if time >= from_ms), default=None)
        assert wheel.count_from(low_ms) == sum(held.values())
    times = np.arange(low_ms, low_ms + 100 * PRECISION_MS, PRECISION_MS)
    assert wheel.counts(int(times[0]), int(times[-1]) + 1).tolist() == [held.get(time, 0) for time in times.tolist()]
