"""The sending side of a connection: frames to write, and data that waits for the peer's flow-control windows.

No frame is longer than the default of 16 KiB, even if the peer permits it: longer ones delay other streams.
"""

from collections import OrderedDict, deque
from collections.abc import Callable

from latermq.protocol.http2.frames import (
    DATA,
    DEFAULT_FRAME_BYTES,
    DEFAULT_WINDOW_BYTES,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    MAX_WINDOW_BYTES,
    ConnectionFault,
    ErrorCode,
    StreamFault,
    frame,
    headers_frames,
)
from latermq.protocol.http2.stream import Stream

_DATA_HEAD = bytes((DATA, 0))
# Data that may become frames before the next `take`. The rest waits in its stream, where it is counted and can still be
# dropped. The peer's window is not a bound: it may be 2 GiB.
MAX_FRAMED_BYTES = 256 * 1024


class Block:
    """A header block that is sent often, with the start of its HEADERS frame."""

    __slots__ = ("block", "start")

    def __init__(self, block: bytes, end_stream: bool) -> None:
        assert len(block) <= DEFAULT_FRAME_BYTES, "it fits into the smallest frame that a peer may ask for"
        flags = END_HEADERS | END_STREAM if end_stream else END_HEADERS
        self.block = block
        self.start = len(block).to_bytes(3, "big") + bytes((HEADERS, flags))


