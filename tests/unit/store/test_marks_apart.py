"""What is known to be delivered while a window is missing or a queue is stuck: little, however long that lasts."""

from itertools import pairwise
from random import Random

import numpy as np
import pytest

from latermq.clock import SimulatedClock
from latermq.errors import StoreError
from latermq.handover.checked_file import decode_checked, encode_checked
from latermq.store.checkpoint import PATH, load_checkpoint
from latermq.store.files.memory_disk import MemoryDisk
from latermq.store.ranges import RangeSet
from latermq.timer.intake import settled
from latermq.timer.intake.delivered_set import Delivered
from tests.support.brokers_in_memory import bodies, messages, open_broker, pass_time, run_until_quiet, send
from tests.unit.timer.test_missing_windows import Scene


@pytest.fixture
def scene() -> Scene:
    return Scene()


def checkpoint(scene: Scene) -> int:
    """Save one, and tell how many ranges of entries and of times it holds."""
    scene.broker.store.flush()
    run_until_quiet(scene.broker)
    scene.broker.store.save(scene.broker.store.plan_checkpoint())
    saved = load_checkpoint(scene.disk)
    assert saved is not None
    assert saved.timers is not None
    return len(saved.delivered[0]) + len(saved.timers.far_done)


def kept_ids(scene: Scene) -> int:
    return scene.broker.timers.statistics()["timers_done_beyond_marks"]


def miss_a_window(scene: Scene) -> int:
    """Let one far timer be of a window that does not come; when it is due."""
    due_ms = scene.clock.now_ms() + 24_000
    scene.schedule("late", 24_000)
    scene.withheld = {scene.window_of(due_ms)}
    scene.pass_time(due_ms + 3_000 - scene.clock.now_ms())
    return due_ms


def live_on(scene: Scene, name: str, rounds: int) -> list[str]:
    """Let near and far timers come and go, in an order that has nothing to do with that of their entries."""
    chance = Random(name)
    names = []
    for number in range(rounds):
        for one in range(8):
            names.append(f"{name}{number}n{one}")
            scene.schedule(names[-1], chance.randrange(100, 9_000))
        names.append(f"{name}{number}f")
        scene.schedule(names[-1], chance.randrange(20_000, 40_000))
        scene.pass_time(1_000)
    return names


def test_a_missing_window_keeps_neither_ids_nor_the_checkpoint_growing(scene: Scene) -> None:
    due_ms = miss_a_window(scene)
    names, ids, sizes = [], [], []
    for number in range(6):
        names += live_on(scene, f"{number}x", 15)
        sizes.append(checkpoint(scene))
        ids.append(kept_ids(scene))
    assert scene.broker.timers.marks.all_wake_from_ms() <= due_ms, "T stands where the missing window begins"
    assert max(ids) <= 60
    assert max(sizes) <= 40
    scene.pass_time(45_000)
    scene.withheld = set()
    scene.pass_time(10_000)
    assert sorted(scene.lateness()) == sorted([*names, "late"])


@pytest.mark.parametrize("seed", range(6))
def test_deaths_while_a_window_is_missing_neither_lose_nor_repeat_anything(scene: Scene, seed: int) -> None:
    chance = Random(seed)
    miss_a_window(scene)
    names = []
    for number in range(6):
        names += live_on(scene, f"{number}x", chance.randrange(1, 12))
        if chance.random() < 0.6:
            checkpoint(scene)
            scene.pass_time(1_000 * chance.randrange(4))
        scene.broker.store.flush()
        scene.crash()
    scene.pass_time(45_000)
    if chance.random() < 0.5:
        checkpoint(scene)
        scene.crash()
    scene.withheld = set()
    scene.pass_time(12_000)
    assert sorted(one.body.decode() for one in messages(scene.broker)) == sorted([*names, "late"])
    assert scene.broker.pending.count() == 0
    assert scene.broker.timers.marks.all_wake_from_ms() >= scene.clock.now_ms() - 1_000
    checkpoint(scene)
    assert kept_ids(scene) == 0


def test_windows_that_were_played_behind_a_missing_one_are_not_read_again_after_a_start(scene: Scene) -> None:
    miss_a_window(scene)
    live_on(scene, "x", 20)
    scene.pass_time(45_000)
    checkpoint(scene)
    scene.crash()
    windows = scene.broker.far.windows
    behind = [window for window in windows.unfinished() if window.until_ms < scene.clock.now_ms() - 10_000]
    assert len(behind) > 5
    assert [window.number for window in behind if not window.is_loaded] == sorted(scene.withheld)


