"""Handles of deliveries in the same millisecond: a handle from before a change never ends a delivery after it."""

from latermq.group.pop.operations import Outcome
from latermq.model.topic import Topic
from tests.support.mixed_group import GROUP, QUEUES, TOPIC, MixedGroup


def test_a_handle_of_a_deleted_topic_does_not_acknowledge_a_message_of_the_new_one() -> None:
    group = MixedGroup()
    group.send()
    [(message, old)] = group.pop()
    for work in group.broker.topic_admin.delete(TOPIC):
        work()
    group.broker.topics.put(Topic(name=TOPIC, read_queues=QUEUES, write_queues=QUEUES))
    group.send()
    [(new_message, new)] = group.pop()
    assert (old.offset, new_message.body) == (new.offset, b"m1")
    assert group.ack(message, old) is not Outcome.DONE
    group.crash()
    assert group.ack(message, old) is not Outcome.DONE
    assert group.ack(new_message, new) is Outcome.DONE


def test_a_handle_of_a_deleted_group_does_not_acknowledge_a_message_of_the_new_one() -> None:
    group = MixedGroup()
    group.send()
    [(message, old)] = group.pop()
    group.broker.group_admin.delete(GROUP, clean_offsets=True)
    group.broker.groups.require(GROUP)
    [(again, new)] = group.pop()
    assert old.offset == new.offset
    assert group.ack(message, old) is not Outcome.DONE
    assert group.ack(again, new) is Outcome.DONE


def test_a_handle_from_before_a_reset_does_not_acknowledge_the_next_delivery() -> None:
    group = MixedGroup()
    group.send()
    [(message, old)] = group.pop()
    group.broker.pop_positions.reset(GROUP, TOPIC, 0, 0)
    [(again, new)] = group.pop()
    assert group.ack(message, old) is not Outcome.DONE
    assert group.ack(again, new) is Outcome.DONE
