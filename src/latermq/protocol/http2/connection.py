"""The server side of one HTTP/2 connection (RFC 9113), without I/O.

`receive` takes bytes and returns the streams that have news: a request, data, its end, or a reset. The outbox takes
responses. After either, `outbox.take()` returns the bytes to write. Nothing raises for what a peer sends: an error of
the peer resets its stream, or ends the connection with a GOAWAY frame (`is_ended`).

Flow control of received data: the connection's window and the held bytes together never exceed
`Limits.max_held_bytes`. Data is held until `release`, or until its stream closes. A stream's
window grows by `grant`.
"""

from collections.abc import Callable

from latermq.protocol.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    DEFAULT_FRAME_BYTES,
    DEFAULT_WINDOW_BYTES,
    ENABLE_PUSH,
    END_HEADERS,
    END_STREAM,
    HAS_PRIORITY,
    HEAD_BYTES,
    HEADER_TABLE_SIZE,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_CONCURRENT_STREAMS,
    MAX_FRAME_BYTES,
    MAX_FRAME_SIZE,
    MAX_HEADER_LIST_SIZE,
    MAX_WINDOW_BYTES,
    PADDED,
    PING,
    PREFACE,
    SETTINGS,
    SETTINGS_ACK,
    STREAM_MASK,
    ConnectionFault,
    ErrorCode,
    StreamFault,
    frame,
    goaway_frame,
    read_head,
    reset_frame,
    settings_frame,
    window_update,
)
from latermq.protocol.http2.header_cache import HeaderCache
from latermq.protocol.http2.hpack.decoder import HeaderDecoder
from latermq.protocol.http2.hpack.fields import Field, Pair
from latermq.protocol.http2.limits import Budget, Limits
from latermq.protocol.http2.outbox import Outbox
from latermq.protocol.http2.request_templates import Templates
from latermq.protocol.http2.requests import Request, request_of, trailers_of
from latermq.protocol.http2.stream import Stream

_CREDIT_PER_CALL = 4
# After this many blocks in a row that are not cached, a connection stops looking: with request ids they never are.
_CACHE_CREDIT = 100
_SHUTDOWN_PING = b"goodbye!"
_PROBE = b"are read"
_MAX_DEBUG_BYTES = 200

Handler = Callable[["ServerConnection", bytes, int, int, int, int], None]


