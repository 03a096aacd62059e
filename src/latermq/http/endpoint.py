"""Rows of the route table: what a request carries, who answers it, and with what. /openapi.json lists the same rows."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from http import HTTPStatus
from typing import Any, NamedTuple

import msgspec
from starlette.datastructures import Headers, QueryParams
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from latermq.access.resources import Access
from latermq.errors import InvalidParameter, LaterMQError, MalformedRequest, NoPermission
from latermq.http.problems import HttpError, problem_of, problem_response
from latermq.http.security.roles import Identity, Rights, Role, check_role, default_role, identity_of

JSON = "application/json"
NDJSON = "application/x-ndjson"
_MAX_PARAMETERS = 32


def _permit_all(access: Access) -> None:
    """Of a console without users."""


class Call(NamedTuple):
    """One request, decoded."""

    path: Mapping[str, str]
    query: Any  # the row's query struct
    body: Any  # the row's body struct, or bytes if the row decodes the body itself
    headers: Headers
    permit: Callable[[Access], None] = _permit_all  # checks what turns out only while the request is handled
    rights: Rights | None = None  # of the user who asks; None: without users

    def sees(self, *accesses: Access) -> bool:
        """Whether the answer may show these resources."""
        return self.rights is None or self.rights.may(accesses)


Rule = Callable[[Call], Sequence[Access]]


@dataclass(frozen=True)
class Answer:
    """A successful answer: a struct, text that is already encoded, or such text in parts."""

    body: msgspec.Struct | bytes | AsyncIterator[bytes] | None = None
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)
    media_type: str = JSON


class HeaderField(NamedTuple):
    """A request header that a row reads."""

    name: str
    meaning: str
    pattern: str = ""


@dataclass(frozen=True)
class Endpoint:
    """One row of the table."""

    method: str
    path: str
    handler: Callable[[Call], Awaitable[Answer]]
    summary: str
    answers: Mapping[HTTPStatus, Any]  # the struct of each successful answer; None if it has no body
    subject: str = ""
    query: type[msgspec.Struct] | None = None
    body: Any = None  # a struct, or the struct of each line if `body_type` is NDJSON
    body_type: str = JSON
    answer_type: str = JSON
    headers: tuple[HeaderField, ...] = ()
    meaning: str = ""
    role: Role | None = None  # by default viewer for GET, and operator for others
    access: Rule | None = None  # what a user of the cluster needs; None: always refused
    visible: Callable[[Any, Rights], Any] | None = None  # what a user sees of an answer; None: all of it

    @property
    def needed_role(self) -> Role:
        """The role that a client needs."""
        return self.role if self.role is not None else default_role(self.method)


def routes_of(endpoints: list[Endpoint]) -> list[Route]:
    """Return a route for each path. Rows with the same path must have different methods."""
    services: dict[str, dict[str, _Service]] = {}
    for row in endpoints:
        services.setdefault(row.path, {})[row.method] = _Service(row)
    return [Route(path, _dispatcher(by_method), methods=list(by_method)) for path, by_method in services.items()]


def _dispatcher(services: "Mapping[str, _Service]") -> Callable[[Request], Awaitable[Response]]:
    async def serve(request: Request) -> Response:
        return await services["GET" if request.method == "HEAD" else request.method].serve(request)

    return serve


class _Service:
    """Decodes the requests of one row, and encodes the answers."""

    def __init__(self, row: Endpoint) -> None:
        self._row = row
        self._decode = msgspec.json.Decoder(row.body).decode if row.body is not None else None

    async def serve(self, request: Request) -> Response:
        try:
            identity = identity_of(request.scope)
            if identity.rights is None:  # before the body is decoded
                check_role(identity, self._row.needed_role)
            body = await self._body(request)
            query = self._query(request.query_params)
            answer = await permitted_answer(
                self._row, identity, Call(request.path_params, query, body, request.headers)
            )
        except LaterMQError as error:
            return problem_response(error)
        if isinstance(answer.body, AsyncIterator):
            if request.method == "HEAD":  # the parts would be read for nothing
                return Response(None, answer.status, dict(answer.headers), answer.media_type)
            return StreamingResponse(answer.body, answer.status, dict(answer.headers), answer.media_type)
        content = answer.body if isinstance(answer.body, bytes) else _encoded(answer.body)
        media_type = answer.media_type if content is not None else None
        return Response(content, answer.status, dict(answer.headers), media_type)

    async def _body(self, request: Request) -> Any:
        if self._decode is None:
            return None
        found = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if found != self._row.body_type:
            raise HttpError(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
                f"the body has content type {found[:80] or 'none'}",
                hint=f"Send {self._row.body_type} with the header Content-Type",
            )
        body = await request.body()
        return body if self._row.body_type == NDJSON else decode_json(self._decode, body)

    def _query(self, given: QueryParams) -> msgspec.Struct | None:
        pairs = given.multi_items()
        if len(pairs) > _MAX_PARAMETERS:
            raise InvalidParameter(f"the query has {len(pairs)} parameters, the limit is {_MAX_PARAMETERS}")
        values = dict(pairs)
        if len(values) < len(pairs):
            raise InvalidParameter("a query parameter is given twice", hint="Give each parameter once")
        if self._row.query is None:
            if values:
                raise InvalidParameter(
                    f"unknown query parameter: {next(iter(values))[:80]}", hint="This request has none"
                )
            return None
        try:
            return msgspec.convert(values, self._row.query, strict=False)
        except msgspec.ValidationError as error:
            known = ", ".join(field.encode_name for field in msgspec.structs.fields(self._row.query))
            raise InvalidParameter(f"the query is not valid: {error}", hint=f"Parameters: {known}") from None


async def permitted_answer(row: Endpoint, identity: Identity, call: Call) -> Answer:
    """Answer a call if its sender may make it. Changes by users are in the audit log."""
    rights = identity.rights
    if rights is None:
        check_role(identity, row.needed_role)
        return await row.handler(call)
    request, details = f"{row.method} {row.path}", dict(call.path)
    is_change = row.needed_role > Role.VIEWER and not getattr(call.body, "dry_run", False)
    accesses = _accesses(row, call)
    rights.check(request, accesses, details, is_change=is_change)
    try:
        answer = await row.handler(call._replace(permit=rights.permit, rights=rights))
    except LaterMQError as error:
        if is_change:
            rights.failed(request, error.message, details)
        raise
    if isinstance(answer.body, AsyncIterator):
        check = partial(rights.check, request, accesses, details, is_change=False)
        return replace(answer, body=_while_permitted(answer.body, lambda: rights.may(accesses), check))
    return answer if row.visible is None else replace(answer, body=row.visible(answer.body, rights))


async def _while_permitted(
    parts: AsyncIterator[bytes], is_permitted: Callable[[], bool], check: Callable[[], None]
) -> AsyncIterator[bytes]:
    """Yield the lines of a long answer until its user has changed or lost a right, and then a line that says so."""
    async for part in parts:
        if is_permitted():
            yield part
            continue
        try:
            check()
        except LaterMQError as error:
            yield msgspec.json.encode({"problem": problem_of(error)}) + b"\n"
        return


def check_access(row: Endpoint, identity: Identity, call: Call) -> None:
    """Refuse to show what others have asked for, if this visitor may not see it."""
    if identity.rights is None:
        check_role(identity, row.needed_role)
    else:
        identity.rights.check(f"{row.method} {row.path}", _accesses(row, call), {}, is_change=False)


def _accesses(row: Endpoint, call: Call) -> Sequence[Access]:
    if row.access is None:
        raise NoPermission(f"{row.method} {row.path} has no rule, so it is refused", hint="Report this defect")
    return row.access(call)


def decode_json(decode: Callable[[bytes], Any], body: bytes) -> Any:
    """Decode a body, or raise what is wrong with it."""
    try:
        return decode(body)
    except msgspec.ValidationError as error:
        raise InvalidParameter(f"the body is not valid: {error}", hint="/openapi.json describes it") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadJson(f"the body is not JSON: {error}", hint="Send one JSON object, encoded as UTF-8") from None


class BadJson(HttpError, MalformedRequest):
    """The body of a request is not JSON."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(HTTPStatus.BAD_REQUEST, message, hint=hint)


def _encoded(body: msgspec.Struct | None) -> bytes | None:
    return None if body is None else msgspec.json.encode(body)