def test_cancels_of_near_timers_are_forgotten_while_a_window_is_missing(scene: Scene) -> None:
    miss_a_window(scene)
    for number in range(200):
        scene.schedule(f"c{number}", 3_000)
        scene.broker.pending.cancel("orders", f"c{number}")
        if number % 20 == 0:
            scene.pass_time(1_000)
    scene.pass_time(10_000)
    checkpoint(scene)
    assert scene.broker.timers.statistics()["timers_cancelled_in_memory"] == 0
    scene.crash()
    scene.pass_time(5_000)
    assert not [name for name in scene.lateness() if name.startswith("c")]


def test_a_missing_window_does_not_keep_the_log(scene: Scene) -> None:
    miss_a_window(scene)
    before = scene.broker.timers.needed_from()
    window_ms = scene.broker.timers.topic.renewal_window_ms
    scene.clock.advance(window_ms)
    scene.pass_time(5_000)
    live_on(scene, "x", 3)
    checkpoint(scene)
    assert scene.broker.timers.needed_from() > before


def test_an_older_checkpoint_has_one_mark_for_both(scene: Scene) -> None:
    names = live_on(scene, "x", 10)
    checkpoint(scene)
    plain = decode_checked(scene.disk.read(PATH) or b"", dict, PATH, "")
    del plain["timers"]["near_done_wake_ms"], plain["timers"]["far_done"]
    scene.disk.replace(PATH, encode_checked(plain))
    scene.crash()
    scene.pass_time(45_000)
    assert sorted(one.body.decode() for one in messages(scene.broker)) == sorted(names)


def test_a_small_step_back_of_the_clock_loses_nothing_while_a_window_is_missing(scene: Scene) -> None:
    miss_a_window(scene)
    live_on(scene, "x", 5)
    checkpoint(scene)
    scene.clock.step(-6_000)
    for number in range(5):
        scene.schedule(f"back{number}", 1_000 * number + 1_500)
    scene.pass_time(2_000)
    checkpoint(scene)
    scene.crash()
    scene.pass_time(10_000)
    arrived = [one.body.decode() for one in messages(scene.broker)]
    assert sorted(name for name in arrived if name.startswith("back")) == [f"back{number}" for number in range(5)]


# The ids themselves


def test_looking_while_ids_come_in_costs_a_logarithm_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    sorted_rows = 0
    merge = Delivered._merge

    def count(runs: object) -> object:
        nonlocal sorted_rows
        merged = merge(runs)  # type: ignore[arg-type]
        sorted_rows += len(merged.entries)
        return merged

    monkeypatch.setattr(Delivered, "_merge", staticmethod(count))
    delivered = Delivered()
    chance = np.random.default_rng(5)
    entries = chance.permutation(20_000) * 2
    for at, entry in enumerate(entries.tolist()):
        delivered.add(np.array([entry]), np.array([at]))
        assert delivered.contains(np.array([entry])).all()
    assert not delivered.contains(entries + 1).any()
    assert delivered.contains(entries).all()
    assert sorted_rows <= 20_000 * 20, "each id is sorted again a few times, not at each look"
    delivered.drop(lambda entries, wakes: wakes < 19_990)
    assert delivered.rows == 10
    assert sorted(start for start, _ in delivered.ranges()) == sorted(entries[-10:].tolist())


def test_many_scattered_offsets_are_added_to_ranges_at_once() -> None:
    chance = Random(3)
    ranges, plain = RangeSet(), set()
    for _ in range(40):
        offsets = [chance.randrange(5_000) for _ in range(chance.choice([3, 700]))]
        ranges.add_all(np.array(offsets))
        plain.update(offsets)
        assert [offset for offset in range(5_000) if offset in ranges] == sorted(plain)
        assert all(end < start for (_, end), (start, _) in pairwise(ranges.ranges()))


def test_at_the_bound_what_is_on_time_waits_for_what_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settled, "MAX_DELIVERED_ROWS", 50)
    disk, clock = MemoryDisk(), SimulatedClock()
    broker = open_broker(disk, clock)

    def refuse(operation: str, path: str) -> None:
        if "consumequeue/stuck" in path:
            raise StoreError("injected")

    disk.before_step = refuse
    send(broker, b"stuck", "stuck", TIMER_DELAY_MS="500")
    for number in range(200):
        send(broker, b"%d" % number, TIMER_DELAY_MS=str(1_000 + 100 * number))
    broker.store.flush()
    pass_time(broker, clock, 30_000)
    assert 50 <= len(bodies(broker)) < 100
    disk.before_step = lambda operation, path: None
    pass_time(broker, clock, 30_000)
    assert bodies(broker, "stuck") == [b"stuck"]
    assert sorted(map(int, bodies(broker))) == list(range(200))
