"""What a pop asks for, and what it got."""

from collections.abc import Sequence

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


class PoppedPart:
    """Messages popped from one queue, as records. The queue's topic is the one of the request or a retry topic."""

    __slots__ = ("counts", "next_offset", "offsets", "pieces", "queue")

    def __init__(self, queue: PoppedQueue, offsets: Sequence[int], pieces: list[bytes], next_offset: int) -> None:
        self.queue = queue
        self.offsets = offsets
        self.pieces = pieces
        self.next_offset = next_offset  # where the next pop continues
        self.counts: list[tuple[int, int]] = []  # only in order: (offset, earlier deliveries)


class Popped:
    """The progress of a pop through its queues, and its result."""

    __slots__ = ("is_at_end", "is_full", "left", "left_bytes", "now_ms", "parts", "pop_ms", "request", "rest")

    def __init__(self, request: PopRequest, now_ms: int, max_bytes: int) -> None:
        self.request = request
        self.now_ms = self.pop_ms = now_ms
        self.parts: list[PoppedPart] = []
        self.left = request.max_messages
        self.left_bytes = max_bytes
        self.rest = 0  # messages left in the queues that the pop looked at
        self.is_at_end = True  # there is nothing more: the pop may wait
        self.is_full = False  # a queue has messages, but too many are in flight

    @property
    def messages(self) -> int:
        return self.request.max_messages - self.left

    def take(self, part: PoppedPart) -> None:
        """Add messages of a queue."""
        self.parts.append(part)
        self.left -= len(part.offsets)
        if self.left > 0:
            self.left_bytes -= sum(map(len, part.pieces))
