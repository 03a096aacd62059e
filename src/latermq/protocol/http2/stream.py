"""One stream of an HTTP/2 connection: a request that arrives and a response that leaves."""

from collections import deque

from latermq.protocol.http2.frames import ErrorCode
from latermq.protocol.http2.requests import Pairs, Request


class Stream:
    """A stream, as the connection and its user share it.

    The user reads the first group of attributes after each `receive` that lists the stream. `attachment` is the user's.
    """

    __slots__ = (
        "attachment",
        "held_bytes",
        "id",
        "is_closed",
        "is_ended",
        "is_listed",
        "left_bytes",
        "opened_s",
        "owed_bytes",
        "pieces",
        "receive_window_bytes",
        "request",
        "reset",
        "send_window_bytes",
        "tail_block",
        "trailers",
        "unsent",
        "unsent_bytes",
    )

    def __init__(
        self, stream_id: int, request: Request, now_s: float, receive_window_bytes: int, send_window_bytes: int
    ) -> None:
        self.id = stream_id
        self.request = request
        self.pieces: list[bytes] = []  # received data that was not taken yet
        self.trailers: Pairs | None = None
        self.is_ended = False  # the peer has sent everything
        self.is_closed = False  # nothing more can be sent
        self.reset: ErrorCode | int | None = None  # set if the stream was closed before its time, by either side
        self.attachment: object | None = None

        self.opened_s = now_s
        self.left_bytes = request.content_bytes
        self.receive_window_bytes = receive_window_bytes
        self.held_bytes = 0
        self.owed_bytes = 0  # of the window, not returned to the peer yet
        self.is_listed = True  # in the list that the current `receive` returns; a new stream always is

        self.send_window_bytes = send_window_bytes
        self.unsent: deque[bytes | memoryview] | None = None  # data that waits for a window
        self.unsent_bytes = 0
        self.tail_block: bytes | None = None  # trailers that follow the unsent data

    def take_data(self) -> bytes:
        """Return the data that has arrived since the last call."""
        pieces = self.pieces
        if len(pieces) == 1:
            data = pieces[0]
        else:
            data = b"".join(pieces)
        pieces.clear()
        return data
