"""The table of the requests that a server serves: one row per request code, one entry point for all.

A row (`Endpoint`) names the request's header or body, the resources it touches, its handler and its limits. The
handler classes define the rows; `RequestTable` dispatches requests by them.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

from msgspec import Struct

from latermq.errors import LaterMQError, MalformedRequest, UnsupportedRequest
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.frames import Command
from latermq.protocol.remoting.json_body import body_decoder
from latermq.server.change_log import Change, log_change
from latermq.server.remoting.access import Access, Rule
from latermq.server.remoting.connection import Connection
from latermq.server.remoting.sliced_requests import Handler, Reply, SlicedHandler, SlicedRequests, Slices


@dataclass(frozen=True, slots=True)
class BodyLimit:
    """The maximum size of a request body, the setting that defines it, and the error for a larger body."""

    size_bytes: int
    setting: str
    error: type[LaterMQError] = MalformedRequest


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One row. `access` has no default, so every new request needs a decision about its permissions.

    The handler receives the connection, the command, and the decoded header, or the decoded body if the row has no
    `header`. If a row has both, the handler decodes the body.
    """

    code: Request
    handler: Handler | SlicedHandler
    access: tuple[Rule, ...]
    header: type[Struct] | None = None
    body: Any = None  # the type of a JSON body
    slices: Slices | None = None  # set if the handler is a generator of steps, run in slices
    stores: bool = False  # it stores or cancels messages: in its client's order, with a body of any size
    body_limit: BodyLimit | None = None  # instead of `server.max_body`
    change: Change | None = None  # how the log describes the change

    def accesses(self, command: Command, content: Any) -> Iterator[Access]:
        """Yield the resources that this request touches. All of them must be permitted."""
        for rule in self.access:
            yield from rule.accesses(command, content)


# Called before the handler of every request; raises NoPermission to refuse it. A verdict may be cached per connection
# and `Access`. In a run of sends it is called once per topic.
Authorize = Callable[[Connection, Endpoint, Command, Any], None]


class Guard(Protocol):
    """The access check of a server with users."""

    def authenticate(self, connection: Connection, endpoint: Endpoint, command: Command) -> object | None:
        """Check the signature of a request that is not decoded yet, unless an earlier one covers it.

        Returns the user whose signature it was. Raises NoPermission.
        """
        ...

    def identify(self, connection: Connection, command: Command) -> None:
        """Check the signature of a request that is not served at all, so that untrusted clients are slowed down."""
        ...

    def check(
        self, connection: Connection, endpoint: Endpoint, command: Command, content: Any, user: object | None
    ) -> None:
        """Check the permissions of a decoded request, and its signature if there is no user yet."""
        ...

    def authorize(self, connection: Connection, endpoint: Endpoint, command: Command, content: Any) -> None:
        """The same for a request of a lane."""
        ...

    def repeated(self, requests: int) -> None:
        """Note that so many more requests of a lane are like the one that was checked last."""
        ...

    def refused(
        self, connection: Connection, endpoint: Endpoint, command: Command, content: Any, error: LaterMQError
    ) -> None:
        """Note a refusal of one of the first two methods. `content` is None if the request was not decoded."""
        ...

    def failed(
        self, connection: Connection, endpoint: Endpoint, command: Command, content: Any, error: LaterMQError
    ) -> None:
        """Note that a permitted request was rejected by its handler."""
        ...


