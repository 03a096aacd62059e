"""The push consumer: a group member that passes its share of the messages to a handler function."""

import time
from pathlib import Path

from latermq.client.consumer.assignment import Assignment
from latermq.client.consumer.consumer_requests import ConsumerRequests
from latermq.client.consumer.consumer_settings import CLUSTERING, ConsumerSettings
from latermq.client.consumer.handler_runner import ConcurrentRunner, Handler, HandlerRunner, OrderlyRunner
from latermq.client.consumer.offsets import DEFAULT_FOLDER
from latermq.client.consumer.subscription import ALL, SQL, Sql, subscription_data
from latermq.client.session.credentials import Credentials
from latermq.client.session.failures import NoBroker
from latermq.client.session.session import Client, Session
from latermq.errors import LaterMQError, ServiceUnavailable, TopicNotFound
from latermq.message.compression import MAX_BODY_BYTES
from latermq.message.names import check_topic, retry_topic
from latermq.protocol.remoting.clients import ConsumerData, HeartbeatData, SubscriptionData
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.json_body import encode_body
from latermq.tls.client import ClientTls

_CONSUME_FROM = {"first": "CONSUME_FROM_FIRST_OFFSET", "last": "CONSUME_FROM_LAST_OFFSET"}


class PushConsumer(Client):
    """Passes the messages of subscribed topics to `handler`, a coroutine function or a non-blocking plain function.

    If the handler raises, the message is redelivered later. After `max_reconsume_times` failures it goes to the group's
    dead letters. With `orderly=True`, a failed message blocks its queue and is retried in place instead.

    - `concurrency`: the number of concurrent handlers. `pull_batch`: messages per pull.
    - `model`: "clustering" distributes the messages among the group's members. "broadcasting" delivers every message to
      every member, keeps its offsets in `offsets_folder`, and drops messages that fail.
    - `consume_from`: where a new group starts: "first", "last", or epoch milliseconds.
    - `max_cached_messages`, `max_cached_bytes`: limits of the messages pulled ahead of the handlers, per queue.
    - `max_body_bytes`: the limit of one decompressed body, and of all decompressed bodies being handled. At the limit,
      further compressed messages wait. A message whose body exceeds it fails.
    - `commit_every_s`: how often offsets are stored. `shutdown_wait_s`: how long `close` waits for running handlers.
    """

    def __init__(
        self,
        namesrv: str,
        group: str,
        handler: Handler,
        *,
        concurrency: int = 20,
        orderly: bool = False,
        model: str = CLUSTERING,
        consume_from: str | int = "last",
        max_reconsume_times: int | None = None,
        pull_batch: int = 32,
        max_cached_messages: int = 1000,
        max_cached_bytes: int = 16 * 1024 * 1024,
        max_body_bytes: int = MAX_BODY_BYTES,
        commit_every_s: float = 5.0,
        rebalance_every_s: float = 20.0,
        long_poll_s: float = 15.0,
        lock_every_s: float = 20.0,
        shutdown_wait_s: float = 10.0,
        offsets_folder: Path = DEFAULT_FOLDER,
        instance: str = "",
        encoding: str = "json",
        tls: ClientTls | bool | None = None,
        credentials: Credentials | bool | None = None,
    ) -> None:
        self._settings = ConsumerSettings(
            group=group,
            concurrency=concurrency,
            orderly=orderly,
            model=model,
            consume_from=consume_from,
            max_reconsume_times=max_reconsume_times,
            pull_batch=pull_batch,
            max_cached_messages=max_cached_messages,
            max_cached_bytes=max_cached_bytes,
            max_body_bytes=max_body_bytes,
            commit_every_s=commit_every_s,
            rebalance_every_s=rebalance_every_s,
            long_poll_s=long_poll_s,
            lock_every_s=lock_every_s,
            shutdown_wait_s=shutdown_wait_s,
            offsets_folder=offsets_folder,
        )
        self._session = Session(namesrv, instance=instance, encoding=encoding, tls=tls, credentials=credentials)
        self._session.heartbeat = self._heartbeat
        runner = OrderlyRunner if orderly else ConcurrentRunner
        self._runner: HandlerRunner = runner(self._session, self._settings, handler)
        self._assignment = Assignment(self._session, self._settings, instance, self._runner.deliver)
        self._session.on_routes_refreshed = lambda changed: self._assignment.rebalance_soon() if changed else None
        ConsumerRequests(self._session, self._settings, self._assignment, handler, self.statistics)
        if self._settings.is_clustering:
            topic = retry_topic(group)
            self._assignment.subscriptions[topic] = subscription_data(topic, version=_now_ms())

    async def start(self) -> None:
        """Start to consume the current subscriptions."""
        await super().start()
        self._runner.start()
        try:
            for data in list(self._assignment.subscriptions.values()):
                await self._announce(data)
            await self._assignment.rebalance()
        except BaseException:
            await self.close()
            raise
        self._assignment.start()

    async def close(self) -> None:
        """Shut down cleanly: wait for running handlers, store offsets, and leave the queues to the other members."""
        if self._session.is_running:
            await self._assignment.close()
        await self._session.close([{"consumerGroup": self._settings.group}])

    async def subscribe(self, topic: str, expression: str | Sql = ALL) -> None:
        """Subscribe to a topic: to all messages (`*`), to tags (`red || blue`), or to those that match a `Sql`.

        If the topic exists, this member has its queues on return. A topic created later is detected automatically.
        """
        check_topic(topic)
        data = subscription_data(topic, expression, version=_now_ms())
        previous = self._assignment.subscriptions.get(topic)
        self._assignment.subscriptions[topic] = data
        if not self._session.is_running:
            return
        try:
            await self._announce(data)
        except LaterMQError:
            if previous is None:
                del self._assignment.subscriptions[topic]
            else:
                self._assignment.subscriptions[topic] = previous
            raise
        await self._assignment.rebalance()

    async def unsubscribe(self, topic: str) -> None:
        """Stop consuming a topic."""
        self._assignment.subscriptions.pop(topic, None)
        if self._session.is_running:
            await self._session.send_heartbeats()
            await self._assignment.rebalance()

    def statistics(self) -> dict[str, int]:
        """Return counters since the start, and the current numbers of assigned queues and cached messages."""
        queues = self._assignment.queues.values()
        return {
            **self._runner.statistics(),
            "queues": len(queues),
            "cached_messages": sum(queue.cached_messages for queue in queues),
            "cached_bytes": sum(queue.cached_bytes for queue in queues),
            "running_handlers": sum(queue.running_handlers for queue in queues),
            **self._session.connections.statistics(),
            **self._session.routes.statistics(),
        }

    async def _announce(self, data: SubscriptionData) -> None:
        """Send the subscription to the topic's brokers. Raises if a broker rejects its SQL expression."""
        try:
            route = await self._session.routes.get(data.topic)
        except (TopicNotFound, ServiceUnavailable, NoBroker):
            return  # a consumer may start before its topic and its brokers exist
        if data.expressionType == SQL:
            body = {"clientId": self.client_id, "group": self._settings.group, "subscriptionData": data}
            for address in route.addresses.values():
                await self._session.connections.call(
                    address,
                    Request.CHECK_CLIENT_CONFIG,
                    {},
                    encode_body(body),
                    timeout_s=self._session.request_timeout_s,
                )
        await self._session.send_heartbeats()

    def _heartbeat(self) -> HeartbeatData:
        settings = self._settings
        from_where = _CONSUME_FROM.get(str(settings.consume_from), "CONSUME_FROM_TIMESTAMP")
        consumer = ConsumerData(
            groupName=settings.group,
            messageModel=settings.model.upper(),
            consumeFromWhere=from_where,
            subscriptionDataSet=list(self._assignment.subscriptions.values()),
        )
        return HeartbeatData(clientID=self.client_id, consumerDataSet=[consumer])


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
