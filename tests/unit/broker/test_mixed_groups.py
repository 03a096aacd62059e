"""Groups whose members partly pull and partly pop: who gets which message, and where the group's offset is."""

import pytest

from latermq.broker.pop import pulled_queues
from latermq.group.pop.operations import Outcome
from tests.support.mixed_group import GROUP, INVISIBLE_MS, QUEUES, RETRY_QUEUE, TOPIC, MixedGroup, PullMember

FIRST = (TOPIC, 0)
KEEP_MS = int(pulled_queues.KEEP_S * 1_000)


def test_pops_leave_queues_alone_that_a_member_pulls() -> None:
    group = MixedGroup()
    for queue_id in range(QUEUES):
        group.send(2, queue_id)
    member = PullMember(group, "puller")
    member.own(FIRST)
    assert member.pull(FIRST) == ["m0", "m1"]
    assert group.pop_bodies() == ["m2", "m3", "m4", "m5", "m6", "m7"]


def test_pops_take_over_from_the_committed_offset_when_the_member_leaves() -> None:
    group = MixedGroup()
    group.send(4)
    member = PullMember(group, "puller")
    member.own(FIRST)
    member.pull(FIRST)
    member.process(FIRST, 2)
    member.leave()
    assert group.pop_bodies() == ["m2", "m3"]


def test_pops_take_a_queue_over_that_its_member_no_longer_pulls() -> None:
    group = MixedGroup()
    group.send(1)
    member = PullMember(group, "puller")
    member.own(FIRST)
    member.pull(FIRST)
    member.process(FIRST)
    member.give_up(FIRST)
    group.send(1)
    assert group.pop_bodies() == []
    group.advance(2 * KEEP_MS)
    assert group.pop_bodies() == ["m1"]


def test_a_member_that_is_busy_for_long_keeps_its_queue_by_its_commits() -> None:
    group = MixedGroup()
    group.send(2)
    member = PullMember(group, "puller")
    member.own(FIRST)
    member.pull(FIRST)
    group.advance(5 * KEEP_MS)
    assert group.pop_bodies() == []


def test_a_pull_by_a_client_that_is_not_a_member_does_not_keep_pops_away() -> None:
    group = MixedGroup()
    group.send(1)
    member = PullMember(group, "tool")
    group.broker.members.disconnected(member.connection)
    member.own(FIRST)
    assert member.pull(FIRST) == ["m0"]
    assert group.pop_bodies() == ["m0"]


def test_a_pull_skips_messages_in_flight_and_acknowledged_ones() -> None:
    group = MixedGroup()
    group.send(4)
    popped = group.pop(3)
    assert group.ack(*popped[1]) is Outcome.DONE
    member = PullMember(group, "puller")
    member.own(FIRST)
    assert member.queues[FIRST].next_offset == 0
    assert member.pull(FIRST) == ["m3"]
    assert member.queues[FIRST].next_offset == 4


def test_a_pull_that_finds_nothing_but_popped_messages_moves_on() -> None:
    group = MixedGroup()
    group.send(3)
    group.pop()
    member = PullMember(group, "puller")
    member.own(FIRST)
    assert member.pull(FIRST) == []
    assert member.queues[FIRST].next_offset == 3


def test_a_member_that_read_the_offset_before_pops_went_on_gets_nothing_twice() -> None:
    group = MixedGroup()
    group.send(5)
    member = PullMember(group, "puller")
    member.own(FIRST)
    assert member.queues[FIRST].next_offset == 0
    for one in group.pop(3):
        group.ack(*one)
    member.commit(FIRST)
    assert member.pull(FIRST) == ["m3", "m4"]
    assert group.floor(FIRST) == 3


