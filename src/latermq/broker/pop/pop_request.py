"""What a pop asks for, and what it got.

The structs are those of msgspec, which builds them in C: 0.3 µs instead of 1 µs each.
"""

from collections.abc import Sequence

from msgspec import Struct

from latermq.group.filters import EVERYTHING, MessageFilter
from latermq.group.pop.popped_queue import PoppedQueue


class PopRequest(Struct, eq=False):
    """A pop, checked and bounded. It is kept while the pop waits."""

    group: str
    topic: str
    queue_id: int  # -1: all queues
    max_messages: int
    invisible_ms: int
    message_filter: MessageFilter = EVERYTHING
    from_end: bool = False  # where a new group begins
    is_ordered: bool = False
    attempt: int = 0
    lease: int = 0  # 0: none


class PoppedPart(Struct, eq=False):
    """Messages popped from one queue, as records. The queue's topic is the one of the request or a retry topic."""

    queue: PoppedQueue
    offsets: Sequence[int]
    pieces: list[bytes]
    next_offset: int  # where the next pop continues
    counts: Sequence[tuple[int, int]] = ()  # only in order: (offset, earlier deliveries)


class Popped(Struct, eq=False):
    """The progress of a pop through its queues, and its result."""

    request: PopRequest
    now_ms: int
    pop_ms: int
    left: int  # messages that may be added
    left_bytes: int
    parts: list[PoppedPart] = []
    rest: int = 0  # messages left in the queues that the pop looked at
    is_at_end: bool = True  # there is nothing more: the pop may wait
    is_full: bool = False  # a queue has messages, but too many are in flight

    @property
    def messages(self) -> int:
        return self.request.max_messages - self.left

    def take(self, part: PoppedPart) -> None:
        """Add messages of a queue."""
        self.parts.append(part)
        self.left -= len(part.offsets)
        if self.left > 0:
            self.left_bytes -= sum(map(len, part.pieces))
