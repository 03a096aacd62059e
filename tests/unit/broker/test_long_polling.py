"""Pulls that wait: who may, in which order they are tried, and how much of that is done at once."""

from collections.abc import Callable

import pytest

from latermq.broker.messages.long_polling import SLICE_PULLS, TURN_PULLS, WaitingPull, WaitingPulls
from latermq.errors import Busy, LaterMQError
from latermq.group.filters import EVERYTHING, MessageFilter

SHARED = MessageFilter(size_bytes=600)


class FakeClient:
    def __init__(self) -> None:
        self.is_paused = False


class Scene:
    """Pulls whose answers a test decides. Work for later is done by `turn`."""

    def __init__(self, max_waiting: int = 10_000, max_per_client: int = 1_000, max_filter_bytes: int = 1 << 20) -> None:
        self.waiting = WaitingPulls(max_waiting, max_per_client, max_filter_bytes, call_soon=self._call_soon)
        self.works: list[Callable[[], None]] = []
        self.tried: list[WaitingPull] = []
        self.refused: list[WaitingPull] = []
        self.finds = True
        self.work = 0  # that the filter of each pull does
        self.clients: list[FakeClient] = []

    def _call_soon(self, work: Callable[[], None]) -> None:
        self.works.append(work)

    def turn(self) -> list[WaitingPull]:
        """What one turn of the loop tries."""
        works, self.works, self.tried = self.works, [], []
        for work in works:
            work()
        return self.tried

    def resume(self, pull: WaitingPull, must_answer: bool) -> bool:
        self.tried.append(pull)
        self.waiting.spend(self.work)
        return self.finds or must_answer

    def refuse(self, pull: WaitingPull, error: LaterMQError) -> None:
        assert isinstance(error, Busy)
        self.refused.append(pull)

    def client(self) -> FakeClient:
        self.clients.append(FakeClient())
        return self.clients[-1]

    def add(
        self,
        client: FakeClient,
        count: int = 1,
        queue_id: int = 0,
        deadline_s: float = 30.0,
        message_filter: MessageFilter = EVERYTHING,
    ) -> list[WaitingPull]:
        pulls = []
        for opaque in range(count):
            self.waiting.check_room(client, message_filter)
            pulls.append(
                WaitingPull(client, self, opaque, 0, "readers", ("orders", queue_id), 7, 32, 0, message_filter)
            )
            self.waiting.add(pulls[-1], deadline_s)
        return pulls

    def count(self) -> int:
        return self.waiting.statistics()["waiting_pulls"]


def test_the_longest_waiting_pull_of_a_queue_is_tried_first() -> None:
    scene = Scene()
    pulls = scene.add(scene.client(), 3) + scene.add(scene.client(), 3)
    scene.waiting.mark_ready("orders", 0)
    scene.waiting.wake()
    assert scene.tried == pulls
    assert scene.count() == 0


