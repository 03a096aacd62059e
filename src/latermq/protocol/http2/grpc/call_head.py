"""The headers of a gRPC call: content type, timeout, encoding and metadata."""

from typing import NamedTuple

from latermq.protocol.http2.grpc.status import WRONG_CONTENT_TYPE, WRONG_METHOD, GrpcError, StatusCode
from latermq.protocol.http2.requests import Request

CONTENT_TYPE = b"application/grpc"
ACCEPTED_ENCODINGS = b"identity,gzip"
GZIP = b"gzip"
TIMEOUT = b"grpc-timeout"
IDENTITY = b"identity"

_MAX_TIMEOUT_DIGITS = 8
_UNIT_S = {0x48: 3600.0, 0x4D: 60.0, 0x53: 1.0, 0x6D: 1e-3, 0x75: 1e-6, 0x6E: 1e-9}  # H, M, S, m, u, n


class NotGrpc(Exception):
    """An HTTP request that is not a gRPC call. `block` is the response."""

    def __init__(self, block: bytes) -> None:
        super().__init__()
        self.block = block


class CallHead(NamedTuple):
    """What the headers of a call say."""

    metadata: dict[bytes, bytes]  # names in lower case; values of a repeated name are joined by commas
    timeout_s: float | None
    is_gzip: bool  # messages with the compression flag are gzip


def call_head(request: Request) -> CallHead:
    """Return the head of a call. Raises NotGrpc, or GrpcError with the status for the client."""
    template = request.template
    if template is None:
        return _checked_head(request)
    first = template.memo
    if first is None:
        head = _checked_head(request)
        if len(head.metadata) == len(request.fields):
            template.memo = head._replace(metadata=head.metadata.copy())  # the call may change its own
        return head
    # The checked fields do not differ from those of the first request. A copy costs a fifth of a new dictionary.
    assert isinstance(first, CallHead)
    metadata = first.metadata.copy()
    fields = request.fields
    timeout_s = None
    for position in template.fresh_at:
        name, value = fields[position]
        metadata[name] = value
        if name == TIMEOUT:
            timeout_s = parse_timeout_s(value)
    return CallHead(metadata, timeout_s, first.is_gzip)


def _checked_head(request: Request) -> CallHead:
    metadata = dict(request.fields)
    if len(metadata) != len(request.fields):
        metadata = _joined(request)
    content_type = metadata.get(b"content-type", b"")
    if content_type != CONTENT_TYPE and not content_type.startswith((b"application/grpc+", b"application/grpc;")):
        raise NotGrpc(WRONG_CONTENT_TYPE)
    if request.method != b"POST":
        raise NotGrpc(WRONG_METHOD)
    encoding = metadata.get(b"grpc-encoding", IDENTITY)
    if encoding not in (IDENTITY, GZIP):
        raise GrpcError(
            StatusCode.UNIMPLEMENTED,
            f"grpc-encoding {encoding[:40]!r} is not supported: use gzip or identity",
            [(b"grpc-accept-encoding", ACCEPTED_ENCODINGS)],
        )
    timeout = metadata.get(TIMEOUT)
    return CallHead(metadata, None if timeout is None else parse_timeout_s(timeout), encoding == GZIP)


def parse_timeout_s(value: bytes) -> float:
    """Return the value of grpc-timeout: up to eight digits and a unit."""
    digits = value[:-1]
    if digits.isdigit() and len(digits) <= _MAX_TIMEOUT_DIGITS:
        unit_s = _UNIT_S.get(value[-1])
        if unit_s is not None:
            return int(digits) * unit_s
    raise GrpcError(StatusCode.INVALID_ARGUMENT, f"grpc-timeout is malformed: {value[:40]!r}")


def _joined(request: Request) -> dict[bytes, bytes]:
    metadata: dict[bytes, bytes] = {}
    for name, value in request.fields:
        metadata[name] = metadata[name] + b"," + value if name in metadata else value
    return metadata
