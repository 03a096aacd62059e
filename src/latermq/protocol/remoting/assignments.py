"""Requests about queue assignments, which clients that leave rebalancing to the broker send."""

from typing import Annotated

from msgspec import Meta, Struct, field

from latermq.protocol.remoting.queues import MessageQueue


class AssignmentQuery(Struct, kw_only=True):
    """QUERY_ASSIGNMENT (400)."""

    topic: str
    consumerGroup: str
    clientId: str
    strategyName: Annotated[str, Meta(max_length=64)] = "AVG"
    messageModel: Annotated[str, Meta(max_length=64)] = "CLUSTERING"


class QueueAssignment(Struct, kw_only=True):
    """One queue, and whether the client pulls it or pops from it."""

    messageQueue: MessageQueue
    mode: str = "PULL"
    attachments: dict[str, str] | None = None


class QueueAssignments(Struct, kw_only=True):
    """The answer. Without a list, the client keeps its assignments."""

    messageQueueAssignments: list[QueueAssignment] | None = field(default=None)
