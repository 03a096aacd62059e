"""The topics of this broker: created by operators, or auto-created by a message."""

from latermq.clock import Clock
from latermq.config import MAX_TOPIC_QUEUES, BrokerConfig
from latermq.errors import Busy, IllegalMessage, NoPermission, TopicNotFound
from latermq.group.auto_created import AutoCreated
from latermq.message.names import (
    AUTO_CREATE_TOPIC,
    BENCHMARK_TOPIC,
    OFFSET_MOVED_TOPIC,
    RETRY_PREFIX,
    SELF_TEST_TOPIC,
    TIMER_DEAD_LETTER_TOPIC,
    TIMER_TOPIC,
    check_sendable_topic,
    check_topic,
    is_stored_topic,
    is_system_topic,
)
from latermq.model.topic import INHERIT, READ, WRITE, Topic, TopicTable

MAX_QUEUES = MAX_TOPIC_QUEUES  # limit for tables on disk; broker.max_topic_queues applies to new topics
MESSAGE_TYPE = "message.type"  # the attribute with the type of a topic's messages
_FEW_VERSIONS = 64


class UnsavedTopic(Exception):
    """The topic of a message is not saved yet. Nothing was stored: try again once the topic is saved."""


class Topics:
    """The table behind topics.json."""

    def __init__(self, table: TopicTable, config: BrokerConfig, clock: Clock, auto_created: AutoCreated) -> None:
        self.table = table
        self._config = config
        self._clock = clock
        self.changed = False
        # Auto-created retry topics may be unused, because they are created before their first message.
        self.auto_created = auto_created
        self.unsaved: set[str] = set()  # names changed since the table was last encoded
        # Changes are numbered, and each topic has the number of its last one. It is saved once the file includes it.
        self.version = self.saved_version = 0
        self._versions: dict[str, int] = {}
        self._versions_limit = _FEW_VERSIONS
        # Saved topics that accept messages without further checks. Nearly every send finds its topic here.
        self.open: dict[str, Topic] = {}
        # Set with every change, for the registration with the name servers.
        self.needs_registration = False
        # Removed, but their files still exist. They cannot be created again before the files are deleted.
        self.pending_deletions: set[str] = set()
        # The file could not be parsed and there was no backup, so a missing topic may have existed.
        self.is_lost = False
        self._add_system_topics()
        self.unsaved.update(table.topics)

    def _add_system_topics(self) -> None:
        topics = self.table.topics
        for name, queues in ((SELF_TEST_TOPIC, 1), (BENCHMARK_TOPIC, 1024), (OFFSET_MOVED_TOPIC, 1)):
            topics.setdefault(name, Topic(name=name, read_queues=queues, write_queues=queues))
        # The timer topic cannot be consumed, but clients that look up a timer need its route.
        for name in (TIMER_TOPIC, TIMER_DEAD_LETTER_TOPIC):
            topics[name] = Topic(name=name, read_queues=1, write_queues=1, permissions=READ)
        # Clusters and brokers have topics of their own, by which operators' tools find them.
        for name in (self._config.cluster, self._config.name):
            topics.setdefault(name, Topic(name=name, read_queues=1, write_queues=1, permissions=7))
        if self._config.auto_create_topics:
            queues = self._config.default_queues
            topics[AUTO_CREATE_TOPIC] = Topic(
                name=AUTO_CREATE_TOPIC,
                read_queues=queues,
                write_queues=queues,
                permissions=READ | WRITE | INHERIT,
                attributes={MESSAGE_TYPE: self._config.auto_topic_type},
            )
        else:
            topics.pop(AUTO_CREATE_TOPIC, None)

    def find(self, topic: str) -> Topic | None:
        """The topic of this name, or None."""
        return self.table.topics.get(topic)

    def require(self, topic: str) -> Topic:
        """The topic, which must exist."""
        found = self.table.topics.get(topic)
        if found is None:
            raise TopicNotFound(f"topic {topic!r} does not exist", hint=f"Run `latermq topic create {topic}`")
        return found

    def readable_queue(self, topic: str, queue_id: int) -> int | str:
        """The queue that receives a delayed message for this queue, or the reason why there is none.

        The topic may have fewer queues by now. All messages of a removed queue go to the same remaining queue, which
        preserves their order.
        """
        config = self.table.topics.get(topic)
        if config is None and self.is_lost and is_stored_topic(topic):
            config = self.adopt_lost(topic, queue_id)
        if config is None:
            return f"topic {topic!r} does not exist"
        if queue_id < config.read_queues:
            return queue_id
        staying = min(config.read_queues, config.write_queues)
        queues = staying if staying > 0 else config.read_queues
        return queue_id % queues if queues > 0 else f"topic {topic!r} has no queue to read from"

    def for_send(self, topic: str, default_topic: str, default_queues: int, by: bytes = b"") -> Topic:
        """The topic of a message that is being sent. It is auto-created for the host `by` if that is allowed."""
        check_sendable_topic(topic)
        config = self.table.topics.get(topic)
        if config is None:
            config = self._make_on_the_way(topic, default_topic, default_queues, by)
        if not config.permissions & WRITE:
            raise NoPermission(f"topic {topic!r} is not writable", hint="Change its permission with updateTopic -p 6")
        if self.auto_created.use(topic):
            # Saved before the message is acknowledged, because a crash must not lose a topic with pending messages.
            self._touch(topic)
        return config

    def is_saved(self, topic: str) -> bool:
        """Whether a crash would preserve the topic's current state."""
        return self._versions.get(topic, 0) <= self.saved_version

    def _make_on_the_way(self, topic: str, default_topic: str, default_queues: int, by: bytes) -> Topic:
        if topic.startswith(RETRY_PREFIX):
            return self.create_retry_topic(topic, 1, by)
        template = self.table.topics.get(default_topic or AUTO_CREATE_TOPIC)
        if template is None or not template.permissions & INHERIT:
            raise TopicNotFound(
                f"topic {topic!r} does not exist, and auto-creation is disabled",
                hint=f"Run `latermq topic create {topic}`, or set broker.auto_create_topics=true",
            )
        queues = max(1, min(default_queues, template.write_queues))
        perm = template.permissions & ~INHERIT
        self.auto_created.check(by)
        # Of the attributes, only the type is inherited: others may concern the template alone.
        types = {name: value for name, value in template.attributes.items() if name == MESSAGE_TYPE}
        config = self.put(
            Topic(name=topic, read_queues=queues, write_queues=queues, permissions=perm, attributes=types)
        )
        # It counts as used even if its message is rejected after this.
        self.auto_created.add(by, topic, unused=False)
        return config

    def create_retry_topic(self, topic: str, queues: int, by: bytes = b"") -> Topic:
        """A group's retry or dead-letter topic, created if it is missing. It is unused until its first message."""
        found = self.table.topics.get(topic)
        if found is not None:
            return found
        check_topic(topic)
        self.auto_created.check(by)
        config = self.put(Topic(name=topic, read_queues=queues, write_queues=queues))
        self.auto_created.add(by, topic, unused=True)
        return config

    def put(self, topic: Topic) -> Topic:
        """Create or change a topic."""
        check_topic(topic.name)
        table = self.table.topics
        self._check_queues(topic, table.get(topic.name))
        if topic.name in self.pending_deletions:
            raise Busy(f"topic {topic.name!r} is being deleted", hint="Try again in a moment")
        if topic.name not in table and len(table) >= self._config.max_topics:
            raise NoPermission(
                f"there are {len(table)} topics, which is the limit (broker.max_topics)",
                hint="Delete unused topics, or raise broker.max_topics",
            )
        table[topic.name] = topic
        self.auto_created.use(topic.name)
        self._touch(topic.name)
        return topic

    def _check_queues(self, topic: Topic, before: Topic | None) -> None:
        """A topic with more queues than a new one may have keeps them. Its other settings can be changed."""
        allowed = self._config.max_topic_queues
        if before is not None:
            allowed = max(allowed, before.read_queues, before.write_queues)
        for count in (topic.read_queues, topic.write_queues):
            if not 1 <= count <= allowed:
                raise IllegalMessage(
                    f"topic {topic.name!r} cannot have {count} queues; the number must be 1 to {allowed}",
                    hint="Use fewer queues, or raise broker.max_topic_queues",
                )

    def adopt(self, topic: Topic) -> None:
        """Restore a topic that has messages but lost its configuration, regardless of the limits for new topics."""
        if not is_stored_topic(topic.name):
            return  # RocketMQ does not create such a topic either, and no client could use it
        self.table.topics[topic.name] = topic
        self._touch(topic.name)

    def adopt_lost(self, topic: str, queue_id: int) -> Topic:
        """Restore a topic of which only a pending message for this queue is known."""
        queues = max(self._config.default_queues, min(queue_id + 1, MAX_QUEUES))
        config = Topic(name=topic, read_queues=queues, write_queues=queues)
        self.adopt(config)
        return config

    def check_removable(self, topic: str) -> None:
        """Reject the deletion of an invalid name, because paths contain it, and of the broker's own topics."""
        if not is_stored_topic(topic):
            check_topic(topic)
        if is_system_topic(topic):
            raise NoPermission(f"topic {topic!r} is reserved for the broker")

    def remove(self, topic: str) -> None:
        """Remove a topic."""
        self.check_removable(topic)
        if self.table.topics.pop(topic, None) is not None:
            self.auto_created.use(topic)
            self._touch(topic)

    def _touch(self, topic: str) -> None:
        self.table.version.bump(self._clock.now_ms())
        self.version += 1
        if len(self._versions) >= 2 * self._versions_limit:  # rarely, since a heartbeat may create a thousand topics
            saved = self.saved_version
            self._versions = {name: version for name, version in self._versions.items() if version > saved}
            self._versions_limit = max(_FEW_VERSIONS, len(self._versions))
        self._versions[topic] = self.version
        self.unsaved.add(topic)
        self.open.clear()
        self.changed = True
        self.needs_registration = True

    def names(self) -> list[str]:
        """The names of all topics, sorted."""
        return sorted(self.table.topics)
