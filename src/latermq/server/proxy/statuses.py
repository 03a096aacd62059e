"""The status of an answer: a code of the 5.x protocol and a text for each error, the proxy's own or a broker's."""

from collections.abc import Sequence

from latermq.client.session.failures import RequestTimedOut
from latermq.errors import FlowControl, LaterMQError, MalformedRequest, MessageNotFound
from latermq.protocol.http2.grpc.status import GrpcError, StatusCode
from latermq.protocol.messaging import messaging_pb2 as pb
from latermq.protocol.messaging.refusals import CallRefused
from latermq.server.access.users import NotAuthenticated, NotPermitted, UnknownUser

OK = pb.Status(code=pb.OK, message="OK")
_DIFFERENT = pb.Status(code=pb.MULTIPLE_RESULTS, message="the entries have different results")

# By the wire code of the error. Everything else is INTERNAL_SERVER_ERROR, which clients retry.
_BY_WIRE_CODE: dict[int, pb.Code] = {
    2: pb.TOO_MANY_REQUESTS,
    3: pb.NOT_IMPLEMENTED,
    13: pb.BAD_REQUEST,
    16: pb.FORBIDDEN,
    17: pb.TOPIC_NOT_FOUND,
    # Not MESSAGE_NOT_FOUND, which the Python and Node clients take for success.
    22: pb.NOT_FOUND,
    23: pb.ILLEGAL_FILTER_EXPRESSION,
    26: pb.CONSUMER_GROUP_NOT_FOUND,
    29: pb.BAD_REQUEST,
    209: pb.TOO_MANY_REQUESTS,
    604: pb.NOT_FOUND,
}
_BY_TYPE: dict[type[LaterMQError], pb.Code] = {
    # The same for all refusals of the access check, as RocketMQ's proxy answers.
    NotAuthenticated: pb.UNAUTHORIZED,
    UnknownUser: pb.UNAUTHORIZED,
    NotPermitted: pb.UNAUTHORIZED,
    RequestTimedOut: pb.PROXY_TIMEOUT,
    MalformedRequest: pb.BAD_REQUEST,
    MessageNotFound: pb.NOT_FOUND,
    FlowControl: pb.TOO_MANY_REQUESTS,
}


def code_of(error: LaterMQError) -> pb.Code:
    """Return the code of the 5.x protocol for an error."""
    if isinstance(error, CallRefused):
        return error.status_code
    return _BY_TYPE.get(type(error)) or _BY_WIRE_CODE.get(error.code, pb.INTERNAL_SERVER_ERROR)


def status_of(error: LaterMQError) -> pb.Status:
    """Return the status for an error: what happened, and what to do."""
    return pb.Status(code=code_of(error), message=error.remark)


def combined(statuses: Sequence[pb.Status]) -> pb.Status:
    """Return the status above several results: the one that all have, or the hint that they differ."""
    first = statuses[0]
    if all(status.code == first.code for status in statuses):
        return first
    return _DIFFERENT


def grpc_error(error: LaterMQError) -> GrpcError:
    """Return the error that ends a telemetry stream, whose answers have no place for other statuses."""
    is_clients_fault = 40000 <= code_of(error) < 50000
    return GrpcError(StatusCode.INVALID_ARGUMENT if is_clients_fault else StatusCode.INTERNAL, error.remark)
