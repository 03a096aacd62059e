"""The table of the calls that the proxy serves: one row per method, with its messages, permissions and handler.

A handler is a plain function. It returns the answer, or keeps the exchange and answers later. A LaterMQError that it
raises becomes an answer with a status; gRPC's own status is then OK, as clients expect.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from google.protobuf.message import DecodeError, Message

from latermq.errors import LaterMQError
from latermq.protocol.http2.grpc.status import GrpcError, StatusCode
from latermq.protocol.messaging import messaging_pb2 as pb
from latermq.protocol.messaging.refusals import CallRefused
from latermq.protocol.messaging.resources import full_name
from latermq.protocol.remoting.frames import Command
from latermq.server.http2.calls import Bidirectional, Call, Method, Receiver, ServerStream, Unary
from latermq.server.proxy.statuses import status_of
from latermq.server.remoting.access import Access, Action, Kind, Rule

SERVICE = "apache.rocketmq.v2.MessagingService"
CLIENT_ID = b"x-mq-client-id"
MAX_CLIENT_ID_CHARS = 255
_CACHED_CLIENT_IDS = 4096
_NO_COMMAND = Command(0)  # rules are shared with remoting, whose requests have one

# The messages that report a status in a server stream, instead of a field of its only answer.
Failure = Callable[[pb.Status], Iterable[Message]]


class Exchange:
    """A call that is being served, and the ways to answer it. Answers after its end are ignored."""

    __slots__ = ("_table", "call", "client_id", "endpoint")

    def __init__(self, table: "CallTable", endpoint: "CallEndpoint", call: Call, client_id: str) -> None:
        self._table = table
        self.endpoint = endpoint
        self.call = call
        self.client_id = client_id

    @property
    def peer(self) -> str:
        """The address of the client's host."""
        return self.call.connection.peer[0]

    def authorize(self, accesses: Iterable[Access]) -> None:
        """Raise NoPermission if the call may not touch these resources. For shortcuts."""
        if self._table.authorize is not None:
            self._table.authorize(self.call, accesses)

    def reply(self, answer: Message) -> None:
        """Send the only answer of a unary call."""
        self.call.reply(answer.SerializeToString())

    def refuse(self, error: LaterMQError) -> pb.Status:
        """Return the status of an error for an answer with more than a status."""
        return self._table.refuse(error)

    def fail(self, error: LaterMQError) -> None:
        """Answer with the status of an error, and end a stream."""
        answers = self._table.failure(self.endpoint, error)
        if self.endpoint.failure is None:
            self.reply(answers[0])
            return
        for answer in answers:
            self.call.send(answer.SerializeToString())
        self.call.end()


# Called before the handler of every call with the resources that it touches; raises NoPermission to refuse it.
Authorize = Callable[[Call, Iterable[Access]], None]
# Called before the message of a call is decoded; raises NoPermission if the call has no valid signature.
Authenticate = Callable[[Call], None]


@dataclass(frozen=True, slots=True)
class CallEndpoint:
    """One row. `access` has no default, so every new call needs a decision about its permissions."""

    name: str  # of the method
    request: type[Message]
    reply: type[Message]  # with a field `status`, unless there is `failure`
    serve: Callable[[Exchange, Any], Message | None]
    access: tuple[Rule, ...]
    failure: Failure | None = None  # of a server stream, whose handler sends by `Exchange.call`
    # Serves the usual request of a unary call without decoding it by protobuf. It calls `Exchange.authorize` first.
    # Returns False for all others.
    shortcut: Callable[[Exchange, bytes], bool] | None = None
    # Raises CallRefused for a request that would take too long to decode.
    check: Callable[[bytes], None] | None = None

    def accesses(self, request: Any) -> Iterator[Access]:
        """Yield the resources that this call touches. All of them must be permitted."""
        for rule in self.access:
            yield from rule.accesses(_NO_COMMAND, request)


