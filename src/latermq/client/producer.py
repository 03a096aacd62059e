"""The producer: sends pipelined over one connection per broker, bounded, retried elsewhere, in order per shard."""

import asyncio
import contextlib
import os
import socket
from collections import deque
from collections.abc import Sequence
from functools import lru_cache

from latermq.client.compression import compress
from latermq.client.failures import ConnectionLost, RequestTimedOut, errors_from_wire
from latermq.client.outgoing import (
    OutgoingMessage,
    SendAnswer,
    SendFrames,
    SendResult,
    encode_batch_body,
    encode_message_properties,
)
from latermq.client.routes import DEFAULT_TOPIC_QUEUES, Route
from latermq.client.session import Client, Session
from latermq.clock import SystemClock
from latermq.errors import Busy, IllegalMessage, LaterMQError
from latermq.message.ids import UniqueKeys
from latermq.message.names import check_group, check_sendable_topic
from latermq.message.properties import UNIQUE_KEY
from latermq.message.tags import java_string_hash
from latermq.protocol.remoting.bodies import HeartbeatData, MessageQueue, ProducerData
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.frames import Command

# The codes after which Java's producer tries again, elsewhere if it can.
RETRY_CODES = frozenset({
    Response.SYSTEM_ERROR, Response.SYSTEM_BUSY, Response.SERVICE_NOT_AVAILABLE,
    Response.NO_PERMISSION, Response.TOPIC_NOT_EXIST,
})  # fmt: skip
STALE_ROUTE_CODES = frozenset({Response.NO_PERMISSION, Response.TOPIC_NOT_EXIST})
RETRY_PAUSE_S = 0.05
LONGEST_RETRY_PAUSE_S = 0.5
MAX_TOPICS = 10_000
MAX_IN_FLIGHT = 10_000

_STATUS: dict[int, str] = {
    Response.SUCCESS: "SEND_OK",
    Response.FLUSH_DISK_TIMEOUT: "FLUSH_DISK_TIMEOUT",
    Response.SLAVE_NOT_AVAILABLE: "SLAVE_NOT_AVAILABLE",
    Response.FLUSH_SLAVE_TIMEOUT: "FLUSH_SLAVE_TIMEOUT",
}


@lru_cache(maxsize=65_536)
def shard_hash(shard: str | int) -> int:
    """What Java's `hashCode` gives for the same value, so that Java's producers pick the same queue."""
    if isinstance(shard, str):
        return java_string_hash(shard)
    folded = (shard ^ shard >> 32) & 0xFFFFFFFF if not -(1 << 31) <= shard < 1 << 31 else shard
    return folded - (1 << 32) if folded >= 1 << 31 else folded


def shard_index(shard: str | int, queues: int) -> int:
    """The place of a shard's queue among a topic's queues."""
    return abs(shard_hash(shard)) % queues


class _Send:
    """One message between `submit` and its result."""

    __slots__ = (
        "attempts", "body", "born_ms", "code", "deadline_s", "due_s", "flag", "future", "last_broker", "pinned",
        "producer", "properties", "queue", "shard", "size_bytes", "sysflag", "topic", "unique_key",
    )  # fmt: skip

    producer: "Producer"
    topic: "_Topic"
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

    def on_reply(self, reply: Command | LaterMQError) -> None:
        if isinstance(reply, LaterMQError):
            self.producer._failed(self, reply, isinstance(reply, ConnectionLost))
            return
        status = _STATUS.get(reply.code)
        if status is None:
            error = errors_from_wire(reply.code, reply.remark, self.queue.brokerName)
            self.producer._failed(self, error, reply.code in RETRY_CODES)
            return
        answer = reply.header(SendAnswer)
        queue = self.queue
        if answer.queueId != queue.queueId:
            queue = MessageQueue(queue.topic, queue.brokerName, answer.queueId)
        self.producer._succeeded(
            self, SendResult(status, self.unique_key, answer.msgId, queue, answer.queueOffset, answer.recallHandle)
        )


class _Topic:
    """What the producer knows of one topic: its queues, and the sends that wait for a route or a connection."""

    def __init__(self, name: str, frames: SendFrames) -> None:
        self.name = name
        self.frames = frames
        self.route: Route | None = None
        self.stale = False
        self.turn = int.from_bytes(os.urandom(2), "big")  # producers that start together begin at different queues
        self.backlog: deque[_Send] = deque()
        self.draining = False


