"""The same clients for programs without asyncio: plain blocking methods, over one loop in a thread of its own."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import uvloop

from latermq import client
from latermq.client.consumer_settings import CLUSTERING
from latermq.client.offsets import DEFAULT_FOLDER
from latermq.client.outgoing import OutgoingMessage, SendResult
from latermq.client.producer import MAX_IN_FLIGHT
from latermq.client.pulling import PullResult
from latermq.client.session import Client
from latermq.client.subscription import ALL, Sql
from latermq.message.record import Message
from latermq.protocol.remoting.bodies import (
    PERM_READ,
    PERM_WRITE,
    BrokerData,
    ConsumerConnection,
    MessageQueue,
    OffsetWrapper,
    SubscriptionGroup,
    TopicOffset,
    TopicRoute,
)

T = TypeVar("T")


class _LoopThread:
    """One event loop for all blocking clients of the process; it ends with the last of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def acquire(self) -> None:
        with self._lock:
            self._users += 1
            if self._loop is None:
                self._loop = uvloop.new_event_loop()
                self._thread = threading.Thread(target=self._run, args=(self._loop,), name="latermq", daemon=True)
                self._thread.start()

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0 and self._loop is not None and self._thread is not None:
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join()
                self._loop.close()
                self._loop = self._thread = None

    def submit(self, work: Coroutine[Any, Any, T]) -> "concurrent.futures.Future[T]":
        if self._loop is None:
            work.close()
            raise client.ClientClosed("this client is closed or was not started", hint="Use it inside `with`")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("a blocking call inside the client's own loop would wait for itself")
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    @staticmethod
    def _run(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())


_shared = _LoopThread()


