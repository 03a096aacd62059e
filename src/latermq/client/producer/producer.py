"""The producer. It pipelines sends over one connection per broker, limits those in flight and keeps order per shard."""

import asyncio
import datetime
import os
import socket
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec

from latermq.client.producer.compression import compress
from latermq.client.producer.outgoing import OutgoingMessage, SendResult, encode_batch_body, encode_message_properties
from latermq.client.producer.sender import Sender
from latermq.client.scheduling.new_timer import due_of, row_of
from latermq.client.scheduling.scheduled_timer import ScheduledTimer
from latermq.client.scheduling.schedules import Schedules, name_of
from latermq.client.session.credentials import Credentials
from latermq.client.session.session import Client, Session
from latermq.clock import SystemClock
from latermq.errors import IllegalMessage
from latermq.message.ids import UniqueKeys
from latermq.message.names import check_group
from latermq.message.properties import UNIQUE_KEY
from latermq.message.recall_handle import decode_recall_handle
from latermq.protocol.remoting.clients import HeartbeatData, ProducerData
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.queues import MessageQueue
from latermq.tls.client import ClientTls

MAX_IN_FLIGHT = 10_000
NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})


class _RecallResponse(msgspec.Struct):
    """Header fields of a recall response, named as on the wire."""

    msgId: str = ""