class ServerConnection:
    """The state of a connection. `now_s` is monotonic."""

    def __init__(self, limits: Limits, cache: HeaderCache, now_s: float) -> None:
        self.limits = limits
        self.streams: dict[int, Stream] = {}  # open and half-closed ones
        self.outbox = Outbox(self._sent_end)
        self.is_probing = False  # a probe is not answered yet
        self.is_ended = False  # a GOAWAY frame for an error is in the outbox; nothing else follows
        self.fault: ConnectionFault | None = None  # why it ended
        self.held_bytes = 0
        self.finished_calls = 0
        self.reset_ids: list[int] = []  # streams that the peer has reset in the last `receive`, closed ones included
        self._cache = cache
        self._decoder = HeaderDecoder(cache.fields, limits.max_header_list_bytes)
        self._cache_credit = _CACHE_CREDIT
        self._templates = Templates()
        self._now_s = now_s
        self._handlers = _HANDLERS_BEFORE_SETTINGS
        self._has_preface = False
        self._rest = b""  # an incomplete frame
        self._news: list[Stream] = []
        self._window_bytes = limits.max_held_bytes
        self._last_id = 0
        self._opened = 0  # streams, to tell closed ids from skipped ones
        self._reset_ids: dict[int, None] = {}  # in order of insertion
        self._is_acknowledged = False  # the peer knows our SETTINGS
        self._leaving_id: int | None = None  # the last stream that a final GOAWAY names
        self._is_leaving = False
        self._block: list[bytes] = []
        self._block_bytes = 0
        self._block_flags = 0
        self._block_id = 0
        self._budgets: dict[str, Budget] = {}  # by the name of the rate in `Limits`
        self.outbox.add(self._greeting())

    def _greeting(self) -> bytes:
        limits = self.limits
        settings = settings_frame(
            {
                HEADER_TABLE_SIZE: limits.header_table_bytes,
                MAX_CONCURRENT_STREAMS: limits.max_streams,
                INITIAL_WINDOW_SIZE: limits.stream_window_bytes,
                MAX_FRAME_SIZE: limits.max_frame_bytes,
                MAX_HEADER_LIST_SIZE: limits.max_header_list_bytes,
            }
        )
        more = limits.max_held_bytes - DEFAULT_WINDOW_BYTES
        return settings + window_update(0, more) if more else settings

    # What the user calls

    @property
    def is_leaving(self) -> bool:
        """Whether a graceful stop has begun."""
        return self._is_leaving

    @property
    def has_left(self) -> bool:
        """Whether the graceful stop is final: no new stream is accepted."""
        return self._leaving_id is not None

    @property
    def is_greeted(self) -> bool:
        """Whether the peer has sent its preface and SETTINGS."""
        return self._handlers is not _HANDLERS_BEFORE_SETTINGS

    def receive(self, data: bytes, now_s: float) -> list[Stream]:
        """Process bytes from the peer and return the streams with news, each once."""
        if self.is_ended:
            return []
        self._now_s = now_s
        news = self._news = []
        if self.reset_ids:
            self.reset_ids = []
        try:
            self._receive_frames(self._rest + data if self._rest else data)
        except ConnectionFault as fault:
            news.extend(stream for stream in self.streams.values() if not stream.is_listed)
            self.end(fault)
        for stream in news:
            stream.is_listed = False
        if not self.is_ended:
            self._replenish()
        return news

    def release(self, stream: Stream, size_bytes: int) -> None:
        """The user has consumed data of a stream that stays open: it is not held any more."""
        if not stream.is_closed:
            stream.held_bytes -= size_bytes
            self.held_bytes -= size_bytes
            self._replenish()

    def grant(self, stream: Stream, size_bytes: int) -> None:
        """Let the peer send more on a stream. A WINDOW_UPDATE follows once a quarter of its window is free."""
        if stream.is_ended or stream.is_closed or size_bytes <= 0:
            return
        stream.owed_bytes += size_bytes
        if stream.owed_bytes >= self.limits.stream_window_bytes >> 2:
            stream.receive_window_bytes += stream.owed_bytes
            self.outbox.add(window_update(stream.id, stream.owed_bytes))
            stream.owed_bytes = 0

    def reset(self, stream: Stream, error: ErrorCode) -> None:
        """Close a stream before its time."""
        if not stream.is_closed:
            self._close(stream, error)
            self._send_reset(stream.id, error)

    def probe(self) -> None:
        """Ask the peer to answer when it has read everything sent so far: `is_probing` is then false again."""
        if not self.is_probing and not self.is_ended:
            self.is_probing = True
            self.outbox.add(frame(PING, 0, 0, _PROBE))

    def leave(self) -> None:
        """Begin a graceful stop: ask the peer to open no more streams. Those already under way are still served."""
        if not self._is_leaving and not self.is_ended:
            self._is_leaving = True
            self.outbox.add(goaway_frame(STREAM_MASK, ErrorCode.NO_ERROR) + frame(PING, 0, 0, _SHUTDOWN_PING))

    def finish_leaving(self) -> None:
        """Make the graceful stop final, when the peer has answered or had enough time to."""
        if self._leaving_id is None and not self.is_ended:
            self._is_leaving = True
            self._leaving_id = self._last_id
            self.outbox.add(goaway_frame(self._last_id, ErrorCode.NO_ERROR))

    def end(self, fault: ConnectionFault) -> None:
        """End the connection with a GOAWAY frame. All streams are closed, and what they had to send is dropped.

        Only `receive` reports those streams. Who calls this looks at `streams` before.
        """
        if self.is_ended:
            return
        self.is_ended = True
        self.fault = fault
        self._rest = b""
        self._block = []
        for stream in list(self.streams.values()):
            self._close(stream, fault.error)
        self.outbox.clear()
        debug = fault.message.encode()[:_MAX_DEBUG_BYTES]
        self.outbox.add(goaway_frame(self._last_id, fault.error, debug))

    def unread_fault(self, written_bytes: int) -> ConnectionFault | None:
        """Return the fault of a peer that reads too slowly, if it does. `written_bytes` are in the socket's buffer."""
        unsent_bytes = self.outbox.unsent_bytes + written_bytes
        return _calm(f"{unsent_bytes} bytes wait to be read") if unsent_bytes > self.limits.max_unsent_bytes else None

    # Frames

    def _receive_frames(self, data: bytes) -> None:
        at = 0
        end = len(data)
        if not self._has_preface:
            if not PREFACE.startswith(data[: len(PREFACE)]):
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the connection preface is invalid")
            if end < len(PREFACE):
                self._rest = data
                return
            self._has_preface = True
            at = len(PREFACE)
        max_frame_bytes = self.limits.max_frame_bytes
        while end - at >= HEAD_BYTES:
            high, low, kind, flags, stream_id = read_head(data, at)
            start = at + HEAD_BYTES
            length = high << 8 | low
            if length > max_frame_bytes:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {length} bytes is too long")
            stop = start + length
            if stop > end:
                break
            try:
                self._handlers[kind if kind < _UNKNOWN else _UNKNOWN](
                    self, data, start, stop, flags, stream_id & STREAM_MASK
                )
            except StreamFault as fault:
                self._fail(stream_id & STREAM_MASK, fault)
            at = stop
        self._rest = data[at:]

    def _on_data(self, data: bytes, at: int, stop: int, flags: int, stream_id: int) -> None:
        size = stop - at
        self._window_bytes -= size
        if self._window_bytes < 0:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "the peer exceeded the connection's window")
        if flags & PADDED:
            at, stop = _without_padding(data, at, stop)
        stream = self.streams.get(stream_id)
        if stream is None or stream.is_ended:
            if stream is None:
                self._refuse_idle(stream_id, "DATA")
            if stream_id not in self._reset_ids:
                raise StreamFault(ErrorCode.STREAM_CLOSED, "DATA on a closed stream")
            if flags & END_STREAM:
                del self._reset_ids[stream_id]  # nothing else can be late
            elif stop == at:
                self._spend("empty_data", "empty DATA frames")
            return
        stream.receive_window_bytes -= size
        if stream.receive_window_bytes < 0:
            raise StreamFault(ErrorCode.FLOW_CONTROL_ERROR, "the peer exceeded the stream's window")
        if stop > at:
            stream.pieces.append(data[at:stop])
            stream.held_bytes += stop - at
            self.held_bytes += stop - at
            if stream.left_bytes is not None:
                stream.left_bytes -= stop - at
                if stream.left_bytes < 0:
                    raise StreamFault(ErrorCode.PROTOCOL_ERROR, "the body is longer than content-length")
        elif not flags & END_STREAM:
            self._spend("empty_data", "empty DATA frames")
        if flags & END_STREAM:
            self._end_request(stream)
        elif flags & PADDED:
            self.grant(stream, size - (stop - at))
        if not stream.is_listed:
            self._list(stream)

    def _on_headers(self, data: bytes, at: int, stop: int, flags: int, stream_id: int) -> None:
        if flags & PADDED:
            at, stop = _without_padding(data, at, stop)
        if flags & HAS_PRIORITY:
            if stop - at < 5:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a HEADERS frame is too short for its priority")
            if int.from_bytes(data[at : at + 4], "big") & STREAM_MASK == stream_id:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a stream depends on itself")
            at += 5
        if flags & END_HEADERS:
            if stream_id > self._last_id and stream_id & 1:
                self._open(stream_id, flags, data[at:stop])
            else:
                self._end_block(stream_id, flags, data[at:stop])
            return
        if stream_id == 0:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "HEADERS on stream 0")
        self._block = [data[at:stop]]
        self._block_bytes = stop - at
        self._block_flags = flags
        self._block_id = stream_id
        self._handlers = _HANDLERS_IN_BLOCK

    def _on_continuation(self, data: bytes, at: int, stop: int, flags: int, stream_id: int) -> None:
        if stream_id != self._block_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a header block is interrupted")
        self._block.append(data[at:stop])
        self._block_bytes += stop - at
        limits = self.limits
        if self._block_bytes > limits.max_header_block_bytes or len(self._block) > limits.max_continuations + 1:
            raise _calm("a header block is too long")
        if flags & END_HEADERS:
            block = b"".join(self._block)
            self._block = []
            self._handlers = _HANDLERS
            self._end_block(stream_id, self._block_flags, block)

    def _end_block(self, stream_id: int, flags: int, block: bytes) -> None:
        if stream_id > self._last_id and stream_id & 1:
            self._open(stream_id, flags, block)
            return
        fields = self._decoder.decode(block)  # always, because a block may change the dynamic table
        stream = self.streams.get(stream_id)
        if stream is None:
            if stream_id not in self._reset_ids:
                error = ErrorCode.STREAM_CLOSED if self._was_open(stream_id) else ErrorCode.PROTOCOL_ERROR
                raise ConnectionFault(error, "HEADERS on a closed or invalid stream")
            if flags & END_STREAM:
                del self._reset_ids[stream_id]  # nothing else can be late
            else:
                self._spend("ignored_frames", "HEADERS frames of closed streams")
            return
        if stream.is_ended:
            raise StreamFault(ErrorCode.STREAM_CLOSED, "HEADERS after the end of a stream")
        if not flags & END_STREAM:
            raise StreamFault(ErrorCode.PROTOCOL_ERROR, "trailers do not end their stream")
        if fields is None:
            raise StreamFault(ErrorCode.ENHANCE_YOUR_CALM, "the trailers are too long")
        stream.trailers = trailers_of(fields)
        self._end_request(stream)
        if not stream.is_listed:
            self._list(stream)

    def _open(self, stream_id: int, flags: int, block: bytes) -> None:
        """Open a stream with a request."""
        self._last_id = stream_id
        self._opened += 1
        uses_cache = self._cache_credit > 0 and self._decoder.is_stateless
        request = self._cache.requests.get(block) if uses_cache else None
        if request is not None:
            self._cache_credit = _CACHE_CREDIT
        else:
            request = self._new_request(block)
            if uses_cache:
                self._cache_credit -= 1
                self._cache.put(block, request)
        if self._leaving_id is not None:
            self._remember_reset(stream_id)  # the final GOAWAY told the peer that this stream is not served
            return
        if len(self.streams) >= self.limits.max_streams:
            raise StreamFault(ErrorCode.REFUSED_STREAM, "too many concurrent streams")
        stream = Stream(
            stream_id, request, self._now_s, self.limits.stream_window_bytes, self.outbox.initial_window_bytes
        )
        self.streams[stream_id] = stream
        self._news.append(stream)
        if flags & END_STREAM:
            self._end_request(stream)

    def _new_request(self, block: bytes) -> Request:
        """Decode a request that is not cached, by a template if it fits one."""
        decoder = self._decoder
        is_short = decoder.is_short(block)
        if is_short:
            found = self._templates.request(block)
            if found is not None:
                return found
        request = _valid_request(decoder.split(block))
        if is_short and self._templates.miss():
            self._templates.learn(block, decoder.places(block), request)
        return request

    def _on_priority(self, data: bytes, at: int, stop: int, flags: int, stream_id: int) -> None:
        if stream_id == 0:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PRIORITY on stream 0")
        if stop - at != 5:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a PRIORITY frame must have 5 bytes")
        if int.from_bytes(data[at : at + 4], "big") & STREAM_MASK == stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a stream depends on itself")
        self._spend("ignored_frames", "PRIORITY frames")

    def _on_reset(self, data: bytes, at: int, stop: int, flags: int, stream_id: int) -> None:
        if stop - at != 4:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "an RST_STREAM frame must have 4 bytes")
        self.reset_ids.append(stream_id)
        stream = self.streams.get(stream_id)
        if stream is None:
            self._refuse_idle(stream_id, "RST_STREAM")
            self._spend("ignored_frames", "RST_STREAM frames of closed streams")
            return
        self._close(stream, int.from_bytes(data[at:stop], "big"))
        self._list(stream)
        if self._now_s - stream.opened_s < self.limits.rapid_reset_s:
            self._spend("resets", "resets", earns=False)

    def _on_settings(self, data: bytes, at: int, stop: int, flags: int, stream_id: int) -> None:
        if stream_id != 0:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "SETTINGS on a stream")
        if flags & ACK:
            if stop != at:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "an acknowledgment of SETTINGS must be empty")
            if self._handlers is _HANDLERS_BEFORE_SETTINGS:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the first frame is not a SETTINGS frame")
            self._spend("ignored_frames", "acknowledgments of SETTINGS")
            if not self._is_acknowledged:
                self._is_acknowledged = True
                self._decoder.limit_table(self.limits.header_table_bytes)
            return
        if (stop - at) % 6:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a SETTINGS frame has an invalid length")
        self._spend("settings", "SETTINGS frames")
        window_bytes = None
        for entry in range(at, stop, 6):
            name = int.from_bytes(data[entry : entry + 2], "big")
            value = int.from_bytes(data[entry + 2 : entry + 6], "big")
            if name == INITIAL_WINDOW_SIZE:
                if value > MAX_WINDOW_BYTES:
                    raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "SETTINGS_INITIAL_WINDOW_SIZE is too large")
                window_bytes = value
            elif name == MAX_FRAME_SIZE:
                # Only checked: frames of the default size are the longest that are sent.
                if not DEFAULT_FRAME_BYTES <= value <= MAX_FRAME_BYTES:
                    raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "SETTINGS_MAX_FRAME_SIZE is out of range")
            elif name == ENABLE_PUSH and value > 1:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "SETTINGS_ENABLE_PUSH must be 0 or 1")
        self._handlers = _HANDLERS
        self.outbox.add(SETTINGS_ACK)
        if window_bytes is not None:
            # Only the last value of a frame, because each change visits all streams.
            self.outbox.set_initial_window(window_bytes, list(self.streams.values()))

    def _on_push_promise(self, data: bytes, at: int, stop: int, flags: int, stream_id: int) -> None:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a client sent PUSH_PROMISE")

    def _on_ping(self, data: bytes, at: int, stop: int, flags: int, stream_id: int) -> None:
        if stream_id != 0:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PING on a stream")
        if stop - at != 8:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a PING frame must have 8 bytes")
        if not flags & ACK:
            self._spend("pings", "PING frames")
            self.outbox.add(_PING_ACK_START + data[at:stop])
        elif self._is_leaving and data[at:stop] == _SHUTDOWN_PING:
            self.finish_leaving()
        elif self.is_probing and data[at:stop] == _PROBE:
            self.is_probing = False
        else:
            self._spend("ignored_frames", "PING acknowledgments")

    def _on_goaway(self, data: bytes, at: int, stop: int, flags: int, stream_id: int) -> None:
        if stream_id != 0:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "GOAWAY on a stream")
        if stop - at < 8:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a GOAWAY frame is too short")
        self._spend("ignored_frames", "GOAWAY frames")

    def _on_window_update(self, data: bytes, at: int, stop: int, flags: int, stream_id: int) -> None:
        if stop - at != 4:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a WINDOW_UPDATE frame must have 4 bytes")
        self._spend("window_updates", "WINDOW_UPDATE frames")
        increment = int.from_bytes(data[at:stop], "big") & STREAM_MASK
        if stream_id == 0:
            if increment == 0:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a WINDOW_UPDATE of 0")
            self.outbox.enlarge(increment)
            return
        stream = self.streams.get(stream_id)
        if stream is None:
            self._refuse_idle(stream_id, "WINDOW_UPDATE")
        elif increment == 0:
            raise StreamFault(ErrorCode.PROTOCOL_ERROR, "a WINDOW_UPDATE of 0")
        else:
            self.outbox.enlarge_stream(stream, increment)

    def _on_unknown(self, data: bytes, at: int, stop: int, flags: int, stream_id: int) -> None:
        self._spend("ignored_frames", "frames of unknown types")

    def _out_of_order(self, data: bytes, at: int, stop: int, flags: int, stream_id: int) -> None:
        if self._handlers is _HANDLERS_IN_BLOCK:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a header block is interrupted")
        if self._handlers is _HANDLERS_BEFORE_SETTINGS:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the first frame is not a SETTINGS frame")
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without HEADERS")

    # Streams

    def _end_request(self, stream: Stream) -> None:
        if stream.left_bytes:
            raise StreamFault(ErrorCode.PROTOCOL_ERROR, "the body is shorter than content-length")
        stream.is_ended = True

    def _sent_end(self, stream: Stream) -> None:
        """The outbox has the last frame of a stream. A request that is still arriving is not wanted any more."""
        self._close(stream, None)
        self.finished_calls += 1
        if not stream.is_ended:
            self._send_reset(stream.id, ErrorCode.NO_ERROR)

    def _close(self, stream: Stream, reset: ErrorCode | int | None) -> None:
        del self.streams[stream.id]
        stream.is_closed = True
        self.held_bytes -= stream.held_bytes
        stream.held_bytes = 0
        if stream.unsent_bytes:
            self.outbox.drop(stream)
        stream.reset = reset

    def _list(self, stream: Stream) -> None:
        if not stream.is_listed:
            stream.is_listed = True
            self._news.append(stream)

    def _send_reset(self, stream_id: int, error: ErrorCode) -> None:
        self.outbox.add(reset_frame(stream_id, error))
        self._remember_reset(stream_id)

    def _remember_reset(self, stream_id: int) -> None:
        """Late frames of this stream are not errors: the peer sent them before it knew of the reset."""
        self._reset_ids[stream_id] = None
        if len(self._reset_ids) > self.limits.max_remembered_resets:
            del self._reset_ids[next(iter(self._reset_ids))]

    def _fail(self, stream_id: int, fault: StreamFault) -> None:
        """Reset a stream for an error of the peer. A peer can force resets as fast as it can send them itself."""
        self._spend("resets", "stream errors", earns=False)
        stream = self.streams.get(stream_id)
        if stream is not None:
            self._close(stream, fault.error)
            self._list(stream)
        self._send_reset(stream_id, fault.error)

    def _refuse_idle(self, stream_id: int, what: str) -> None:
        if stream_id == 0 or stream_id > self._last_id or not stream_id & 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"{what} on an idle or invalid stream")

    def _was_open(self, stream_id: int) -> bool:
        """Whether an id was a stream of this connection. Unknown if the peer skipped ids; then it was not."""
        return stream_id & 1 == 1 and stream_id <= self._last_id and self._opened * 2 - 1 == self._last_id

    # Limits

    def _spend(self, rate: str, what: str, earns: bool = True) -> None:
        """Count a frame against the rate with this name in `Limits`."""
        budget = self._budgets.get(rate)
        if budget is None:
            budget = self._budgets[rate] = Budget(getattr(self.limits, rate), self._now_s)
        credit = (self.outbox.sent_data_bytes >> 10) + self.finished_calls * _CREDIT_PER_CALL if earns else 0
        if not budget.spend(self._now_s, credit):
            raise _calm(f"too many {what}")

    def _replenish(self) -> None:
        """Enlarge the connection's window when a quarter of it can be returned."""
        free_bytes = self.limits.max_held_bytes - self.held_bytes - self._window_bytes
        if free_bytes >= self.limits.max_held_bytes >> 2:
            self._window_bytes += free_bytes
            self.outbox.add(window_update(0, free_bytes))