def test_however_many_wait_a_turn_tries_a_slice_of_them() -> None:
    scene = Scene()
    for _ in range(5):
        scene.add(scene.client(), 1_000)
    scene.waiting.mark_ready("orders", 0)
    scene.waiting.wake()
    assert len(scene.tried) == SLICE_PULLS
    scene.waiting.wake()  # by other requests of the same turn
    assert len(scene.tried) == SLICE_PULLS
    turns = [len(scene.turn()) for _ in range(5_000 // SLICE_PULLS)]
    assert set(turns[:-1]) == {SLICE_PULLS}
    assert scene.count() == 0
    assert not scene.works


def test_pulls_of_another_queue_need_not_wait_for_those_of_a_crowded_one() -> None:
    scene = Scene()
    scene.add(scene.client(), 1_000)
    scene.waiting.mark_ready("orders", 0)
    scene.waiting.wake()
    [other] = scene.add(scene.client(), queue_id=1)
    scene.waiting.mark_ready("orders", 1)
    scene.waiting.wake()
    assert other in scene.turn()[: 2 * TURN_PULLS]


def test_a_queue_that_is_touched_all_the_time_does_not_pile_up_work() -> None:
    scene = Scene()
    scene.finds = False
    scene.add(scene.client(), 1_000)
    tries = 0
    for _ in range(100):
        scene.waiting.mark_ready("orders", 0)
        scene.waiting.wake()
        tries += len(scene.turn())
    assert tries <= 100 * SLICE_PULLS
    for _ in range(2 * 1_000 // SLICE_PULLS + 2):  # the round under way, and one for what came meanwhile
        scene.turn()
    assert not scene.works


def test_pulls_whose_time_is_up_are_answered_in_slices_too() -> None:
    scene = Scene()
    scene.finds = False
    client = scene.client()
    scene.add(client, 500, deadline_s=10.0)
    scene.add(client, 1, deadline_s=20.0)
    scene.waiting.expire(9.9)
    assert not scene.tried
    scene.waiting.expire(10.0)
    assert len(scene.tried) == SLICE_PULLS
    while scene.works:
        assert len(scene.turn()) <= SLICE_PULLS
    assert scene.count() == 1
    scene.waiting.finish()
    assert scene.count() == 0


def test_one_client_cannot_take_more_than_its_share() -> None:
    scene = Scene(max_per_client=10)
    greedy = scene.client()
    scene.add(greedy, 10)
    with pytest.raises(Busy, match="max_waiting_pulls_per_connection"):
        scene.add(greedy)
    scene.add(scene.client())
    counts = scene.waiting.statistics()
    assert (counts["waiting_pulls"], counts["refused_pulls"], counts["displaced_pulls"]) == (11, 1, 0)


def test_where_no_place_is_left_those_who_hold_most_give_their_oldest() -> None:
    scene = Scene(max_waiting=1_000)
    modest, greedy, greedier = scene.client(), scene.client(), scene.client()
    few = scene.add(modest, 10)
    scene.add(greedy, 400)
    oldest = scene.add(greedier, 590)[:2]
    scene.add(scene.client(), 2)
    assert scene.refused == oldest
    more = scene.add(modest, 100)
    assert not set(scene.refused) & {*few, *more}
    assert scene.count() <= 1_000


def test_where_all_places_are_taken_in_equal_shares_the_next_is_refused() -> None:
    scene = Scene(max_waiting=20)
    clients = [scene.client() for _ in range(10)]
    for client in clients:
        scene.add(client, 2)
    with pytest.raises(Busy, match="max_waiting_pulls"):
        scene.add(clients[0])
    assert not scene.refused
    scene.add(scene.client())  # has none yet
    assert len(scene.refused) == 1


def test_a_filter_is_counted_once_however_many_wait_with_it() -> None:
    scene = Scene(max_filter_bytes=1_000)
    clients = [scene.client(), scene.client()]
    for client in clients:
        scene.add(client, 100, message_filter=SHARED)
    counts = scene.waiting.statistics()
    assert (counts["waiting_filters"], counts["waiting_filters_bytes"]) == (1, 600)
    for client in clients:
        scene.waiting.remove_client(client)
    counts = scene.waiting.statistics()
    assert (counts["waiting_filters"], counts["waiting_filters_bytes"]) == (0, 0)


def test_a_client_whose_filters_take_too_much_is_refused() -> None:
    scene = Scene(max_filter_bytes=1_000)
    greedy = scene.client()
    scene.add(greedy, 5, message_filter=SHARED)
    with pytest.raises(Busy, match="max_waiting_filters"):
        scene.add(greedy, message_filter=MessageFilter(size_bytes=600))
    scene.add(greedy, message_filter=SHARED)
    scene.add(greedy)


def test_the_client_with_most_filters_gives_half_of_them_for_one_with_few() -> None:
    scene = Scene(max_filter_bytes=1_000)
    greedy, modest = scene.client(), scene.client()
    plain = scene.add(greedy)
    own = [scene.add(greedy, message_filter=MessageFilter(size_bytes=100))[0] for _ in range(10)]
    scene.add(modest, message_filter=MessageFilter(size_bytes=100))
    assert scene.refused == own[:5]
    assert not set(scene.refused) & set(plain)
    assert scene.waiting.statistics()["waiting_filters_bytes"] == 600


def test_pulls_of_a_client_that_has_gone_are_never_tried() -> None:
    scene = Scene()
    gone, other = scene.client(), scene.client()
    scene.add(gone, 300)
    [left] = scene.add(other)
    scene.waiting.mark_ready("orders", 0)
    scene.waiting.wake()
    scene.waiting.remove_client(gone)
    assert [pull for _ in range(3) for pull in scene.turn()] == [left]
    assert scene.count() == 0


@pytest.mark.parametrize("is_late", [False, True])
def test_a_client_that_is_behind_with_reading_is_answered_when_it_has_caught_up(is_late: bool) -> None:
    scene = Scene()
    client = scene.client()
    pulls = scene.add(client, 3)
    others = scene.add(client, 2, queue_id=1, deadline_s=90.0)
    client.is_paused = True
    if is_late:
        scene.waiting.expire(30.0)
        scene.waiting.expire(60.0)
    else:
        scene.waiting.mark_ready("orders", 0)
        scene.waiting.wake()
    assert not scene.tried
    client.is_paused = False
    scene.waiting.on_drained(client)
    assert scene.tried == pulls
    assert scene.count() == len(others)


def test_pulls_with_heavy_filters_are_tried_in_smaller_slices() -> None:
    scene = Scene()
    pulls = scene.add(scene.client(), 40)
    scene.finds, scene.work = False, (1 << 20) // 4
    scene.waiting.mark_ready("orders", 0)
    scene.waiting.wake()
    tried = list(scene.tried)
    assert len(tried) == 4
    while scene.works:
        turn = scene.turn()
        assert 1 <= len(turn) <= 4
        tried += turn
    assert tried == pulls


def test_one_pull_is_tried_a_turn_however_heavy_its_filter() -> None:
    scene = Scene()
    scene.add(scene.client(), 3)
    scene.finds, scene.work = False, 1 << 30
    scene.waiting.mark_ready("orders", 0)
    scene.waiting.wake()
    assert [len(scene.tried), len(scene.turn()), len(scene.turn()), len(scene.works)] == [1, 1, 1, 0]
