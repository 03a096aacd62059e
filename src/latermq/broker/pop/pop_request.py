"""What a pop asks for, and what it got."""

from typing import NamedTuple

from latermq.group.filters import EVERYTHING, MessageFilter
from latermq.group.pop.popped_queue import PoppedQueue


class PopRequest:
    """A pop, checked and bounded. It is kept while the pop waits."""

    __slots__ = (
        "attempt", "from_end", "group", "invisible_ms", "is_ordered", "lease", "max_messages", "message_filter",
        "queue_id", "topic",
    )  # fmt: skip

    def __init__(
        self,
        group: str,
        topic: str,
        queue_id: int,
        max_messages: int,
        invisible_ms: int,
        *,
        message_filter: MessageFilter = EVERYTHING,
        from_end: bool = False,
        is_ordered: bool = False,
        attempt: int = 0,
        lease: int = 0,
    ) -> None:
        """`queue_id` is -1 for all queues. `from_end` is where a new group begins. `lease` is 0 if there is none."""
        self.group = group
        self.topic = topic
        self.queue_id = queue_id
        self.max_messages = max_messages
        self.invisible_ms = invisible_ms
        self.message_filter = message_filter
        self.from_end = from_end
        self.is_ordered = is_ordered
        self.attempt = attempt
        self.lease = lease


class PoppedPart(NamedTuple):
    """Messages popped from one queue, as records."""

    topic: str  # where they are stored: the topic itself or a retry topic
    queue: PoppedQueue
    offsets: list[int]
    pieces: list[bytes]
    counts: list[tuple[int, int]]  # only in order: (offset, earlier deliveries)


class Popped(NamedTuple):
    """The result of a pop."""

    pop_ms: int
    parts: list[PoppedPart]
    rest: int  # messages left in the queues that the pop looked at
    is_at_end: bool  # there is nothing more: the pop may wait

    @property
    def messages(self) -> int:
        return sum([len(part.offsets) for part in self.parts])
