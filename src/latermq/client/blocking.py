"""Blocking clients for programs without asyncio. They run the asyncio clients on one event loop in its own thread."""

import asyncio
import concurrent.futures
import datetime
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from latermq import client
from latermq.client.consumer.consumer_settings import CLUSTERING
from latermq.client.consumer.offsets import DEFAULT_FOLDER
from latermq.client.consumer.pull import PullResult
from latermq.client.consumer.subscription import ALL, Sql
from latermq.client.producer.outgoing import OutgoingMessage, SendResult
from latermq.client.producer.producer import MAX_IN_FLIGHT, NO_PROPERTIES
from latermq.client.session.loop_thread import BlockingClient, loop_thread
from latermq.message.record import Message
from latermq.model.group import Group
from latermq.model.timers import Density, Outcome, PendingTimer
from latermq.model.topic import READ, WRITE
from latermq.protocol.remoting.clients import ConsumerConnection
from latermq.protocol.remoting.groups import OffsetWrapper
from latermq.protocol.remoting.queues import MessageQueue
from latermq.protocol.remoting.routes import BrokerData, TopicRoute
from latermq.protocol.remoting.topics import TopicOffset


class ScheduledTimer:
    """`latermq.client.ScheduledTimer` with blocking methods. `str(timer)` is its handle."""

    __slots__ = ("_timer",)

    def __init__(self, timer: client.ScheduledTimer) -> None:
        self._timer = timer

    @property
    def handle(self) -> str:
        return self._timer.handle

    @property
    def topic(self) -> str:
        return self._timer.topic

    @property
    def unique_key(self) -> str:
        return self._timer.unique_key

    @property
    def due_ms(self) -> int:
        return self._timer.due_ms

    @property
    def is_known(self) -> bool:
        return self._timer.is_known

    def cancel(self) -> Outcome:
        return loop_thread.run(self._timer.cancel())

    def move(self, *, at: datetime.datetime | None = None, delay: datetime.timedelta | str | None = None) -> Outcome:
        return loop_thread.run(self._timer.move(at=at, delay=delay))

    def status(self) -> Outcome:
        return loop_thread.run(self._timer.status())

    def __str__(self) -> str:
        return self._timer.handle

    def __repr__(self) -> str:
        return repr(self._timer)

    def __eq__(self, other: object) -> bool:
        return self._timer == other._timer if isinstance(other, ScheduledTimer) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._timer)


