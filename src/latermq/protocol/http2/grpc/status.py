"""gRPC's status codes, the error that carries one, and the header blocks that end a call."""

import re
from collections.abc import Iterable
from enum import IntEnum

from latermq.errors import LaterMQError
from latermq.protocol.http2.hpack.encoder import encode_fields
from latermq.protocol.http2.outbox import Block

# Clients accept 8 KiB of trailers, and each byte of the text may take three when it is encoded.
MAX_MESSAGE_BYTES = 2000

Pairs = Iterable[tuple[bytes, bytes]]


class StatusCode(IntEnum):
    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class GrpcError(LaterMQError):
    """A call that ends with a status other than OK. `fields` are sent with the status."""

    def __init__(self, status: StatusCode, message: str, fields: Pairs = ()) -> None:
        super().__init__(message)
        self.status = status
        self.fields = fields


_HEAD_FIELDS = [(b":status", b"200"), (b"content-type", b"application/grpc")]
HEAD = Block(encode_fields(_HEAD_FIELDS), end_stream=False)
TAIL_OK = Block(encode_fields([(b"grpc-status", b"0")]), end_stream=True)
# Answers to requests that are not gRPC.
WRONG_METHOD = encode_fields([(b":status", b"405"), (b"allow", b"POST")])
WRONG_CONTENT_TYPE = encode_fields([(b":status", b"415")])

_encode_bytes = re.compile(rb"[^\x20-\x24\x26-\x7e]").sub


def percent_encoded(message: str) -> bytes:
    """Return the value of grpc-message, shortened if necessary."""
    text = message.encode(errors="replace")
    if len(text) > MAX_MESSAGE_BYTES:
        text = text[:MAX_MESSAGE_BYTES].decode(errors="ignore").encode()
    return _encode_bytes(lambda found: b"%%%02X" % found[0][0], text)


def trailers(status: StatusCode, message: str = "", fields: Pairs = ()) -> bytes:
    """Return the block that ends a response with this status."""
    return encode_fields([*_status_fields(status, message), *fields])


def trailers_only(status: StatusCode, message: str = "", fields: Pairs = ()) -> bytes:
    """Return the block of a response that has no messages."""
    return encode_fields([*_HEAD_FIELDS, *_status_fields(status, message), *fields])


def _status_fields(status: StatusCode, message: str) -> list[tuple[bytes, bytes]]:
    found = [(b"grpc-status", b"%d" % status)]
    if message:
        # A header value may neither begin nor end with a blank, but an encoded one may.
        found.append((b"grpc-message", percent_encoded(message.strip())))
    return found
