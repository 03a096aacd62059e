"""POP operations: what is in flight, which handles count, and what comes back when."""

from collections.abc import Iterable

import pytest

from latermq.group.pop.journal import JournalReader
from latermq.group.pop.operations import InFlightFull, Limits, Outcome, PopOperations
from latermq.group.pop.popped_queue import PoppedQueue
from latermq.group.pop.rows import windows_of
from latermq.group.pop.table import MAX_VISIBLE_MS, Due, InFlightTable

NOW_MS = 1_800_000_000_000
MINUTE_MS = 60_000


def opened(limits: Limits = Limits()) -> tuple[PopOperations, PoppedQueue]:  # noqa: B008
    operations = PopOperations(InFlightTable(), limits)
    return operations, operations.open_queue("shop", "orders", 0, 0)


def pop(operations: PopOperations, queue: PoppedQueue, count: int, now_ms: int = NOW_MS) -> tuple[int, list[int]]:
    """Pop the next messages for a minute; return their pop time and offsets."""
    first = operations.table.next_of(queue)
    offsets = list(range(first, first + count))
    return operations.pop(queue, offsets, first + count, now_ms, MINUTE_MS), offsets


def visible(operations: PopOperations, now_ms: int) -> list[int]:
    return offsets_in(operations.due(now_ms)[0])


def offsets_in(due: Iterable[Due]) -> list[int]:
    return sorted(offset for one in due for offset in one.offsets)


def test_a_pop_moves_on_and_the_floor_stays_at_the_first_message_that_is_not_acknowledged() -> None:
    operations, queue = opened()
    pop_ms, _ = pop(operations, queue, 40)
    table = operations.table
    assert (table.next_of(queue), table.floor(queue), queue.held) == (40, 0, 40)
    for offset in (1, 0, 35):
        assert operations.ack(queue, offset, pop_ms) is Outcome.DONE
    assert (table.next_of(queue), table.floor(queue), queue.held) == (40, 2, 37)


def test_a_message_is_visible_again_at_the_end_of_its_invisible_time_and_not_before() -> None:
    operations, queue = opened()
    pop(operations, queue, 2)
    assert operations.next_due_ms() == NOW_MS + MINUTE_MS
    assert visible(operations, NOW_MS + MINUTE_MS - 1) == []
    assert visible(operations, NOW_MS + MINUTE_MS) == [0, 1]


def test_an_acknowledged_message_is_never_visible_again() -> None:
    operations, queue = opened()
    pop_ms, _ = pop(operations, queue, 3)
    operations.ack(queue, 1, pop_ms)
    assert visible(operations, NOW_MS + 10 * MINUTE_MS) == [0, 2]


def test_filtered_messages_are_skipped_and_are_never_in_flight() -> None:
    operations, queue = opened()
    operations.pop(queue, [0, 3, 90], 100, NOW_MS, MINUTE_MS)
    assert (operations.table.next_of(queue), queue.held, len(operations.table.rows)) == (100, 3, 2)
    assert visible(operations, NOW_MS + MINUTE_MS) == [0, 3, 90]
    assert operations.ack(queue, 1, NOW_MS) is Outcome.REPEATED


def test_what_is_due_is_reported_until_it_is_gone_and_an_acknowledgement_in_between_counts() -> None:
    operations, queue = opened()
    pop_ms, _ = pop(operations, queue, 3)
    later_ms = NOW_MS + MINUTE_MS
    assert visible(operations, later_ms) == visible(operations, later_ms) == [0, 1, 2]
    assert operations.ack(queue, 1, pop_ms) is Outcome.DONE
    due, _ = operations.due(later_ms)
    assert offsets_in(due) == [0, 2]
    operations.note_journalled(due)
    assert visible(operations, later_ms) == []
    assert operations.table.floor(queue) == 3


def test_few_of_many_due_messages_are_reported_at_once_and_all_in_the_end() -> None:
    operations, queue = opened()
    for _ in range(10):
        pop(operations, queue, 32)
    found: list[int] = []
    while due := operations.due(NOW_MS + MINUTE_MS, 64)[0]:
        assert len(offsets_in(due)) == 64
        assert operations.statistics()["overdue_rows"] == 2
        found += offsets_in(due)
        operations.note_journalled(due)
    assert found == list(range(320))


