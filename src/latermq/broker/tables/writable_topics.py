"""Finds or auto-creates the topics of messages, and saves them before their first message."""

from collections.abc import Callable

from latermq.broker.messages.write_gate import WriteGate
from latermq.broker.tables.topics import Topics, UnsavedTopic
from latermq.model.topic import Topic


def reject_unsaved() -> None:
    """Reject the message; the caller tries again after the tables are saved off the event loop."""
    raise UnsavedTopic


class WritableTopics:
    """Checks that a topic may be written to, and opens it for the fast paths (`Topics.open`)."""

    def __init__(self, topics: Topics, gate: WriteGate, save: Callable[[], None]) -> None:
        """`save` saves the tables at once, or raises UnsavedTopic if the caller must not wait for the disk."""
        self._topics = topics
        self.gate = gate
        self._save = save
        self.open = topics.open

    def find(
        self, topic: str, default_topic: str, default_queues: int, *, is_retry: bool = False, by: bytes = b""
    ) -> Topic:
        """The topic of a message, auto-created for the host `by` if it is missing."""
        self.gate.check(is_retry=is_retry)
        config = self._topics.for_send(topic, default_topic, default_queues, by)
        if not self._topics.is_saved(topic):
            # If a crash lost the topic, a message that waits for it could not be delivered: the topic is saved first.
            self._save()
        self.open[topic] = config
        return config

    def create_retry_topic(self, topic: str, queues: int, by: bytes) -> None:
        """Create a group's retry or dead-letter topic if it is missing; raise an error if it is not writable."""
        self._topics.create_retry_topic(topic, queues, by)
        self.find(topic, "", queues, is_retry=True)
