"""Execution of the caller's message handler: concurrently, or one message at a time per queue."""

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Protocol

from latermq.client.consumer.assigned_queue import AssignedQueue
from latermq.client.consumer.consumer_settings import ConsumerSettings
from latermq.client.producer.compression import BodyLimiter
from latermq.client.session.session import Session
from latermq.errors import LaterMQError
from latermq.message.compression import UnreadableBody
from latermq.message.names import RETRY_PREFIX
from latermq.message.properties import RETRY_TOPIC
from latermq.message.record import Message
from latermq.message.record_fields import SYSFLAG_COMPRESSED
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.queues import MessageQueue
from latermq.retry import pause_after

_log = logging.getLogger("latermq.client")

Handler = Callable[[Message], Awaitable[None] | None]

BROKER_DECIDES = 0  # delay level of a send-back: the broker chooses the next one
DEAD_LETTER = -1
SUSPEND_S = 1.0
FIRST_LOCAL_PAUSE_S, LONGEST_LOCAL_PAUSE_S = 1.0, 30.0
UNLOCKED_PAUSE_S = 0.1
# Plain functions never yield to the event loop. After this many messages a worker yields for heartbeats and pulls.
YIELD_EVERY = 64


class Reject(Exception):
    """Raised by a handler: no retry can help, so the message goes to the dead letters of its group at once."""


async def run_handler(handler: Handler, message: Message) -> None:
    """Call the handler. A retried message gets its original topic back first."""
    if message.topic.startswith(RETRY_PREFIX):
        message.topic = message.properties.get(RETRY_TOPIC, message.topic)
    try:
        result = handler(message)
        if inspect.isawaitable(result):
            await result
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # This task itself was not cancelled. If the error propagated, the worker would end and its messages would
        # never be handled.
        raise RuntimeError("a task that the handler waited for was cancelled") from error


class HandlerResult(Enum):
    """The outcome of one attempt to handle a message."""

    SUCCEEDED = 1
    FAILED = 2
    REJECTED = 3
    UNREADABLE = 4  # its body can never be decompressed; in orderly mode it would block its queue forever


class HandlerRunner(Protocol):
    """A strategy for running the handler."""

    def start(self) -> None: ...

    def deliver(self, assigned: AssignedQueue, messages: list[Message]) -> None: ...

    def statistics(self) -> dict[str, int]: ...


class _BaseRunner:
    def __init__(self, session: Session, settings: ConsumerSettings, handler: Handler) -> None:
        self._session = session
        self._settings = settings
        self._handler = handler
        self._body_limiter = BodyLimiter(settings.max_body_bytes)
        self._handled = 0
        self._failed = 0
        self._sent_back = 0

    def statistics(self) -> dict[str, int]:
        return {
            "handled": self._handled,
            "failed": self._failed,
            "sent_back": self._sent_back,
            **self._body_limiter.statistics(),
        }

    async def _run(self, assigned: AssignedQueue, message: Message) -> HandlerResult:
        assigned.handler_started()
        readable = message
        try:
            if message.sysflag & SYSFLAG_COMPRESSED:
                # A copy: the message kept for a retry stays compressed.
                readable = await self._body_limiter.decompress(message)
            await run_handler(self._handler, readable)
        except UnreadableBody as error:
            self._failed += 1
            _log.warning("cannot handle a message of %s: %s", assigned.queue, error.remark)
            return HandlerResult.UNREADABLE if error.is_final else HandlerResult.FAILED
        except Reject as reason:
            self._failed += 1
            _log.warning("the handler rejected %s at offset %d: %s", assigned.queue, message.queue_offset, reason)
            return HandlerResult.REJECTED
        except Exception:  # any exception from the handler means failure
            self._failed += 1
            _log.warning("the handler failed on %s at offset %d", assigned.queue, message.queue_offset, exc_info=True)
            return HandlerResult.FAILED
        finally:
            if readable is not message:
                message.topic = readable.topic
                self._body_limiter.release(readable)
            assigned.handler_ended()
            assigned.handled_ms = time.time_ns() // 1_000_000
        self._handled += 1
        return HandlerResult.SUCCEEDED

    async def _send_back(self, queue: MessageQueue, message: Message, delay_level: int) -> None:
        max_times = self._settings.max_reconsume_times
        # Without a limit in this consumer's settings, the group's limit applies.
        limit = {} if max_times is None else {"maxReconsumeTimes": str(max_times)}
        await self._session.connections.call(
            await self._session.routes.broker_address(queue),
            Request.CONSUMER_SEND_MSG_BACK,
            {
                "offset": str(message.physical_offset),
                "group": self._settings.group,
                "delayLevel": str(delay_level),
                "originMsgId": message.message_id,
                "originTopic": message.topic,
                "unitMode": "false",
                **limit,
            },
            timeout_s=self._session.request_timeout_s,
        )
        self._sent_back += 1