def test_a_message_that_is_due_is_found_behind_any_number_of_outdated_times() -> None:
    operations, queue = opened()
    for _ in range(9_000):
        pop(operations, queue, 1)
    for offset in range(8_999):
        operations.ack(queue, offset, NOW_MS)
    assert operations.next_due_ms() == NOW_MS + MINUTE_MS
    calls = 0
    while not (found := visible(operations, NOW_MS + MINUTE_MS)):
        calls += 1
        assert operations.next_due_ms() == NOW_MS + MINUTE_MS, "there is more to look at"
        assert calls < 10
    assert found == [8_999]
    assert calls > 0, "one call does not hold the broker up"


def test_the_handle_of_a_message_that_went_to_its_next_delivery_is_stale() -> None:
    operations, queue = opened()
    pop_ms, _ = pop(operations, queue, 2)
    operations.ack(queue, 0, pop_ms)
    operations.note_journalled(operations.due(NOW_MS + MINUTE_MS)[0])
    assert operations.ack(queue, 1, pop_ms) is Outcome.STALE
    assert operations.ack(queue, 0, pop_ms) is Outcome.REPEATED
    assert operations.ack(queue, 2, pop_ms) is Outcome.UNKNOWN


def test_all_handles_of_a_changed_message_are_stale_after_its_next_delivery() -> None:
    operations, queue = opened()
    first_ms = operations.pop(queue, [0], 1, NOW_MS, 60_000)
    changed = operations.change(queue, 0, first_ms, NOW_MS + 5, 0)
    due, _ = operations.due(NOW_MS + 5)
    operations.note_journalled(due)
    assert operations.ack(queue, 0, first_ms) is Outcome.STALE
    assert operations.ack(queue, 0, changed.pop_ms) is Outcome.STALE
    assert operations.ack(queue, 0, changed.pop_ms + 1) is Outcome.REPEATED


def test_the_memory_for_stale_handles_is_bounded() -> None:
    operations = PopOperations(InFlightTable(max_revived=5))
    queue = operations.open_queue("shop", "orders", 0, 0)
    pop_ms, _ = pop(operations, queue, 8)
    operations.note_journalled(operations.due(NOW_MS + MINUTE_MS)[0])
    assert operations.statistics()["revived"] == 5
    assert operations.ack(queue, 7, pop_ms) is Outcome.STALE
    assert operations.ack(queue, 0, pop_ms) is Outcome.REPEATED, "forgotten: no worse than in Apache"


# Changes


def test_a_change_concerns_one_message_and_makes_its_old_handle_stale_without_hurting_the_new_one() -> None:
    operations, queue = opened()
    pop_ms, _ = pop(operations, queue, 3)
    changed = operations.change(queue, 1, pop_ms, NOW_MS + 10, 5_000)
    assert changed == (Outcome.DONE, NOW_MS + 10, NOW_MS + 5_010)
    assert operations.ack(queue, 1, pop_ms) is Outcome.STALE
    assert operations.change(queue, 1, pop_ms, NOW_MS + 20, 0).outcome is Outcome.STALE
    assert visible(operations, NOW_MS + 5_009) == []
    assert visible(operations, NOW_MS + 5_010) == [1]
    assert operations.ack(queue, 1, changed.pop_ms) is Outcome.DONE
    assert visible(operations, NOW_MS + MINUTE_MS) == [0, 2]


def test_two_deliveries_in_one_millisecond_have_different_pop_times() -> None:
    operations, queue = opened()
    pop_ms, _ = pop(operations, queue, 1)
    first = operations.change(queue, 0, pop_ms, NOW_MS, 0)
    second = operations.change(queue, 0, first.pop_ms, NOW_MS, 0)
    assert len({pop_ms, first.pop_ms, second.pop_ms}) == 3


def test_a_clock_that_steps_back_never_makes_an_old_handle_valid() -> None:
    operations, queue = opened()
    pop_ms, _ = pop(operations, queue, 1)
    back_ms = NOW_MS - 3_600_000
    changed = operations.change(queue, 0, pop_ms, back_ms, 1_000)
    assert changed.pop_ms > pop_ms
    assert changed.visible_ms == back_ms + 1_000, "times are those of the clock"
    assert operations.ack(queue, 0, pop_ms) is Outcome.STALE
    assert visible(operations, back_ms + 999) == []
    assert visible(operations, back_ms + 1_000) == [0]


