"""An operator skips or repairs a window: each timer is delivered or becomes a dead letter, never both."""

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Coroutine, Iterator
from random import Random

import pytest

from latermq.broker.timers import window_skips
from latermq.config import StoreConfig
from latermq.errors import InvalidParameter, ServiceUnavailable, StoreError
from latermq.message.names import TIMER_TOPIC
from latermq.server.windows import window_skipper
from latermq.server.windows.window_reports import report_windows
from latermq.timer.far.windows import WindowRows
from tests.support.brokers_in_memory import STORE, messages, send
from tests.support.needs import LONG
from tests.support.pipeline.far_broker import SHORT
from tests.support.pipeline.spark_twin import Row
from tests.support.pipeline.window_scene import Scene

Story = Callable[[Scene], Coroutine[None, None, None]]


def play(story: Story, store: StoreConfig = STORE, seed: int = 7) -> None:
    async def main() -> None:
        scene = Scene(store, seed)
        try:
            await story(scene)
        finally:
            await scene.stop()

    asyncio.run(main())


async def window_with(scene: Scene, *names: str) -> int:
    """A window that cannot be built, with these timers, one a millisecond; another timer is due a window later."""
    await scene.pass_time(1_000)
    begin_ms = scene.clock.now_ms() // 4_000 * 4_000 + 24_000
    for number, name in enumerate(names):
        scene.schedule(name, begin_ms + number - scene.clock.now_ms())
    scene.schedule("later", begin_ms + 5_000 - scene.clock.now_ms())
    number = await scene.window_of(begin_ms)
    scene.builds.failing[number] = "its rows make no sense"
    return number


def state_of(scene: Scene, number: int) -> str:
    reports = {one.number: one for one in report_windows(scene.broker.far, scene.loader.state_of)}
    return reports[number].state if number in reports else "gone"


async def lose_log(scene: Scene) -> None:
    """Let the records of all timers leave the log; what Spark ingested stays in its twin."""
    ahead = scene.broker.store.queues.ensure(TIMER_TOPIC, 0).next_offset
    for _ in range(12):
        send(scene.broker, b"x" * 50_000, topic="traffic")
    await scene.pass_time(1_000)
    await scene.pass_time(40_000)
    send(scene.broker, b"x" * 50_000, topic="traffic")
    scene.broker.store.flush()
    scene.twin.chance = Random(3)
    for _ in range(20):
        scene.twin.ingest(scene.broker)
    scene.broker.store.save(scene.broker.store.plan_checkpoint())
    while (names := scene.broker.far.expiring_entries()) is not None:
        scene.broker.far.save_names(names)
    for removed in scene.broker.retention.run():
        scene.disk.remove(removed.path)
    assert scene.broker.store.queues.ensure(TIMER_TOPIC, 0).min_offset >= ahead


def test_a_blocked_window_is_skipped_out_of_the_log_and_the_mark_goes_on() -> None:
    async def story(scene: Scene) -> None:
        number = await window_with(scene, "a", "b", "c")
        await scene.pass_time(30_000)
        assert scene.broker.pending.cancel("orders", "b").timers == 1
        assert state_of(scene, number) == "blocked"
        behind_ms = scene.broker.timers.marks.all_wake_from_ms()
        assert behind_ms < scene.clock.now_ms() - 5_000
        await scene.loader.skip(number)
        await scene.pass_time(2_000)
        assert scene.dead_letters() == {"a": "a", "c": "c"}
        assert scene.lateness() == {"later": 0}
        assert scene.broker.timers.marks.all_wake_from_ms() >= scene.clock.now_ms() - 2_000
        assert scene.broker.pending.count() == 0
        assert state_of(scene, number) == "skipped"
        note = scene.broker.far.notes.skips()[number]
        assert (note.letters, note.unread, note.is_done) == (2, 0, True)

    play(story)