class Producer(Client):
    """Sends messages. Use it in `async with`.

    Bounds: at most `max_in_flight` messages and `max_in_flight_bytes` bytes are between `submit` and their result.
    `send` waits for room; `submit` raises Busy without it, so call `await ready()` before.
    """

    def __init__(
        self,
        namesrv: str = "127.0.0.1:9876",
        *,
        group: str = "DEFAULT_PRODUCER",
        instance: str = "",
        send_timeout_s: float = 3.0,
        retries: int = 2,
        max_message_bytes: int = 4 * 1024 * 1024,
        compress_above_bytes: int | None = 4096,
        max_in_flight: int = MAX_IN_FLIGHT,
        max_in_flight_bytes: int = 64 * 1024 * 1024,
        encoding: str = "json",
    ) -> None:
        check_group(group)
        self._session = Session(namesrv, instance=instance, encoding=encoding)
        self._session.heartbeat = lambda: HeartbeatData(
            clientID=self.client_id, producerDataSet=[ProducerData(groupName=group)]
        )
        self._session.on_routes_refreshed = self._take_new_routes
        self._group = group
        self._send_timeout_s = send_timeout_s
        self._retries = retries
        self._max_message_bytes = max_message_bytes
        self._compress_above_bytes = max_message_bytes if compress_above_bytes is None else compress_above_bytes
        self._max_in_flight = max_in_flight
        self._max_in_flight_bytes = max_in_flight_bytes
        self._clock = SystemClock()
        family = socket.AF_INET6 if ":" in self._session.ip else socket.AF_INET
        self._unique_keys = UniqueKeys(self._clock, socket.inet_pton(family, self._session.ip), os.getpid(), os.urandom)
        self._topics: dict[str, _Topic] = {}
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._idle: asyncio.Future[None] | None = None  # set while `close` waits for the last result
        self._in_flight = 0
        self._in_flight_bytes = 0
        self._sent = 0
        self._retried = 0
        self._errors = 0

    async def start(self) -> None:
        await super().start()
        self._loop = asyncio.get_running_loop()

    async def close(self) -> None:
        """Wait for what is in flight, at most as long as a send may take, then end."""
        if self._session.running and self._in_flight:
            self._idle = asyncio.get_running_loop().create_future()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._send_timeout_s):
                    await self._idle
        await self._session.close([{"producerGroup": self._group}])
        for topic in self._topics.values():
            while topic.backlog:
                self._finish(topic.backlog.popleft(), ConnectionLost("the producer was closed before this was sent"))

    @property
    def is_full(self) -> bool:
        """Whether `submit` would be refused now."""
        return self._in_flight >= self._max_in_flight or self._in_flight_bytes >= self._max_in_flight_bytes

    async def ready(self) -> None:
        """Wait until `submit` has room for a message."""
        while self.is_full:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            finally:
                # There may be room for more than one, and one that was woken and cancelled must not keep it.
                if waiter.done():
                    self._wake_next()

    async def send(
        self,
        message: OutgoingMessage,
        *,
        queue: MessageQueue | None = None,
        shard: str | int | None = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        """Send one message and wait until it is stored. The same `shard` goes to the same queue."""
        if self.is_full:
            await self.ready()
        return await self.submit(message, queue=queue, shard=shard, timeout_s=timeout_s)

    def submit(
        self,
        message: OutgoingMessage,
        *,
        queue: MessageQueue | None = None,
        shard: str | int | None = None,
        timeout_s: float | None = None,
    ) -> "asyncio.Future[SendResult]":
        """Send one message without waiting; the future gets its result. Sends of one shard leave in this order."""
        body = message.body
        if not 0 < len(body) <= self._max_message_bytes:
            raise self._illegal_size(len(body))
        unique_key = message.properties.get(UNIQUE_KEY) or self._unique_keys.next()
        properties = encode_message_properties(message, unique_key)
        sysflag = 0
        if len(body) > self._compress_above_bytes:
            body, sysflag = compress(body)
        send = self._new_send(
            message.topic, Request.SEND_MESSAGE_V2, body, properties, unique_key, queue, shard, timeout_s
        )
        send.sysflag = sysflag
        send.flag = message.flag
        self._dispatch(send)
        return send.future

    async def send_batch(
        self,
        messages: Sequence[OutgoingMessage],
        *,
        queue: MessageQueue | None = None,
        shard: str | int | None = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        """Send messages of one topic as one frame into one queue; the result's ids are joined by commas."""
        if not messages:
            raise IllegalMessage("a batch needs at least one message")
        if not all(message.body for message in messages):
            raise self._illegal_size(0)
        keys = [message.properties.get(UNIQUE_KEY) or self._unique_keys.next() for message in messages]
        body = encode_batch_body(messages, keys)
        if len(body) > self._max_message_bytes:
            raise IllegalMessage(
                f"the batch has {len(body)} bytes, the limit is {self._max_message_bytes}", hint="Send it in parts"
            )
        if self.is_full:
            await self.ready()
        properties = f"{UNIQUE_KEY}\x01{self._unique_keys.next()}\x02"
        send = self._new_send(
            messages[0].topic, Request.SEND_BATCH_MESSAGE, body, properties, ",".join(keys), queue, shard, timeout_s
        )
        self._dispatch(send)
        return await send.future

    async def send_oneway(
        self, message: OutgoingMessage, *, queue: MessageQueue | None = None, shard: str | int | None = None
    ) -> None:
        """Send without an answer: fast, and nobody says whether it arrived."""
        if not 0 < len(message.body) <= self._max_message_bytes:
            raise self._illegal_size(len(message.body))
        topic = self._topic(message.topic)
        properties = encode_message_properties(message, message.properties.get(UNIQUE_KEY) or self._unique_keys.next())
        body, sysflag = message.body, 0
        if len(body) > self._compress_above_bytes:
            body, sysflag = compress(body)
        if topic.route is None:
            await self._prepare(topic)
        queue = self._choose(topic, queue, shard, "")
        connection = await self._session.connections.open(await self._session.routes.broker_address(queue))
        connection.send(
            topic.frames.frame(
                self._session.connections.next_opaque(), queue.queueId, sysflag, self._clock.now_ms(), message.flag,
                properties, body, oneway=True,
            )
        )  # fmt: skip
        self._sent += 1
        await connection.drained()

    def statistics(self) -> dict[str, int]:
        """Counts since the start, and what is under way now."""
        return {
            "sent": self._sent,
            "failed": self._errors,
            "retried": self._retried,
            "in_flight": self._in_flight,
            "in_flight_bytes": self._in_flight_bytes,
            "waiting_for_route": sum(len(topic.backlog) for topic in self._topics.values()),
            **self._session.connections.statistics(),
            **self._session.routes.statistics(),
        }

    def _new_send(
        self,
        topic: str,
        code: int,
        body: bytes,
        properties: str,
        unique_key: str,
        queue: MessageQueue | None,
        shard: str | int | None,
        timeout_s: float | None,
    ) -> _Send:
        if self._in_flight >= self._max_in_flight or self._in_flight_bytes >= self._max_in_flight_bytes:
            raise Busy(
                f"{self._in_flight} messages with {self._in_flight_bytes} bytes are in flight",
                hint="Call `await producer.ready()` before `submit`",
            )
        send = _Send()
        send.producer = self
        send.topic = self._topics.get(topic) or self._topic(topic)
        send.future = self._loop.create_future()
        send.code = code
        send.body = body
        send.properties = properties
        send.sysflag = send.flag = 0
        send.born_ms = self._clock.now_ms()
        send.unique_key = unique_key
        send.pinned = queue
        send.shard = shard
        send.attempts = 0
        send.deadline_s = self._loop.time() + (self._send_timeout_s if timeout_s is None else timeout_s)
        send.due_s = 0.0
        send.last_broker = ""
        send.size_bytes = len(body) + 256
        self._in_flight += 1
        self._in_flight_bytes += send.size_bytes
        return send

    def _illegal_size(self, size_bytes: int) -> IllegalMessage:
        if not size_bytes:
            return IllegalMessage("the body is empty, which RocketMQ's brokers do not take", hint="Send a byte or more")
        return IllegalMessage(
            f"the body has {size_bytes} bytes, the limit is {self._max_message_bytes}",
            hint="Raise max_message_bytes here and in the broker, or store it elsewhere and send its address",
        )

    def _topic(self, name: str) -> _Topic:
        self._session.check_running()
        topic = self._topics.get(name)
        if topic is None:
            check_sendable_topic(name)
            if len(self._topics) >= MAX_TOPICS:
                raise Busy(f"this producer sends to {MAX_TOPICS} topics already", hint="Use another producer")
            frames = SendFrames(self._group, name, DEFAULT_TOPIC_QUEUES, self._session.connections.encoding)
            topic = self._topics[name] = _Topic(name, frames)
        return topic

    def _take_new_routes(self, changed: bool) -> None:
        for topic in self._topics.values():
            known = self._session.routes.known(topic.name)
            if known is not None and known.writable:
                topic.route = known
            else:
                topic.stale = True  # a borrowed route, or a topic that is gone: the next send asks again

    def _dispatch(self, send: _Send) -> None:
        """Write it now if its broker is known and connected; else it waits in its topic's backlog."""
        topic = send.topic
        ordered = send.shard is not None or send.pinned is not None
        # Behind a backlog, what must stay in order waits too.
        if topic.route is None or topic.stale or (topic.backlog and ordered) or not self._write(send):
            topic.backlog.append(send)
            self._drain_soon(topic)

    def _write(self, send: _Send) -> bool:
        topic = send.topic
        queue = self._choose(topic, send.pinned, send.shard, send.last_broker)
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
        connection.request(opaque, frame, send.on_reply, send.deadline_s)
        return True

    def _choose(self, topic: _Topic, pinned: MessageQueue | None, shard: str | int | None, avoid: str) -> MessageQueue:
        """The queue to write to: the named one, the shard's, or the next whose broker is connected."""
        if pinned is not None:
            return pinned
        assert topic.route is not None
        queues = topic.route.writable
        if shard is not None:
            return queues[shard_index(shard, len(queues))]
        brokers, connections = self._session.routes.brokers, self._session.connections
        second_best = None
        for _ in range(len(queues)):
            topic.turn = (topic.turn + 1) % len(queues)
            queue = queues[topic.turn]
            if connections.get(brokers.get(queue.brokerName, "")) is not None:
                if queue.brokerName != avoid:
                    return queue
                second_best = queue
        return second_best or queues[topic.turn]

    def _failed(self, send: _Send, error: LaterMQError, retry: bool) -> None:
        if isinstance(error, RequestTimedOut):
            error.hint = "The message may be stored or not; its unique key is the same if you send it again"
        now_s = self._loop.time()
        if not retry or send.attempts > self._retries or now_s >= send.deadline_s or not self._session.running:
            self._finish(send, error)
            return
        self._retried += 1
        send.last_broker = send.queue.brokerName
        if isinstance(error, ConnectionLost):
            send.topic.stale = True
        else:
            send.topic.stale |= error.code in STALE_ROUTE_CODES
            send.due_s = now_s + RETRY_PAUSE_S * 2**send.attempts
        send.topic.backlog.append(send)
        self._drain_soon(send.topic)

    def _succeeded(self, send: _Send, result: SendResult) -> None:
        self._sent += 1
        self._release(send)
        if not send.future.done():
            send.future.set_result(result)

    def _finish(self, send: _Send, error: LaterMQError) -> None:
        self._errors += 1
        self._release(send)
        if not send.future.done():
            send.future.set_exception(error)

    def _release(self, send: _Send) -> None:
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

    def _drain_soon(self, topic: _Topic) -> None:
        if not topic.draining:
            topic.draining = True
            self._session.spawn(self._drain(topic))

    async def _drain(self, topic: _Topic) -> None:
        """Write a topic's backlog as soon as route and connections are there; give up what is past its deadline."""
        pause_s = RETRY_PAUSE_S
        try:
            while topic.backlog:
                problem = await self._try_prepare(topic)
                left: deque[_Send] = deque()
                now_s = self._loop.time()
                while topic.backlog:
                    send = topic.backlog.popleft()
                    if problem is not None and (not problem.retriable or now_s >= send.deadline_s):
                        self._finish(send, problem)
                    elif now_s >= send.deadline_s:
                        self._finish(
                            send, RequestTimedOut(f"no broker of topic {topic.name!r} could be reached in time")
                        )
                    elif problem is not None or send.due_s > now_s or not self._write(send):
                        left.append(send)
                topic.backlog = left
                if left:
                    await asyncio.sleep(pause_s)
                    pause_s = min(pause_s * 2, LONGEST_RETRY_PAUSE_S)
        finally:
            topic.draining = False

    async def _try_prepare(self, topic: _Topic) -> LaterMQError | None:
        try:
            await self._prepare(topic)
        except LaterMQError as error:
            return error
        return None

    async def _prepare(self, topic: _Topic) -> None:
        """Get the topic's route and connect to its brokers; an error only when no broker can be reached."""
        if topic.route is None or topic.stale:
            topic.route = await self._session.routes.get_for_sending(topic.name, fresh=topic.stale)
            topic.stale = False
        names = {queue.brokerName for queue in topic.route.writable}
        addresses = [topic.route.addresses[name] for name in names if name in topic.route.addresses]
        self._session.routes.brokers.update(topic.route.addresses)
        opened = await asyncio.gather(
            *(self._session.connections.open(address) for address in addresses), return_exceptions=True
        )
        problems = [result for result in opened if isinstance(result, BaseException)]
        if problems and len(problems) == len(opened):
            topic.stale = True
            raise problems[0]