def test_a_message_whose_time_was_up_is_not_visible_when_the_clock_steps_back() -> None:
    operations, queue = opened()
    pop(operations, queue, 1)
    assert visible(operations, NOW_MS + MINUTE_MS) == [0]
    assert visible(operations, NOW_MS) == []
    assert visible(operations, NOW_MS + MINUTE_MS) == [0]


@pytest.mark.parametrize("is_suspended", [True, False])
def test_a_message_that_is_sent_back_without_an_attempt_is_due_as_such(is_suspended: bool) -> None:
    operations, queue = opened()
    pop_ms, _ = pop(operations, queue, 2)
    operations.change(queue, 0, pop_ms, NOW_MS, 0, is_suspended=is_suspended)
    due, _ = operations.due(NOW_MS)
    assert [(one.offsets, one.is_suspended) for one in due] == [([0], is_suspended)]


def test_any_invisible_time_is_accepted() -> None:
    operations, queue = opened()
    operations.pop(queue, [0], 1, NOW_MS, 1 << 62)
    operations.pop(queue, [1], 2, NOW_MS, -5)
    assert visible(operations, NOW_MS) == [1]
    assert visible(operations, MAX_VISIBLE_MS) == [0, 1]


# Batches


def test_a_batch_acknowledgement_reaches_pops_and_changed_messages_of_its_pop_time_only() -> None:
    operations, queue = opened()
    pop_ms = operations.pop(queue, [*range(40), *range(100, 120)], 120, NOW_MS, MINUTE_MS)
    pop(operations, queue, 10, NOW_MS + 1)
    operations.change(queue, 5, pop_ms, NOW_MS + 2, MINUTE_MS)
    assert operations.ack_all(queue, windows_of(list(range(200))), pop_ms) == 59
    assert visible(operations, NOW_MS + 2 * MINUTE_MS) == [5, *range(120, 130)]
    assert operations.ack_all(queue, windows_of(list(range(200))), pop_ms) == 0


# Bounds


def test_pops_beyond_a_bound_are_refused_and_everything_else_is_not() -> None:
    operations, queue = opened(Limits(in_flight=10, in_flight_per_queue=6, queues=2))
    other = operations.open_queue("shop", "orders", 1, 0)
    pop_ms, _ = pop(operations, queue, 6)
    pop(operations, other, 4)
    assert operations.room(queue) == operations.room(other) == 0
    for full in (queue, other):
        with pytest.raises(InFlightFull):
            pop(operations, full, 1)
    with pytest.raises(InFlightFull):
        operations.open_queue("shop", "orders", 2, 0)
    assert operations.change(queue, 0, pop_ms, NOW_MS, 1_000).outcome is Outcome.DONE
    assert operations.ack(queue, 1, pop_ms) is Outcome.DONE
    assert operations.room(queue) == operations.room(other) == 1
    assert operations.table.next_of(queue) == 6
    assert operations.statistics()["refused_pops"] == 3
    assert operations.pop(other, [], 50, NOW_MS, 0), "nothing is popped: it only skips"
    assert operations.table.next_of(other) == 50


def test_acknowledged_pops_leave_nothing_behind_however_long_their_invisible_time_is() -> None:
    operations, queue = opened()
    stuck, _ = pop(operations, queue, 1)
    for _ in range(5_000):
        first = operations.table.next_of(queue)
        pop_ms = operations.pop(queue, [first], first + 1, NOW_MS, 12 * 3_600_000)
        operations.ack(queue, first, pop_ms)
        operations.journal.clear()
    statistics = operations.statistics()
    assert (statistics["in_flight"], statistics["rows"]) == (1, 1)
    assert statistics["visible_times"] < 2_000
    assert queue.index_size < 100
    assert operations.table.floor(queue) == 0
    assert operations.ack(queue, 0, stuck) is Outcome.DONE
    assert operations.table.floor(queue) == 5_001


# Queues that change under their messages


