"""Requests of connected clients: offsets, heartbeats, group members and locks."""

from collections.abc import Callable, Iterator, Sequence

from latermq.broker.messages.progress import ConsumerProgress
from latermq.broker.messages.reply_budget import ReplyBudget
from latermq.broker.pop.pulled_queues import PulledQueues
from latermq.broker.tables.topics import Topics
from latermq.clock import Clock
from latermq.config import Config
from latermq.errors import GroupNotFound, InvalidParameter, NoPermission, QueryNotFound
from latermq.group.filters import Filters, subscription_of
from latermq.group.locks import QueueLocks
from latermq.group.members import Members, check_client_id
from latermq.group.subscriptions import SubscriptionGroups
from latermq.message.names import retry_topic
from latermq.protocol.remoting.clients import (
    ConsumerIdList,
    HeartbeatData,
    LockBatchRequest,
    LockBatchResponse,
    UnregisterClientHeader,
    read_heartbeat,
)
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.frames import Command, encode_response
from latermq.protocol.remoting.groups import GroupHeader
from latermq.protocol.remoting.json_body import encode_body
from latermq.protocol.remoting.offsets import QueryOffsetHeader, UpdateOffsetHeader
from latermq.protocol.remoting.queues import MessageQueue
from latermq.server.remoting.access import (
    GET,
    OPEN,
    SUB,
    UPDATE,
    on_group,
    on_group_if_named,
    on_groups,
    on_topic,
    on_topics,
)
from latermq.server.remoting.connection import Connection
from latermq.server.remoting.endpoints import BodyLimit, Endpoint
from latermq.server.remoting.sliced_requests import Reply, Slices
from latermq.timer.steps import Steps

_QUEUES_PER_STEP = 10  # locked in one step: 2 µs each
_IDS_PER_STEP = 10  # client IDs encoded in one step: up to 3 µs each


