"""How far queues and groups are, as operators ask for it."""

from msgspec import Struct


class QueueState(Struct):
    """The first offset of a queue, the next one, and when it last got a message."""

    min_offset: int = 0
    max_offset: int = 0
    stored_ms: int = 0


class TopicState(Struct):
    """The queues of a topic in the order of their ids, and how many messages come per second."""

    topic: str
    queues: list[QueueState]
    per_second: float


class QueueProgress(Struct):
    """The end of a queue, how far a group is in it, and when what it consumed last was stored."""

    end_offset: int
    consumed_offset: int
    consumed_ms: int


class TopicProgress(Struct):
    """How far a group is in each queue of a topic, and how many messages it pulls per second."""

    topic: str
    queues: list[QueueProgress]
    per_second: float


class QueueTimes(Struct):
    """When the first, the last and the last consumed message of a queue were stored, and how late a group is."""

    first_ms: int
    last_ms: int
    consumed_ms: int
    late_ms: int
