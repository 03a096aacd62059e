"""Retry topics and groups that clients auto-created and nobody used: they go away again."""

from latermq.broker.broker import Broker
from latermq.message.names import dead_letter_topic, group_of, retry_topic

_LOOKED_AT_ONCE = 500  # about 1 ms


def remove_unused(broker: Broker) -> tuple[int, int]:
    """Forget what nobody has been seen with for broker.keep_unused; how many topics and groups.

    A topic counts as used from its first message on (`Topics.for_send`). One that goes has no file and no record, and
    is made again by the next heartbeat of its group.
    """
    idle_s = broker.config.broker.keep_unused / 1000
    counts = _remove_topics(broker, idle_s), _remove_groups(broker, idle_s)
    for kind in (broker.topics.auto_created, broker.groups.auto_created):
        kind.forget_old()
    return counts


def _remove_topics(broker: Broker, idle_s: float) -> int:
    removed, names = 0, broker.topics.auto_created
    for topic in names.idle(idle_s, _LOOKED_AT_ONCE):
        group = group_of(topic)
        if broker.members.consumer_group(group) is not None:
            names.see(topic)
        elif broker.offsets.has_any(group) or broker.offsets.groups_of(topic) or broker.timers.pending[topic]:
            names.use(topic)
        else:
            broker.topics.remove(topic)
            removed += 1
    return removed


def _remove_groups(broker: Broker, idle_s: float) -> int:
    removed, names = 0, broker.groups.auto_created
    for group in names.idle(idle_s, _LOOKED_AT_ONCE):
        own = (broker.topics.find(topic) for topic in (retry_topic(group), dead_letter_topic(group)))
        if broker.members.consumer_group(group) is not None:
            names.see(group)
        elif broker.offsets.has_any(group) or any(topic is not None for topic in own):
            names.use(group)
        else:
            broker.groups.remove(group)
            removed += 1
    return removed
