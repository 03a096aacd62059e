"""Restores topics that have messages or timers but no configuration, because it was lost or never saved."""

from collections.abc import Iterable, Mapping

from latermq.broker.tables.config_files import TOPICS_PATH
from latermq.broker.tables.topics import Topics
from latermq.message.names import WAITING_TOPICS, is_stored_topic
from latermq.model.topic import Topic
from latermq.store.files.set_aside import Trouble
from latermq.store.queues.consume_queue import ConsumeQueue


def adopt_queues(
    topics: Topics, stored: Iterable[ConsumeQueue], troubles: Iterable[Trouble], default_queues: int
) -> list[str]:
    """Restore the topics that have queues or that a damaged file names. Return their names."""
    lost = [name for trouble in troubles if trouble.path == TOPICS_PATH for name in trouble.lost]
    queues = dict.fromkeys(filter(is_stored_topic, lost), default_queues)
    for queue in stored:
        if topics.find(queue.topic) is None and queue.topic not in WAITING_TOPICS:
            queues[queue.topic] = max(queues.get(queue.topic, 0), queue.queue_id + 1)
    for topic, count in queues.items():
        topics.adopt(Topic(name=topic, read_queues=count, write_queues=count))
    return sorted(queues)


def adopt_timer_topics(topics: Topics, pending: Mapping[str, int]) -> list[str]:
    """Restore topics that only pending timers mention. Otherwise these timers would become dead letters."""
    adopted = [topic for topic, count in pending.items() if count > 0 and topics.find(topic) is None]
    for topic in adopted:
        topics.adopt_lost(topic, 0)
    return adopted
