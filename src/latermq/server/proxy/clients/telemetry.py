"""The telemetry stream of a client: its settings and the server's answers, and commands of the server.

A refused stream gets an answer with the status, as from RocketMQ's proxy, and then ends with an error. The Node client
reads only the former: after an error alone, its start never ends. The Java and Go clients report the latter.
"""

import asyncio
from collections.abc import Callable, Iterable

from google.protobuf.message import DecodeError

from latermq.errors import LaterMQError
from latermq.model.group import Group
from latermq.protocol.http2.grpc.status import GrpcError, StatusCode
from latermq.protocol.messaging import messaging_pb2 as pb
from latermq.protocol.messaging.refusals import CallRefused
from latermq.server.http2.calls import Call, Receiver
from latermq.server.proxy.brokers.groups import Groups
from latermq.server.proxy.calls.call_table import CallTable, client_id_of
from latermq.server.proxy.clients.client_settings import Role, SettingsAnswers, accesses_of, role_of
from latermq.server.proxy.clients.clients import Client, Clients
from latermq.server.proxy.statuses import OK, grpc_error, status_of
from latermq.server.remoting.access import Access

RETRY_S = 1.0
STOPPING = "the proxy is stopping"


class Telemetry:
    """Begins the telemetry streams."""

    def __init__(
        self,
        table: CallTable,
        clients: Clients,
        groups: Groups,
        answers: SettingsAnswers,
        max_settings_bytes: int,
    ) -> None:
        self._table = table
        self.clients = clients
        self.groups = groups
        self.answers = answers
        self.max_settings_bytes = max_settings_bytes
        self._streams: dict[TelemetryStream, None] = {}  # including those that have sent no settings
        self._is_stopping = False

    def begin(self, call: Call) -> Receiver:
        """Begin a stream. One without a valid signature is refused before it sends anything."""
        try:
            stream = TelemetryStream(self, call, client_id_of(call))
        except LaterMQError as error:
            raise self.refuse(error) from None
        if self._is_stopping:
            raise GrpcError(StatusCode.UNAVAILABLE, STOPPING)
        self._streams[stream] = None
        try:
            if self._table.authenticate is not None:
                self._table.authenticate(call)
        except LaterMQError as error:
            stream.refuse(error)
        return stream

    def authorize(self, call: Call, role: Role) -> None:
        """Raise NoPermission if a client may not have this role."""
        if self._table.authorize is not None:
            self._table.authorize(call, accesses_of(role))

    def refuse(self, error: LaterMQError) -> GrpcError:
        """Return the error that ends a stream, and count it."""
        self._table.refuse(error)
        return grpc_error(error)

    def ended(self, stream: "TelemetryStream") -> None:
        self._streams.pop(stream, None)

    def recheck(self, permits: Callable[[Call, Iterable[Access]], bool]) -> None:
        """End the streams of clients that may no longer have their role, after users or policies have changed."""
        for stream in list(self._streams):
            if not stream.is_permitted(permits):
                stream.end("the client's user has no permission any more")

    def release(self) -> None:
        """End all streams. Clients open new ones, at another proxy or after the restart of this one."""
        self._is_stopping = True
        for stream in list(self._streams):
            stream.end(STOPPING)

    def statistics(self) -> dict[str, int]:
        return {"telemetry_streams": len(self._streams)}


