"""Turns the streams of a connection into gRPC calls and hands them to the methods of a service.

Memory: a request with one message is held until its call ends, incomplete or not. Incomplete messages may take half of
`Limits.max_held_bytes`; the one that exceeds it ends with RESOURCE_EXHAUSTED. Complete ones keep the window of the
connection closed until their calls end.
"""

from collections.abc import Callable

import structlog

from latermq.protocol.http2.grpc.call_head import NotGrpc, call_head
from latermq.protocol.http2.grpc.messages import MessageReader, only_message
from latermq.protocol.http2.grpc.status import GrpcError, StatusCode, trailers_only
from latermq.protocol.http2.stream import Stream
from latermq.server.http2.calls import Bidirectional, Call, Methods
from latermq.server.http2.connection import Http2Connection

_log = structlog.get_logger(__name__)


class CallDispatcher:
    """The stream handler of one connection."""

    __slots__ = ("_connection", "_http2", "_incomplete", "_max_incomplete_bytes", "_max_message_bytes", "_methods")

    def __init__(self, connection: Http2Connection, methods: Methods) -> None:
        self._connection = connection
        self._http2 = connection.http2
        self._methods = methods
        self._max_message_bytes = connection.limits.max_message_bytes
        self._max_incomplete_bytes = connection.limits.http2.max_held_bytes >> 1
        self._incomplete: dict[Call, Stream] = {}  # a request or a message of it is still arriving

    def handle(self, stream: Stream) -> None:
        call = stream.attachment
        if call is None:
            # A call that was ended early may still have data to send; what else arrives for it is not a new call.
            if not stream.is_closed and stream.tail_block is None:
                self._begin(stream)
            return
        assert isinstance(call, Call)
        if stream.reset is None:
            self._receive(call, stream)
        else:
            call.cancel()

    def sweep(self, now_s: float) -> None:
        oldest_s = now_s - self._connection.limits.request_timeout_s
        for call, stream in list(self._incomplete.items()):
            if stream.opened_s <= oldest_s and call.receiver is None:
                self._fail(call, GrpcError(StatusCode.DEADLINE_EXCEEDED, "the request did not arrive completely"))

    def _begin(self, stream: Stream) -> None:
        request = stream.request
        try:
            head = call_head(request)
            method = self._methods.get(request.path)
            if method is None:
                path = request.path[:200].decode(errors="replace")
                raise GrpcError(StatusCode.UNIMPLEMENTED, f"the method {path} does not exist")
        except NotGrpc as refusal:
            self._http2.outbox.headers(stream, refusal.block, end_stream=True)
            return
        except GrpcError as error:
            self._http2.outbox.headers(
                stream, trailers_only(error.status, error.message, error.fields), end_stream=True
            )
            return
        deadline_s = None if head.timeout_s is None else stream.opened_s + head.timeout_s
        call = Call(self._connection, stream, method, deadline_s)
        if stream.is_ended and type(method) is not Bidirectional and len(stream.pieces) == 1:
            message = only_message(stream.pieces[0])
            if message is not None:
                stream.pieces.clear()
                self._serve(call, stream, message)
                return
        stream.attachment = call
        call.reader = MessageReader(self._max_message_bytes, head.is_gzip)
        call.registry = self._incomplete
        call.arm()
        if isinstance(method, Bidirectional):
            self._guard(call, lambda: call.receive_with(method.begin(call)))
        else:
            self._incomplete[call] = stream
        if call.is_open:
            self._receive(call, stream)

    def _receive(self, call: Call, stream: Stream) -> None:
        """Process the data of a call that did not arrive in one piece."""
        reader = call.reader
        if reader is None:
            return  # the request was complete, and its call is being served
        data = stream.take_data()
        try:
            messages = reader.feed(data) if data else []
            if stream.is_ended and reader.held_bytes:
                raise GrpcError(StatusCode.INTERNAL, "the request ends within a message")
            if reader.held_bytes and self._is_too_much():
                raise GrpcError(StatusCode.RESOURCE_EXHAUSTED, "too many bytes of incomplete messages")
        except GrpcError as error:
            self._fail(call, error)
            return
        # The stream's window never closes: what bounds the memory is the connection's, which counts what is held.
        self._http2.grant(stream, len(data))
        if call.receiver is not None:
            self._pass_on(call, stream, reader, messages)
        else:
            self._collect(call, stream, messages)

    def _pass_on(self, call: Call, stream: Stream, reader: MessageReader, messages: list[bytes]) -> None:
        """Hand messages to the receiver of a bidirectional call."""
        receiver = call.receiver
        assert receiver is not None
        for message in messages:
            self._guard(call, lambda message=message: receiver.message(message))  # type: ignore[misc]
            if not call.is_open:
                return
        self._http2.release(stream, stream.held_bytes - reader.held_bytes)
        if reader.held_bytes:
            self._incomplete[call] = stream
        else:
            self._incomplete.pop(call, None)
        if stream.is_ended:
            call.reader = None
            self._guard(call, receiver.ended)

    def _collect(self, call: Call, stream: Stream, messages: list[bytes]) -> None:
        """Serve a call when its only message and its end are here."""
        if messages:
            if call.request is not None or len(messages) > 1:
                self._fail(call, GrpcError(StatusCode.UNIMPLEMENTED, "the method takes one message"))
                return
            call.request = messages[0]
        if stream.is_ended:
            if call.request is None:
                self._fail(call, GrpcError(StatusCode.UNIMPLEMENTED, "the method takes one message, not none"))
                return
            del self._incomplete[call]
            call.reader = None
            message, call.request = call.request, None
            self._serve(call, stream, message)

    def _serve(self, call: Call, stream: Stream, message: bytes) -> None:
        method = call.method
        assert not isinstance(method, Bidirectional)
        try:
            answer = method.serve(call, message)
        except GrpcError as error:
            call.end(error.status, error.message, error.fields)
            return
        except Exception:
            _log.exception("a call failed", path=_path(call))
            call.end(StatusCode.INTERNAL, "internal error")
            return
        if answer is not None:
            call.reply(answer)
        elif call.is_open and stream.attachment is None:
            stream.attachment = call
            call.arm()

    def _guard(self, call: Call, step: Callable[[], None]) -> None:
        """Run a step of a handler. What it raises ends the call."""
        try:
            step()
        except GrpcError as error:
            self._fail(call, error)
        except Exception:
            _log.exception("a call failed", path=_path(call))
            self._fail(call, GrpcError(StatusCode.INTERNAL, "internal error"))

    def _fail(self, call: Call, error: GrpcError) -> None:
        call.expel(error)

    def _is_too_much(self) -> bool:
        if self._http2.held_bytes <= self._max_incomplete_bytes:
            return False
        held_bytes = sum(call.reader.held_bytes for call in self._incomplete if call.reader is not None)
        return held_bytes > self._max_incomplete_bytes


def _path(call: Call) -> str:
    return call.path.decode(errors="replace")
