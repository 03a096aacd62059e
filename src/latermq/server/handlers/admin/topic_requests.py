"""Administration requests about topics and their queues."""

from latermq.broker.admin.group_admin import GroupAdmin
from latermq.broker.admin.topic_admin import TopicAdmin, parse_attributes
from latermq.broker.messages.reader import MessageReader
from latermq.broker.messages.reply_budget import ReplyBudget
from latermq.broker.tables.table_saver import Tables
from latermq.config_json.java_json import convert
from latermq.config_json.topics import encode_topic
from latermq.errors import MalformedRequest
from latermq.group.members import Members
from latermq.model.topic import Topic
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.frames import Command, encode_response
from latermq.protocol.remoting.groups import GroupConfigHeader, GroupList
from latermq.protocol.remoting.json_body import encode_body
from latermq.protocol.remoting.queues import QueueHeader, SearchOffsetHeader
from latermq.protocol.remoting.topics import CreateTopicHeader, TopicConfigList, TopicHeader, TopicList
from latermq.server.change_log import Change
from latermq.server.handlers.admin.context import AdminContext
from latermq.server.handlers.admin.statistics_bodies import topic_stats
from latermq.server.remoting.access import CREATE, DELETE, GET, LIST, on_cluster, on_group, on_topic, on_topics
from latermq.server.remoting.connection import Connection
from latermq.server.remoting.endpoints import Endpoint
from latermq.server.remoting.sliced_requests import Reply, Slices
from latermq.timer.steps import Steps

_UPPER = "UPPER"


