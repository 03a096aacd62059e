"""Requests of clients that leave rebalancing to the broker: their queues, and the mode of their group."""

from collections.abc import Callable, Mapping

from latermq.broker.messages.assignments import Assignments
from latermq.config_json.java_json import convert
from latermq.config_json.request_modes import RequestModeJson
from latermq.errors import InvalidParameter, LaterMQError
from latermq.group.members import check_client_id
from latermq.message.names import is_group, is_stored_topic, shown
from latermq.model.request_mode import RequestMode
from latermq.protocol.remoting.assignments import AssignmentQuery, QueueAssignment, QueueAssignments
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.frames import Command, encode_response
from latermq.protocol.remoting.json_body import encode_body
from latermq.protocol.remoting.queues import MessageQueue
from latermq.server.change_log import Change
from latermq.server.handlers.admin.context import AdminContext
from latermq.server.handlers.async_replies import answer, refuse
from latermq.server.remoting.access import GET, SUB, UPDATE, on_group, on_topic
from latermq.server.remoting.connection import Connection
from latermq.server.remoting.endpoints import Endpoint

OtherBrokers = Mapping[str, int]  # broker name → readable queues
WhenKnown = Callable[[OtherBrokers | LaterMQError], None]
FindBrokers = Callable[[str, WhenKnown], None]


def find_none(topic: str, when_known: WhenKnown) -> None:
    """Report no other brokers, for a broker on its own."""
    when_known({})


class AssignmentRequests:
    """Serves queries for assignments, and changes of modes."""

    def __init__(self, assignments: Assignments, context: AdminContext, find_brokers: FindBrokers) -> None:
        """`find_brokers` returns the other brokers of a topic to a callback."""
        self._assignments = assignments
        self._context = context
        self._find_brokers = find_brokers

    @property
    def endpoints(self) -> list[Endpoint]:
        query = (on_topic("topic", SUB, GET), on_group("consumerGroup", SUB, GET))
        update = (on_topic("topic", UPDATE), on_group("group", UPDATE))
        mode_set = Change("request mode set", names=lambda body: [body.topic, body.group, body.mode])
        return [
            Endpoint(Request.QUERY_ASSIGNMENT, self._query, query, body=AssignmentQuery),
            Endpoint(Request.SET_MESSAGE_REQUEST_MODE, self._set, update, body=RequestModeJson, change=mode_set),
        ]

    def _query(self, connection: Connection, command: Command, query: AssignmentQuery) -> None:
        # Many queries may wait for a name server, so what they keep is bounded.
        if not is_stored_topic(query.topic) or not is_group(query.consumerGroup):
            raise InvalidParameter(f"{shown(query.topic)} or {shown(query.consumerGroup)} is not a valid name")
        check_client_id(query.clientId)
        request = Command(command.code, opaque=command.opaque, flag=command.flag, encoding=command.encoding)

        def when_known(others: OtherBrokers | LaterMQError) -> None:
            if isinstance(others, LaterMQError):
                refuse(connection, request, others)
                return
            try:
                reply = self._assigned(request, query, others)
            except LaterMQError as error:
                refuse(connection, request, error)
            else:
                answer(connection, request, reply)

        self._find_brokers(query.topic, when_known)

    def _assigned(self, command: Command, query: AssignmentQuery, others: OtherBrokers) -> bytes:
        assignment = self._assignments.query(
            query.topic, query.consumerGroup, query.clientId, query.strategyName, query.messageModel, others
        )
        body = QueueAssignments()
        if assignment.queues is not None:
            body.messageQueueAssignments = [
                QueueAssignment(messageQueue=MessageQueue(query.topic, broker, queue_id), mode=assignment.mode)
                for broker, queue_id in assignment.queues
            ]
        return encode_response(command, body=encode_body(body))

    def _set(self, connection: Connection, command: Command, body: RequestModeJson) -> None:
        self._context.saves.check_room()
        self._assignments.set_mode(convert(body, RequestMode), connection.peer_host)
        self._context.answer_when_saved(connection, command, encode_response(command))