def _valid_request(fields: tuple[list[Field], list[Pair], bool] | None) -> Request:
    if fields is None:
        raise StreamFault(ErrorCode.ENHANCE_YOUR_CALM, "the header list is too long")
    return request_of(*fields)


def _calm(message: str) -> ConnectionFault:
    return ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, message)


def _without_padding(data: bytes, at: int, stop: int) -> tuple[int, int]:
    if at == stop:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a padded frame is empty")
    padding = data[at]
    at += 1
    if padding > stop - at:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the padding is longer than its frame")
    return at, stop - padding


_PING_ACK_START = frame(PING, ACK, 0, b"12345678")[:HEAD_BYTES]
_UNKNOWN = 10
_HANDLERS: tuple[Handler, ...] = (
    ServerConnection._on_data,
    ServerConnection._on_headers,
    ServerConnection._on_priority,
    ServerConnection._on_reset,
    ServerConnection._on_settings,
    ServerConnection._on_push_promise,
    ServerConnection._on_ping,
    ServerConnection._on_goaway,
    ServerConnection._on_window_update,
    ServerConnection._out_of_order,
    ServerConnection._on_unknown,
)
assert (DATA, HEADERS, CONTINUATION) == (0, 1, 9), "the handlers are in the order of the frame types"


def _only(kind: int, handler: Handler) -> tuple[Handler, ...]:
    return tuple(handler if other == kind else ServerConnection._out_of_order for other in range(_UNKNOWN + 1))


_HANDLERS_BEFORE_SETTINGS = _only(SETTINGS, ServerConnection._on_settings)
_HANDLERS_IN_BLOCK = _only(CONTINUATION, ServerConnection._on_continuation)
