"""Requests of proxies about their clients: who is alive, and who has gone."""

from collections.abc import Callable

from latermq.broker.pop.reported_clients import ReportedClient, ReportedClients, lease_of
from latermq.broker.pop.sent_answers import SentAnswers
from latermq.errors import InvalidParameter
from latermq.group.members import MAX_CLIENT_ID_CHARS, MAX_NAME_CHARS
from latermq.message.names import check_group
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.frames import Command, encode_response
from latermq.protocol.remoting.pop import EndLeaseHeader, LostAnswerHeader, ReportBody
from latermq.server.handlers.pop_replies import PopReplies
from latermq.server.remoting.access import PUB, SUB, on_group, on_groups, on_topics
from latermq.server.remoting.connection import Connection
from latermq.server.remoting.endpoints import Endpoint
from latermq.server.remoting.sliced_requests import Reply, Slices
from latermq.timer.steps import Steps

_STEP_US = 20  # as much work as other sliced requests do in a step
_CLIENT_US, _TOPIC_US = 10, 1  # of a reported client, and of each topic of its group, measured
_TOPICS_PER_STEP = 5
_CHECKS_PER_STEP = 10


class ProxyRequests:
    """Serves proxies."""

    def __init__(
        self,
        clients: ReportedClients,
        answers: SentAnswers,
        replies: PopReplies,
        notify: Callable[[set[str]], None],
        on_producers: Callable[[list[str]], None],
    ) -> None:
        """`notify` informs the members of groups that their groups changed.

        `on_producers` receives the producer groups of each report.
        """
        self._clients = clients
        self._answers = answers
        self._replies = replies
        self._notify = notify
        self._on_producers = on_producers

    @property
    def endpoints(self) -> list[Endpoint]:
        report = (
            on_topics(lambda _, body: body.topics, PUB),
            on_groups(lambda _, body: {client.group for client in body.clients}, SUB),
        )
        return [
            Endpoint(Request.REPORT_CLIENTS, self._report, report, body=ReportBody, slices=Slices.ALL),
            Endpoint(Request.END_LEASE, self._end, (on_group("group", SUB),), EndLeaseHeader),
            Endpoint(Request.LOST_ANSWER, self._lose, (on_group("group", SUB),), LostAnswerHeader),
        ]

    def _report(self, connection: Connection, command: Command, body: ReportBody) -> Steps[Reply]:
        if not 0 < len(body.proxy) <= MAX_NAME_CHARS:
            raise InvalidParameter("the name of the proxy is not valid", hint="Use a random id of its process")
        clients = []
        for one in body.clients:
            check_group(one.group)
            clients.append(ReportedClient(one.clientId, one.group, one.topics, one.language, one.version, one.idleMs))
            if len(clients) % _CHECKS_PER_STEP == 0:
                yield
        changed: set[str] = set()
        work_us = 0
        for client in clients:
            work_us += _CLIENT_US
            if not self._clients.renew(body.proxy, client):
                changed |= self._clients.report(body.proxy, connection, (client,))
                work_us += _TOPIC_US * self._clients.topics_of(client.group)
            while work_us >= _STEP_US:
                work_us -= _STEP_US
                yield
        self._notify(changed)
        for at in range(0, len(body.topics), _TOPICS_PER_STEP):
            self._clients.report_topics(body.proxy, connection, body.topics[at : at + _TOPICS_PER_STEP])
            yield
        if body.topics:
            self._on_producers(body.topics)
        return encode_response(command)

    def _end(self, connection: Connection, command: Command, header: EndLeaseHeader) -> None:
        self._replies.check_room()
        if len(header.clientId) > MAX_CLIENT_ID_CHARS:
            raise InvalidParameter("the client id is too long")
        self._notify(self._clients.end(header.group, header.clientId, header.proxy or ""))
        self._replies.hold(connection, command, encode_response(command))

    def _lose(self, connection: Connection, command: Command, header: LostAnswerHeader) -> None:
        self._replies.check_room()
        if len(header.clientId) > MAX_CLIENT_ID_CHARS:
            raise InvalidParameter("the client id is too long")
        self._answers.lose(lease_of(header.group, header.clientId), {header.popTime})
        self._replies.hold(connection, command, encode_response(command))