@pytest.mark.parametrize("to", [0, 2, 5, 90])
def test_a_reset_forgets_what_is_in_flight_and_old_handles_do_not_reach_new_deliveries(to: int) -> None:
    operations, queue = opened()
    pop_ms, _ = pop(operations, queue, 5)
    operations.reset(queue, to)
    assert (operations.table.next_of(queue), operations.table.floor(queue), queue.held) == (to, to, 0)
    assert operations.ack(queue, 3, pop_ms) is not Outcome.DONE
    again_ms, _ = pop(operations, queue, 5)
    assert again_ms != pop_ms
    assert operations.ack(queue, to + 1, pop_ms) is not Outcome.DONE
    assert operations.ack(queue, to + 1, again_ms) is Outcome.DONE


def test_after_a_reset_pop_times_are_those_of_the_clock_again() -> None:
    operations, queue = opened()
    pop(operations, queue, 1)
    operations.reset(queue, 0)
    assert pop(operations, queue, 1, NOW_MS + 500)[0] == NOW_MS + 500


def test_a_topic_that_is_deleted_and_made_again_has_other_messages() -> None:
    operations, queue = opened()
    pop_ms, _ = pop(operations, queue, 5)
    operations.open_queue("shop", "bills", 0, 0)
    assert operations.remove_topic("orders") == 1
    assert operations.find("shop", "orders", 0) is None
    assert operations.statistics()["in_flight"] == 0
    assert visible(operations, NOW_MS + MINUTE_MS) == []
    again = operations.open_queue("shop", "orders", 0, 0)
    pop(operations, again, 5)
    assert operations.ack(again, 0, pop_ms) is Outcome.STALE


def test_a_topic_with_fewer_queues_loses_the_others() -> None:
    operations, _ = opened()
    for queue_id in (1, 2, 3):
        pop(operations, operations.open_queue("shop", "orders", queue_id, 0), 1)
    assert operations.remove_topic("orders", from_queue_id=2) == 2
    assert [queue.queue_id for queue in operations.table.queues.values()] == [0, 1]


def test_a_deleted_group_takes_its_messages_along() -> None:
    operations, queue = opened()
    other = operations.open_queue("audit", "orders", 0, 0)
    pop(operations, queue, 2)
    pop(operations, other, 3)
    assert operations.remove_group("shop") == 1
    assert visible(operations, NOW_MS + MINUTE_MS) == [0, 1, 2]
    assert list(operations.table.queues) == [("audit", "orders", 0)]


def test_a_commit_of_a_pulling_consumer_moves_on_but_not_past_messages_in_flight() -> None:
    operations, queue = opened()
    pop(operations, queue, 2)
    operations.advance(queue, 50)
    operations.advance(queue, 30)
    assert (operations.table.next_of(queue), operations.table.floor(queue)) == (50, 0)
    assert visible(operations, NOW_MS + MINUTE_MS) == [0, 1]


def test_queues_that_end_before_their_position_are_reset() -> None:
    operations, queue = opened()
    other = operations.open_queue("shop", "orders", 1, 0)
    pop(operations, queue, 5)
    pop(operations, other, 5)
    assert operations.clamp(lambda topic, queue_id: 5 if queue_id else 3) == 1
    assert (operations.table.next_of(queue), queue.held, other.held) == (3, 0, 5)


# Retention


def test_each_acknowledgement_of_a_run_has_its_own_outcome() -> None:
    operations, queue = opened()
    pop_ms = operations.pop(queue, [*range(40), 50], 51, NOW_MS, MINUTE_MS)
    operations.change(queue, 5, pop_ms, NOW_MS + 2, MINUTE_MS)
    offsets = [4, 5, 6, 4, 39, 50, 45, 51, *range(8)]
    outcomes = operations.ack_each(
        queue, [(offset, pop_ms) for offset in offsets] + [(5, NOW_MS + 2), (38, NOW_MS + 3)]
    )
    done, repeated, stale = Outcome.DONE, Outcome.REPEATED, Outcome.STALE
    first = [done, stale, done, repeated, done, done, repeated, Outcome.UNKNOWN]
    assert outcomes == [*first, *[done] * 4, repeated, stale, repeated, done, done, stale]
    assert visible(operations, NOW_MS + 2 * MINUTE_MS) == list(range(8, 39))


