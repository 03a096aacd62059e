"""Pull requests, answered at once or when a matching message arrives."""

import time

from latermq.broker.messages.long_polling import WaitingPull, WaitingPulls
from latermq.broker.messages.progress import ConsumerProgress
from latermq.broker.messages.reader import MessageReader, Pulled
from latermq.broker.metrics.topic_traffic import TopicTraffic
from latermq.broker.pop.copies import own_retries
from latermq.broker.pop.pulled_queues import PulledQueues
from latermq.broker.tables.topics import Topics
from latermq.config import BrokerConfig
from latermq.errors import LaterMQError, SubscriptionNotFound, SubscriptionOutdated
from latermq.group.filters import EVERYTHING, Filters, MessageFilter, subscription_of
from latermq.group.members import Members
from latermq.group.subscriptions import SubscriptionGroups
from latermq.message.names import retry_topic
from latermq.model.pull_status import PullStatus
from latermq.model.subscription import Subscription
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.frames import Command
from latermq.protocol.remoting.pull import (
    PULL_CODES,
    PULL_COMMIT_OFFSET,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    PullHeader,
    encode_pull_reply,
)
from latermq.server.remoting.access import SUB, on_group, on_topic
from latermq.server.remoting.connection import Connection
from latermq.server.remoting.endpoints import Endpoint

MAX_SUSPEND_MS = 60_000  # clients time out after 30 s; no client may keep a pull waiting indefinitely
_FOUND_NONE = (PullStatus.NO_NEW_MESSAGE, PullStatus.NO_MATCHED_MESSAGE)


