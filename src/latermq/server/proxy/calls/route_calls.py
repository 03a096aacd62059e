"""Calls about routes: the queues of a topic, and the queues that a consumer receives from."""

from latermq.errors import LaterMQError
from latermq.model.group import Group
from latermq.model.topic import READ, WRITE
from latermq.protocol.messaging import messaging_pb2 as pb
from latermq.protocol.messaging.checked_names import check_group_name, check_topic_name
from latermq.protocol.messaging.refusals import CallRefused
from latermq.protocol.messaging.resources import full_name
from latermq.server.proxy.brokers.groups import Groups
from latermq.server.proxy.brokers.topics import TopicInfo, Topics
from latermq.server.proxy.calls.call_table import CallEndpoint, Exchange, on_group, on_topic
from latermq.server.proxy.statuses import OK
from latermq.server.remoting.access import GET, PUB, SUB

MAX_ENDPOINTS_BYTES = 4096
ALL_QUEUES = -1  # the id of an assignment: the broker chooses
_TYPES: dict[str, list[pb.MessageType]] = {
    "NORMAL": [pb.NORMAL],
    "FIFO": [pb.FIFO],
    "DELAY": [pb.DELAY],
    "TRANSACTION": [pb.TRANSACTION],
    "LITE": [pb.LITE],
    "PRIORITY": [pb.PRIORITY],
    "MIXED": [pb.NORMAL, pb.FIFO, pb.DELAY, pb.TRANSACTION],
}
_UNKNOWN_TYPE = [pb.MESSAGE_TYPE_UNSPECIFIED]


def topic_name(resource: pb.Resource) -> str:
    """Return the broker's name of a topic. Raises if clients may not use it."""
    name = full_name(resource)
    check_topic_name(name)
    return name


def group_name(resource: pb.Resource) -> str:
    """Return the broker's name of a group. Raises if clients may not use it."""
    name = full_name(resource)
    check_group_name(name)
    return name


class RouteCalls:
    """QueryRoute and QueryAssignment."""

    def __init__(self, topics: Topics, groups: Groups) -> None:
        self._topics = topics
        self._groups = groups

    @property
    def endpoints(self) -> list[CallEndpoint]:
        return [
            CallEndpoint(
                "QueryRoute",
                pb.QueryRouteRequest,
                pb.QueryRouteResponse,
                self._query_route,
                (on_topic("topic", PUB, SUB, GET),),
            ),
            CallEndpoint(
                "QueryAssignment",
                pb.QueryAssignmentRequest,
                pb.QueryAssignmentResponse,
                self._query_assignment,
                (on_topic("topic", SUB), on_group("group", SUB)),
            ),
        ]

    def _query_route(self, exchange: Exchange, request: pb.QueryRouteRequest) -> None:
        topic, endpoints = _own_copies(request.topic, request.endpoints)

        def then(found: TopicInfo | LaterMQError) -> None:
            if isinstance(found, LaterMQError):
                exchange.fail(found)
            else:
                queues = message_queues(found, topic, endpoints)
                exchange.reply(pb.QueryRouteResponse(status=OK, message_queues=queues))

        self._topics.get(topic_name(request.topic), then)

    def _query_assignment(self, exchange: Exchange, request: pb.QueryAssignmentRequest) -> None:
        topic, endpoints = _own_copies(request.topic, request.endpoints)
        group = group_name(request.group)

        def with_topic(info: TopicInfo | LaterMQError) -> None:
            if isinstance(info, LaterMQError):
                exchange.fail(info)
            else:
                self._groups.get(group, lambda found: with_group(info, found))

        def with_group(info: TopicInfo, found: Group | LaterMQError) -> None:
            # Without the group's configuration consumers still receive: the broker itself keeps the order.
            is_ordered = isinstance(found, Group) and found.is_ordered
            queues = assigned_queues(info, topic, endpoints, is_ordered)
            if queues:
                assignments = [pb.Assignment(message_queue=queue) for queue in queues]
                exchange.reply(pb.QueryAssignmentResponse(status=OK, assignments=assignments))
            else:
                exchange.fail(CallRefused(pb.FORBIDDEN, f"topic {topic.name!r} has no readable queue"))

        self._topics.get(topic_name(request.topic), with_topic)


def message_queues(info: TopicInfo, topic: pb.Resource, endpoints: pb.Endpoints) -> list[pb.MessageQueue]:
    """Return the queues of a topic: those to read, those to write and those for both, as RocketMQ orders them.

    Their endpoints are those that the client used, because it would open a second connection to any others.
    """
    types = _TYPES.get(info.message_type, _UNKNOWN_TYPE)
    readable: list[pb.MessageQueue] = []
    writable: list[pb.MessageQueue] = []
    both: list[pb.MessageQueue] = []
    for data in sorted(info.route.data.queueDatas, key=lambda data: data.brokerName):
        if data.brokerName not in info.route.addresses:
            continue
        broker = pb.Broker(name=data.brokerName, id=0, endpoints=endpoints)
        reads = data.readQueueNums if data.perm & READ else 0
        writes = data.writeQueueNums if data.perm & WRITE else 0
        for number in range(max(reads, writes)):
            if number < min(reads, writes):
                permission, target = pb.READ_WRITE, both
            elif number < reads:
                permission, target = pb.READ, readable
            else:
                permission, target = pb.WRITE, writable
            target.append(
                pb.MessageQueue(
                    topic=topic, id=number, permission=permission, broker=broker, accept_message_types=types
                )
            )
    return [*readable, *writable, *both]


def assigned_queues(
    info: TopicInfo, topic: pb.Resource, endpoints: pb.Endpoints, is_ordered: bool
) -> list[pb.MessageQueue]:
    """Return what every consumer of a group receives from: each broker, or each queue if the group is in order."""
    found: dict[tuple[str, int], pb.MessageQueue] = {}
    for queue in info.route.readable:
        if queue.brokerName not in info.route.addresses:
            continue
        number = queue.queueId if is_ordered else ALL_QUEUES
        found.setdefault(
            (queue.brokerName, number),
            pb.MessageQueue(
                topic=topic,
                id=number,
                permission=pb.READ,
                broker=pb.Broker(name=queue.brokerName, id=0, endpoints=endpoints),
            ),
        )
    return list(found.values())


def _own_copies(topic: pb.Resource, endpoints: pb.Endpoints) -> tuple[pb.Resource, pb.Endpoints]:
    """Return the parts of a request that are repeated for each queue, without fields that are unknown here.

    A request of some megabytes could otherwise have an answer of gigabytes.
    """
    if not endpoints.addresses or endpoints.ByteSize() > MAX_ENDPOINTS_BYTES:
        raise CallRefused(
            pb.ILLEGAL_ACCESS_POINT,
            f"the request has {len(endpoints.addresses)} endpoints of {endpoints.ByteSize()} bytes",
            hint=f"Send those that the client connected to, at most {MAX_ENDPOINTS_BYTES} bytes",
        )
    addresses = [pb.Address(host=address.host, port=address.port) for address in endpoints.addresses]
    return (
        pb.Resource(resource_namespace=topic.resource_namespace, name=topic.name),
        pb.Endpoints(scheme=endpoints.scheme, addresses=addresses),
    )
