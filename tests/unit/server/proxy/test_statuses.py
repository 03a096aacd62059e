"""The status of each error in answers of the proxy."""

import pytest

from latermq.client.session.failures import ConnectFailed, NoBroker, RequestTimedOut, error_from_wire
from latermq.errors import Busy, FlowControl, LaterMQError, MalformedRequest
from latermq.protocol.http2.grpc.status import StatusCode
from latermq.protocol.messaging import messaging_pb2 as pb
from latermq.server.proxy.statuses import code_of, grpc_error, status_of


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (1, pb.INTERNAL_SERVER_ERROR), (2, pb.TOO_MANY_REQUESTS), (3, pb.NOT_IMPLEMENTED), (13, pb.BAD_REQUEST),
        (14, pb.INTERNAL_SERVER_ERROR), (16, pb.FORBIDDEN), (17, pb.TOPIC_NOT_FOUND), (22, pb.NOT_FOUND),
        (23, pb.ILLEGAL_FILTER_EXPRESSION), (26, pb.CONSUMER_GROUP_NOT_FOUND), (29, pb.BAD_REQUEST),
        (604, pb.NOT_FOUND), (999, pb.INTERNAL_SERVER_ERROR),
    ],
)  # fmt: skip
def test_each_code_of_a_broker_has_a_status(code: int, expected: pb.Code) -> None:
    status = status_of(error_from_wire(code, "why"))
    assert (status.code, status.message) == (expected, "why")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RequestTimedOut("late"), pb.PROXY_TIMEOUT),
        (ConnectFailed("down"), pb.INTERNAL_SERVER_ERROR),
        (NoBroker("none"), pb.INTERNAL_SERVER_ERROR),
        (Busy("full"), pb.TOO_MANY_REQUESTS),
        (FlowControl("full"), pb.TOO_MANY_REQUESTS),
        (MalformedRequest("bad"), pb.BAD_REQUEST),
    ],
)
def test_each_error_of_the_proxy_has_a_status(error: LaterMQError, expected: pb.Code) -> None:
    assert code_of(error) == expected


def test_the_text_says_what_to_do() -> None:
    assert status_of(Busy("it is full", hint="Try again later")).message == "it is full. Try again later"


def test_a_telemetry_stream_ends_with_the_status_of_whose_fault_it_is() -> None:
    assert grpc_error(MalformedRequest("bad")).status == StatusCode.INVALID_ARGUMENT
    assert grpc_error(ConnectFailed("down")).status == StatusCode.INTERNAL
