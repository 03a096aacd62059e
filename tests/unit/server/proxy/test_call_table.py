"""The table of calls: permissions, and errors as statuses."""

from collections.abc import Iterable
from typing import Any, cast

import pytest

from latermq.errors import Busy, NoPermission
from latermq.protocol.http2.grpc.status import GrpcError
from latermq.protocol.messaging import messaging_pb2 as pb
from latermq.server.http2.calls import Call, ServerStream, Unary
from latermq.server.proxy.calls.call_table import CallEndpoint, CallTable, Exchange, on_topic
from latermq.server.remoting.access import PUB, Access, Kind


class FakeCall:
    """A call that notes its answers."""

    def __init__(self, client_id: bytes | None = b"c") -> None:
        self.field = {b"x-mq-client-id": client_id}.get
        self.sent: list[bytes] = []
        self.is_ended = False

    def send(self, message: bytes) -> bool:
        self.sent.append(message)
        return True

    def end(self) -> None:
        self.is_ended = True


def refuse(exchange: Exchange, request: Any) -> None:
    raise Busy("it is full")


def answer(exchange: Exchange, request: pb.QueryRouteRequest) -> pb.QueryRouteResponse:
    return pb.QueryRouteResponse(status=pb.Status(code=pb.OK, message=exchange.client_id))


def table_of(serve: Any, failure: Any = None) -> CallTable:
    table = CallTable()
    table.add(
        [CallEndpoint("Try", pb.QueryRouteRequest, pb.QueryRouteResponse, serve, (on_topic("topic", PUB),), failure)]
    )
    return table


def invoke(table: CallTable, call: FakeCall, data: bytes) -> pb.Status:
    method = table.methods[b"/apache.rocketmq.v2.MessagingService/Try"]
    assert isinstance(method, Unary)
    reply = method.serve(cast(Call, call), data)
    assert reply is not None
    return pb.QueryRouteResponse.FromString(reply).status


REQUEST = pb.QueryRouteRequest(topic=pb.Resource(name="t", resource_namespace="ns")).SerializeToString()


def test_an_error_is_an_answer_with_its_status_and_is_counted() -> None:
    table = table_of(refuse)
    assert invoke(table, FakeCall(), REQUEST) == pb.Status(code=pb.TOO_MANY_REQUESTS, message="it is full")
    assert table.statistics()["refused_requests_42900"] == 1


def test_every_call_is_authorized_with_the_resources_that_it_touches() -> None:
    table = table_of(answer)
    asked: list[Access] = []

    def authorize(call: Call, accesses: Iterable[Access]) -> None:
        asked.extend(accesses)
        raise NoPermission("not you")

    assert invoke(table, FakeCall(), REQUEST).code == pb.OK
    table.authorize = authorize
    assert invoke(table, FakeCall(), REQUEST).code == pb.FORBIDDEN
    assert asked == [Access(Kind.TOPIC, "ns%t", (PUB,))]


def test_a_shortcut_serves_what_it_accepts_and_authorizes_it() -> None:
    served: list[bytes] = []

    def shortcut(exchange: Exchange, data: bytes) -> bool:
        exchange.authorize([Access(Kind.TOPIC, "orders", (PUB,))])
        served.append(data)
        return data == REQUEST

    table = CallTable()
    rules = (on_topic("topic", PUB),)
    table.add(
        [CallEndpoint("Try", pb.QueryRouteRequest, pb.QueryRouteResponse, answer, rules, shortcut=shortcut)],
    )
    method = table.methods[b"/apache.rocketmq.v2.MessagingService/Try"]
    assert isinstance(method, Unary)
    assert method.serve(cast(Call, FakeCall()), REQUEST) is None
    assert invoke(table, FakeCall(), b"").code == pb.OK
    assert served == [REQUEST, b""]
    assert invoke(table, FakeCall(None), REQUEST).code == pb.CLIENT_ID_REQUIRED

    def refuse_all(call: Call, accesses: Iterable[Access]) -> None:
        raise NoPermission(f"not {[access.name for access in accesses]}")

    table.authorize = refuse_all
    assert invoke(table, FakeCall(), REQUEST) == pb.Status(code=pb.FORBIDDEN, message="not ['orders']")
    assert served == [REQUEST, b""]


@pytest.mark.parametrize(
    ("client_id", "code"),
    [
        (None, pb.CLIENT_ID_REQUIRED),
        (b"", pb.CLIENT_ID_REQUIRED),
        (b"x" * 256, pb.BAD_REQUEST),
        (b"\xff", pb.BAD_REQUEST),
        (b"x" * 255, pb.OK),
    ],
)
def test_the_client_id_is_checked(client_id: bytes | None, code: pb.Code) -> None:
    assert invoke(table_of(answer), FakeCall(client_id), REQUEST).code == code


def test_a_message_that_cannot_be_decoded_fails_as_grpc_demands() -> None:
    with pytest.raises(GrpcError, match="the message is not a valid QueryRouteRequest"):
        invoke(table_of(answer), FakeCall(), b"\xff\xff")


def test_a_stream_reports_an_error_in_its_own_messages_and_ends() -> None:
    table = table_of(refuse, lambda status: [pb.ReceiveMessageResponse(status=status), pb.ReceiveMessageResponse()])
    method = table.methods[b"/apache.rocketmq.v2.MessagingService/Try"]
    assert isinstance(method, ServerStream)
    call = FakeCall()
    method.serve(cast(Call, call), REQUEST)
    assert pb.ReceiveMessageResponse.FromString(call.sent[0]).status.code == pb.TOO_MANY_REQUESTS
    assert (len(call.sent), call.is_ended) == (2, True)