def test_what_only_its_name_is_left_of_is_a_letter_without_a_body_and_is_counted() -> None:
    async def story(scene: Scene) -> None:
        scene.twin.begin(scene.broker)
        await scene.pass_time(1_000)
        begin_ms = scene.clock.now_ms() // 4_000 * 4_000 + 200_000
        for number, name in enumerate(("a", "b", "c")):
            scene.schedule(name, begin_ms + number - scene.clock.now_ms())
        await scene.pass_time(2_000)
        await lose_log(scene)
        assert scene.broker.pending.cancel("orders", "c").timers == 1
        number = await scene.window_of(begin_ms)
        scene.builds.failing[number] = "the timeline is damaged"
        scene.files.timeline = [row for row in scene.twin.timeline.values() if row.name == "orders+a"]
        while scene.clock.now_ms() < begin_ms + 10_000:
            await scene.pass_time(1_000)
        await scene.loader.skip(number)
        await scene.pass_time(10_000)
        assert scene.dead_letters() == {"a": "a", "b": ""}
        note = scene.broker.far.notes.skips()[number]
        assert (note.letters, note.unread) == (2, 1)
        assert scene.broker.pending.count() == 0

    play(story, SHORT)


def test_reads_that_fail_for_a_while_cost_no_body() -> None:
    async def story(scene: Scene) -> None:
        number = await window_with(scene, "a", "b")
        await scene.pass_time(30_000)
        rows = [row for row in scene.twin.timeline.values() if row.record]
        scene.files.timeline = rows or []
        scene.files.unverified_rows = [Row(10**6, 10**6, 0, 0, "", b"nothing")]
        scene.files.failures["salvage"] = 2
        await scene.loader.skip(number)
        await scene.pass_time(1_000)
        assert state_of(scene, number) == "skipping"
        await scene.pass_time(5_000)
        assert state_of(scene, number) == "skipped"
        assert scene.dead_letters() == {"a": "a", "b": "b"}

    play(story)


@pytest.mark.parametrize("fails", ["list", "salvage"])
def test_a_folder_that_cannot_be_read_at_all_does_not_keep_a_window_for_ever(
    fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> list[str]:
        raise StoreError("reading took longer than 120 s")

    def fail_later(*_: object) -> Iterator[WindowRows]:
        yield from fail()  # type: ignore[misc]

    async def story(scene: Scene) -> None:
        number = await window_with(scene, "a", "b")
        await scene.pass_time(30_000)
        monkeypatch.setattr(scene.files, "salvaged", fail_later)
        if fails == "list":
            monkeypatch.setattr(scene.files, "names", fail)
        await scene.loader.skip(number)
        await scene.pass_time(1_000)
        assert state_of(scene, number) == "skipping"
        for _ in range(30):
            await scene.pass_time(2_000)
        assert scene.dead_letters() == {"a": "a", "b": "b"}
        assert scene.broker.far.notes.skips()[number].is_done

    play(story)


def test_rows_that_nobody_vouches_for_are_compared_with_their_records() -> None:
    async def story(scene: Scene) -> None:
        number = await window_with(scene, "a", "gone", "moved")
        await scene.pass_time(1_000)
        window = scene.broker.far.windows.find(number)
        assert window is not None
        rows = scene.twin.attempts[scene.twin.build(scene.broker, window)]
        assert [row.name for row in rows] == ["orders+a", "orders+gone", "orders+moved"]
        flipped = bytearray(rows[0].record)
        flipped[-40] ^= 1
        scene.files.unverified_rows = [
            dataclasses.replace(rows[0], record=rows[1].record),
            dataclasses.replace(rows[0], due_ms=rows[0].due_ms + 5),
            dataclasses.replace(rows[0], record=rows[0].record[:-3]),
            dataclasses.replace(rows[0], record=b""),
            *rows,
            *rows,
        ]
        assert scene.broker.pending.cancel("orders", "gone").timers == 1
        scene.broker.pending.move("orders", "moved", window.until_ms + 60_000)
        await scene.pass_time(30_000)
        await scene.loader.skip(number)
        await scene.pass_time(2_000)
        assert scene.dead_letters() == {"a": "a"}
        await scene.pass_time(90_000)
        assert scene.lateness().keys() == {"later", "moved"}

    play(story)


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 4, 5, 6, 8, 10, 13, 20])
def test_a_death_on_the_way_loses_and_doubles_nothing(turns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_skips, "LETTERS_AT_ONCE", 1)
    monkeypatch.setattr(window_skipper, "LETTERS_AT_ONCE", 1)
    names = [f"t{number}" for number in range(5)]

    async def story(scene: Scene) -> None:
        number = await window_with(scene, *names)
        await scene.pass_time(30_000)
        asked = asyncio.create_task(scene.loader.skip(number))
        for _ in range(turns):
            scene.loader.tick()
            await asyncio.sleep(0.001)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        await scene.crash()
        before = scene.dead_letters()
        await scene.pass_time(3_000)
        window = scene.broker.far.windows.find(number)
        if window is not None and not window.is_skipped:  # it died before that was certain
            assert not before
            await scene.loader.skip(number)
        await scene.pass_time(3_000)
        assert scene.dead_letters() == {name: name for name in names}
        assert scene.lateness() == {"later": 0}
        assert scene.broker.pending.count() == 0

    play(story)