class PullRequests:
    """Serves pulls, and answers those that had to wait."""

    def __init__(
        self,
        reader: MessageReader,
        waiting_pulls: WaitingPulls,
        progress: ConsumerProgress,
        filters: Filters,
        members: Members,
        groups: SubscriptionGroups,
        topics: Topics,
        traffic: TopicTraffic,
        settings: BrokerConfig,
        pulled_queues: PulledQueues,
    ) -> None:
        self._reader = reader
        self._waiting_pulls = waiting_pulls
        self._progress = progress
        self._filters = filters
        self._members = members
        self._groups = groups
        self._topics = topics
        self._traffic = traffic
        self._settings = settings
        self._pulled_queues = pulled_queues

    @property
    def endpoints(self) -> list[Endpoint]:
        access = (on_topic("topic", SUB), on_group("consumerGroup", SUB))
        return [
            Endpoint(Request.PULL_MESSAGE, self._pull, access, PullHeader),
            Endpoint(Request.LITE_PULL_MESSAGE, self._pull, access, PullHeader),
        ]

    def _pull(self, connection: Connection, command: Command, header: PullHeader) -> bytes | None:
        self._reader.check_readable(header.consumerGroup, header.topic, header.queueId, connection.peer_host)
        message_filter = self._filters.of(self._subscription(header))
        if header.topic == retry_topic(header.consumerGroup) and message_filter is EVERYTHING:
            message_filter = own_retries(header.consumerGroup, header.topic)
        if header.sysFlag & PULL_COMMIT_OFFSET and header.commitOffset >= 0:
            self._progress.commit(
                header.consumerGroup, header.topic, header.queueId, header.commitOffset, connection.peer_host
            )
        offset, until = header.queueOffset, None
        left = self._pulled_queues.pull(header.consumerGroup, header.topic, header.queueId, offset, connection)
        if left is not None:
            offset, until = left
        pulled = self._reader.pull(
            header.topic,
            header.queueId,
            offset,
            header.maxMsgNums,
            message_filter=message_filter,
            max_bytes=header.maxMsgBytes,
            until=until,
        )
        if offset != header.queueOffset and pulled.status is PullStatus.NO_NEW_MESSAGE:
            pulled.status = PullStatus.NO_MATCHED_MESSAGE  # tells the client how far it may skip
        may_wait = header.sysFlag & PULL_SUSPEND and header.suspendTimeoutMillis > 0 and not command.is_oneway
        if may_wait and _is_at_end(pulled):
            self._suspend(connection, command, header, message_filter, pulled.next_offset)
            return None
        if pulled.messages:
            self._traffic.count_pulled(header.topic, header.consumerGroup, pulled.messages)
        return _encode(command.opaque, command.encoding, pulled)

    def _suspend(
        self, connection: Connection, command: Command, header: PullHeader, message_filter: MessageFilter, offset: int
    ) -> None:
        """Keep only what the answer needs, bounded and with the tables' strings, so that the request can be freed."""
        self._waiting_pulls.check_room(connection, message_filter)
        settings = self._settings
        pull = WaitingPull(
            connection,
            self,
            command.opaque,
            command.encoding,
            self._groups.require(header.consumerGroup).name,
            (self._topics.require(header.topic).name, header.queueId),
            header.queueOffset,
            max(1, min(header.maxMsgNums, settings.pull_max_messages)),
            max(0, min(header.maxMsgBytes or 0, settings.pull_batch)),
            message_filter,
        )
        pull.offset = offset
        self._waiting_pulls.add(pull, time.monotonic() + min(header.suspendTimeoutMillis, MAX_SUSPEND_MS) / 1000)

    def resume(self, pull: WaitingPull, must_answer: bool) -> bool:
        """Try again, from where the last attempt stopped. Return whether the pull is answered."""
        connection = pull.client
        assert isinstance(connection, Connection)
        topic, queue_id = pull.queue
        pull.offset = self._pulled_queues.next_offset(pull.group, topic, queue_id, pull.offset)
        try:
            pulled = self._reader.pull(
                topic,
                queue_id,
                pull.offset,
                pull.max_messages,
                message_filter=pull.message_filter,
                max_bytes=pull.max_bytes,
            )
        except Exception as error:  # must not affect the other waiting pulls
            connection.send(connection.refuse(_request_of(pull), error))
            return True
        self._waiting_pulls.spend(pulled.work)
        if _is_at_end(pulled) and not must_answer:
            pull.offset = pulled.next_offset
            return False
        if pulled.messages:
            self._traffic.count_pulled(topic, pull.group, pulled.messages)
        if pulled.status == PullStatus.NO_NEW_MESSAGE and pull.offset != pull.first_offset:
            pulled.status = PullStatus.NO_MATCHED_MESSAGE  # tells the client how far it may skip
        connection.send(_encode(pull.opaque, pull.encoding, pulled))
        return True

    def refuse(self, pull: WaitingPull, error: LaterMQError) -> None:
        """Send an error reply to a pull that lost its place to another client's pull."""
        connection = pull.client
        assert isinstance(connection, Connection)
        connection.send(connection.refuse(_request_of(pull), error))

    def _subscription(self, header: PullHeader) -> Subscription:
        """Return the subscription of a pull, from the request itself or from an earlier heartbeat."""
        if header.sysFlag & PULL_SUBSCRIPTION:
            return subscription_of(header.topic, header.subscription, header.expressionType)
        group = self._members.consumer_group(header.consumerGroup)
        subscription = group.subscriptions.get(header.topic) if group else None
        if subscription is None:
            raise SubscriptionNotFound(
                f"group {header.consumerGroup!r} has no subscription to topic {header.topic!r}",
                hint="All members of a group must subscribe to the same topics. The next heartbeat may fix this",
            )
        if subscription.version < header.subVersion:
            raise SubscriptionOutdated(f"the subscription of group {header.consumerGroup!r} is changing")
        return subscription


def _is_at_end(pulled: Pulled) -> bool:
    """Whether a pull has reached the end of the queue and found nothing."""
    return pulled.status in _FOUND_NONE and pulled.next_offset >= pulled.max_offset


def _encode(opaque: int, encoding: int, pulled: Pulled) -> bytes:
    code = PULL_CODES[pulled.status]
    return encode_pull_reply(
        opaque, encoding, code, pulled.next_offset, pulled.min_offset, pulled.max_offset, pulled.pieces
    )


def _request_of(pull: WaitingPull) -> Command:
    """Return as much of the request as an error reply needs."""
    return Command(Request.PULL_MESSAGE, opaque=pull.opaque, encoding=pull.encoding)
