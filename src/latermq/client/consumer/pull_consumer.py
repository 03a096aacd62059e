"""The pull consumer: the caller chooses the queue and the offset, and decides when to commit."""

from latermq.client.consumer import queue_offsets
from latermq.client.consumer.offsets import BrokerOffsets
from latermq.client.consumer.pull import PullResult, pull
from latermq.client.consumer.subscription import ALL, Sql, subscription_data
from latermq.client.producer.compression import decompress_messages
from latermq.client.session.credentials import Credentials
from latermq.client.session.retry import with_retries
from latermq.client.session.session import Client, Session
from latermq.message.compression import MAX_BODY_BYTES
from latermq.message.names import check_group
from latermq.protocol.remoting.queues import MessageQueue
from latermq.tls.client import ClientTls


class PullConsumer(Client):
    """Reads queues by offset. It joins no group: `group` only names the committed offsets that it reads and writes."""

    def __init__(
        self,
        namesrv: str = "127.0.0.1:9876",
        *,
        group: str = "DEFAULT_CONSUMER",
        instance: str = "",
        request_timeout_s: float = 3.0,
        encoding: str = "json",
        tls: ClientTls | bool | None = None,
        credentials: Credentials | bool | None = None,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        """`max_body_bytes` limits the decompressed size of all compressed bodies in one pull."""
        check_group(group)
        self._max_body_bytes = max_body_bytes
        self._group = group
        self._session = Session(
            namesrv,
            instance=instance,
            encoding=encoding,
            tls=tls,
            credentials=credentials,
            request_timeout_s=request_timeout_s,
        )
        self._offsets = BrokerOffsets(self._session, group)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return a topic's readable queues from the name server. Retries while servers restart."""
        self._session.check_running()
        routes, timeout_s = self._session.routes, self._session.request_timeout_s
        return list((await with_retries(timeout_s, lambda left_s: routes.refresh(topic))).readable)

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        max_messages: int = 32,
        expression: str | Sql = ALL,
        *,
        wait_s: float = 0.0,
    ) -> PullResult:
        """Pull up to `max_messages` messages from `offset`. The broker waits up to `wait_s` for the first message.

        Raises UnreadableBody if the first message cannot be decompressed. To skip it, pull again from the error's
        `offset` plus one.
        """
        self._session.check_running()
        data = subscription_data(queue.topic, expression)
        result = await pull(
            self._session,
            self._group,
            queue,
            offset,
            data,
            max_messages=max_messages,
            wait_s=wait_s,
            include_subscription=True,
        )
        readable = decompress_messages(result.messages, self._max_body_bytes)
        if len(readable) < len(result.messages):
            result.next_offset = result.messages[len(readable)].queue_offset
        result.messages = readable
        return result

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Store that the group has read everything before `offset`."""
        self._session.check_running()
        await self._offsets.save({queue: offset})

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's stored offset, or None if there is none."""
        self._session.check_running()
        return await self._offsets.load(queue)

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest stored message."""
        self._session.check_running()
        return await queue_offsets.min_offset(self._session, queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the next message will get."""
        self._session.check_running()
        return await queue_offsets.max_offset(self._session, queue)

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at or after a time."""
        self._session.check_running()
        return await queue_offsets.search_offset(self._session, queue, timestamp_ms)

    def statistics(self) -> dict[str, int]:
        return {**self._session.connections.statistics(), **self._session.routes.statistics()}