@pytest.mark.parametrize("dies", [False, True])
def test_what_was_loaded_before_is_delivered_and_the_rest_is_buried(dies: bool) -> None:
    async def story(scene: Scene) -> None:
        number = await window_with(scene, *(f"t{number}" for number in range(5)))
        name = await scene.offer_attempt(number)
        scene.files.damaged[name] = 2  # pieces that are whole, of a timer each
        await scene.pass_time(2_000)
        await scene.loader.skip(number)
        if dies:
            await scene.crash()
        await scene.pass_time(40_000)
        arrived, letters = scene.lateness(), scene.dead_letters()
        assert not arrived.keys() & letters.keys()
        assert arrived.keys() | letters.keys() == {"later", *(f"t{number}" for number in range(5))}
        assert arrived.keys() == ({"later"} if dies else {"t0", "t1", "later"})

    play(story)


def test_a_window_that_lies_ahead_is_skipped_when_its_cancels_are_known() -> None:
    async def story(scene: Scene) -> None:
        number = await window_with(scene, "a", "b")
        scene.broker.store.flush()
        await scene.loader.skip(number)
        await scene.pass_time(1_000)
        assert state_of(scene, number) == "skipping"
        assert scene.broker.pending.cancel("orders", "a").timers == 1
        await scene.pass_time(30_000)
        assert scene.dead_letters() == {"b": "b"}

    play(story)


def test_a_window_whose_cut_a_power_cut_may_take_back_is_not_skipped_yet() -> None:
    async def story(scene: Scene) -> None:
        await scene.pass_time(1_000)
        scene.schedule("a", 24_000)
        scene.broker.store.flush()
        while not scene.broker.far.unfinished_windows():
            scene.clock.advance(1_000)
            scene.broker.far.run()
        (window,) = scene.broker.far.unfinished_windows()
        with pytest.raises(ServiceUnavailable, match="is not on disk yet"):
            await scene.loader.skip(window.number)
        scene.broker.store.flush()
        await scene.loader.skip(window.number)
        assert window.is_skipped

    play(story)


def test_a_skip_that_cannot_be_noted_is_not_begun() -> None:
    async def story(scene: Scene) -> None:
        number = await window_with(scene, "a")
        await scene.pass_time(30_000)

        def fail(operation: str, path: str) -> None:
            if path.startswith("latermq.windownotes"):
                raise StoreError("no room left")

        scene.disk.before_step = fail
        with pytest.raises(StoreError, match="no room left"):
            await scene.loader.skip(number)
        scene.disk.before_step = lambda operation, path: None
        scene.builds.failing = {}
        await scene.loader.repair(number)
        await scene.pass_time(3_000)
        assert scene.lateness().keys() == {"a", "later"}
        assert scene.dead_letters() == {}
        with pytest.raises(InvalidParameter, match=r"is already loaded|there is no window"):
            await scene.loader.skip(number)
        with pytest.raises(InvalidParameter, match="there is no window 999"):
            await scene.loader.repair(999)

    play(story)


