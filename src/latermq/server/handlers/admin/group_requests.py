"""Administration requests about consumer groups, their offsets and connected clients."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from latermq.broker.admin.group_admin import GroupAdmin
from latermq.broker.messages.reply_budget import ReplyBudget
from latermq.broker.notifications import CPP, Notices
from latermq.broker.tables.table_saver import Tables
from latermq.config_json.groups import GroupJson, encode_group
from latermq.config_json.java_json import convert
from latermq.errors import ConsumerOffline, LaterMQError, MalformedRequest
from latermq.group.members import Member, Members
from latermq.group.offsets import ConsumerOffsets
from latermq.group.subscriptions import SubscriptionGroups
from latermq.model.group import Group
from latermq.protocol.remoting.clients import Connection as ConnectionInfo
from latermq.protocol.remoting.clients import (
    ConsumerConnection,
    ProducerConnection,
    ProducerGroupHeader,
    ProducerInfo,
    ProducerTable,
    SubscriptionAnswer,
    write_subscription,
)
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.frames import Command, encode_response
from latermq.protocol.remoting.groups import (
    BrokerConsumeStatsHeader,
    ConsumeStats,
    ConsumeStatsHeader,
    ConsumeStatsList,
    ConsumeTimeSpans,
    DeleteGroupHeader,
    GroupConfigHeader,
    GroupHeader,
    GroupTopicHeader,
    SubscriptionGroupList,
)
from latermq.protocol.remoting.json_body import encode_body
from latermq.protocol.remoting.offsets import (
    CloneOffsetHeader,
    CorrectionOffsetHeader,
    CorrectionOffsets,
    OffsetsByQueue,
    QueueOffset,
    QueueOffsets,
    ResetOffsetHeader,
)
from latermq.protocol.remoting.queues import MessageQueue
from latermq.server.change_log import Change
from latermq.server.handlers.admin.context import AdminContext
from latermq.server.handlers.admin.keyed_maps import keyed_map
from latermq.server.handlers.admin.statistics_bodies import consume_stats, time_spans
from latermq.server.handlers.notices import reset_notice
from latermq.server.remoting.access import (
    CREATE,
    DELETE,
    GET,
    LIST,
    UPDATE,
    on_cluster,
    on_group,
    on_group_if_named,
    on_groups,
    on_topic,
    on_topic_if_named,
    on_topics,
)
from latermq.server.remoting.connection import Connection
from latermq.server.remoting.endpoints import Endpoint
from latermq.server.remoting.sliced_requests import Reply, Slices
from latermq.timer.steps import Steps

_TOPIC_SEPARATOR = ";"
_MEMBERS_PER_STEP = 10  # 2 µs each
Row = TypeVar("Row")


class GroupRequests:
    """Creates, changes, deletes and shows groups; reads and sets offsets."""

    def __init__(
        self,
        context: AdminContext,
        admin: GroupAdmin,
        groups: SubscriptionGroups,
        offsets: ConsumerOffsets,
        members: Members,
        notices: Notices,
        tables: Tables,
    ) -> None:
        self._context = context
        self._topics = context.topics
        self._config = context.config
        self._broker_name = context.config.broker.name
        self._admin = admin
        self._groups = groups
        self._consumer_offsets = offsets
        self._members = members
        self._notices = notices
        self._tables = tables

    @property
    def endpoints(self) -> list[Endpoint]:
        return [*self._endpoints_of_groups(), *self._endpoints_of_offsets()]

    def _endpoints_of_groups(self) -> list[Endpoint]:
        put_one = (on_groups(lambda _, body: [body.name], CREATE, UPDATE),)
        put_all = (on_groups(lambda _, body: [one.name for one in body.groupConfigList], CREATE, UPDATE),)
        get = (on_group("consumerGroup", GET),)
        one_put = Change("group created or updated", names=lambda body: [body.name])
        all_put = Change("groups created or updated", names=lambda body: [one.name for one in body.groupConfigList])
        deleted = Change("group deleted", ("groupName", "cleanOffset"))
        table, code = Slices.TABLE, Request
        return [
            Endpoint(code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, self._put, put_one, body=GroupJson, change=one_put),
            Endpoint(
                code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
                self._put_all,
                put_all,
                body=SubscriptionGroupList,
                slices=table,
                change=all_put,
            ),
            Endpoint(
                code.DELETE_SUBSCRIPTIONGROUP,
                self._delete,
                (on_group("groupName", DELETE),),
                DeleteGroupHeader,
                slices=table,
                change=deleted,
            ),
            Endpoint(code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, self._configs, on_cluster(GET, LIST)),
            Endpoint(code.GET_SUBSCRIPTIONGROUP_CONFIG, self._one_config, (on_group("group", GET),), GroupConfigHeader),
            Endpoint(code.GET_CONSUMER_CONNECTION_LIST, self._consumers, get, GroupHeader, slices=table),
            Endpoint(
                code.GET_PRODUCER_CONNECTION_LIST, self._producers, on_cluster(GET), ProducerGroupHeader, slices=table
            ),
            Endpoint(code.GET_ALL_PRODUCER_INFO, self._all_producers, on_cluster(GET), slices=table),
        ]

    def _endpoints_of_offsets(self) -> list[Endpoint]:
        # A refusal names the first resource that is not permitted, so they are in the order of Apache's broker.
        span = (on_topic_if_named("topic", GET), on_group("group", GET))
        subscribed = (on_group("group", GET), on_topic_if_named("topic", GET))
        stats = (on_group("consumerGroup", GET), on_topics(_topics_of_stats, GET))
        correct = (on_group_if_named("compareGroup", GET), on_topic("topic", GET))
        clone = (on_group("destGroup", UPDATE), on_topic_if_named("topic", UPDATE), on_group("srcGroup", GET))
        reset = (on_group("group", UPDATE), on_topic("topic", UPDATE))
        cloned = Change("offsets cloned", ("srcGroup", "destGroup", "topic"))
        were_reset = Change("offsets reset", ("group", "topic", "timestamp", "queueId", "offset", "isForce"))
        table, code = Slices.TABLE, Request
        return [
            Endpoint(code.GET_ALL_CONSUMER_OFFSET, self._offsets, on_cluster(GET)),
            Endpoint(code.GET_CONSUME_STATS, self._consume_stats, stats, ConsumeStatsHeader, slices=table),
            Endpoint(
                code.GET_BROKER_CONSUME_STATS,
                self._all_consume_stats,
                on_cluster(GET),
                BrokerConsumeStatsHeader,
                slices=table,
            ),
            Endpoint(code.QUERY_CONSUME_TIME_SPAN, self._time_spans, span, GroupTopicHeader, slices=table),
            Endpoint(code.QUERY_SUBSCRIPTION_BY_CONSUMER, self._subscription, subscribed, GroupTopicHeader),
            Endpoint(
                code.QUERY_CORRECTION_OFFSET, self._correction_offsets, correct, CorrectionOffsetHeader, slices=table
            ),
            Endpoint(
                code.CLONE_GROUP_OFFSET, self._clone_offsets, clone, CloneOffsetHeader, slices=table, change=cloned
            ),
            Endpoint(
                code.INVOKE_BROKER_TO_RESET_OFFSET,
                self._reset_offsets,
                reset,
                ResetOffsetHeader,
                slices=table,
                change=were_reset,
            ),
        ]

    # Configuration

    def _put(self, connection: Connection, command: Command, body: GroupJson) -> None:
        self._context.saves.check_room()
        self._admin.put(convert(body, Group))
        self._answer_when_saved(connection, command)

    def _put_all(self, connection: Connection, command: Command, body: SubscriptionGroupList) -> Steps[Reply]:
        self._context.saves.check_room()
        groups = body.groupConfigList
        if not groups:
            raise MalformedRequest("the list of groups is empty", hint="Specify at least one group")
        for group in groups:
            self._admin.put(convert(group, Group))
            yield
        self._answer_when_saved(connection, command)
        return None

    def _delete(self, connection: Connection, command: Command, header: DeleteGroupHeader) -> Steps[Reply]:
        self._context.saves.check_room()
        self._admin.delete(header.groupName, clean_offsets=header.cleanOffset)
        topics = self._consumer_offsets.topics_of(header.groupName)
        yield from self._tables.encode_offsets_of(header.groupName, topics)
        self._answer_when_saved(connection, command)
        return None

    def _answer_when_saved(self, connection: Connection, command: Command, body: bytes = b"") -> None:
        self._context.answer_when_saved(connection, command, encode_response(command, body=body))

    def _configs(self, connection: Connection, command: Command, _: None) -> bytes:
        table = self._groups.table
        fields = {"totalGroupNum": str(len(table.groups))}
        body = self._tables.groups_body(ReplyBudget(self._config))
        return encode_response(command, fields=fields, body=body)

    def _one_config(self, connection: Connection, command: Command, header: GroupConfigHeader) -> bytes:
        group = self._admin.config(header.group)
        return encode_response(command, body=encode_group(group))

    # Connected clients

    def _consumers(self, connection: Connection, command: Command, header: GroupHeader) -> Steps[Reply]:
        name = header.consumerGroup
        group = self._members.consumer_group(name)
        if group is None:
            raise ConsumerOffline(
                f"consumer group {name!r} is not online", hint="No member is connected to this broker. Start one"
            )
        budget = ReplyBudget(self._config)
        subscriptions = {topic: write_subscription(one) for topic, one in group.subscriptions.items()}
        budget.spend(len(encode_body(subscriptions)))
        body = ConsumerConnection(
            connectionSet=(yield from _convert_members(_connection_info, group.members.values(), budget)),
            subscriptionTable=subscriptions,
            consumeType=group.consume_type,
            messageModel=group.message_model,
            consumeFromWhere=group.consume_from,
        )
        return encode_response(command, body=encode_body(body))

    def _producers(self, connection: Connection, command: Command, header: ProducerGroupHeader) -> Steps[Reply]:
        name = header.producerGroup
        members = self._members.producers(name)
        if not members:
            raise LaterMQError(
                f"producer group {name!r} does not exist", hint="No member is connected to this broker. Start one"
            )
        budget = ReplyBudget(self._config)
        body = ProducerConnection(connectionSet=(yield from _convert_members(_connection_info, members, budget)))
        return encode_response(command, body=encode_body(body))

    def _all_producers(self, connection: Connection, command: Command, _: None) -> Steps[Reply]:
        table = {}
        budget = ReplyBudget(self._config)
        for name, members in self._members.producer_groups().items():
            yield
            budget.spend(len(encode_body(name)))
            table[name] = yield from _convert_members(_producer_info, members, budget)
        return encode_response(command, body=encode_body(ProducerTable(data=table)))

    def _subscription(self, connection: Connection, command: Command, header: GroupTopicHeader) -> bytes:
        group = self._members.consumer_group(header.group)
        subscription = group.subscriptions.get(header.topic) if group else None
        data = write_subscription(subscription) if subscription is not None else None
        body = SubscriptionAnswer(group=header.group, topic=header.topic, subscriptionData=data)
        return encode_response(command, body=encode_body(body))

    # Offsets

    def _consume_stats(self, connection: Connection, command: Command, header: ConsumeStatsHeader) -> Steps[Reply]:
        group = header.consumerGroup
        named = _named_topics(header)
        if named:
            found = [self._topics.find(name) for name in sorted(set(named))]
            topics = [topic for topic in found if topic is not None]
        else:
            wanted = [header.topic] if header.topic else (yield from self._admin.topics_of(group))
            topics = self._admin.watched_topics(group, wanted)
        progress = yield from self._admin.progress(group, topics)
        stats = yield from consume_stats(progress, self._broker_name)
        return encode_response(command, body=encode_body(stats))

    def _all_consume_stats(
        self, connection: Connection, command: Command, header: BrokerConsumeStatsHeader
    ) -> Steps[Reply]:
        found = yield from self._admin.all_progress(only_ordered=header.isOrder)
        listed: list[dict[str, list[ConsumeStats]]] = []
        left = 0
        for group, topics in found.items():
            stats = []
            for topic in topics:
                left += sum(queue.end_offset - queue.consumed_offset for queue in topic.queues)
                stats.append((yield from consume_stats([topic], self._broker_name)))
            listed.append({group: stats})
            yield
        body = ConsumeStatsList(consumeStatsList=listed, brokerAddr=self._context.identity.address, totalDiff=left)
        return encode_response(command, body=encode_body(body))

    def _time_spans(self, connection: Connection, command: Command, header: GroupTopicHeader) -> Steps[Reply]:
        times = yield from self._admin.queue_times(header.group, header.topic)
        spans = yield from time_spans(times, header.topic, self._broker_name)
        return encode_response(command, body=encode_body(ConsumeTimeSpans(consumeTimeSpanSet=spans)))

    def _offsets(self, connection: Connection, command: Command, _: None) -> bytes:
        return encode_response(command, body=self._tables.offsets_body(ReplyBudget(self._config)))

    def _correction_offsets(
        self, connection: Connection, command: Command, header: CorrectionOffsetHeader
    ) -> Steps[Reply]:
        offsets = yield from self._admin.correction_offsets(
            header.topic, header.compareGroup, header.filterGroups.split(",")
        )
        return encode_response(command, body=encode_body(CorrectionOffsets(correctionOffsets=offsets)))

    def _clone_offsets(self, connection: Connection, command: Command, header: CloneOffsetHeader) -> Steps[Reply]:
        self._context.saves.check_room()
        cloned = yield from self._admin.clone_offsets(
            header.srcGroup, header.destGroup, header.topic, offline=header.offline
        )
        yield from self._tables.encode_offsets_of(header.destGroup, cloned)
        self._answer_when_saved(connection, command)
        return None

    def _reset_offsets(self, connection: Connection, command: Command, header: ResetOffsetHeader) -> Steps[Reply]:
        """Change the offsets and notify the members, which would otherwise overwrite them with their own."""
        self._context.saves.check_room()
        self._notices.check_room()
        offsets = yield from self._admin.reset_offsets(
            header.group,
            header.topic,
            timestamp_ms=header.timestamp,
            queue_id=header.queueId,
            offset=header.offset,
            force=header.isForce,
        )
        yield from self._tables.encode_offsets_of(header.group, [header.topic])
        name = self._broker_name
        queues = [(MessageQueue(header.topic, name, queue_id), offset) for queue_id, offset in offsets.items()]
        body = encode_body(OffsetsByQueue(offsetTable=(yield from keyed_map(queues))))
        group = self._members.consumer_group(header.group)
        if group is not None:
            has_cpp = any(member.language == CPP for member in group.members.values())
            self._notices.send(reset_notice(header, body, _encode_for_cpp(queues) if has_cpp else None))
        self._answer_when_saved(connection, command, body)
        return None


def _named_topics(header: ConsumeStatsHeader) -> list[str]:
    return [name for name in (header.topicList or "").split(_TOPIC_SEPARATOR) if name]


def _topics_of_stats(_: Command, header: ConsumeStatsHeader) -> list[str]:
    """Return the topics that a request names. A request without topics covers those of the group."""
    return _named_topics(header) + ([header.topic] if header.topic else [])


def _encode_for_cpp(queues: list[tuple[MessageQueue, int]]) -> bytes:
    """Encode the table in the form that C++ clients read."""
    return encode_body(QueueOffsets(offsetTable=[_queue_offset(queue, offset) for queue, offset in queues]))


def _convert_members(
    to_row: Callable[[Member], Row], members: Iterable[Member], budget: ReplyBudget
) -> Steps[list[Row]]:
    """Convert all members in steps. Refuse if they do not fit in one answer."""
    found = []
    for member in list(members):
        one = to_row(member)
        budget.spend(len(encode_body(one)))
        found.append(one)
        if len(found) % _MEMBERS_PER_STEP == 0:
            yield
    return found


def _connection_info(member: Member) -> ConnectionInfo:
    return ConnectionInfo(
        clientId=member.client_id,
        clientAddr=member.channel.peer_name,
        language=member.language,
        version=member.version,
    )


def _producer_info(member: Member) -> ProducerInfo:
    return ProducerInfo(
        clientId=member.client_id,
        remoteIP=member.channel.peer_name,
        language=member.language,
        version=member.version,
        lastUpdateTimestamp=member.seen_ms,
    )


def _queue_offset(queue: MessageQueue, offset: int) -> QueueOffset:
    return QueueOffset(topic=queue.topic, brokerName=queue.brokerName, queueId=queue.queueId, offset=offset)
