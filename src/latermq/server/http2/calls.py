"""gRPC calls as handlers see them, and the kinds of methods that a service offers.

A handler is a plain function, because a task per call costs more than most calls do. It answers at once, or keeps the
call and answers later from the event loop's thread.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import structlog

from latermq.protocol.http2.grpc.call_head import field_of, metadata_of
from latermq.protocol.http2.grpc.messages import MessageReader, message_prefix
from latermq.protocol.http2.grpc.status import HEAD, TAIL_OK, GrpcError, StatusCode, trailers, trailers_only
from latermq.protocol.http2.stream import Stream
from latermq.server.http2.connection import Http2Connection

_log = structlog.get_logger(__name__)


class Receiver(Protocol):
    """The receiving side of a bidirectional call."""

    def message(self, message: bytes) -> None:
        """A message has arrived. It counts as consumed when this returns."""
        ...

    def ended(self) -> None:
        """The client has sent its last message. The call is still open for answers."""
        ...


@dataclass(frozen=True, slots=True)
class Unary:
    """One request, one answer. `serve` returns the answer, or None if it calls `Call.reply` or `Call.end` later."""

    serve: Callable[["Call", bytes], bytes | None]


@dataclass(frozen=True, slots=True)
class ServerStream:
    """One request, several answers by `Call.send`, and then `Call.end`, at once or later."""

    serve: Callable[["Call", bytes], None]


@dataclass(frozen=True, slots=True)
class Bidirectional:
    """Messages in both directions. `begin` returns the receiver of the client's messages."""

    begin: Callable[["Call"], Receiver]


Method = Unary | ServerStream | Bidirectional
Methods = Mapping[bytes, Method]  # by path, as in b"/package.Service/Method"


class Call:
    """One call. Everything sent after its end is ignored, because the client may be gone at any time."""

    __slots__ = (
        "_has_head",
        "_stream",
        "_tick",
        "connection",
        "deadline_s",
        "method",
        "on_cancel",
        "reader",
        "receiver",
        "registry",
        "request",
    )

    def __init__(
        self,
        connection: Http2Connection,
        stream: Stream,
        method: Method,
        deadline_s: float | None,
    ) -> None:
        self.connection = connection
        self.deadline_s = deadline_s  # monotonic; the call is cancelled then
        # Called once if the call ends before its handler ends it: by its client, its deadline or its connection.
        self.on_cancel: Callable[[], None] | None = None
        # For the dispatcher.
        self.method = method
        self.receiver: Receiver | None = None
        self.reader: MessageReader | None = None
        self.request: bytes | None = None
        self.registry: dict[Call, Stream] | None = None  # where the call is listed until it ends
        self._stream = stream
        self._has_head = False
        self._tick = 0  # of the deadline, while the call waits

    @property
    def metadata(self) -> dict[bytes, bytes]:
        """The fields of the call by name, in lower case. A new dictionary; `field` is faster for a single one."""
        return metadata_of(self._stream.request)

    def field(self, name: bytes) -> bytes | None:
        """Return the value of one field of the metadata."""
        return field_of(self._stream.request, name)

    @property
    def path(self) -> bytes:
        return self._stream.request.path

    @property
    def is_open(self) -> bool:
        """Whether an answer can still be sent."""
        return not self._stream.is_closed and self._stream.tail_block is None

    @property
    def is_writable(self) -> bool:
        """Whether the client keeps up with what is sent."""
        return self.connection.is_writable(self._stream)

    def reply(self, message: bytes) -> None:
        """Send the only answer of a unary call, with status OK."""
        stream = self._stream
        if not stream.is_closed and stream.tail_block is None:
            connection = self.connection
            if stream.attachment is not None or self.on_cancel is not None or connection.waiting:
                self.close()  # a call that is answered at once holds nothing
            connection.http2.outbox.respond(stream, HEAD, message_prefix(message), message, TAIL_OK)
            connection.schedule_flush()

    def send(self, message: bytes) -> bool:
        """Send one of several answers. Returns False if the next should wait for `when_writable`."""
        return self.send_all((message,))

    def send_all(self, messages: Iterable[bytes]) -> bool:
        """Send several answers together, which costs little more than one. Returns the same as `send`."""
        if not self.is_open:
            return True
        outbox = self.connection.http2.outbox
        if not self._has_head:
            self._has_head = True
            outbox.headers(self._stream, HEAD.block, end_stream=False)
        outbox.data(self._stream, b"".join([part for one in messages for part in (message_prefix(one), one)]))
        self.connection.schedule_flush()
        return self.is_writable

    def end(
        self, status: StatusCode = StatusCode.OK, message: str = "", fields: Iterable[tuple[bytes, bytes]] = ()
    ) -> None:
        """End the call with a status, after everything that was sent."""
        if not self.is_open:
            return
        self.close()
        outbox = self.connection.http2.outbox
        if self._has_head:
            outbox.end(self._stream, trailers(status, message, fields))
        else:
            outbox.headers(self._stream, trailers_only(status, message, fields), end_stream=True)
        self.connection.schedule_flush()

    def when_writable(self, then: Callable[[], None]) -> None:
        """Call `then` once, when `is_writable` is true again or the call has ended."""
        self.connection.when_writable(self._stream, then)

    def when_read(self, then: Callable[[bool], None]) -> None:
        """Call `then` once, with whether the client has read the answers: see `Http2Connection.when_read`."""
        self.connection.when_read(self._stream, then)

    async def drain(self) -> None:
        """Wait until `is_writable` is true or the call has ended."""
        while self.is_open and not self.is_writable:
            room: asyncio.Future[None] = self.connection.loop.create_future()
            self.when_writable(lambda room=room: room.done() or room.set_result(None))  # type: ignore[misc]
            await room

    # For the dispatcher

    def receive_with(self, receiver: Receiver) -> None:
        if self.is_open:
            self.receiver = receiver

    def arm(self) -> None:
        """Watch the deadline. Only calls that are not answered at once need it."""
        if self.deadline_s is not None:
            self._tick = self.connection.deadlines.add(self, self.deadline_s)

    def cancel(self) -> None:
        """The stream is closed: report it to the handler."""
        on_cancel = self.on_cancel
        self.close()
        if on_cancel is not None:
            self._report(on_cancel)

    def expel(self, error: GrpcError) -> None:
        """End the call without its handler, and report it to the handler."""
        on_cancel = self.on_cancel
        self.end(error.status, error.message, error.fields)
        if on_cancel is not None:
            self._report(on_cancel)

    def _report(self, on_cancel: Callable[[], None]) -> None:
        try:
            on_cancel()
        except Exception:
            _log.exception("the handler of a cancelled call failed", path=self.path.decode(errors="replace"))

    def close(self) -> None:
        """Release what the call holds. The stream and its call refer to each other."""
        if self._tick:
            self.connection.deadlines.discard(self, self._tick)
            self._tick = 0
        self.on_cancel = None
        self.receiver = None
        self.reader = None
        self.request = None
        self._stream.attachment = None
        if self.registry is not None:
            self.registry.pop(self, None)
            self.registry = None
        if self.connection.waiting:
            self.connection.stop_waiting(self._stream)

    def expire(self) -> None:
        """End the call because its deadline has passed."""
        self.expel(GrpcError(StatusCode.DEADLINE_EXCEEDED, "the deadline has passed"))
