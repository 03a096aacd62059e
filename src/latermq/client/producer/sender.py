"""In-flight sends of a producer: limits, queue selection, matching of responses, and retries."""

import asyncio
import contextlib
import os
from collections import deque

from latermq.client.producer.outgoing import SendFrames, SendResponse, SendResult
from latermq.client.producer.shards import shard_index
from latermq.client.session.failures import (
    AccessRefused,
    BrokerFailed,
    ConnectionLost,
    RequestTimedOut,
    error_from_wire,
)
from latermq.client.session.routes import DEFAULT_TOPIC_QUEUES, Route
from latermq.client.session.session import Session
from latermq.errors import Busy, IllegalMessage, LaterMQError, MalformedRequest
from latermq.message.names import check_sendable_topic
from latermq.protocol.remoting.codes import Response
from latermq.protocol.remoting.frames import Command
from latermq.protocol.remoting.queues import MessageQueue
from latermq.retry import Backoff, pause_after

# The Java producer retries after these codes, on another broker if possible.
RETRY_CODES = frozenset({
    Response.SYSTEM_ERROR, Response.SYSTEM_BUSY, Response.SERVICE_NOT_AVAILABLE,
    Response.NO_PERMISSION, Response.TOPIC_NOT_EXIST,
})  # fmt: skip
STALE_ROUTE_CODES = frozenset({Response.NO_PERMISSION, Response.TOPIC_NOT_EXIST})
RETRY_PAUSE_S = 0.05
LONGEST_RETRY_PAUSE_S = 0.5
MAX_TOPICS = 10_000

_STATUS: dict[int, str] = {
    Response.SUCCESS: "SEND_OK",
    Response.FLUSH_DISK_TIMEOUT: "FLUSH_DISK_TIMEOUT",
    Response.SLAVE_NOT_AVAILABLE: "SLAVE_NOT_AVAILABLE",
    Response.FLUSH_SLAVE_TIMEOUT: "FLUSH_SLAVE_TIMEOUT",
}


class PendingSend:
    """One message from `submit` until its result."""

    __slots__ = (
        "attempts", "body", "born_ms", "code", "deadline_s", "due_s", "flag", "future", "last_broker", "pinned",
        "properties", "queue", "sender", "shard", "size_bytes", "sysflag", "topic", "unique_key",
    )  # fmt: skip

    sender: "Sender"
    topic: "SendTopic"
    future: "asyncio.Future[SendResult]"
    code: int
    body: bytes
    properties: str
    sysflag: int
    flag: int
    born_ms: int
    unique_key: str
    queue: MessageQueue
    pinned: MessageQueue | None
    shard: str | int | None
    attempts: int
    deadline_s: float
    due_s: float
    last_broker: str
    size_bytes: int

    def on_response(self, response: Command | LaterMQError) -> None:
        if isinstance(response, LaterMQError):
            self.sender.on_failure(self, response, isinstance(response, ConnectionLost))
            return
        status = _STATUS.get(response.code)
        if status is None:
            error = error_from_wire(response.code, response.remark, self.queue.brokerName)
            retry = response.code in RETRY_CODES and not isinstance(error, AccessRefused)
            self.sender.on_failure(self, error, retry)
            return
        try:
            header = response.header(SendResponse)
        except MalformedRequest as error:
            message = f"{self.queue.brokerName} stored the message, but its response is malformed: {error.remark}"
            self.sender.on_failure(self, BrokerFailed(message), retry=False)
            return
        queue = self.queue
        if header.queueId != queue.queueId:
            queue = MessageQueue(queue.topic, queue.brokerName, header.queueId)
        handle = header.recallHandle or ""
        self.sender.on_success(
            self, SendResult(status, self.unique_key, header.msgId, queue, header.queueOffset, handle)
        )


class SendTopic:
    """A producer's state for one topic: its route, and the sends that wait for a route or a connection."""

    def __init__(self, name: str, frames: SendFrames) -> None:
        self.name = name
        self.frames = frames
        self.route: Route | None = None
        self.stale = False
        # Random, so that producers that start together begin at different queues.
        self.last_index = int.from_bytes(os.urandom(2), "big")
        self.backlog: deque[PendingSend] = deque()
        self.is_draining = False


