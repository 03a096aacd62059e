"""POP in order: one batch at a time, repeated attempts, deliveries that are counted or not."""

from latermq.group.pop.operations import Outcome, PopOperations, Redelivery, attempt_hash
from latermq.group.pop.popped_queue import PoppedQueue
from latermq.group.pop.table import InFlightTable

NOW_MS = 1_800_000_000_000
MINUTE_MS = 60_000
LATER_MS = NOW_MS + MINUTE_MS
FIRST, SECOND = attempt_hash("first"), attempt_hash("second")


def opened() -> tuple[PopOperations, PoppedQueue]:
    operations = PopOperations(InFlightTable())
    return operations, operations.open_queue("ledger", "orders", 0, 0)


def pop(
    operations: PopOperations, queue: PoppedQueue, count: int, now_ms: int = NOW_MS, attempt: int = 0, lease: int = 0
) -> tuple[int, list[tuple[int, int]]] | None:
    """Pop as the broker does: what must be delivered again, then new messages."""
    first = operations.redelivery(queue, now_ms, attempt)
    if first is None:
        return None
    offsets, next_offset = first.offsets[:count], operations.table.next_of(queue)
    if not first.is_repeat and len(first.offsets) < count:
        new = count - len(offsets)
        offsets, next_offset = [*offsets, *range(next_offset, next_offset + new)], next_offset + new
    return operations.pop_in_order(queue, offsets, next_offset, now_ms, MINUTE_MS, attempt, lease)


def popped(
    operations: PopOperations, queue: PoppedQueue, count: int, now_ms: int = NOW_MS, attempt: int = 0, lease: int = 0
) -> tuple[int, list[tuple[int, int]]]:
    found = pop(operations, queue, count, now_ms, attempt, lease)
    assert found is not None, "blocked"
    return found


def test_a_queue_is_blocked_while_one_message_of_its_batch_is_invisible() -> None:
    operations, queue = opened()
    pop_ms, counts = popped(operations, queue, 3)
    assert counts == [(0, 0), (1, 0), (2, 0)]
    assert pop(operations, queue, 3, LATER_MS - 1) is None
    for offset in (0, 1, 2):
        assert pop(operations, queue, 3) is None
        assert operations.ack(queue, offset, pop_ms) is Outcome.DONE
    assert popped(operations, queue, 2)[1] == [(3, 0), (4, 0)]


def test_another_queue_is_not_blocked() -> None:
    operations, queue = opened()
    popped(operations, queue, 3)
    assert popped(operations, operations.open_queue("ledger", "orders", 1, 0), 1)[1] == [(0, 0)]


def test_after_its_time_the_rest_of_a_batch_comes_again_in_place_and_acknowledged_messages_are_skipped() -> None:
    operations, queue = opened()
    pop_ms, _ = popped(operations, queue, 4)
    operations.ack(queue, 0, pop_ms)
    operations.ack(queue, 2, pop_ms)
    again_ms, counts = popped(operations, queue, 4, LATER_MS)
    assert counts == [(1, 1), (3, 1), (4, 0), (5, 0)]
    assert operations.ack(queue, 1, pop_ms) is Outcome.STALE
    assert operations.ack(queue, 1, again_ms) is Outcome.DONE


def test_nothing_of_it_goes_to_a_retry_topic_but_its_queue_is_reported_when_the_block_ends() -> None:
    operations, queue = opened()
    popped(operations, queue, 4)
    assert operations.due(LATER_MS - 1) == ([], [])
    assert operations.due(LATER_MS) == ([], [queue])
    assert operations.due(LATER_MS) == ([], []), "waiting consumers are woken once"


def test_the_time_of_an_acknowledged_message_does_not_count_for_one_in_order_that_takes_its_row() -> None:
    operations, queue = opened()
    other = operations.open_queue("shop", "orders", 0, 0)
    operations.ack(other, 0, operations.pop(other, [0], 1, NOW_MS, MINUTE_MS))
    popped(operations, queue, 1)
    assert len(operations.table.rows.mask) == 1, "they use the same row"
    assert operations.due(LATER_MS) == ([], [queue])


def test_an_acknowledgement_of_the_last_invisible_message_ends_the_block_early() -> None:
    operations, queue = opened()
    pop_ms, _ = popped(operations, queue, 2)
    operations.change(queue, 0, pop_ms, NOW_MS, 0)
    assert operations.table.blocked_until_ms(queue) == LATER_MS
    operations.ack(queue, 1, pop_ms)
    assert operations.table.blocked_until_ms(queue) == NOW_MS
    assert popped(operations, queue, 1)[1] == [(0, 1)]


def test_the_same_attempt_gets_the_same_batch_and_nothing_is_counted() -> None:
    operations, queue = opened()
    lost_ms, _ = popped(operations, queue, 3, attempt=FIRST)
    assert pop(operations, queue, 3, NOW_MS + 1, SECOND) is None
    assert operations.redelivery(queue, NOW_MS + 1, FIRST) == Redelivery([0, 1, 2], is_repeat=True)
    again_ms, counts = popped(operations, queue, 32, NOW_MS + 1, FIRST)
    assert counts == [(0, 0), (1, 0), (2, 0)]
    assert again_ms != lost_ms
    assert operations.ack(queue, 0, again_ms) is Outcome.DONE
    assert popped(operations, queue, 3, NOW_MS + 2, FIRST)[1] == [(1, 0), (2, 0)], "without what was acknowledged"
    assert popped(operations, queue, 3, NOW_MS + 10 * MINUTE_MS, SECOND)[1] == [(1, 1), (2, 1), (3, 0)]