def test_runs_of_acknowledgements_are_journalled_as_single_ones_are() -> None:
    bodies = []
    for is_run in (False, True):
        operations, queue = opened()
        pop_ms = operations.pop(queue, range(40), 40, NOW_MS, MINUTE_MS)
        operations.change(queue, 9, pop_ms, NOW_MS, MINUTE_MS)
        handles = [(offset, pop_ms) for offset in (3, 2, 35, 9, 2, 39)]
        if is_run:
            operations.ack_each(queue, handles)
        else:
            for handle in handles:
                operations.ack(queue, *handle)
        bodies.append(operations.journal.body())
    assert bodies[0] == bodies[1]


def test_messages_in_flight_are_known_by_their_lowest_offset_over_all_groups() -> None:
    operations, queue = opened()
    other = operations.open_queue("audit", "orders", 0, 0)
    pop_ms, _ = pop(operations, queue, 40)
    pop(operations, other, 2)
    operations.open_queue("audit", "bills", 0, 7)
    assert operations.table.held_floors() == {("orders", 0): 0}
    operations.remove_group("audit")
    operations.change(queue, 3, pop_ms, NOW_MS, MINUTE_MS)
    operations.ack_all(queue, [(0, 0b10111)], pop_ms)
    assert operations.table.held_floors() == {("orders", 0): 3}


def test_messages_that_are_about_to_leave_the_log_are_found_whatever_their_visible_time() -> None:
    operations, queue = opened()
    pop_ms, _ = pop(operations, queue, 40)
    operations.change(queue, 2, pop_ms, NOW_MS, 12 * 3_600_000)
    operations.ack(queue, 1, pop_ms)
    due = list(operations.table.held_below({("orders", 0): 34}))
    assert offsets_in(due) == [0, *range(2, 34)]
    operations.note_journalled(due)
    assert operations.table.floor(queue) == 34
    assert list(operations.table.held_below({("orders", 1): 34})) == []


# Dead letters


def test_a_message_goes_to_the_dead_letters_only_by_its_own_handle_and_once() -> None:
    operations, queue = opened()
    pop_ms, _ = pop(operations, queue, 3)
    assert operations.check(queue, 1, pop_ms + 1) == (Outcome.STALE, None)
    outcome, due = operations.check(queue, 1, pop_ms)
    assert outcome is Outcome.DONE
    assert due is not None
    assert due.offsets == [1]
    assert queue.held == 3, "until its copy is in the log"
    body = operations.journal.body([due])
    operations.note_journalled([due])
    assert operations.check(queue, 1, pop_ms) == (Outcome.STALE, None)
    assert visible(operations, NOW_MS + MINUTE_MS) == [0, 2]
    table = InFlightTable()
    JournalReader(table).apply(body)
    assert table.held == 2


def test_numbers_of_removed_queues_are_used_again() -> None:
    operations, _ = opened()
    for _ in range(100):
        operations.open_queue("shop", "bills", 0, 0)
        operations.remove_topic("bills")
    assert len(operations.table.positions.next) == 2


@pytest.mark.parametrize(("remembered", "outcome"), [(2, Outcome.STALE), (1, Outcome.REPEATED)])
def test_the_handle_of_a_message_that_came_back_is_stale_after_a_restart_too_while_it_is_remembered(
    remembered: int, outcome: Outcome
) -> None:
    operations = PopOperations(InFlightTable())
    queue = operations.open_queue("shop", "orders", 0, 0)
    pop_ms = operations.pop(queue, [0, 1, 2], 3, NOW_MS, 1_000)
    operations.ack(queue, 2, pop_ms)
    due, _ = operations.due(NOW_MS + 1_000)
    body = operations.journal.body(due)
    restarted = PopOperations(InFlightTable(remembered))
    JournalReader(restarted.table).apply(body)
    again = restarted.find("shop", "orders", 0)
    assert again is not None
    assert [restarted.ack(again, offset, pop_ms) for offset in range(4)] == [
        outcome, Outcome.STALE, Outcome.REPEATED, Outcome.UNKNOWN,
    ]  # fmt: skip
