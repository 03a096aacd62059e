"""Administration requests about topics and their queues."""

from latermq.broker.admin import group_admin, topic_admin
from latermq.broker.messages.answer_room import AnswerRoom
from latermq.config_json.java_json import convert
from latermq.config_json.topics import encode_topic
from latermq.errors import MalformedRequest
from latermq.model.topic import Topic
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.frames import Command, encode_response
from latermq.protocol.remoting.groups import GroupConfigHeader, GroupList
from latermq.protocol.remoting.json_body import decode_body, encode_body
from latermq.protocol.remoting.queues import QueueHeader, SearchOffsetHeader
from latermq.protocol.remoting.topics import CreateTopicHeader, TopicConfigList, TopicHeader, TopicList
from latermq.server.handlers.admin.ground import Ground, Handler
from latermq.server.remoting.connection import Connection
from latermq.server.remoting.stepwise import Reply
from latermq.timer.steps import Steps

_UPPER = "UPPER"


class TopicRequests:
    """Topics made, changed, deleted and looked at."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._broker = ground.broker
        self.handlers: dict[int, Handler] = {
            Request.UPDATE_AND_CREATE_TOPIC: self._put,
            Request.DELETE_TOPIC_IN_BROKER: self._delete,
            Request.GET_ALL_TOPIC_CONFIG: self._configs,
            Request.GET_TOPIC_CONFIG: self._config,
            Request.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self._own_topics,
            Request.SEARCH_OFFSET_BY_TIMESTAMP: self._search_offset,
            Request.GET_MAX_OFFSET: self._max_offset,
            Request.GET_MIN_OFFSET: self._min_offset,
            Request.GET_EARLIEST_MSG_STORETIME: self._earliest_time,
            **ground.in_slices({
                Request.UPDATE_AND_CREATE_TOPIC_LIST: self._put_all,
                Request.GET_TOPIC_STATS_INFO: self._stats,
                Request.QUERY_TOPIC_CONSUME_BY_WHO: self._groups_of,
                Request.QUERY_TOPICS_BY_CONSUMER: self._topics_of,
            }),
        }  # fmt: skip

    def _put(self, connection: Connection, command: Command) -> None:
        self._ground.saves.check_room()
        header = command.header(CreateTopicHeader)
        topic = Topic(
            name=header.topic,
            read_queues=header.readQueueNums,
            write_queues=header.writeQueueNums,
            permissions=header.perm,
            filter_type=header.topicFilterType,
            system_flags=header.topicSysFlag,
            is_ordered=header.order,
        )
        topic_admin.put_topic(self._broker, topic, topic_admin.parse_attributes(header.attributes))
        self._ground.answer_when_announced(connection, command, [])

    def _put_all(self, connection: Connection, command: Command) -> Steps[Reply]:
        self._ground.saves.check_room()
        topics = decode_body(command.body, TopicConfigList).topicConfigList
        if not topics:
            raise MalformedRequest("the list of topics is empty", hint="Name at least one")
        for topic in topics:
            topic_admin.put_topic(self._broker, convert(topic, Topic), topic.attributes)
            yield
        self._ground.answer_when_announced(connection, command, [])
        return None

    def _delete(self, connection: Connection, command: Command) -> None:
        self._ground.saves.check_room()
        works = topic_admin.delete_topic(self._broker, command.header(TopicHeader).topic)
        self._ground.answer_when_announced(connection, command, works)

    def _configs(self, connection: Connection, command: Command) -> bytes:
        table = self._broker.topics.table
        # Clients that ask page by page see by the number that the first page holds everything.
        fields = {"totalTopicNum": str(len(table.topics))}
        body = self._broker.tables.topics_body(AnswerRoom(self._broker.config))
        return encode_response(command, fields=fields, body=body)

    def _config(self, connection: Connection, command: Command) -> bytes:
        topic = self._broker.topics.require(command.header(TopicHeader).topic)
        return encode_response(command, body=encode_topic(topic))

    def _stats(self, connection: Connection, command: Command) -> Steps[Reply]:
        stats = yield from topic_admin.topic_stats(self._broker, command.header(TopicHeader).topic)
        return encode_response(command, body=encode_body(stats))

    def _own_topics(self, connection: Connection, command: Command) -> bytes:
        topics = TopicList(topicList=topic_admin.own_topics(self._broker), brokerAddr=self._ground.identity.address)
        return encode_response(command, body=encode_body(topics))

    def _groups_of(self, connection: Connection, command: Command) -> Steps[Reply]:
        """The groups that have consumed a topic, or are connected to do so."""
        topic = command.header(TopicHeader).topic
        connected = {group.name for group in self._broker.members.consumer_groups() if topic in group.subscriptions}
        groups = sorted(connected | set((yield from group_admin.groups_of(self._broker, topic))))
        return encode_response(command, body=encode_body(GroupList(groupList=groups)))

    def _topics_of(self, connection: Connection, command: Command) -> Steps[Reply]:
        """The topics that a group has consumed."""
        topics = yield from group_admin.topics_of(self._broker, command.header(GroupConfigHeader).group)
        body = TopicList(topicList=topics, brokerAddr=self._ground.identity.address)
        return encode_response(command, body=encode_body(body))

    # Queues

    def _search_offset(self, connection: Connection, command: Command) -> bytes:
        header = command.header(SearchOffsetHeader)
        queue = topic_admin.find_queue(self._broker, header.topic, header.queueId)
        upper = (header.boundaryType or "").upper() == _UPPER
        offset = self._broker.store.reader.offset_by_time(queue, header.timestamp, upper=upper) if queue else 0
        return encode_response(command, fields={"offset": str(offset)})

    def _max_offset(self, connection: Connection, command: Command) -> bytes:
        header = command.header(QueueHeader)
        queue = topic_admin.find_queue(self._broker, header.topic, header.queueId)
        return encode_response(command, fields={"offset": str(queue.next_offset if queue else 0)})

    def _min_offset(self, connection: Connection, command: Command) -> bytes:
        header = command.header(QueueHeader)
        queue = topic_admin.find_queue(self._broker, header.topic, header.queueId)
        return encode_response(command, fields={"offset": str(queue.min_offset if queue else 0)})

    def _earliest_time(self, connection: Connection, command: Command) -> bytes:
        header = command.header(QueueHeader)
        queue = topic_admin.find_queue(self._broker, header.topic, header.queueId)
        stored_ms = self._broker.store.reader.store_timestamp_ms(queue, queue.min_offset) if queue else -1
        return encode_response(command, fields={"timestamp": str(stored_ms)})