class Producer(BlockingClient):
    """`latermq.client.Producer` with blocking methods and the same settings."""

    def __init__(self, namesrv: str = "127.0.0.1:9876", **settings: Any) -> None:
        super().__init__()
        self._client: client.Producer = client.Producer(namesrv, **settings)
        # The client only counts messages that have reached its loop. This also counts those on their way to the loop.
        self._capacity = threading.BoundedSemaphore(settings.get("max_in_flight", MAX_IN_FLIGHT))

    def send(
        self,
        message: OutgoingMessage,
        *,
        queue: MessageQueue | None = None,
        shard: str | int | None = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        return loop_thread.run(self._client.send(message, queue=queue, shard=shard, timeout_s=timeout_s))

    def submit(
        self,
        message: OutgoingMessage,
        *,
        queue: MessageQueue | None = None,
        shard: str | int | None = None,
        timeout_s: float | None = None,
    ) -> "concurrent.futures.Future[SendResult]":
        """Send without waiting for the result. Blocks only while the limit of messages in flight is reached."""
        self._capacity.acquire()
        try:
            future = loop_thread.submit(self._client.send(message, queue=queue, shard=shard, timeout_s=timeout_s))
        except BaseException:
            self._capacity.release()
            raise
        future.add_done_callback(lambda done: self._capacity.release())
        return future

    def send_oneway(
        self, message: OutgoingMessage, *, queue: MessageQueue | None = None, shard: str | int | None = None
    ) -> None:
        loop_thread.run(self._client.send_oneway(message, queue=queue, shard=shard))

    def send_batch(
        self,
        messages: Sequence[OutgoingMessage],
        *,
        queue: MessageQueue | None = None,
        shard: str | int | None = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        return loop_thread.run(self._client.send_batch(messages, queue=queue, shard=shard, timeout_s=timeout_s))

    def schedule(
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
        """Schedule a timer, and return it so that it can be looked up, moved and cancelled."""
        scheduling = self._client.schedule(
            topic,
            body,
            at=at,
            delay=delay,
            key=key,
            tag=tag,
            properties=properties,
            idempotency_key=idempotency_key,
        )
        return ScheduledTimer(loop_thread.run(scheduling))

    def timer(self, handle: str) -> ScheduledTimer:
        """Return the timer of a handle: the text of a ScheduledTimer, or the recall handle of a send."""
        return ScheduledTimer(self._client.timer(handle))

    def recall(self, topic: str, handle: str) -> str:
        return loop_thread.run(self._client.recall(topic, handle))

    def statistics(self) -> dict[str, int]:
        return self._client.statistics()


class PushConsumer(BlockingClient):
    """`latermq.client.PushConsumer` with a plain function as handler, called in one of `concurrency` threads."""

    def __init__(
        self,
        namesrv: str,
        group: str,
        handler: Callable[[Message], None],
        *,
        concurrency: int = 20,
        orderly: bool = False,
        model: str = CLUSTERING,
        consume_from: str | int = "last",
        offsets_folder: Path = DEFAULT_FOLDER,
        **settings: Any,
    ) -> None:
        super().__init__()
        self._threads = concurrent.futures.ThreadPoolExecutor(concurrency, thread_name_prefix=f"latermq-{group}")

        async def handle(message: Message) -> None:
            await asyncio.get_running_loop().run_in_executor(self._threads, handler, message)

        self._client: client.PushConsumer = client.PushConsumer(
            namesrv,
            group,
            handle,
            concurrency=concurrency,
            orderly=orderly,
            model=model,
            consume_from=consume_from,
            offsets_folder=offsets_folder,
            **settings,
        )

    def subscribe(self, topic: str, expression: str | Sql = ALL) -> None:
        loop_thread.run(self._client.subscribe(topic, expression))

    def unsubscribe(self, topic: str) -> None:
        loop_thread.run(self._client.unsubscribe(topic))

    def close(self) -> None:
        super().close()
        self._threads.shutdown()

    def statistics(self) -> dict[str, int]:
        return self._client.statistics()


class PullConsumer(BlockingClient):
    """`latermq.client.PullConsumer` with blocking methods."""

    def __init__(self, namesrv: str = "127.0.0.1:9876", **settings: Any) -> None:
        super().__init__()
        self._client: client.PullConsumer = client.PullConsumer(namesrv, **settings)

    def queues(self, topic: str) -> list[MessageQueue]:
        return loop_thread.run(self._client.queues(topic))

    def pull(
        self,
        queue: MessageQueue,
        offset: int,
        max_messages: int = 32,
        expression: str | Sql = ALL,
        *,
        wait_s: float = 0.0,
    ) -> PullResult:
        return loop_thread.run(self._client.pull(queue, offset, max_messages, expression, wait_s=wait_s))

    def commit(self, queue: MessageQueue, offset: int) -> None:
        loop_thread.run(self._client.commit(queue, offset))

    def committed(self, queue: MessageQueue) -> int | None:
        return loop_thread.run(self._client.committed(queue))

    def min_offset(self, queue: MessageQueue) -> int:
        return loop_thread.run(self._client.min_offset(queue))

    def max_offset(self, queue: MessageQueue) -> int:
        return loop_thread.run(self._client.max_offset(queue))

    def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        return loop_thread.run(self._client.search_offset(queue, timestamp_ms))

    def statistics(self) -> dict[str, int]:
        return self._client.statistics()


class Admin(BlockingClient):
    """`latermq.client.Admin` with blocking methods."""

    def __init__(self, namesrv: str = "127.0.0.1:9876", **settings: Any) -> None:
        super().__init__()
        self._client: client.Admin = client.Admin(namesrv, **settings)

    def clusters(self) -> dict[str, list[str]]:
        return loop_thread.run(self._client.clusters())

    def brokers(self) -> list[BrokerData]:
        return loop_thread.run(self._client.brokers())

    def broker_runtime_info(self, address: str) -> dict[str, str]:
        return loop_thread.run(self._client.broker_runtime_info(address))

    def broker_config(self, address: str) -> dict[str, str]:
        return loop_thread.run(self._client.broker_config(address))

    def topics(self) -> list[str]:
        return loop_thread.run(self._client.topics())

    def create_topic(
        self,
        name: str,
        queues: int = 8,
        *,
        perm: int = READ | WRITE,
        order: bool = False,
        attributes: Mapping[str, str] | None = None,
        broker: str | None = None,
    ) -> None:
        loop_thread.run(
            self._client.create_topic(name, queues, perm=perm, order=order, attributes=attributes, broker=broker)
        )

    def delete_topic(self, name: str) -> None:
        loop_thread.run(self._client.delete_topic(name))

    def route(self, topic: str) -> TopicRoute:
        return loop_thread.run(self._client.route(topic))

    def topic_stats(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        return loop_thread.run(self._client.topic_stats(topic))

    def groups(self) -> list[Group]:
        return loop_thread.run(self._client.groups())

    def create_group(
        self,
        name: str,
        *,
        retry_max_times: int = 16,
        retry_queues: int = 1,
        consume_enabled: bool = True,
        orderly: bool = False,
        retry_levels: Sequence[int | str] | None = None,
    ) -> None:
        loop_thread.run(
            self._client.create_group(
                name,
                retry_max_times=retry_max_times,
                retry_queues=retry_queues,
                consume_enabled=consume_enabled,
                orderly=orderly,
                retry_levels=retry_levels,
            )
        )

    def delete_group(self, name: str, *, remove_offsets: bool = True) -> None:
        loop_thread.run(self._client.delete_group(name, remove_offsets=remove_offsets))

    def consumer_connections(self, group: str) -> ConsumerConnection:
        return loop_thread.run(self._client.consumer_connections(group))

    def consume_stats(self, group: str, topic: str | None = None) -> dict[MessageQueue, OffsetWrapper]:
        return loop_thread.run(self._client.consume_stats(group, topic))

    def reset_offsets(self, group: str, topic: str, to: int | str) -> dict[MessageQueue, int]:
        return loop_thread.run(self._client.reset_offsets(group, topic, to))

    def view_message(self, offset_message_id: str) -> Message:
        return loop_thread.run(self._client.view_message(offset_message_id))

    def query_by_key(self, topic: str, key: str, **options: Any) -> list[Message]:
        return loop_thread.run(self._client.query_by_key(topic, key, **options))

    def query_by_unique_key(self, topic: str, unique_key: str, **limits: int) -> list[Message]:
        return loop_thread.run(self._client.query_by_unique_key(topic, unique_key, **limits))

    def cancel_timer(self, topic: str, *, unique_key: str = "", key: str = "", handle: str = "") -> list[Outcome]:
        return loop_thread.run(self._client.cancel_timer(topic, unique_key=unique_key, key=key, handle=handle))

    def move_timer(
        self,
        topic: str,
        *,
        unique_key: str = "",
        key: str = "",
        handle: str = "",
        due_ms: int | None = None,
        delay_ms: int | None = None,
    ) -> list[Outcome]:
        return loop_thread.run(
            self._client.move_timer(
                topic, unique_key=unique_key, key=key, handle=handle, due_ms=due_ms, delay_ms=delay_ms
            )
        )

    def timer_status(self, topic: str, *, unique_key: str = "", handle: str = "") -> Outcome:
        return loop_thread.run(self._client.timer_status(topic, unique_key=unique_key, handle=handle))

    def pending_timers(
        self, topic: str = "", *, key: str = "", from_ms: int = 0, until_ms: int = 0, limit: int = 100
    ) -> list[PendingTimer]:
        return loop_thread.run(
            self._client.pending_timers(topic, key=key, from_ms=from_ms, until_ms=until_ms, limit=limit)
        )

    def count_timers(self, topic: str = "", *, key: str = "", from_ms: int = 0, until_ms: int = 0) -> int:
        return loop_thread.run(self._client.count_timers(topic, key=key, from_ms=from_ms, until_ms=until_ms))

    def timer_density(self) -> Density:
        return loop_thread.run(self._client.timer_density())
