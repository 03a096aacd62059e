"""Pages of pending timers: the cost of a page of a full second, and exact pages while timers change."""

from collections.abc import Iterator

import pytest

from latermq.arrays import Ints, Structs
from latermq.model.timers import PendingPage
from latermq.store.queues.consume_queue import ConsumeQueue
from latermq.timer.engine.interface import Units
from tests.unit.timer.test_timers import ENGINES, Scene

MANY = 6_000
PAGE = 100
LATER_MS = 60_000


@pytest.fixture(params=ENGINES)
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    scene = Scene(request.param)
    yield scene
    scene.broker.timers.engine.close()


class Looks:
    """Return the number of entries read from the engine or from the timer topic's queue."""

    def __init__(self, scene: Scene, patch: pytest.MonkeyPatch) -> None:
        self.rows = 0
        read, gather = scene.broker.timers.engine.read, ConsumeQueue.gather

        def counted_read(start_ms: int, stop_ms: int) -> Iterator[Units]:
            for units in read(start_ms, stop_ms):
                self.rows += len(units.entries)
                yield units

        def counted_gather(queue: ConsumeQueue, offsets: Ints) -> Structs:
            self.rows += len(offsets)
            return gather(queue, offsets)

        patch.setattr(scene.broker.timers.engine, "read", counted_read)
        patch.setattr(ConsumeQueue, "gather", counted_gather)


def schedule(scene: Scene, number: int) -> None:
    due_ms = scene.clock.now_ms() // 1_000 * 1_000 + LATER_MS + 1 + number * 37 % 1_000
    scene.send(b"%d" % number, due_ms - scene.clock.now_ms(), UNIQ_KEY=f"u{number}")


def fill(scene: Scene, flushed: bool = True) -> None:
    for number in range(MANY):
        schedule(scene, number)
    if flushed:
        scene.flush()


def pages(scene: Scene, topic: str = "", limit: int = PAGE) -> Iterator[PendingPage]:
    page = scene.broker.pending.list(topic=topic, limit=limit)
    yield page
    while page.next:
        page = scene.broker.pending.list(topic=topic, limit=limit, cursor=page.next)
        yield page


@pytest.mark.parametrize("flushed", [True, False])
def test_a_page_of_a_full_second_costs_what_a_page_holds(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, flushed: bool
) -> None:
    fill(scene, flushed)
    looks = Looks(scene, monkeypatch)
    costs = []
    found = []
    before = 0
    for page in pages(scene):
        found += [(timer.due_ms, timer.timer_id) for timer in page.timers]
        costs.append(looks.rows - before)
        before = looks.rows
    assert len(found) == MANY
    assert found == sorted(found)
    assert max(costs[1:]) <= 3 * PAGE, max(costs[1:])
    assert costs[0] <= 2 * MANY


def test_a_listing_sees_what_is_cancelled_delivered_and_scheduled_meanwhile(scene: Scene) -> None:
    fill(scene)
    listing = pages(scene)
    first = [timer.unique_key for timer in next(listing).timers]
    gone = [f"u{number}" for number in range(MANY) if f"u{number}" not in first][::3]
    for unique_key in gone:
        scene.broker.pending.cancel("orders", unique_key)
    for number in range(MANY, MANY + 50):
        schedule(scene, number)
    scene.checkpoint()  # the engine has lost them, and no other place records that they were cancelled
    scene.checkpoint()
    listed = [timer.unique_key for page in listing for timer in page.timers]
    assert not {*listed} & {*gone, *first}
    late = [timer for timer in listed if int(timer[1:]) >= MANY]
    assert len(listed) - len(late) == MANY - PAGE - len(gone)
    assert len(late) >= 45, "but for those that are due before what is listed already"
    everything = [timer.unique_key for page in pages(scene, limit=1_000) for timer in page.timers]
    assert sorted(everything) == sorted({f"u{number}" for number in range(MANY + 50)} - {*gone})
    scene.pass_time(LATER_MS + 500)
    rest = [timer.unique_key for page in pages(scene, limit=1_000) for timer in page.timers]
    assert len(rest) == scene.broker.pending.count() < len(everything)
    scene.pass_time(2_000)
    assert [page.timers for page in pages(scene)] == [[]]


def test_orders_that_are_kept_are_few_and_bounded() -> None:
    scene = Scene("wheel", max_loaded=2 * MANY)
    fill(scene)
    now_ms = scene.clock.now_ms()
    for second in range(1, 6):
        scene.clock.advance(1_000)
        fill(scene)
        assert len(scene.broker.pending.list(from_ms=now_ms + LATER_MS + 1_000 * second, limit=10).timers) == 10
    kept = scene.broker.timers.statistics()
    assert 0 < kept["timers_in_kept_orders"] <= 2 * MANY
    scene.broker.timers.engine.close()


def test_a_count_of_a_full_second_is_exact(scene: Scene) -> None:
    fill(scene)
    start_ms = scene.clock.now_ms() // 1_000 * 1_000 + LATER_MS
    assert scene.broker.pending.count(from_ms=start_ms, until_ms=start_ms + 2_000) == MANY
    expected = sum(number * 37 % 1_000 < 500 for number in range(MANY))
    assert scene.broker.pending.count(from_ms=start_ms, until_ms=start_ms + 501) == expected
    assert scene.broker.pending.count(topic="orders", from_ms=start_ms, until_ms=start_ms + 501) == expected


def test_a_page_from_a_time_on_has_the_timers_that_are_renewed_before_it(scene: Scene) -> None:
    day_ms = 86_400_000
    for day in (1, 5, 20, 30):
        scene.send(b"", day * day_ms, UNIQ_KEY=f"u{day}")
    scene.flush()
    from_ms = scene.clock.now_ms() + 10 * day_ms
    for until_ms, wanted in ((0, {"u20", "u30"}), (from_ms + 15 * day_ms, {"u20"})):
        page = scene.broker.pending.list(from_ms=from_ms, until_ms=until_ms, limit=PAGE)
        assert {timer.unique_key for timer in page.timers} == wanted
        assert page.next == ""