class Producer(Client):
    """Sends messages. Use it in `async with`.

    At most `max_in_flight` messages and `max_in_flight_bytes` bytes are in flight between `submit` and their result.
    At that limit `send` waits and `submit` raises Busy, so call `await ready()` before `submit`.
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
        tls: ClientTls | bool | None = None,
        credentials: Credentials | bool | None = None,
    ) -> None:
        check_group(group)
        self._session = Session(namesrv, instance=instance, encoding=encoding, tls=tls, credentials=credentials)
        self._session.heartbeat = lambda: HeartbeatData(
            clientID=self.client_id, producerDataSet=[ProducerData(groupName=group)]
        )
        self._sender = Sender(
            self._session,
            group,
            retries=retries,
            max_in_flight=max_in_flight,
            max_in_flight_bytes=max_in_flight_bytes,
        )
        self._session.on_routes_refreshed = self._sender.update_routes
        self._schedules = Schedules(self._session)
        self._group = group
        self._send_timeout_s = send_timeout_s
        self._max_message_bytes = max_message_bytes
        self._compress_above_bytes = max_message_bytes if compress_above_bytes is None else compress_above_bytes
        self._clock = SystemClock()
        family = socket.AF_INET6 if ":" in self._session.ip else socket.AF_INET
        self._unique_keys = UniqueKeys(self._clock, socket.inet_pton(family, self._session.ip), os.getpid(), os.urandom)

    async def start(self) -> None:
        await super().start()
        self._sender.start()

    async def close(self) -> None:
        """Wait for messages in flight, at most `send_timeout_s`, then shut down."""
        if self._session.is_running:
            await asyncio.gather(
                self._sender.wait_idle(self._send_timeout_s), self._schedules.wait_idle(self._send_timeout_s)
            )
        await self._session.close([{"producerGroup": self._group}])
        self._sender.fail_backlog()
        self._schedules.fail_waiting()

    @property
    def is_full(self) -> bool:
        """Whether `submit` would raise Busy now."""
        return self._sender.is_full

    async def ready(self) -> None:
        """Wait until `submit` accepts a message."""
        await self._sender.ready()

    async def send(
        self,
        message: OutgoingMessage,
        *,
        queue: MessageQueue | None = None,
        shard: str | int | None = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        """Send one message and wait until it is stored. Messages with the same `shard` go to the same queue."""
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
        """Send one message and return a future of its result. Messages of one shard are sent in call order."""
        body = message.body
        if not 0 < len(body) <= self._max_message_bytes:
            raise self._illegal_size(len(body))
        unique_key = message.properties.get(UNIQUE_KEY) or self._unique_keys.next()
        properties = encode_message_properties(message, unique_key)
        sysflag = 0
        if len(body) > self._compress_above_bytes:
            body, sysflag = compress(body)
        send = self._sender.new_send(
            message.topic,
            Request.SEND_MESSAGE_V2,
            body,
            properties,
            unique_key,
            queue,
            shard,
            self._clock.now_ms(),
            self._send_timeout_s if timeout_s is None else timeout_s,
        )
        send.sysflag = sysflag
        send.flag = message.flag
        self._sender.dispatch(send)
        return send.future

    async def send_batch(
        self,
        messages: Sequence[OutgoingMessage],
        *,
        queue: MessageQueue | None = None,
        shard: str | int | None = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        """Send messages of one topic in one frame to one queue. The ids in the result are separated by commas."""
        if not messages:
            raise IllegalMessage("a batch needs at least one message")
        if not all(message.body for message in messages):
            raise self._illegal_size(0)
        keys = [message.properties.get(UNIQUE_KEY) or self._unique_keys.next() for message in messages]
        body = encode_batch_body(messages, keys)
        if len(body) > self._max_message_bytes:
            raise IllegalMessage(
                f"the batch has {len(body)} bytes, the limit is {self._max_message_bytes}",
                hint="Split it into several batches",
            )
        if self.is_full:
            await self.ready()
        properties = f"{UNIQUE_KEY}\x01{self._unique_keys.next()}\x02"
        send = self._sender.new_send(
            messages[0].topic,
            Request.SEND_BATCH_MESSAGE,
            body,
            properties,
            ",".join(keys),
            queue,
            shard,
            self._clock.now_ms(),
            self._send_timeout_s if timeout_s is None else timeout_s,
        )
        self._sender.dispatch(send)
        return await send.future

    async def send_oneway(
        self, message: OutgoingMessage, *, queue: MessageQueue | None = None, shard: str | int | None = None
    ) -> None:
        """Send without a response. This is fast, but the caller does not learn whether the message arrived."""
        if not 0 < len(message.body) <= self._max_message_bytes:
            raise self._illegal_size(len(message.body))
        properties = encode_message_properties(message, message.properties.get(UNIQUE_KEY) or self._unique_keys.next())
        body, sysflag = message.body, 0
        if len(body) > self._compress_above_bytes:
            body, sysflag = compress(body)
        now_ms = self._clock.now_ms()
        await self._sender.write_oneway(message.topic, properties, body, sysflag, message.flag, now_ms, queue, shard)

    async def recall(self, topic: str, handle: str) -> str:
        """Cancel a timer by the recall handle that its send returned. Return its message id.

        Raises IllegalOperation if the timer is not pending. Apache's broker does not check this: it accepts the recall
        of any handle whose due time is in the future. Admin.cancel_timer reports what happened.
        """
        self._session.check_running()
        queue = MessageQueue(topic, decode_recall_handle(handle).broker_name, 0)
        fields = {"producerGroup": self._group, "topic": topic, "recallHandle": handle}
        response = await self._session.connections.call(
            await self._session.routes.broker_address(queue),
            Request.RECALL_MESSAGE,
            fields,
            timeout_s=self._send_timeout_s,
        )
        return response.header(_RecallResponse).msgId

    async def schedule(
        self,
        topic: str,
        body: bytes,
        *,
        at: datetime.datetime | None = None,
        delay: datetime.timedelta | str | None = None,
        key: str | Sequence[str] = "",
        tag: str = "",
        properties: Mapping[str, str] = NO_PROPERTIES,
        idempotency_key: str = "",
    ) -> ScheduledTimer:
        """Schedule a timer, and return it so that it can be looked up, moved and cancelled.

        It is due `at` a time with a time zone, or after a `delay` by the broker's clock, such as "15m" or a timedelta.
        A time in the past means now. With an `idempotency_key`, only the first of several calls schedules a timer; the
        others return that one. `send` with `delay_ms` works with RocketMQ's brokers, too; this needs LaterMQ's.
        """
        unique_key = name_of(topic, idempotency_key) if idempotency_key else self._unique_keys.next()
        due = due_of(at, delay)
        row = row_of(topic, body, due, key=key, tag=tag, properties=properties, unique_key=unique_key)
        return await self._schedules.schedule(row, is_named=bool(idempotency_key))

    def timer(self, handle: str) -> ScheduledTimer:
        """Return the timer of a handle: the text of a ScheduledTimer, or the recall handle of a send."""
        return ScheduledTimer(self._schedules.brokers, handle)

    def statistics(self) -> dict[str, int]:
        """Return counters since the start, and the current number of messages in flight."""
        return {
            **self._sender.statistics(),
            **self._schedules.statistics(),
            **self._session.connections.statistics(),
            **self._session.routes.statistics(),
        }

    def _illegal_size(self, size_bytes: int) -> IllegalMessage:
        if not size_bytes:
            return IllegalMessage("the body is empty, which brokers do not accept", hint="Send at least one byte")
        return IllegalMessage(
            f"the body has {size_bytes} bytes, the limit is {self._max_message_bytes}",
            hint="Raise max_message_bytes and the broker's max_message, or store the body elsewhere and send a link",
        )