class CallTable:
    """All rows of the proxy. `authorize` checks every call; without it all calls are permitted."""

    def __init__(self) -> None:
        self.authorize: Authorize | None = None
        self.authenticate: Authenticate | None = None
        self.methods: dict[bytes, Method] = {}
        self.endpoints: list[CallEndpoint] = []
        # By code. The usual ones start at 0: monitoring does not count the first value of a series as an increase.
        self.refused: Counter[int] = Counter(
            dict.fromkeys((pb.TOO_MANY_REQUESTS, pb.PAYLOAD_TOO_LARGE, pb.INTERNAL_SERVER_ERROR), 0)
        )

    def add(self, endpoints: Iterable[CallEndpoint]) -> None:
        """Add rows to the table."""
        for endpoint in endpoints:
            self.endpoints.append(endpoint)
            self._add(endpoint.name, self._unary(endpoint) if endpoint.failure is None else self._stream(endpoint))

    def add_bidirectional(self, name: str, begin: Callable[[Call], Receiver]) -> None:
        """Add a method with messages in both directions, which calls `authorize` itself."""
        self._add(name, Bidirectional(begin))

    def refuse(self, error: LaterMQError) -> pb.Status:
        """Return the status of an error, and count it. Its traceback is dropped.

        The frames in it refer to the error, and such cycles stay in memory until the next garbage collection: 200 MB
        after 30,000 refused calls.
        """
        error.__traceback__ = None
        status = status_of(error)
        self.refused[status.code] += 1
        return status

    def failure(self, endpoint: CallEndpoint, error: LaterMQError) -> list[Message]:
        """Return the answers that report an error."""
        status = self.refuse(error)
        if endpoint.failure is not None:
            return list(endpoint.failure(status))
        return [endpoint.reply(status=status)]

    def statistics(self) -> dict[str, int]:
        return {f"refused_requests_{code}": count for code, count in self.refused.items()}

    def _add(self, name: str, method: Method) -> None:
        path = f"/{SERVICE}/{name}".encode()
        assert path not in self.methods, f"{name} has two rows"
        self.methods[path] = method

    def _unary(self, endpoint: CallEndpoint) -> Unary:
        serve, shortcut = endpoint.serve, endpoint.shortcut

        def answer(call: Call, data: bytes) -> bytes | None:
            try:
                if self.authenticate is not None:
                    self.authenticate(call)
                if shortcut is not None and shortcut(Exchange(self, endpoint, call, client_id_of(call)), data):
                    return None
                exchange, request = self._begin(endpoint, call, data)
                reply = serve(exchange, request)
            except LaterMQError as error:
                if isinstance(error, GrpcError):
                    raise
                if self._answers_later(endpoint, call, error):
                    return None
                return self.failure(endpoint, error)[0].SerializeToString()
            return None if reply is None else reply.SerializeToString()

        return Unary(answer)

    def _stream(self, endpoint: CallEndpoint) -> ServerStream:
        serve = endpoint.serve

        def answer(call: Call, data: bytes) -> None:
            try:
                if self.authenticate is not None:
                    self.authenticate(call)
                exchange, request = self._begin(endpoint, call, data)
                serve(exchange, request)
            except LaterMQError as error:
                if isinstance(error, GrpcError):
                    raise
                if not self._answers_later(endpoint, call, error):
                    Exchange(self, endpoint, call, "").fail(error)

        return ServerStream(answer)

    def _answers_later(self, endpoint: CallEndpoint, call: Call, error: LaterMQError) -> bool:
        """Let a client that could not authenticate itself wait for its answer."""
        pause_s: float = getattr(error, "pause_s", 0.0)
        if pause_s:
            call.connection.loop.call_later(pause_s, Exchange(self, endpoint, call, "").fail, error)
        return bool(pause_s)

    def _begin(self, endpoint: CallEndpoint, call: Call, data: bytes) -> tuple[Exchange, Any]:
        if endpoint.check is not None:
            endpoint.check(data)
        try:
            request = endpoint.request.FromString(data)
        except DecodeError:
            raise GrpcError(StatusCode.INTERNAL, f"the message is not a valid {endpoint.request.__name__}") from None
        exchange = Exchange(self, endpoint, call, client_id_of(call))
        if self.authorize is not None:
            self.authorize(call, endpoint.accesses(request))
        return exchange, request


def client_id_of(call: Call) -> str:
    """Return the id that every client sends with each call."""
    return _client_id(call.field(CLIENT_ID))


@lru_cache(_CACHED_CLIENT_IDS)
def _client_id(value: bytes | None) -> str:
    if not value:
        raise CallRefused(
            pb.CLIENT_ID_REQUIRED, "the call has no client id", hint="Send it in the header x-mq-client-id"
        )
    if len(value) > MAX_CLIENT_ID_CHARS:
        raise CallRefused(
            pb.BAD_REQUEST, f"the client id has {len(value)} characters; the limit is {MAX_CLIENT_ID_CHARS}"
        )
    try:
        return value.decode("ascii")
    except UnicodeDecodeError:
        raise CallRefused(pb.BAD_REQUEST, "the client id is not ASCII") from None


def on_topic(field: str, *actions: Action) -> Rule:
    """The topic in this field of the request."""
    return Rule(Kind.TOPIC, actions, lambda _, request: (full_name(getattr(request, field)),))


def on_group(field: str, *actions: Action) -> Rule:
    """The group in this field of the request."""
    return Rule(Kind.GROUP, actions, lambda _, request: (full_name(getattr(request, field)),))


def on_group_if_named(field: str, *actions: Action) -> Rule:
    """The group in this field of the request, which may be absent."""
    return Rule(Kind.GROUP, actions, lambda _, request: (full_name(getattr(request, field)),), ())
