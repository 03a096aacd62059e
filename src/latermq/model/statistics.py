"""The progress of queues and groups, for operators."""

from msgspec import Struct


class QueueState(Struct):
    """The first and the next offset of a queue, and the time of its last message."""

    min_offset: int = 0
    max_offset: int = 0
    stored_ms: int = 0


class TopicState(Struct):
    """The queues of a topic in the order of their ids, and the number of incoming messages per second."""

    topic: str
    queues: list[QueueState]
    per_second: float


class QueueProgress(Struct):
    """The end of a queue, the offset of a group in it, and the store time of the message it consumed last.

    Messages before `delivered_offset` were popped. Some of them are in flight if it is beyond the group's offset.
    """

    end_offset: int
    consumed_offset: int
    consumed_ms: int
    delivered_offset: int


class TopicProgress(Struct):
    """The progress of a group in each queue of a topic, and the number of messages it pulls per second."""

    topic: str
    queues: list[QueueProgress]
    per_second: float


class QueueTimes(Struct):
    """Store times of the first, the last and the last consumed message of a queue, and how far a group lags behind."""

    first_ms: int
    last_ms: int
    consumed_ms: int
    late_ms: int