def test_a_member_gets_nothing_twice_that_was_popped_while_the_broker_restarted() -> None:
    """It pulls before its next heartbeat, so it is not known as a member yet."""
    group = MixedGroup()
    group.send(4)
    member = PullMember(group, "puller")
    member.own(FIRST)
    assert member.pull(FIRST, 1) == ["m0"]
    member.process(FIRST)
    member.commit(FIRST)
    group.broker.store.flush()
    group.broker.tables.save()
    group.crash()
    group.broker.members.disconnected(member.connection)
    for one in group.pop(2):
        assert group.ack(*one) is Outcome.DONE
    assert member.pull(FIRST) == ["m3"]


def test_a_pull_from_before_the_offset_of_the_group_ends_at_messages_in_flight() -> None:
    group = MixedGroup()
    group.send(5)
    for one in group.pop(2):
        group.ack(*one)
    group.pop(2)
    member = PullMember(group, "puller")
    member.own(FIRST)
    assert member.pull(FIRST) == ["m4"]
    member.queues[FIRST].next_offset = 0
    assert member.pull(FIRST) == ["m0", "m1"]
    assert member.pull(FIRST) == ["m4"]


def test_a_commit_never_passes_messages_in_flight() -> None:
    group = MixedGroup()
    group.send(4)
    popped = group.pop(2)
    member = PullMember(group, "puller")
    member.own(FIRST)
    assert member.pull(FIRST) == ["m2", "m3"]
    member.process(FIRST)
    member.commit(FIRST)
    assert group.floor(FIRST) == 0
    group.crash()
    assert group.floor(FIRST) == 0
    assert group.ack(*popped[0]) is Outcome.DONE
    assert group.floor(FIRST) == 1
    assert group.ack(*popped[1]) is Outcome.DONE
    assert group.floor(FIRST) == 4
    member.leave()
    assert group.pop_bodies() == []


def test_a_popped_message_whose_time_is_up_goes_to_the_members_that_pull() -> None:
    """They do not read the retry topics of pops."""
    group = MixedGroup()
    group.send(2)
    group.pop()
    member = PullMember(group, "puller")
    member.own(*[(TOPIC, queue_id) for queue_id in range(QUEUES)], RETRY_QUEUE)
    for queue in member.queues:
        assert member.pull(queue) == []
    group.advance(INVISIBLE_MS)
    assert sorted(member.pull(RETRY_QUEUE)) == ["m0", "m1"]
    [first, _] = member.queues[RETRY_QUEUE].messages.values()
    assert first.reconsume_times == 1
    assert first.properties["RETRY_TOPIC"] == TOPIC
    assert group.pop_bodies() == []


def test_pops_get_the_retries_of_pulls_while_no_member_pulls_their_queue() -> None:
    group = MixedGroup()
    group.send(1)
    group.pop()
    member = PullMember(group, "puller")
    member.own(FIRST)
    member.pull(FIRST)
    group.advance(INVISIBLE_MS)
    for _ in range(3):  # first it moves on to the retry topic of pops
        found = group.pop()
        group.advance(1)
        if found:
            break
    assert [(message.body, message.reconsume_times) for message, _ in found] == [(b"m0", 1)]
    assert GROUP in found[0][1].topic


def test_operators_see_what_is_in_flight() -> None:
    group = MixedGroup()
    group.send(5)
    popped = group.pop(4)
    group.ack(*popped[0])
    config = group.broker.topics.require(TOPIC)
    steps = group.broker.group_admin.progress(GROUP, [config])
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            [progress] = stop.value
            break
    first = progress.queues[0]
    assert (first.consumed_offset, first.delivered_offset, first.end_offset) == (1, 4, 5)


def test_the_pulled_queues_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulled_queues, "MAX_QUEUES", 3)
    group = MixedGroup()
    member = PullMember(group, "puller")
    for queue_id in range(QUEUES):
        group.broker.pulled_queues.pull(GROUP, TOPIC, queue_id, 0, member.connection)
    group.broker.pulled_queues.forget_old()
    assert group.broker.statistics()["pulled_queues"] == 0
    assert group.broker.pulled_queues.overflows == 1
