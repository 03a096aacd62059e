"""One queue assigned to a push consumer: its position, its cached messages and its flow control."""

import asyncio
from collections import OrderedDict, deque

from latermq.message.record import Message
from latermq.protocol.remoting.clients import SubscriptionData
from latermq.protocol.remoting.queues import MessageQueue


class AssignedQueue:
    """The state shared by a queue's pulls, handlers and commits.

    `generation` changes when the position is reset. Results of an older generation are ignored.
    """

    def __init__(
        self, queue: MessageQueue, data: SubscriptionData, offset: int, max_messages: int, max_bytes: int
    ) -> None:
        self.queue = queue
        self.data = data
        self.next_offset = offset
        self.generation = 0
        self.dropped = False
        self.running_handlers = 0  # handlers running on this queue now
        self.saved_offset: int | None = None  # the offset in the offset store
        self.locked_until_s = 0.0
        self.pulled_ms = 0
        self.handled_ms = 0
        self.pull_task: asyncio.Task[None] | None = None
        self.ordered_messages: deque[Message] = deque()  # messages that an orderly consumer has not finished yet
        self.arrived = asyncio.Event()
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._cached: OrderedDict[int, int] = OrderedDict()  # offset → bytes of each unhandled message
        self._cached_bytes = 0
        self._changed = asyncio.Event()

    @property
    def position(self) -> int:
        """The offset to commit: all messages before it are handled."""
        return next(iter(self._cached)) if self._cached else self.next_offset

    @property
    def cached_messages(self) -> int:
        return len(self._cached)

    @property
    def cached_bytes(self) -> int:
        return self._cached_bytes

    @property
    def is_full(self) -> bool:
        return len(self._cached) >= self._max_messages or self._cached_bytes >= self._max_bytes

    def add(self, messages: list[Message], next_offset: int) -> None:
        """Add the messages of a pull to the cache."""
        for message in messages:
            self._cached[message.queue_offset] = message.size_bytes
            self._cached_bytes += message.size_bytes
        self.next_offset = next_offset

    def remove(self, message: Message, generation: int) -> None:
        """Remove a finished message from the cache."""
        if generation == self.generation:
            self._cached_bytes -= self._cached.pop(message.queue_offset, 0)
            self._changed.set()

    def seek(self, offset: int) -> None:
        """Continue at another offset and discard the cached messages."""
        self.generation += 1
        self.next_offset = offset
        self._cached.clear()
        self._cached_bytes = 0
        self.ordered_messages.clear()
        self._changed.set()

    def drop(self) -> None:
        """Stop pulling and start no more handlers for this queue."""
        self.dropped = True
        self.arrived.set()
        self._changed.set()
        if self.pull_task is not None:
            self.pull_task.cancel()

    def handler_started(self) -> None:
        self.running_handlers += 1

    def handler_ended(self) -> None:
        self.running_handlers -= 1
        self._changed.set()

    async def wait_for_space(self) -> None:
        """Wait until the cache has space for the next pull."""
        while self.is_full and not self.dropped:
            self._changed.clear()
            await self._changed.wait()

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no handler runs on this queue. Return False on timeout."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.running_handlers:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True