class ConsumerRequests:
    """Serves the requests of consumers other than pulls, and the heartbeats of all clients."""

    def __init__(
        self,
        progress: ConsumerProgress,
        members: Members,
        filters: Filters,
        groups: SubscriptionGroups,
        topics: Topics,
        locks: QueueLocks,
        client_clock: Clock,
        config: Config,
        notify: Callable[[set[str]], None],
        pulled_queues: PulledQueues,
        on_producers: Callable[[list[str]], None] = lambda groups: None,
    ) -> None:
        """`notify` informs the members of groups that their groups changed.

        `on_producers` receives the producer groups of each heartbeat.
        """
        self._on_producers = on_producers
        self._progress = progress
        self._members = members
        self._filters = filters
        self._groups = groups
        self._topics = topics
        self._locks = locks
        self._client_clock = client_clock
        self._config = config
        self._notify = notify
        self._pulled_queues = pulled_queues

    @property
    def endpoints(self) -> list[Endpoint]:
        query = (on_topic("topic", SUB, GET), on_group("consumerGroup", SUB, GET))
        update = (on_topic("topic", SUB, UPDATE), on_group("consumerGroup", SUB, UPDATE))
        lock = (on_group("consumerGroup", SUB), on_topics(lambda _, request: {one.topic for one in request.mqSet}, SUB))
        beat = (on_groups(_groups_of, SUB), on_topics(_subscribed_by, SUB))
        beat_limit = BodyLimit(int(self._config.broker.max_heartbeat), "broker.max_heartbeat", InvalidParameter)
        members = (on_group("consumerGroup", SUB, GET),)
        leave = (on_group_if_named("consumerGroup", SUB),)
        sliced, code = Slices.ALL, Request
        return [
            Endpoint(code.QUERY_CONSUMER_OFFSET, self._query_offset, query, QueryOffsetHeader),
            Endpoint(code.UPDATE_CONSUMER_OFFSET, self._update_offset, update, UpdateOffsetHeader),
            Endpoint(code.HEART_BEAT, self._heartbeat, beat, body=HeartbeatData, slices=sliced, body_limit=beat_limit),
            Endpoint(code.UNREGISTER_CLIENT, self._unregister, leave, UnregisterClientHeader),
            Endpoint(code.CHECK_CLIENT_CONFIG, self._check_client, OPEN, body=dict[str, object]),
            Endpoint(code.GET_CONSUMER_LIST_BY_GROUP, self._consumer_list, members, GroupHeader, slices=sliced),
            Endpoint(code.LOCK_BATCH_MQ, self._lock, lock, body=LockBatchRequest, slices=sliced),
            Endpoint(code.UNLOCK_BATCH_MQ, self._unlock, lock, body=LockBatchRequest, slices=sliced),
        ]

    # Offsets

    def _query_offset(self, connection: Connection, command: Command, header: QueryOffsetHeader) -> bytes:
        offset = self._progress.committed(
            header.consumerGroup, header.topic, header.queueId, zero_if_new=header.setZeroIfNotFound is not False
        )
        if offset < 0:
            raise QueryNotFound(
                f"group {header.consumerGroup!r} has no offset in queue {header.queueId} of topic {header.topic!r}"
            )
        return encode_response(command, fields={"offset": str(offset)})

    def _update_offset(self, connection: Connection, command: Command, header: UpdateOffsetHeader) -> bytes:
        is_offline = self._members.consumer_group(header.consumerGroup) is None
        self._progress.commit(
            header.consumerGroup,
            header.topic,
            header.queueId,
            header.commitOffset,
            connection.peer_host,
            is_reset=is_offline,
        )
        self._pulled_queues.renew(header.consumerGroup, header.topic, header.queueId, connection)
        return encode_response(command)

    # Clients and their groups

    def _heartbeat(self, connection: Connection, command: Command, body: HeartbeatData) -> Steps[Reply]:
        beat = read_heartbeat(body)
        language = command.language  # read now: a request that takes several slices is released
        self._members.check(connection, beat, language)
        for consumer in beat.consumers:
            for subscription in consumer.subscriptions:
                self._filters.check(subscription)
                yield
        known = []
        refusal: NoPermission | None = None
        for consumer in beat.consumers:
            yield
            # If one group may not be created, the client's other groups are still accepted.
            try:
                group = self._groups.require(consumer.group, connection.peer_host)
                known.append(consumer)
                if group.retry_queues > 0:
                    # Created before any message is sent back: clients look for it at start and at each rebalance.
                    self._topics.create_retry_topic(
                        retry_topic(consumer.group), group.retry_queues, connection.peer_host
                    )
            except GroupNotFound:
                continue
            except NoPermission as error:
                refusal = error
        if connection.is_closing:  # it closed during the steps: nothing would remove the client again
            return None
        self._members.check(connection, beat, language)  # other clients may have registered during the steps
        beat.consumers = known
        changed = self._members.heartbeat(
            connection, beat, language=language, version=command.version, clock=self._client_clock
        )
        self._notify(changed)
        if beat.producer_groups:
            self._on_producers(beat.producer_groups)
        if refusal is not None:
            raise refusal
        return encode_response(command)

    def _unregister(self, connection: Connection, command: Command, header: UnregisterClientHeader) -> bytes:
        changed = self._members.unregister(
            header.clientID, producer_group=header.producerGroup, consumer_group=header.consumerGroup
        )
        self._notify(changed)
        return encode_response(command)

    def _check_client(self, connection: Connection, command: Command, body: dict[str, object]) -> bytes:
        """Check whether a client's filter expression parses. Clients ask before they subscribe."""
        subscription = body.get("subscriptionData")
        if isinstance(subscription, dict):
            self._filters.of(
                subscription_of(
                    str(subscription.get("topic") or ""),
                    str(subscription.get("subString") or ""),
                    str(subscription.get("expressionType") or ""),
                )
            )
        return encode_response(command)

    def _consumer_list(self, connection: Connection, command: Command, header: GroupHeader) -> Steps[Reply]:
        name = header.consumerGroup
        group = self._members.consumer_group(name)
        if group is None:
            raise GroupNotFound(f"consumer group {name!r} has no connected member")
        budget = ReplyBudget(self._config)
        client_ids = list(group.members)
        for at in range(0, len(client_ids), _IDS_PER_STEP):
            budget.spend(len(encode_body(client_ids[at : at + _IDS_PER_STEP])))
            yield
        return encode_response(command, body=encode_body(ConsumerIdList(consumerIdList=client_ids)))

    def _lock(self, connection: Connection, command: Command, request: LockBatchRequest) -> Steps[Reply]:
        group = self._groups.require(request.consumerGroup, connection.peer_host).name
        check_client_id(request.clientId)
        name = self._config.broker.name
        locked: list[MessageQueue] = []
        for some in _in_parts(request.mqSet):
            queues = [(queue.topic, queue.queueId) for queue in some if self._exists(queue)]
            held = self._locks.lock(group, request.clientId, queues)
            locked += [MessageQueue(topic, name, queue_id) for topic, queue_id in held]
            yield
        return encode_response(command, body=encode_body(LockBatchResponse(lockOKMQSet=locked)))

    def _exists(self, queue: MessageQueue) -> bool:
        topic = self._topics.find(queue.topic)
        return topic is not None and 0 <= queue.queueId < max(topic.read_queues, topic.write_queues)

    def _unlock(self, connection: Connection, command: Command, request: LockBatchRequest) -> Steps[Reply]:
        for some in _in_parts(request.mqSet):
            queues = [(queue.topic, queue.queueId) for queue in some]
            self._locks.unlock(request.consumerGroup, request.clientId, queues)
            yield
        return encode_response(command)


def _in_parts(queues: Sequence[MessageQueue]) -> Iterator[Sequence[MessageQueue]]:
    return (queues[at : at + _QUEUES_PER_STEP] for at in range(0, len(queues), _QUEUES_PER_STEP))


def _groups_of(_: Command, beat: HeartbeatData) -> set[str]:
    return {consumer.groupName for consumer in beat.consumerDataSet}


def _subscribed_by(_: Command, beat: HeartbeatData) -> set[str]:
    return {one.topic for consumer in beat.consumerDataSet for one in consumer.subscriptionDataSet}