class TelemetryStream(Receiver):
    """One stream."""

    __slots__ = (
        "_call",
        "_client",
        "_client_id",
        "_is_answered",
        "_is_asking",
        "_is_refused",
        "_retry",
        "_role",
        "_telemetry",
        "_unanswered",
        "peer",
    )

    def __init__(self, telemetry: Telemetry, call: Call, client_id: str) -> None:
        self._telemetry = telemetry
        self._call = call
        self._client_id = client_id
        self._client: Client | None = None
        self._role: Role | None = None
        self._unanswered: pb.Settings | None = None  # of a consumer whose group is being looked up
        self._is_asking = False
        self._is_answered = False
        self._is_refused = False
        self._retry: asyncio.TimerHandle | None = None
        self.peer = call.connection.peer[0]
        call.on_cancel = self._detach

    # From the client

    def message(self, message: bytes) -> None:
        if self._is_refused:
            return  # it ends after the pause for failed attempts
        limit = self._telemetry.max_settings_bytes
        if len(message) > limit:  # before it is decoded: four megabytes of short names take a second
            too_large = CallRefused(pb.PAYLOAD_TOO_LARGE, f"the command has {len(message)} bytes; the limit is {limit}")
            self.refuse(too_large)
            return
        try:
            command = pb.TelemetryCommand.FromString(message)
        except DecodeError:
            raise GrpcError(StatusCode.INTERNAL, "the message is not a valid TelemetryCommand") from None
        kind = command.WhichOneof("command")
        try:
            if kind == "settings":
                self._register(command.settings)
            elif self._client is None:
                raise CallRefused(pb.UNRECOGNIZED_CLIENT_TYPE, "the first command must be the client's settings")
            # Other commands answer requests that this server never makes.
        except GrpcError:
            raise
        except LaterMQError as error:
            self.refuse(error)

    def ended(self) -> None:
        if self._is_refused:
            return  # as above
        self._detach()
        self._call.end()

    # To the client

    def refuse(self, error: LaterMQError) -> None:
        """End the stream with an error. A client that could not authenticate itself waits for it."""
        self._is_refused = True
        refusal = self._telemetry.refuse(error)
        pause_s: float = getattr(error, "pause_s", 0.0)
        if pause_s:
            self._detach()
            self._call.on_cancel = None
            self._call.connection.loop.call_later(pause_s, self._end_refused, error, refusal)
        else:
            self._end_refused(error, refusal)

    def _end_refused(self, error: LaterMQError, refusal: GrpcError) -> None:
        self._detach()
        if refusal.status is StatusCode.INVALID_ARGUMENT:  # what is temporary, the client should try again
            self._call.send(pb.TelemetryCommand(status=status_of(error)).SerializeToString())
        self._call.end(refusal.status, refusal.message, refusal.fields)

    def is_permitted(self, permits: Callable[[Call, Iterable[Access]], bool]) -> bool:
        """Whether the client may still have the role of its last settings."""
        return self._role is None or permits(self._call, accesses_of(self._role))

    @property
    def is_writable(self) -> bool:
        return self._call.is_open and self._call.is_writable

    def send(self, command: pb.TelemetryCommand) -> None:
        """Send a command, unless the client does not read."""
        if self.is_writable:
            self._call.send(command.SerializeToString())

    def end(self, reason: str) -> None:
        """End the stream. The client opens a new one."""
        self._detach()
        self._call.end(StatusCode.UNAVAILABLE, reason)

    def _register(self, settings: pb.Settings) -> None:
        telemetry = self._telemetry
        role = role_of(settings, telemetry.max_settings_bytes)
        telemetry.authorize(self._call, role)
        self._role = role
        client = telemetry.clients.register(self._client_id, role, self)
        if self._client is not None and self._client is not client:
            telemetry.clients.detach(self._client, self)  # the client has changed its group
        self._client = client
        if role.group:
            self._unanswered = settings
            self._ask_group()
        else:
            self._answer(telemetry.answers.for_producer(settings))

    def _ask_group(self) -> None:
        """Answer the last settings of a consumer with the configuration of its group, by one look-up at a time."""
        self._stop_retry()
        if not self._is_asking and self._client is not None:
            self._is_asking = True
            group = self._client.group
            self._telemetry.groups.get(group, lambda found: self._on_group(group, found))

    def _on_group(self, group: str, found: Group | LaterMQError) -> None:
        self._is_asking = False
        settings = self._unanswered
        if settings is None or self._client is None or not self._call.is_open:
            return
        if group != self._client.group:
            self._ask_group()  # the client has changed it meanwhile
        elif isinstance(found, Group):
            self._unanswered = None
            self._answer(self._telemetry.answers.for_consumer(settings, found))
        else:
            # An error would end the stream, and Python's client never opens another. It waits instead.
            self._retry = asyncio.get_running_loop().call_later(RETRY_S, self._ask_group)

    def _answer(self, settings: pb.Settings) -> None:
        """Send an answer. A client that does not read gets the first one alone, so that answers do not pile up."""
        if self._is_answered and not self._call.is_writable:
            return
        self._is_answered = True
        self._call.send(pb.TelemetryCommand(status=OK, settings=settings).SerializeToString())

    def _detach(self) -> None:
        self._stop_retry()
        self._unanswered = None
        if self._client is not None:
            self._telemetry.clients.detach(self._client, self)
        self._telemetry.ended(self)

    def _stop_retry(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