class Outbox:
    """Frames in the order of writing. Streams with unsent data take turns, a frame each."""

    __slots__ = (
        "_framed_bytes",
        "_frames",
        "_initial_window_bytes",
        "_is_paused",
        "_on_end",
        "_queued_bytes",
        "_ready",
        "_window_bytes",
        "sent_data_bytes",
    )

    def __init__(self, on_end: Callable[[Stream], None]) -> None:
        self._on_end = on_end  # called when the last frame of a stream is in the outbox
        self._frames: list[bytes] = []
        self._framed_bytes = 0  # data in them
        self._window_bytes = DEFAULT_WINDOW_BYTES  # the connection's
        self._initial_window_bytes = DEFAULT_WINDOW_BYTES
        self._is_paused = False
        self._queued_bytes = 0  # unsent data of all streams
        self._ready: OrderedDict[int, Stream] = OrderedDict()  # have unsent data and an open window of their own
        self.sent_data_bytes = 0

    @property
    def has_frames(self) -> bool:
        return bool(self._frames)

    @property
    def unsent_bytes(self) -> int:
        """Everything that waits: frames to take, and data without a window. Counted, not kept, as few ask for it."""
        return self._queued_bytes + sum(map(len, self._frames))

    @property
    def queued_bytes(self) -> int:
        return self._queued_bytes

    @property
    def initial_window_bytes(self) -> int:
        return self._initial_window_bytes

    def take(self) -> bytes:
        """Return the frames to write now. `pump` then adds more, if more may be written."""
        frames = self._frames
        self._framed_bytes = 0
        if len(frames) == 1:
            data = frames[0]
        else:
            data = b"".join(frames)
        frames.clear()
        return data

    def add(self, control_frame: bytes) -> None:
        self._frames.append(control_frame)

    def respond(self, stream: Stream, head: Block, body_start: bytes, body: bytes, tail: Block) -> None:
        """Send a complete response. The body is `body_start` and `body`; one join is cheaper than two."""
        size = len(body_start) + len(body)
        if (
            not 0 < size <= DEFAULT_FRAME_BYTES
            or size > self._window_bytes
            or size > stream.send_window_bytes
            or self._framed_bytes >= MAX_FRAMED_BYTES
            or self._is_paused
            or self._ready
        ):
            self.headers(stream, head.block, end_stream=False)
            self.data(stream, body_start + body)
            self.end(stream, tail.block)
            return
        self._window_bytes -= size
        self._framed_bytes += size
        self.sent_data_bytes += size
        number = stream.id.to_bytes(4, "big")
        self._frames.append(
            b"".join(
                (
                    *(head.start, number, head.block),
                    *(size.to_bytes(3, "big"), _DATA_HEAD, number, body_start, body),
                    *(tail.start, number, tail.block),
                )
            )
        )
        self._on_end(stream)

    def headers(self, stream: Stream, block: bytes, end_stream: bool) -> None:
        """Send response headers. With `end_stream` they are the whole response."""
        self._frames.append(headers_frames(stream.id, block, end_stream))
        if end_stream:
            self._on_end(stream)

    def data(self, stream: Stream, data: bytes) -> None:
        """Send data as far as the windows permit, and queue the rest."""
        if not data:
            return
        if stream.unsent is None:
            stream.unsent = deque()
        stream.unsent.append(data)
        stream.unsent_bytes += len(data)
        self._queued_bytes += len(data)
        self._make_ready(stream)

    def end(self, stream: Stream, tail_block: bytes) -> None:
        """Send trailers after the unsent data. An empty block ends the stream with an empty DATA frame."""
        stream.tail_block = tail_block
        if stream.unsent_bytes:
            return
        self._finish(stream)

    def drop(self, stream: Stream) -> None:
        """Forget the unsent data of a stream that was reset."""
        self._queued_bytes -= stream.unsent_bytes
        stream.unsent_bytes = 0
        stream.unsent = None
        self._ready.pop(stream.id, None)

    def clear(self) -> None:
        """Forget all frames and data: the connection ends."""
        self._frames.clear()
        self._framed_bytes = 0
        self._ready.clear()
        self._queued_bytes = 0

    def pause(self) -> None:
        """Keep data in the streams' queues until `resume`."""
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        self.pump()

    def enlarge(self, increment: int) -> None:
        """Apply a WINDOW_UPDATE of the connection."""
        self._window_bytes += increment
        if self._window_bytes > MAX_WINDOW_BYTES:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "the connection's window is too large")
        self.pump()

    def enlarge_stream(self, stream: Stream, increment: int) -> None:
        """Apply a WINDOW_UPDATE of a stream."""
        stream.send_window_bytes += increment
        if stream.send_window_bytes > MAX_WINDOW_BYTES:
            raise StreamFault(ErrorCode.FLOW_CONTROL_ERROR, "the stream's window is too large")
        if stream.unsent_bytes:
            self._make_ready(stream)

    def set_initial_window(self, size_bytes: int, streams: list[Stream]) -> None:
        """Apply SETTINGS_INITIAL_WINDOW_SIZE, which changes the window of every open stream, also below zero."""
        change = size_bytes - self._initial_window_bytes
        self._initial_window_bytes = size_bytes
        if change == 0:
            return
        for stream in streams:
            stream.send_window_bytes += change
            if stream.send_window_bytes > MAX_WINDOW_BYTES:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "SETTINGS make a stream's window too large")
            if stream.unsent_bytes:
                if stream.send_window_bytes > 0:
                    self._ready[stream.id] = stream
                else:
                    self._ready.pop(stream.id, None)
        self.pump()

    def _make_ready(self, stream: Stream) -> None:
        if stream.send_window_bytes > 0:
            self._ready[stream.id] = stream
            self.pump()

    def pump(self) -> None:
        """Send a frame of each ready stream in turn, while the connection's window lasts."""
        ready = self._ready
        while ready and self._window_bytes > 0 and self._framed_bytes < MAX_FRAMED_BYTES and not self._is_paused:
            _, stream = ready.popitem(last=False)
            self._send_some(stream)
            if not stream.unsent_bytes:
                if stream.tail_block is not None:
                    self._finish(stream)
            elif stream.send_window_bytes > 0:
                ready[stream.id] = stream

    def _send_some(self, stream: Stream) -> None:
        unsent = stream.unsent
        assert unsent, "a ready stream has unsent data"
        room = min(DEFAULT_FRAME_BYTES, self._window_bytes, stream.send_window_bytes)
        assert room > 0, "a ready stream may send"
        size = 0
        pieces = []
        while unsent and size < room:
            piece = unsent.popleft()
            if len(piece) > room - size:
                # The rest goes back as a view: a long message is not copied again for each of its frames.
                unsent.appendleft(memoryview(piece)[room - size :])
                piece = piece[: room - size]
            pieces.append(piece)
            size += len(piece)
        self._window_bytes -= size
        self._framed_bytes += size
        self._queued_bytes -= size
        self.sent_data_bytes += size
        stream.send_window_bytes -= size
        stream.unsent_bytes -= size
        self._frames.append(b"".join((size.to_bytes(3, "big"), _DATA_HEAD, stream.id.to_bytes(4, "big"), *pieces)))

    def _finish(self, stream: Stream) -> None:
        if stream.tail_block:
            self._frames.append(headers_frames(stream.id, stream.tail_block, True))
        else:
            self._frames.append(frame(DATA, END_STREAM, stream.id, b""))
        self._on_end(stream)