def test_an_attempt_whose_batch_is_acknowledged_gets_new_messages() -> None:
    operations, queue = opened()
    pop_ms, _ = popped(operations, queue, 1, attempt=FIRST)
    operations.ack(queue, 0, pop_ms)
    assert popped(operations, queue, 1, attempt=FIRST)[1] == [(1, 0)]


def test_pops_without_an_attempt_id_are_never_the_same_attempt() -> None:
    operations, queue = opened()
    popped(operations, queue, 1)
    assert pop(operations, queue, 1) is None


def test_a_lost_answer_blocks_nothing_if_its_messages_are_sent_back() -> None:
    operations, queue = opened()
    pop_ms, _ = popped(operations, queue, 2)
    for offset in (0, 1):
        changed = operations.change(queue, offset, pop_ms, NOW_MS, 0, is_suspended=True)
        assert changed == (Outcome.DONE, pop_ms, NOW_MS)
    assert operations.due(NOW_MS)[1] == [queue]
    assert popped(operations, queue, 2)[1] == [(0, 0), (1, 0)], "the delivery that was lost does not count"
    assert popped(operations, queue, 2, LATER_MS)[1] == [(0, 1), (1, 1)], "the next one does"


def test_a_lost_answer_blocks_nothing_once_the_lease_of_its_client_has_ended() -> None:
    operations, queue = opened()
    popped(operations, queue, 2, lease=7)
    assert pop(operations, queue, 2, NOW_MS + 10 * MINUTE_MS) is None
    operations.end_lease(7, NOW_MS + 1_000)
    assert operations.due(NOW_MS + 999)[1] == []
    assert operations.due(NOW_MS + 1_000)[1] == [queue]
    assert popped(operations, queue, 2, NOW_MS + 1_000)[1] == [(0, 1), (1, 1)]


def test_a_change_delays_the_whole_queue_and_keeps_the_handle() -> None:
    operations, queue = opened()
    pop_ms, _ = popped(operations, queue, 2)
    changed = operations.change(queue, 1, pop_ms, NOW_MS, 5 * MINUTE_MS)
    assert changed == (Outcome.DONE, pop_ms, NOW_MS + 5 * MINUTE_MS)
    assert pop(operations, queue, 2, NOW_MS + 5 * MINUTE_MS - 1) is None
    assert operations.due(NOW_MS + 5 * MINUTE_MS - 1)[1] == []
    assert operations.due(NOW_MS + 5 * MINUTE_MS)[1] == [queue]
    assert operations.ack(queue, 1, pop_ms) is Outcome.DONE


def test_a_dead_letter_lets_the_queue_continue() -> None:
    operations, queue = opened()
    pop_ms, _ = popped(operations, queue, 1)
    popped(operations, queue, 1, LATER_MS)
    due = operations.table.one(queue, 0)
    assert (due.offsets, due.deliveries) == ([0], 1)
    operations.note_journalled([due])
    assert popped(operations, queue, 1, LATER_MS)[1] == [(1, 0)]
    assert operations.ack(queue, 0, pop_ms) is not Outcome.DONE


def test_a_smaller_pop_leaves_the_rest_of_the_batch_for_later_in_order() -> None:
    operations, queue = opened()
    popped(operations, queue, 3)
    pop_ms, counts = popped(operations, queue, 1, LATER_MS)
    assert counts == [(0, 1)]
    assert pop(operations, queue, 3, LATER_MS) is None
    operations.ack(queue, 0, pop_ms)
    assert popped(operations, queue, 3, LATER_MS)[1] == [(1, 1), (2, 1), (3, 0)]


def test_a_group_that_is_no_longer_ordered_gets_its_messages_through_the_retry_topic() -> None:
    operations, queue = opened()
    popped(operations, queue, 2)
    operations.pop(queue, [2], 3, NOW_MS, 10 * MINUTE_MS)
    due, unblocked = operations.due(LATER_MS)
    assert [one.offsets for one in due] == [[0], [1]]
    assert unblocked == []
    assert operations.table.blocked_until_ms(queue) == 0


def test_a_reset_ends_the_block_and_forgets_the_attempt() -> None:
    operations, queue = opened()
    pop_ms, _ = popped(operations, queue, 2, attempt=FIRST)
    operations.reset(queue, 0)
    again_ms, counts = popped(operations, queue, 2, attempt=FIRST)
    assert counts == [(0, 0), (1, 0)]
    assert again_ms != pop_ms


def test_filtered_messages_between_those_of_a_batch_do_not_matter() -> None:
    operations, queue = opened()
    operations.pop_in_order(queue, [0, 50, 99], 120, NOW_MS, MINUTE_MS, FIRST)
    assert operations.redelivery(queue, NOW_MS, FIRST) == Redelivery([0, 50, 99], is_repeat=True)
    assert operations.redelivery(queue, LATER_MS) == Redelivery([0, 50, 99], is_repeat=False)
    assert operations.table.next_of(queue) == 120