class _Blocking:
    """The life of a blocking client: `with`, or `start` and `close`."""

    _client: Client

    def __init__(self) -> None:
        self._running = False

    def start(self) -> None:
        """Begin to work; `with` does it."""
        _shared.acquire()
        try:
            _shared.run(self._client.start())
        except BaseException:
            _shared.release()
            raise
        self._running = True

    def close(self) -> None:
        """End cleanly; `with` does it."""
        if self._running:
            self._running = False
            try:
                _shared.run(self._client.close())
            finally:
                _shared.release()

    @property
    def client_id(self) -> str:
        return self._client.client_id

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Producer(_Blocking):
    """`latermq.client.Producer` with blocking methods; its settings are the same."""

    def __init__(self, namesrv: str = "127.0.0.1:9876", **settings: Any) -> None:
        super().__init__()
        self._client: client.Producer = client.Producer(namesrv, **settings)
        # The client counts what its loop has seen; this counts what is still on the way to the loop, too.
        self._room = threading.BoundedSemaphore(settings.get("max_in_flight", MAX_IN_FLIGHT))

    def send(
        self,
        message: OutgoingMessage,
        *,
        queue: MessageQueue | None = None,
        shard: str | int | None = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        return _shared.run(self._client.send(message, queue=queue, shard=shard, timeout_s=timeout_s))

    def submit(
        self,
        message: OutgoingMessage,
        *,
        queue: MessageQueue | None = None,
        shard: str | int | None = None,
        timeout_s: float | None = None,
    ) -> "concurrent.futures.Future[SendResult]":
        """Send without waiting for the result; waits only while the bound on messages in flight is reached."""
        self._room.acquire()
        try:
            future = _shared.submit(self._client.send(message, queue=queue, shard=shard, timeout_s=timeout_s))
        except BaseException:
            self._room.release()
            raise
        future.add_done_callback(lambda done: self._room.release())
        return future

    def send_oneway(
        self, message: OutgoingMessage, *, queue: MessageQueue | None = None, shard: str | int | None = None
    ) -> None:
        _shared.run(self._client.send_oneway(message, queue=queue, shard=shard))

    def send_batch(
        self,
        messages: Sequence[OutgoingMessage],
        *,
        queue: MessageQueue | None = None,
        shard: str | int | None = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        return _shared.run(self._client.send_batch(messages, queue=queue, shard=shard, timeout_s=timeout_s))

    def statistics(self) -> dict[str, int]:
        return self._client.statistics()


class PushConsumer(_Blocking):
    """`latermq.client.PushConsumer` whose handler is a plain function, called in one of `concurrency` threads."""

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
        _shared.run(self._client.subscribe(topic, expression))

    def unsubscribe(self, topic: str) -> None:
        _shared.run(self._client.unsubscribe(topic))

    def close(self) -> None:
        super().close()
        self._threads.shutdown()

    def statistics(self) -> dict[str, int]:
        return self._client.statistics()


class PullConsumer(_Blocking):
    """`latermq.client.PullConsumer` with blocking methods."""

    def __init__(self, namesrv: str = "127.0.0.1:9876", **settings: Any) -> None:
        super().__init__()
        self._client: client.PullConsumer = client.PullConsumer(namesrv, **settings)

    def queues(self, topic: str) -> list[MessageQueue]:
        return _shared.run(self._client.queues(topic))

    def pull(
        self,
        queue: MessageQueue,
        offset: int,
        max_messages: int = 32,
        expression: str | Sql = ALL,
        *,
        wait_s: float = 0.0,
    ) -> PullResult:
        return _shared.run(self._client.pull(queue, offset, max_messages, expression, wait_s=wait_s))

    def commit(self, queue: MessageQueue, offset: int) -> None:
        _shared.run(self._client.commit(queue, offset))

    def committed(self, queue: MessageQueue) -> int | None:
        return _shared.run(self._client.committed(queue))

    def min_offset(self, queue: MessageQueue) -> int:
        return _shared.run(self._client.min_offset(queue))

    def max_offset(self, queue: MessageQueue) -> int:
        return _shared.run(self._client.max_offset(queue))

    def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        return _shared.run(self._client.search_offset(queue, timestamp_ms))

    def statistics(self) -> dict[str, int]:
        return self._client.statistics()


class Admin(_Blocking):
    """`latermq.client.Admin` with blocking methods."""

    def __init__(self, namesrv: str = "127.0.0.1:9876", **settings: Any) -> None:
        super().__init__()
        self._client: client.Admin = client.Admin(namesrv, **settings)

    def clusters(self) -> dict[str, list[str]]:
        return _shared.run(self._client.clusters())

    def brokers(self) -> list[BrokerData]:
        return _shared.run(self._client.brokers())

    def broker_runtime_info(self, address: str) -> dict[str, str]:
        return _shared.run(self._client.broker_runtime_info(address))

    def broker_config(self, address: str) -> dict[str, str]:
        return _shared.run(self._client.broker_config(address))

    def topics(self) -> list[str]:
        return _shared.run(self._client.topics())

    def create_topic(
        self,
        name: str,
        queues: int = 8,
        *,
        perm: int = PERM_READ | PERM_WRITE,
        order: bool = False,
        attributes: Mapping[str, str] | None = None,
        broker: str | None = None,
    ) -> None:
        _shared.run(
            self._client.create_topic(name, queues, perm=perm, order=order, attributes=attributes, broker=broker)
        )

    def delete_topic(self, name: str) -> None:
        _shared.run(self._client.delete_topic(name))

    def route(self, topic: str) -> TopicRoute:
        return _shared.run(self._client.route(topic))

    def topic_stats(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        return _shared.run(self._client.topic_stats(topic))

    def groups(self) -> list[SubscriptionGroup]:
        return _shared.run(self._client.groups())

    def create_group(
        self,
        name: str,
        *,
        retry_max_times: int = 16,
        retry_queues: int = 1,
        consume_enabled: bool = True,
        orderly: bool = False,
        retry_levels: Sequence[int] | None = None,
    ) -> None:
        _shared.run(
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
        _shared.run(self._client.delete_group(name, remove_offsets=remove_offsets))

    def consumer_connections(self, group: str) -> ConsumerConnection:
        return _shared.run(self._client.consumer_connections(group))

    def consume_stats(self, group: str, topic: str | None = None) -> dict[MessageQueue, OffsetWrapper]:
        return _shared.run(self._client.consume_stats(group, topic))

    def reset_offsets(self, group: str, topic: str, to: int | str) -> dict[MessageQueue, int]:
        return _shared.run(self._client.reset_offsets(group, topic, to))

    def view_message(self, offset_message_id: str) -> Message:
        return _shared.run(self._client.view_message(offset_message_id))

    def query_by_key(self, topic: str, key: str, **limits: int) -> list[Message]:
        return _shared.run(self._client.query_by_key(topic, key, **limits))

    def query_by_unique_key(self, topic: str, unique_key: str, **limits: int) -> list[Message]:
        return _shared.run(self._client.query_by_unique_key(topic, unique_key, **limits))