class ConcurrentRunner(_BaseRunner):
    """Runs `concurrency` workers. A failed message is sent back to its broker, which redelivers it later."""

    def __init__(self, session: Session, settings: ConsumerSettings, handler: Handler) -> None:
        super().__init__(session, settings, handler)
        # Bounded by the cache limits of the assigned queues.
        self._queue: asyncio.Queue[tuple[AssignedQueue, int, Message]] = asyncio.Queue()

    def start(self) -> None:
        for _ in range(self._settings.concurrency):
            self._session.spawn(self._work())

    def deliver(self, assigned: AssignedQueue, messages: list[Message]) -> None:
        for message in messages:
            self._queue.put_nowait((assigned, assigned.generation, message))

    async def _work(self) -> None:
        count = 0
        while True:
            assigned, generation, message = await self._queue.get()
            if assigned.dropped or assigned.generation != generation:
                continue
            result = await self._run(assigned, message)
            if result == HandlerResult.SUCCEEDED:
                assigned.remove(message, generation)
            else:
                level = DEAD_LETTER if result == HandlerResult.REJECTED else BROKER_DECIDES
                await self._return_to_broker(assigned, generation, message, level)
            count += 1
            if count % YIELD_EVERY == 0:
                await asyncio.sleep(0)

    async def _return_to_broker(
        self, assigned: AssignedQueue, generation: int, message: Message, delay_level: int
    ) -> None:
        if not self._settings.is_clustering:
            _log.warning(
                "dropped the message in %s at offset %d: broadcasting has no retries",
                assigned.queue,
                message.queue_offset,
            )
            assigned.remove(message, generation)
            return
        try:
            await self._send_back(assigned.queue, message, delay_level)
        except LaterMQError as error:
            # The message stays cached, so the committed offset cannot pass it. It is retried here or by the next
            # holder of the queue.
            pause_s = pause_after(message.reconsume_times, FIRST_LOCAL_PAUSE_S, LONGEST_LOCAL_PAUSE_S)
            message.reconsume_times += 1
            _log.warning("cannot send a failed message back; retrying it here in %.1f s: %s", pause_s, error)
            self._session.spawn(self._requeue_later(assigned, generation, message, pause_s))
        else:
            assigned.remove(message, generation)

    async def _requeue_later(self, assigned: AssignedQueue, generation: int, message: Message, pause_s: float) -> None:
        await asyncio.sleep(pause_s)
        self._queue.put_nowait((assigned, generation, message))


class OrderlyRunner(_BaseRunner):
    """Handles one message at a time per queue. A failed message blocks its queue and is retried after SUSPEND_S."""

    def __init__(self, session: Session, settings: ConsumerSettings, handler: Handler) -> None:
        super().__init__(session, settings, handler)
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._readers: set[AssignedQueue] = set()

    def start(self) -> None:
        """Do nothing: readers start when their queue is assigned."""

    def deliver(self, assigned: AssignedQueue, messages: list[Message]) -> None:
        if assigned not in self._readers:
            self._readers.add(assigned)
            task = self._session.spawn(self._read(assigned))
            task.add_done_callback(lambda done: self._readers.discard(assigned))
        assigned.ordered_messages.extend(messages)
        assigned.arrived.set()

    async def _read(self, assigned: AssignedQueue) -> None:
        count = 0
        while not assigned.dropped:
            if not assigned.ordered_messages:
                assigned.arrived.clear()
                await assigned.arrived.wait()
            elif self._settings.is_clustering and assigned.locked_until_s <= time.monotonic():
                await asyncio.sleep(UNLOCKED_PAUSE_S)
            elif not await self._handle_first(assigned):
                await asyncio.sleep(SUSPEND_S)
            else:
                count += 1
                if count % YIELD_EVERY == 0:
                    await asyncio.sleep(0)

    async def _handle_first(self, assigned: AssignedQueue) -> bool:
        """Handle the first message. Return whether the queue can continue with the next one."""
        message, generation = assigned.ordered_messages[0], assigned.generation
        async with self._slots:
            if assigned.dropped or assigned.generation != generation:
                return True
            result = await self._run(assigned, message)
        finished = result == HandlerResult.SUCCEEDED or await self._settle_failure(assigned, message, result)
        if finished and assigned.generation == generation:
            assigned.ordered_messages.popleft()
            assigned.remove(message, generation)
        return finished or assigned.generation != generation

    async def _settle_failure(self, assigned: AssignedQueue, message: Message, result: HandlerResult) -> bool:
        """Move a message that failed too often, or can never be handled, to the dead letters.

        Return whether the queue is done with the message. Broadcasting has no dead letters: it drops the message.
        """
        max_times = self._settings.max_reconsume_times
        may_retry = max_times is None or message.reconsume_times < max_times
        if may_retry and result == HandlerResult.FAILED:
            message.reconsume_times += 1
            return False
        if not self._settings.is_clustering:
            return True
        try:
            await self._send_back(assigned.queue, message, DEAD_LETTER)
        except LaterMQError as error:
            _log.warning("cannot move a message to the dead letters, so its queue is blocked: %s", error)
            return False
        return True
