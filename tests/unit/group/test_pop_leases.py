"""Leases: a message is held as long as its client is alive, without any write."""

from latermq.group.pop.leases import Leases, lease_id
from latermq.group.pop.operations import HANDOVER_MS, LEASE_MS, MAX_HOLD_MS, Outcome, PopOperations
from latermq.group.pop.popped_queue import PoppedQueue
from latermq.group.pop.table import InFlightTable

NOW_MS = 1_800_000_000_000
LEASE = lease_id("client@1")
OTHER = lease_id("client@2")


def opened() -> tuple[PopOperations, PoppedQueue]:
    operations = PopOperations(InFlightTable())
    return operations, operations.open_queue("shop", "orders", 0, 0)


def pop(operations: PopOperations, queue: PoppedQueue, count: int, now_ms: int = NOW_MS, lease: int = LEASE) -> int:
    first = operations.table.next_of(queue)
    return operations.pop(queue, range(first, first + count), first + count, now_ms, 1_000, lease)


def visible(operations: PopOperations, now_ms: int) -> list[int]:
    return sorted(offset for one in operations.due(now_ms)[0] for offset in one.offsets)


def test_a_message_is_held_while_its_client_is_reported_and_nothing_is_journalled() -> None:
    operations, queue = opened()
    pop_ms = pop(operations, queue, 2)
    operations.note_journalled()
    for now_ms in range(NOW_MS, NOW_MS + 600_000, 5_000):
        operations.renew([LEASE, OTHER], now_ms)
        assert visible(operations, now_ms) == []
    assert operations.journal.is_empty
    assert operations.ack(queue, 0, pop_ms) is Outcome.DONE, "its handle never changes"


def test_a_lease_ends_a_minute_after_the_last_report() -> None:
    operations, queue = opened()
    pop(operations, queue, 2)
    operations.renew([LEASE], NOW_MS + 5_000)
    assert operations.next_due_ms() == NOW_MS + LEASE_MS
    assert visible(operations, NOW_MS + 5_000 + LEASE_MS - 1) == []
    assert visible(operations, NOW_MS + 5_000 + LEASE_MS) == [0, 1]
    assert len(operations.table.leases) == 0


def test_a_lease_ends_three_hours_after_the_pop_whatever_is_reported() -> None:
    operations, queue = opened()
    pop(operations, queue, 1)
    end_ms = NOW_MS + MAX_HOLD_MS
    for now_ms in range(NOW_MS, end_ms, 30_000):
        operations.renew([LEASE], now_ms)
        assert visible(operations, now_ms) == []
    assert visible(operations, end_ms) == [0]


def test_a_client_that_leaves_makes_its_messages_visible_a_second_later() -> None:
    operations, queue = opened()
    pop(operations, queue, 2)
    pop(operations, queue, 1, lease=OTHER)
    operations.end_lease(LEASE, NOW_MS + 1_000)
    assert visible(operations, NOW_MS + 999) == []
    assert visible(operations, NOW_MS + 1_000) == [0, 1]


def test_an_acknowledgement_in_the_turn_in_which_a_lease_ends_counts() -> None:
    operations, queue = opened()
    pop_ms = pop(operations, queue, 2)
    late_ms = NOW_MS + LEASE_MS
    assert operations.ack(queue, 0, pop_ms) is Outcome.DONE
    assert visible(operations, late_ms) == [1]


def test_a_message_that_was_changed_follows_its_own_time() -> None:
    operations, queue = opened()
    pop_ms = pop(operations, queue, 2)
    operations.change(queue, 0, pop_ms, NOW_MS, 10_000)
    operations.renew([LEASE], NOW_MS + 30_000)
    assert visible(operations, NOW_MS + 30_000) == [0]


def test_the_end_of_a_lease_that_holds_nothing_is_not_journalled() -> None:
    operations, queue = opened()
    operations.ack(queue, 0, pop(operations, queue, 1))
    operations.note_journalled()
    operations.end_lease(LEASE, NOW_MS)
    operations.end_lease(OTHER, NOW_MS)
    assert operations.journal.is_empty


def test_after_a_start_the_last_messages_before_the_end_are_held_for_a_minute_only() -> None:
    operations, queue = opened()
    pop(operations, queue, 1)
    pop(operations, queue, 1, NOW_MS + HANDOVER_MS + 1)
    restarted = PopOperations(operations.table)
    start_ms = NOW_MS + 10_000
    restarted.begin(start_ms)
    for now_ms in range(start_ms, start_ms + 2 * LEASE_MS, 5_000):
        restarted.renew([LEASE], now_ms)
        assert visible(restarted, now_ms) == ([1] if now_ms >= start_ms + LEASE_MS else [])


def test_a_start_gives_every_client_a_minute_to_be_reported() -> None:
    operations, queue = opened()
    pop(operations, queue, 2)
    restarted = PopOperations(operations.table)
    start_ms = NOW_MS + 20 * LEASE_MS
    restarted.begin(start_ms)
    assert visible(restarted, start_ms + LEASE_MS - 1) == []
    assert visible(restarted, start_ms + LEASE_MS) == [0, 1]


def test_a_client_that_pops_and_acknowledges_all_day_takes_no_more_memory() -> None:
    leases = Leases()
    for now_ms in range(NOW_MS, NOW_MS + 50_000):
        leases.add(LEASE, 1)
        leases.renew([LEASE], now_ms + LEASE_MS)
        leases.discard(LEASE, 1)
    assert len(leases._heap) == len(leases._until_ms) == 1
    assert leases.ended(NOW_MS + 1_000_000) == []
    assert (leases._heap, leases._until_ms, len(leases)) == ([], {}, 0)


def test_a_lease_is_a_number_that_another_process_computes_too() -> None:
    assert lease_id("client@1") == 0xFB4D51A054DBF328
    assert lease_id("client@1") != lease_id("client@2")


def test_lost_answers_without_another_one_between_them_are_one_operation_of_the_journal() -> None:
    operations, queue = opened()
    times_ms = [pop(operations, queue, 1, NOW_MS + at) for at in range(6)]
    operations.note_journalled()
    assert operations.lose(LEASE, {*times_ms} - {times_ms[3]}, NOW_MS + 10) == 5
    assert operations.journal.pending == 2
    assert operations.table.leases.rows_of(LEASE) == [3]


def test_what_a_client_may_not_have_got_is_visible_after_a_minute_although_the_client_lives() -> None:
    operations, queue = opened()
    lost_ms = pop(operations, queue, 2)
    received_ms = pop(operations, queue, 1, NOW_MS + 10)
    assert operations.lose(LEASE, {lost_ms}, NOW_MS + 20) == 1
    assert operations.lose(LEASE, {12_345}, NOW_MS + 20) == operations.lose(OTHER, {lost_ms}, NOW_MS + 20) == 0
    assert operations.ack(queue, 1, lost_ms) is Outcome.DONE, "it was received: its handle is valid"
    end_ms = NOW_MS + 20 + LEASE_MS
    for now_ms in range(NOW_MS, end_ms, 5_000):
        operations.renew([LEASE], now_ms)
        assert visible(operations, now_ms) == []
    assert visible(operations, end_ms) == [0]
    assert operations.ack(queue, 2, received_ms) is Outcome.DONE
