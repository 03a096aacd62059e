"""Waiting pops: one is woken per message and group, limits hold, and 5,000 of them take little memory."""

import tracemalloc
from collections.abc import Callable

import pytest

from latermq.broker.pop.pop_request import PopRequest
from latermq.broker.pop.waiting_pops import SLICE_POPS, WaitingPop, WaitingPops
from latermq.errors import PollingFull
from latermq.group.pop.handles import pop_retry_topic


class FakeClient:
    """A connection."""

    is_paused = False
    is_closing = False


class Messages:
    """A queue of messages that resumed pops take one by one."""

    def __init__(self) -> None:
        self.left = 0
        self.tried: list[WaitingPop] = []
        self.answered: list[WaitingPop] = []
        self.expired: list[WaitingPop] = []

    def resume(self, pop: WaitingPop) -> bool:
        self.tried.append(pop)
        if not self.left:
            return False
        self.left -= 1
        self.answered.append(pop)
        return True

    def expire(self, pop: WaitingPop) -> None:
        self.expired.append(pop)


def add(
    waiting: WaitingPops, messages: Messages, *, group: str = "readers", queue_id: int = -1, deadline_ms: int = 1_000
) -> WaitingPop:
    pop = WaitingPop(FakeClient(), messages, 1, 0, PopRequest(group, "orders", queue_id, 32, 1_000))
    waiting.add(pop, deadline_ms)
    return pop


def test_a_message_wakes_one_pop_and_tries_one_more() -> None:
    waiting, messages = WaitingPops(10_000, 10_000), Messages()
    pops = [add(waiting, messages) for _ in range(5_000)]
    messages.left = 1
    waiting.mark_ready("orders", 3)
    waiting.wake()
    assert messages.answered == [pops[0]]
    assert len(messages.tried) == 2
    assert waiting.statistics()["waiting_pops"] == 4_999


def test_each_group_gets_its_own_wake_up() -> None:
    waiting, first, second = WaitingPops(100, 100), Messages(), Messages()
    add(waiting, first, group="a")
    add(waiting, second, group="b")
    first.left = second.left = 1
    waiting.mark_ready("orders", 0)
    waiting.wake()
    assert (len(first.answered), len(second.answered)) == (1, 1)


def test_a_pop_of_one_queue_is_woken_by_its_own_queue_and_by_retries() -> None:
    waiting, messages = WaitingPops(100, 100), Messages()
    add(waiting, messages, queue_id=2)
    for topic, queue_id, tries in (("orders", 1, 0), ("orders", 2, 1), (pop_retry_topic("readers", "orders"), 0, 2)):
        waiting.mark_ready(topic, queue_id)
        waiting.wake()
        assert len(messages.tried) == tries


@pytest.mark.parametrize("state", ["is_closing", "is_paused"])
def test_a_client_that_cannot_be_answered_passes_its_turn_on(state: str) -> None:
    waiting, messages = WaitingPops(100, 100), Messages()
    first, second = add(waiting, messages), add(waiting, messages)
    setattr(first.client, state, True)
    messages.left = 2
    waiting.mark_ready("orders", 0)
    waiting.wake()
    assert messages.answered == [second]
    first.client.is_paused = False  # type: ignore[misc]
    waiting.on_drained(first.client)
    assert messages.answered == ([second, first] if state == "is_paused" else [second])


def test_many_answers_are_given_in_slices() -> None:
    calls: list[Callable[[], None]] = []
    waiting, messages = WaitingPops(10_000, 10_000, calls.append), Messages()
    for _ in range(3 * SLICE_POPS):
        add(waiting, messages)
    messages.left = 10_000
    waiting.mark_ready("orders", 0)
    waiting.wake()
    assert len(messages.answered) == SLICE_POPS
    while calls:
        calls.pop()()
    assert len(messages.answered) == 3 * SLICE_POPS
    assert waiting.topics == {}


def test_pops_are_answered_shortly_before_their_time() -> None:
    waiting, messages = WaitingPops(100, 100), Messages()
    early, late = add(waiting, messages, deadline_ms=500), add(waiting, messages, deadline_ms=900)
    assert waiting.next_deadline_ms() == 500
    waiting.expire(499)
    assert messages.expired == []
    waiting.expire(500)
    assert messages.expired == [early]
    waiting.remove_client(late.client)
    waiting.expire(1_000)
    assert messages.expired == [early]
    assert waiting.statistics()["waiting_pops"] == 0


def test_waiting_pops_are_bounded() -> None:
    waiting, messages = WaitingPops(3, 2), Messages()
    add(waiting, messages)
    add(waiting, messages)
    with pytest.raises(PollingFull):
        add(waiting, messages)
    add(waiting, messages, queue_id=0)
    with pytest.raises(PollingFull):
        add(waiting, messages, group="others")
    assert waiting.statistics()["refused_waiting_pops"] == 2


def test_a_waiting_pop_takes_less_than_a_kilobyte() -> None:
    waiting, messages = WaitingPops(10_000, 10_000), Messages()
    tracemalloc.start()
    try:
        for number in range(5_000):
            add(waiting, messages, deadline_ms=20_000 + number)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used / 5_000 < 1_024
