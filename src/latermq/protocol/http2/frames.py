"""HTTP/2 frames: types, flags, settings and error codes, the errors they cause, and the frames that a server builds."""

import struct
from enum import IntEnum

from latermq.errors import LaterMQError

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES = 9
# Length (the high 16 bits, the low 8), type, flags, stream. One call reads all fields of a frame's head.
read_head = struct.Struct(">HBBBI").unpack_from
STREAM_MASK = 0x7FFFFFFF
MAX_WINDOW_BYTES = (1 << 31) - 1
DEFAULT_WINDOW_BYTES = 65_535
DEFAULT_FRAME_BYTES = 16_384
MAX_FRAME_BYTES = (1 << 24) - 1
DEFAULT_TABLE_BYTES = 4096

DATA = 0
HEADERS = 1
PRIORITY = 2
RST_STREAM = 3
SETTINGS = 4
PUSH_PROMISE = 5
PING = 6
GOAWAY = 7
WINDOW_UPDATE = 8
CONTINUATION = 9

END_STREAM = 0x1
ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
HAS_PRIORITY = 0x20

HEADER_TABLE_SIZE = 1
ENABLE_PUSH = 2
MAX_CONCURRENT_STREAMS = 3
INITIAL_WINDOW_SIZE = 4
MAX_FRAME_SIZE = 5
MAX_HEADER_LIST_SIZE = 6


class ErrorCode(IntEnum):
    """The codes of RST_STREAM and GOAWAY."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


class ConnectionFault(LaterMQError):
    """The peer broke the protocol or exceeded a limit in a way that ends the connection."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error


class StreamFault(LaterMQError):
    """The peer broke the protocol or exceeded a limit in a way that ends one stream."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error


def frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    """Return a complete frame."""
    return b"".join((len(payload).to_bytes(3, "big"), bytes((kind, flags)), stream_id.to_bytes(4, "big"), payload))


def settings_frame(settings: dict[int, int]) -> bytes:
    payload = b"".join(struct.pack(">HI", name, value) for name, value in settings.items())
    return frame(SETTINGS, 0, 0, payload)


def window_update(stream_id: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream_id, increment.to_bytes(4, "big"))


def reset_frame(stream_id: int, error: int) -> bytes:
    return frame(RST_STREAM, 0, stream_id, error.to_bytes(4, "big"))


def goaway_frame(last_stream_id: int, error: int, debug: bytes = b"") -> bytes:
    return frame(GOAWAY, 0, 0, last_stream_id.to_bytes(4, "big") + error.to_bytes(4, "big") + debug)


def headers_frames(stream_id: int, block: bytes, end_stream: bool) -> bytes:
    """Return a HEADERS frame, followed by CONTINUATION frames if the block does not fit into one frame."""
    flags = END_STREAM if end_stream else 0
    if len(block) <= DEFAULT_FRAME_BYTES:
        return frame(HEADERS, flags | END_HEADERS, stream_id, block)
    pieces = [block[at : at + DEFAULT_FRAME_BYTES] for at in range(0, len(block), DEFAULT_FRAME_BYTES)]
    last = len(pieces) - 1
    return b"".join(
        frame(
            CONTINUATION if number else HEADERS,
            (0 if number else flags) | (END_HEADERS if number == last else 0),
            stream_id,
            piece,
        )
        for number, piece in enumerate(pieces)
    )


SETTINGS_ACK = frame(SETTINGS, ACK, 0, b"")