def test_a_repair_forgets_the_verdict_and_does_everything_again_at_once() -> None:
    async def story(scene: Scene) -> None:
        number = await window_with(scene, "a")
        scene.builds.damaging, scene.builds.failing = {number}, {}
        await scene.pass_time(30_000)
        assert scene.broker.far.notes.damaged_attempts(number)
        assert state_of(scene, number) == "blocked"
        scene.files.damaged.clear()
        await scene.pass_time(5_000)
        assert "a" not in scene.lateness()
        await scene.loader.repair(number)
        await scene.pass_time(1_000)
        assert scene.lateness().keys() == {"a", "later"}
        assert not scene.broker.far.notes.damaged_attempts(number)

    play(story)


def test_a_repair_ends_a_roll_that_hangs() -> None:
    async def story(scene: Scene) -> None:
        number = await window_with(scene, "a")
        scene.builds.hanging, scene.builds.failing = {number}, {}
        await scene.pass_time(30_000)
        assert scene.builds.running
        scene.builds.hanging = set()
        scene.builds.hung.clear()
        await scene.loader.repair(number)
        await scene.pass_time(2_000)
        assert scene.lateness().keys() == {"a", "later"}

    play(story)


@pytest.mark.parametrize("seed", range(200 if LONG else 6))
def test_whatever_fails_and_whenever_it_dies_each_timer_has_one_fate(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = Random(seed)

    async def story(scene: Scene) -> None:
        monkeypatch.setattr(window_skips, "ENTRIES_AT_ONCE", chance.choice((1, 3, 5_000)))
        await scene.pass_time(1_000)
        fates: dict[str, str] = {}
        for life in range(4):
            for number in range(30):
                name = f"{life}-{number}"
                scene.schedule(name, chance.randint(13_000, 50_000))
                fates[name] = "waits"
            for _ in range(chance.randint(20, 60)):
                await scene.pass_time(1_000)
                windows = [one.number for one in scene.broker.far.unfinished_windows()]
                if windows and chance.random() < 0.3:
                    scene.builds.failing = {one: "no luck" for one in windows if chance.random() < 0.8}
                    scene.builds.damaging = {one for one in windows if chance.random() < 0.3}
                if windows and chance.random() < 0.3:
                    with contextlib.suppress(InvalidParameter, ServiceUnavailable):  # it is played, or new
                        await scene.loader.skip(chance.choice(windows))
                waiting = [name for name, fate in fates.items() if fate == "waits"]
                if waiting and chance.random() < 0.2:
                    name = chance.choice(waiting)
                    if scene.broker.pending.cancel("orders", name).timers:
                        fates[name] = "cancelled"
            if chance.random() < 0.5:
                scene.broker.store.save(scene.broker.store.plan_checkpoint())
            scene.broker.store.flush()  # what was scheduled and cancelled; what is buried from here on may be lost
            for _ in range(chance.randint(0, 3)):
                scene.loader.tick()
                await asyncio.sleep(0.001)
            await scene.crash(chance if chance.random() < 0.5 else None)
        scene.builds.failing, scene.builds.damaging = {}, set()
        for window in scene.broker.far.unfinished_windows():
            if not (window.is_skipped or window.is_loaded):
                await scene.loader.repair(window.number)
        await scene.pass_time(100_000)
        arrived, letters = scene.lateness(), scene.dead_letters()
        assert letters
        assert not arrived.keys() & letters.keys()
        assert all(late >= 0 for late in arrived.values())
        wait = {name for name, fate in fates.items() if fate == "waits"}
        assert arrived.keys() | letters.keys() == wait
        assert scene.broker.pending.count() == 0
        assert len(messages(scene.broker)) == len(arrived)

    play(story, seed=seed)
