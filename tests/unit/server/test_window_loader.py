"""The loader of windows with a simulated clock: what blocks or fails for one window, or at one step, stops no other."""

import asyncio
import threading
from collections.abc import Callable, Coroutine

import pytest

from latermq.errors import StoreError
from tests.support.pipeline.window_scene import Scene

NAMES = {f"t{number}" for number in range(6)}


def play(story: Callable[[Scene], Coroutine[None, None, None]]) -> None:
    async def main() -> None:
        scene = Scene()
        try:
            await story(scene)
        finally:
            await scene.stop()

    asyncio.run(main())


async def six_timers(scene: Scene) -> list[int]:
    """Six timers in six windows; the windows' numbers."""
    await scene.pass_time(1_000)
    begin_ms = scene.clock.now_ms()
    for number in range(6):
        scene.schedule(f"t{number}", 20_000 + 4_000 * number)
    first = await scene.window_of(begin_ms + 20_000)
    return [first + number for number in range(6)]


def test_windows_are_checked_and_played_on_time() -> None:
    async def story(scene: Scene) -> None:
        await six_timers(scene)
        await scene.pass_time(45_000)
        assert scene.lateness() == dict.fromkeys(NAMES, 0)
        assert scene.loader.failure == ""

    play(story)


def test_rows_are_fed_while_a_roll_hangs() -> None:
    async def story(scene: Scene) -> None:
        numbers = await six_timers(scene)
        scene.builds.hanging = {numbers[1]}
        await scene.pass_time(45_000)
        assert numbers[1] in {number for number, _ in scene.builds.limits_s}
        assert scene.builds.running, "it hangs still"
        assert scene.lateness() == dict.fromkeys(NAMES - {"t1"}, 0)

    play(story)


@pytest.mark.parametrize("step", ["check", "read"])
def test_rows_are_fed_while_another_window_is_checked_or_read_for_long(step: str) -> None:
    async def story(scene: Scene) -> None:
        numbers = await six_timers(scene)
        held = scene.files.held[step, numbers[1]] = threading.Event()
        await scene.pass_time(45_000)
        assert scene.lateness() == dict.fromkeys(NAMES - {"t1"}, 0)
        assert (step, numbers[1]) in {
            ("read" if lane == "load" else lane, one) for lane, one in scene.loader._lanes.tasks
        }
        held.set()
        await scene.pass_time(3_000)
        assert scene.lateness().keys() == NAMES

    play(story)


@pytest.mark.parametrize("step", ["list", "check", "read"])
def test_several_windows_that_hang_hold_up_no_other(step: str) -> None:
    async def story(scene: Scene) -> None:
        numbers = await six_timers(scene)
        held = [number for number in numbers if number not in (numbers[2], numbers[5])]
        for number in held:
            scene.files.held[step, number] = threading.Event()
        await scene.pass_time(45_000)
        assert scene.lateness() == {"t2": 0, "t5": 0}

    play(story)


def test_several_rolls_that_hang_hold_up_no_other() -> None:
    async def story(scene: Scene) -> None:
        numbers = await six_timers(scene)
        scene.builds.hanging = {numbers[1], numbers[3]}
        await scene.pass_time(45_000)
        assert scene.lateness() == dict.fromkeys(NAMES - {"t1", "t3"}, 0)

    play(story)


def test_one_window_that_cannot_be_rolled_keeps_no_other_from_being_rolled() -> None:
    async def story(scene: Scene) -> None:
        numbers = await six_timers(scene)
        scene.builds.failing = {numbers[1]: "its rows make no sense", numbers[2]: "neither do these"}
        await scene.pass_time(45_000)
        assert scene.lateness() == dict.fromkeys(NAMES - {"t1", "t2"}, 0)
        assert scene.loader.failure == "its rows make no sense"
        tries = [number for number, _ in scene.builds.limits_s if number == numbers[1]]
        assert 3 <= len(tries) <= 8, "it is tried again, ever less often"
        scene.builds.failing = {}
        await scene.pass_time(80_000)
        assert scene.lateness().keys() == NAMES
        assert scene.loader.failure == ""

    play(story)


