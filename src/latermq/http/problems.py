"""Errors as answers: application/problem+json (RFC 9457) with the wire code and the hint of the one error root."""

import re
from http import HTTPStatus

import msgspec
from starlette.responses import Response

from latermq.client import BrokerFailed, ConnectionLost, NoBroker, NoNameServer, RequestTimedOut
from latermq.errors import Busy, FlowControl, LaterMQError

CONTENT_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:latermq:problem:"
RETRY_AFTER_S = 1

# By the wire code, because the errors of brokers arrive as codes. 1 is any error without a more specific code.
_STATUS_BY_CODE = {
    1: HTTPStatus.BAD_GATEWAY,
    2: HTTPStatus.TOO_MANY_REQUESTS,
    3: HTTPStatus.NOT_IMPLEMENTED,
    13: HTTPStatus.UNPROCESSABLE_ENTITY,
    14: HTTPStatus.SERVICE_UNAVAILABLE,
    16: HTTPStatus.FORBIDDEN,
    17: HTTPStatus.NOT_FOUND,
    22: HTTPStatus.NOT_FOUND,
    23: HTTPStatus.UNPROCESSABLE_ENTITY,
    26: HTTPStatus.NOT_FOUND,
    29: HTTPStatus.UNPROCESSABLE_ENTITY,
    206: HTTPStatus.CONFLICT,
    207: HTTPStatus.GATEWAY_TIMEOUT,
    604: HTTPStatus.CONFLICT,
}
_STATUS_BY_TYPE: tuple[tuple[type[LaterMQError], HTTPStatus], ...] = (
    (RequestTimedOut, HTTPStatus.GATEWAY_TIMEOUT),
    (ConnectionLost, HTTPStatus.SERVICE_UNAVAILABLE),
    (NoNameServer, HTTPStatus.SERVICE_UNAVAILABLE),
    (NoBroker, HTTPStatus.SERVICE_UNAVAILABLE),
    (FlowControl, HTTPStatus.TOO_MANY_REQUESTS),
)
# Flow control of timers has code 1 on the wire.
_FLOW_CONTROL = re.compile(r"timers are waiting to be written|within (one|the same) second").search
_CAPITALS = re.compile(r"(?<=[a-z])(?=[A-Z])")


class Problem(msgspec.Struct, omit_defaults=True):
    """Why a request failed. `code` is that of RocketMQ's protocol; `hint` says what to do."""

    type: str
    title: str
    status: int
    detail: str = ""
    code: int = 0
    hint: str = ""


class HttpError(LaterMQError):
    """A request that HTTP itself refuses: its method, size, headers or credentials."""

    def __init__(
        self, status: HTTPStatus, message: str, *, hint: str = "", headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.headers = headers or {}


class AnswerUnread(Exception):
    """A client does not read the answer that it is being sent, so its connection is closed."""


def status_of(error: LaterMQError) -> HTTPStatus:
    """Return the status that an error is answered with."""
    if isinstance(error, HttpError):
        return error.status
    for type_, status in _STATUS_BY_TYPE:
        if isinstance(error, type_):
            return status
    if isinstance(error, BrokerFailed) and _FLOW_CONTROL(error.message):
        return HTTPStatus.TOO_MANY_REQUESTS
    return _STATUS_BY_CODE.get(error.code, HTTPStatus.BAD_GATEWAY)


def problem_of(error: LaterMQError) -> Problem:
    """Return the body that an error is answered with."""
    status = status_of(error)
    if isinstance(error, HttpError):
        return Problem(TYPE_PREFIX + _dashed(status.phrase), status.phrase, status, error.message, 0, error.hint)
    kind = FlowControl if status == HTTPStatus.TOO_MANY_REQUESTS and not isinstance(error, Busy) else type(error)
    title = (kind.__doc__ or status.phrase).partition(".")[0].partition("\n")[0]
    name = _dashed(_CAPITALS.sub(" ", kind.__name__))
    return Problem(TYPE_PREFIX + name, title, status, error.message, error.code, error.hint)


def problem_response(error: LaterMQError) -> Response:
    """Return the answer to a request that failed."""
    problem = problem_of(error)
    headers = dict(error.headers) if isinstance(error, HttpError) else {}
    if problem.status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
        headers.setdefault("Retry-After", str(RETRY_AFTER_S))
    return Response(msgspec.json.encode(problem), problem.status, headers, CONTENT_TYPE)


def internal_error() -> Response:
    """Return the answer to a request that met a defect. The log has the details."""
    status = HTTPStatus.INTERNAL_SERVER_ERROR
    problem = Problem(TYPE_PREFIX + _dashed(status.phrase), status.phrase, status, "the console failed; see its log")
    return Response(msgspec.json.encode(problem), status, media_type=CONTENT_TYPE)


def _dashed(text: str) -> str:
    return text.lower().replace(" ", "-")