class RequestTable:
    """All rows of a server. `authorize` checks every request; without it all requests are permitted."""

    def __init__(self, max_body: int, sliced: SlicedRequests | None = None) -> None:
        self.authorize: Authorize | None = None
        self._guard: Guard | None = None
        self._default_limit = BodyLimit(max_body, "server.max_body")
        self._sliced = sliced
        self._rows: dict[int, Endpoint] = {}
        self._body_decoders: dict[int, Callable[[bytes], Any]] = {}

    def set_guard(self, guard: Guard) -> None:
        """Let this guard check every request."""
        self._guard = guard
        self.authorize = guard.authorize

    def add(self, endpoints: Iterable[Endpoint]) -> None:
        """Add rows to the table."""
        for endpoint in endpoints:
            assert endpoint.code not in self._rows, f"{endpoint.code.name} has two rows"
            limit = endpoint.body_limit
            if limit is None and not endpoint.stores:
                limit = self._default_limit
            if endpoint.body is not None:
                self._body_decoders[endpoint.code] = body_decoder(endpoint.body)
            self._rows[endpoint.code] = replace(endpoint, handler=self._bound(endpoint), body_limit=limit)

    def _bound(self, endpoint: Endpoint) -> Handler:
        """Return the handler with the wrappers that its row requires."""
        handler: Any = endpoint.handler
        if endpoint.slices is not None:
            assert self._sliced is not None, f"{endpoint.code.name} needs slices"
            handler = self._sliced.handler(handler, endpoint.slices)
        if endpoint.change is not None:
            handler = log_change(handler, endpoint.change)
        bound: Handler = handler
        return bound

    def __iter__(self) -> Iterator[Endpoint]:
        return iter(sorted(self._rows.values(), key=lambda endpoint: endpoint.code))

    def __getitem__(self, code: int) -> Endpoint:
        return self._rows[code]

    def find(self, connection: Connection, command: Command) -> Endpoint:
        """Return the row of a request. Raises if there is none, or if the body is larger than the row allows."""
        try:
            return self._find(command)
        except LaterMQError:
            if self._guard is not None:
                self._guard.identify(connection, command)
            raise

    def _find(self, command: Command) -> Endpoint:
        endpoint = self._rows.get(command.code)
        if endpoint is None:
            raise UnsupportedRequest(
                f"request code {command.code} is not supported here", hint="docs/protocol.md lists the supported codes"
            )
        limit = endpoint.body_limit
        if limit is not None and len(command.body) > limit.size_bytes:
            raise limit.error(
                f"the body of request {command.code} has {len(command.body)} bytes; the limit is {limit.size_bytes}",
                hint=f"Request less at once, or raise {limit.setting}",
            )
        return endpoint

    def answer(self, endpoint: Endpoint, connection: Connection, command: Command) -> Reply:
        """Decode the request, authorize it and call the handler."""
        guard = self._guard
        reply: Reply
        if guard is None:
            content = self._decoded(endpoint, command)
            if self.authorize is not None:
                self.authorize(connection, endpoint, command, content)
            reply = endpoint.handler(connection, command, content)  # type: ignore[assignment]
            return reply
        content = self._guarded(guard, endpoint, connection, command)
        try:
            reply = endpoint.handler(connection, command, content)  # type: ignore[assignment]
        except LaterMQError as error:
            guard.failed(connection, endpoint, command, content, error)
            raise
        return reply

    def _decoded(self, endpoint: Endpoint, command: Command) -> Any:
        if endpoint.header is not None:
            return command.header(endpoint.header)
        if endpoint.body is not None:
            return self._body_decoders[endpoint.code](command.body)
        return None

    def _guarded(self, guard: Guard, endpoint: Endpoint, connection: Connection, command: Command) -> Any:
        """Decode a request between the checks of its signature and of its permissions."""
        try:
            user = guard.authenticate(connection, endpoint, command)
        except LaterMQError as error:
            guard.refused(connection, endpoint, command, None, error)
            raise
        content = self._decoded(endpoint, command)
        try:
            guard.check(connection, endpoint, command, content, user)
        except LaterMQError as error:
            guard.refused(connection, endpoint, command, content, error)
            raise
        return content

    def serve(self, connection: Connection, command: Command) -> Reply:
        """Return the reply to a request, or None if it is sent later."""
        return self.answer(self.find(connection, command), connection, command)

    def permits(self, connection: Connection, endpoint: Endpoint, command: Command, content: Any) -> bool:
        """Whether a request is permitted, for callers that leave the refusal to `serve`."""
        if self.authorize is not None:
            try:
                self.authorize(connection, endpoint, command, content)
            except LaterMQError:
                return False
        return True

    def repeated(self, requests: int) -> None:
        """Note that so many more requests are like the one that `permits` has checked last."""
        if self._guard is not None:
            self._guard.repeated(requests)