def test_a_roll_that_hangs_is_ended_and_tried_again_with_more_time() -> None:
    async def story(scene: Scene) -> None:
        numbers = await six_timers(scene)
        scene.builds.hanging = {numbers[1]}
        await scene.pass_time(60_000)
        await scene.pass_time(940_000, step_ms=10_000)
        limits_s = [limit_s for number, limit_s in scene.builds.limits_s if number == numbers[1]]
        assert limits_s[:2] == [300, 600]
        assert scene.builds.most_at_once <= 3
        assert "longer than" in scene.loader.failure
        scene.builds.hanging = set()
        await scene.pass_time(1_300_000, step_ms=10_000)
        assert scene.lateness().keys() == NAMES

    play(story)


def test_reads_that_fail_for_a_while_are_tried_again_and_condemn_nothing() -> None:
    async def story(scene: Scene) -> None:
        numbers = await six_timers(scene)
        scene.files.failures[f"list {numbers[0]}"] = 2
        first = await scene.offer_attempt(numbers[0])
        second = await scene.offer_attempt(numbers[1])
        scene.files.failures[f"check {second}"] = 2
        third = await scene.offer_attempt(numbers[2])
        scene.files.failures[f"read {third}"] = 2
        await scene.pass_time(45_000)
        assert scene.lateness().keys() == NAMES
        assert [scene.files.by_window[number] for number in numbers[:3]] == [[first], [second], [third]]
        assert all(not scene.broker.far.notes.damaged_attempts(number) for number in numbers)

    play(story)


def test_an_attempt_that_stays_unreadable_is_replaced_and_not_condemned() -> None:
    async def story(scene: Scene) -> None:
        numbers = await six_timers(scene)
        name = await scene.offer_attempt(numbers[1])
        scene.files.failures[f"read {name}"] = scene.files.failures[f"check {name}"] = 1_000
        await scene.pass_time(60_000)
        assert scene.lateness().keys() == NAMES
        assert len(scene.files.by_window[numbers[1]]) == 2
        assert scene.broker.far.notes.damaged_attempts(numbers[1]) == {}

    play(story)


def test_no_attempts_pile_up_where_none_can_be_read() -> None:
    async def story(scene: Scene) -> None:
        numbers = await six_timers(scene)
        scene.files.failures.update({f"check attempt-{number}": 100_000 for number in range(100)})
        await scene.pass_time(60_000)
        await scene.pass_time(1_500_000, step_ms=30_000)
        assert {len(scene.files.by_window[number]) for number in numbers} == {4}
        scene.files.failures.clear()
        await scene.pass_time(60_000)
        assert scene.lateness().keys() == NAMES

    play(story)


@pytest.mark.parametrize("whole_pieces", [0, 1])
def test_what_is_proven_wrong_is_never_played_again_even_after_a_crash(whole_pieces: int) -> None:
    async def story(scene: Scene) -> None:
        await scene.pass_time(1_000)
        begin_ms = scene.clock.now_ms()
        for number in range(3):
            scene.schedule(f"t{number}", 20_000 + number)
        number = await scene.window_of(begin_ms + 20_000)
        name = await scene.offer_attempt(number)
        scene.files.damaged[name] = whole_pieces  # found when it is chosen, or when it is played
        await scene.pass_time(20_000)
        assert "wrong" in scene.broker.far.notes.damaged_attempts(number)[name]
        assert scene.lateness().keys() == {"t0", "t1", "t2"}
        reads = scene.files.reads[f"read {name}"] + scene.files.reads[f"check {name}"]
        await scene.crash()
        assert scene.broker.far.notes.damaged_attempts(number).keys() == {name}
        await scene.pass_time(5_000)
        assert scene.files.reads[f"read {name}"] + scene.files.reads[f"check {name}"] == reads
        assert scene.lateness().keys() == {"t0", "t1", "t2"}

    play(story)


def test_a_disk_that_cannot_note_a_choice_delays_that_window_only_until_it_can() -> None:
    async def story(scene: Scene) -> None:
        await six_timers(scene)

        def fail(operation: str, path: str) -> None:
            if path.startswith("latermq.window"):
                raise StoreError("no room left")

        scene.disk.before_step = fail
        await scene.pass_time(3_000)
        scene.disk.before_step = lambda operation, path: None
        await scene.pass_time(45_000)
        assert scene.lateness().keys() == NAMES

    play(story)