class Sender:
    """All sends of one producer from `submit` until their results."""

    def __init__(
        self, session: Session, group: str, *, retries: int, max_in_flight: int, max_in_flight_bytes: int
    ) -> None:
        self._session = session
        self._group = group
        self._retries = retries
        self._max_in_flight = max_in_flight
        self._max_in_flight_bytes = max_in_flight_bytes
        self._topics: dict[str, SendTopic] = {}
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._idle: asyncio.Future[None] | None = None  # set while `wait_idle` waits for the last result
        self._in_flight = 0
        self._in_flight_bytes = 0
        self._sent = 0
        self._retried = 0
        self._errors = 0

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()

    async def wait_idle(self, timeout_s: float) -> None:
        """Wait until nothing is in flight, at most `timeout_s`."""
        if self._in_flight:
            self._idle = self._loop.create_future()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._idle

    def fail_backlog(self) -> None:
        """Fail all sends that are not written yet."""
        for topic in self._topics.values():
            while topic.backlog:
                error = ConnectionLost("the producer was closed before the message was sent")
                self._fail(topic.backlog.popleft(), error)

    def statistics(self) -> dict[str, int]:
        return {
            "sent": self._sent,
            "failed": self._errors,
            "retried": self._retried,
            "in_flight": self._in_flight,
            "in_flight_bytes": self._in_flight_bytes,
            "backlog": sum(len(topic.backlog) for topic in self._topics.values()),
        }

    @property
    def is_full(self) -> bool:
        """Whether `submit` would raise Busy now."""
        return self._in_flight >= self._max_in_flight or self._in_flight_bytes >= self._max_in_flight_bytes

    async def ready(self) -> None:
        """Wait until `submit` accepts a message."""
        while self.is_full:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            finally:
                # There may be capacity for several waiters, and a waiter that was woken and then cancelled must pass
                # its turn to the next.
                if waiter.done():
                    self._wake_next()

    def new_send(
        self,
        topic: str,
        code: int,
        body: bytes,
        properties: str,
        unique_key: str,
        queue: MessageQueue | None,
        shard: str | int | None,
        born_ms: int,
        timeout_s: float,
    ) -> PendingSend:
        """Create a send, which counts as in flight from now on. `dispatch` writes it."""
        self._session.check_running()
        if self._in_flight >= self._max_in_flight or self._in_flight_bytes >= self._max_in_flight_bytes:
            raise Busy(
                f"{self._in_flight} messages with {self._in_flight_bytes} bytes are in flight",
                hint="Call `await producer.ready()` before `submit`",
            )
        if queue is not None and queue.topic != topic:
            raise IllegalMessage(f"a message to topic {topic!r} cannot go to a queue of topic {queue.topic!r}")
        send = PendingSend()
        send.sender = self
        send.topic = self._topics.get(topic) or self._topic(topic)
        send.future = self._loop.create_future()
        send.code = code
        send.body = body
        send.properties = properties
        send.sysflag = send.flag = 0
        send.born_ms = born_ms
        send.unique_key = unique_key
        send.pinned = queue
        send.shard = shard
        send.attempts = 0
        send.deadline_s = self._loop.time() + timeout_s
        send.due_s = 0.0
        send.last_broker = ""
        send.size_bytes = len(body) + 256
        self._in_flight += 1
        self._in_flight_bytes += send.size_bytes
        return send

    async def write_oneway(
        self,
        name: str,
        properties: str,
        body: bytes,
        sysflag: int,
        flag: int,
        born_ms: int,
        pinned: MessageQueue | None,
        shard: str | int | None,
    ) -> None:
        """Write a oneway message, which gets no response, once its broker is connected."""
        self._session.check_running()
        topic = self._topics.get(name) or self._topic(name)
        if topic.route is None:
            await self._prepare(topic)
        queue = self._choose_queue(topic, pinned, shard, "")
        connections = self._session.connections
        connection = await connections.open(await self._session.routes.broker_address(queue))
        opaque = connections.next_opaque()
        connection.send(
            topic.frames.frame(opaque, queue.queueId, sysflag, born_ms, flag, properties, body, oneway=True)
        )
        self._sent += 1
        await connection.drain()

    def _topic(self, name: str) -> SendTopic:
        topic = self._topics.get(name)
        if topic is None:
            check_sendable_topic(name)
            if len(self._topics) >= MAX_TOPICS:
                raise Busy(f"this producer already sends to {MAX_TOPICS} topics", hint="Use another producer")
            connections = self._session.connections
            frames = SendFrames(self._group, name, DEFAULT_TOPIC_QUEUES, connections.encoding, connections.credentials)
            topic = self._topics[name] = SendTopic(name, frames)
        return topic

    def update_routes(self, changed: bool) -> None:
        for topic in self._topics.values():
            cached = self._session.routes.cached(topic.name)
            if cached is not None and cached.writable:
                topic.route = cached
            else:
                topic.stale = True  # a borrowed route or a deleted topic: the next send looks the route up again

    def dispatch(self, send: PendingSend) -> None:
        """Write a send now if its broker is known and connected. Otherwise add it to its topic's backlog."""
        topic = send.topic
        ordered = send.shard is not None or send.pinned is not None
        # While there is a backlog, sends that must stay in order join it.
        if topic.route is None or topic.stale or (topic.backlog and ordered) or not self._write(send):
            topic.backlog.append(send)
            self._drain_soon(topic)

    def _write(self, send: PendingSend) -> bool:
        topic = send.topic
        queue = self._choose_queue(topic, send.pinned, send.shard, send.last_broker)
        session = self._session
        connection = session.connections.get(session.routes.brokers.get(queue.brokerName, ""))
        if connection is None:
            return False
        send.queue = queue
        send.attempts += 1
        opaque = session.connections.next_opaque()
        frame = topic.frames.frame(
            opaque, queue.queueId, send.sysflag, send.born_ms, send.flag, send.properties, send.body, code=send.code
        )
        connection.request(opaque, frame, send.on_response, send.deadline_s)
        return True

    def _choose_queue(
        self, topic: SendTopic, pinned: MessageQueue | None, shard: str | int | None, avoid_broker: str
    ) -> MessageQueue:
        """Return the queue to write to: the pinned one, the shard's, or the next one whose broker is connected."""
        if pinned is not None:
            return pinned
        assert topic.route is not None
        queues = topic.route.writable
        if shard is not None:
            return queues[shard_index(shard, len(queues))]
        brokers, connections = self._session.routes.brokers, self._session.connections
        fallback = None
        for _ in range(len(queues)):
            topic.last_index = (topic.last_index + 1) % len(queues)
            queue = queues[topic.last_index]
            if connections.get(brokers.get(queue.brokerName, "")) is not None:
                if queue.brokerName != avoid_broker:
                    return queue
                fallback = queue
        return fallback or queues[topic.last_index]

    def on_failure(self, send: PendingSend, error: LaterMQError, retry: bool) -> None:
        if isinstance(error, RequestTimedOut):
            error.hint = "The message may have been stored. To detect duplicates, send it again with the same UNIQ_KEY"
        now_s = self._loop.time()
        if not retry or send.attempts > self._retries or now_s >= send.deadline_s or not self._session.is_running:
            self._fail(send, error)
            return
        self._retried += 1
        send.last_broker = send.queue.brokerName
        if isinstance(error, ConnectionLost):
            send.topic.stale = True
        else:
            send.topic.stale |= error.code in STALE_ROUTE_CODES
            # At the deadline the send fails anyway, so no pause is longer.
            send.due_s = now_s + pause_after(send.attempts, RETRY_PAUSE_S, send.deadline_s - now_s)
        send.topic.backlog.append(send)
        self._drain_soon(send.topic)

    def on_success(self, send: PendingSend, result: SendResult) -> None:
        self._sent += 1
        self._release(send)
        if not send.future.done():
            send.future.set_result(result)

    def _fail(self, send: PendingSend, error: LaterMQError) -> None:
        self._errors += 1
        self._release(send)
        if not send.future.done():
            send.future.set_exception(error)

    def _release(self, send: PendingSend) -> None:
        self._in_flight -= 1
        self._in_flight_bytes -= send.size_bytes
        if self._idle is not None and not self._in_flight and not self._idle.done():
            self._idle.set_result(None)
        if self._waiters:
            self._wake_next()

    def _wake_next(self) -> None:
        while self._waiters and not self.is_full:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _drain_soon(self, topic: SendTopic) -> None:
        if not topic.is_draining:
            topic.is_draining = True
            self._session.spawn(self._drain(topic))

    async def _drain(self, topic: SendTopic) -> None:
        """Write a topic's backlog once its route and connections are available. Fail sends past their deadline."""
        backoff = Backoff(RETRY_PAUSE_S, LONGEST_RETRY_PAUSE_S)
        try:
            while topic.backlog:
                failure = await self._try_prepare(topic)
                remaining: deque[PendingSend] = deque()
                now_s = self._loop.time()
                while topic.backlog:
                    send = topic.backlog.popleft()
                    if failure is not None and (not failure.retriable or now_s >= send.deadline_s):
                        self._fail(send, failure)
                    elif now_s >= send.deadline_s:
                        self._fail(send, RequestTimedOut(f"cannot reach a broker of topic {topic.name!r} in time"))
                    elif failure is not None or send.due_s > now_s or not self._write(send):
                        remaining.append(send)
                topic.backlog = remaining
                if remaining:
                    await asyncio.sleep(backoff.next_pause())
        finally:
            topic.is_draining = False

    async def _try_prepare(self, topic: SendTopic) -> LaterMQError | None:
        try:
            await self._prepare(topic)
        except LaterMQError as error:
            return error
        return None

    async def _prepare(self, topic: SendTopic) -> None:
        """Get the topic's route and connect to its brokers. Raises only if no broker can be reached."""
        if topic.route is None or topic.stale:
            topic.route = await self._session.routes.get_for_send(topic.name, fresh=topic.stale)
            topic.stale = False
        names = {queue.brokerName for queue in topic.route.writable}
        addresses = [topic.route.addresses[name] for name in names if name in topic.route.addresses]
        self._session.routes.brokers.update(topic.route.addresses)
        results = await asyncio.gather(
            *(self._session.connections.open(address) for address in addresses), return_exceptions=True
        )
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures and len(failures) == len(results):
            topic.stale = True
            raise failures[0]