class TopicRequests:
    """Creates, changes, deletes and shows topics."""

    def __init__(
        self,
        context: AdminContext,
        admin: TopicAdmin,
        groups: GroupAdmin,
        reader: MessageReader,
        members: Members,
        tables: Tables,
    ) -> None:
        self._context = context
        self._topics = context.topics
        self._config = context.config
        self._admin = admin
        self._groups = groups
        self._reader = reader
        self._members = members
        self._tables = tables

    @property
    def endpoints(self) -> list[Endpoint]:
        create, delete, get = (on_topic("topic", CREATE),), (on_topic("topic", DELETE),), (on_topic("topic", GET),)
        put_all = (on_topics(lambda _, body: [one.name for one in body.topicConfigList], CREATE),)
        put = Change("topic created or updated", ("topic", "readQueueNums", "writeQueueNums", "perm"))
        all_put = Change("topics created or updated", names=lambda body: [one.name for one in body.topicConfigList])
        deleted = Change("topic deleted", ("topic",))
        table, code = Slices.TABLE, Request
        return [
            Endpoint(code.UPDATE_AND_CREATE_TOPIC, self._put, create, CreateTopicHeader, change=put),
            Endpoint(
                code.UPDATE_AND_CREATE_TOPIC_LIST,
                self._put_all,
                put_all,
                body=TopicConfigList,
                slices=table,
                change=all_put,
            ),
            Endpoint(code.DELETE_TOPIC_IN_BROKER, self._delete, delete, TopicHeader, change=deleted),
            Endpoint(code.GET_ALL_TOPIC_CONFIG, self._configs, on_cluster(GET, LIST)),
            Endpoint(code.GET_TOPIC_CONFIG, self._one_config, get, TopicHeader),
            Endpoint(code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, self._own_topics, on_cluster(GET, LIST)),
            Endpoint(code.GET_TOPIC_STATS_INFO, self._stats, get, TopicHeader, slices=table),
            Endpoint(code.QUERY_TOPIC_CONSUME_BY_WHO, self._groups_of, get, TopicHeader, slices=table),
            Endpoint(
                code.QUERY_TOPICS_BY_CONSUMER,
                self._topics_of,
                (on_group("group", GET),),
                GroupConfigHeader,
                slices=table,
            ),
            Endpoint(code.SEARCH_OFFSET_BY_TIMESTAMP, self._search_offset, get, SearchOffsetHeader),
            Endpoint(code.GET_MAX_OFFSET, self._max_offset, get, QueueHeader),
            Endpoint(code.GET_MIN_OFFSET, self._min_offset, get, QueueHeader),
            Endpoint(code.GET_EARLIEST_MSG_STORETIME, self._earliest_time, get, QueueHeader),
        ]

    def _put(self, connection: Connection, command: Command, header: CreateTopicHeader) -> None:
        self._context.saves.check_room()
        topic = Topic(
            name=header.topic,
            read_queues=header.readQueueNums,
            write_queues=header.writeQueueNums,
            permissions=header.perm,
            filter_type=header.topicFilterType,
            system_flags=header.topicSysFlag,
            is_ordered=header.order,
        )
        self._admin.put(topic, parse_attributes(header.attributes))
        self._context.answer_when_announced(connection, command, [])

    def _put_all(self, connection: Connection, command: Command, body: TopicConfigList) -> Steps[Reply]:
        self._context.saves.check_room()
        topics = body.topicConfigList
        if not topics:
            raise MalformedRequest("the list of topics is empty", hint="Specify at least one topic")
        for topic in topics:
            self._admin.put(convert(topic, Topic), topic.attributes)
            yield
        self._context.answer_when_announced(connection, command, [])
        return None

    def _delete(self, connection: Connection, command: Command, header: TopicHeader) -> None:
        self._context.saves.check_room()
        works = self._admin.delete(header.topic)
        self._context.answer_when_announced(connection, command, works)

    def _configs(self, connection: Connection, command: Command, _: None) -> bytes:
        table = self._topics.table
        # The count shows clients that read page by page that the first page is complete.
        fields = {"totalTopicNum": str(len(table.topics))}
        body = self._tables.topics_body(ReplyBudget(self._config))
        return encode_response(command, fields=fields, body=body)

    def _one_config(self, connection: Connection, command: Command, header: TopicHeader) -> bytes:
        topic = self._topics.require(header.topic)
        return encode_response(command, body=encode_topic(topic))

    def _stats(self, connection: Connection, command: Command, header: TopicHeader) -> Steps[Reply]:
        state = yield from self._admin.state(header.topic)
        stats = yield from topic_stats(state, self._config.broker.name)
        return encode_response(command, body=encode_body(stats))

    def _own_topics(self, connection: Connection, command: Command, _: None) -> bytes:
        topics = TopicList(topicList=self._admin.own_topics(), brokerAddr=self._context.identity.address)
        return encode_response(command, body=encode_body(topics))

    def _groups_of(self, connection: Connection, command: Command, header: TopicHeader) -> Steps[Reply]:
        """Return the groups that have consumed a topic or have connected members that subscribe to it."""
        topic = header.topic
        connected = {group.name for group in self._members.consumer_groups() if topic in group.subscriptions}
        groups = sorted(connected | set((yield from self._groups.groups_of(topic))))
        return encode_response(command, body=encode_body(GroupList(groupList=groups)))

    def _topics_of(self, connection: Connection, command: Command, header: GroupConfigHeader) -> Steps[Reply]:
        """Return the topics that a group has consumed."""
        topics = yield from self._groups.topics_of(header.group)
        body = TopicList(topicList=topics, brokerAddr=self._context.identity.address)
        return encode_response(command, body=encode_body(body))

    # Queues

    def _search_offset(self, connection: Connection, command: Command, header: SearchOffsetHeader) -> bytes:
        upper = (header.boundaryType or "").upper() == _UPPER
        offset = self._reader.offset_by_time(header.topic, header.queueId, header.timestamp, upper=upper)
        return encode_response(command, fields={"offset": str(offset)})

    def _max_offset(self, connection: Connection, command: Command, header: QueueHeader) -> bytes:
        queue = self._reader.find_queue(header.topic, header.queueId)
        return encode_response(command, fields={"offset": str(queue.next_offset if queue else 0)})

    def _min_offset(self, connection: Connection, command: Command, header: QueueHeader) -> bytes:
        queue = self._reader.find_queue(header.topic, header.queueId)
        return encode_response(command, fields={"offset": str(queue.min_offset if queue else 0)})

    def _earliest_time(self, connection: Connection, command: Command, header: QueueHeader) -> bytes:
        stored_ms = self._reader.earliest_ms(header.topic, header.queueId)
        return encode_response(command, fields={"timestamp": str(stored_ms)})
