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

    timeout_s: float | None
    is_gzip: bool  # messages with the compression flag are gzip


def call_head(request: Request) -> CallHead:
    """Return the head of a call. Raises NotGrpc, or GrpcError with the status for the client."""
    template = request.template
    if template is None:
        return _checked_head(request, metadata_of(request))
    steady = template.memo
    if steady is None:
        metadata = metadata_of(request)
        head = _checked_head(request, metadata)
        if len(dict(request.fields)) == len(request.fields):
            fresh = {request.fields[position][0] for position in template.fresh_at}
            template.memo = _SteadyFields(
                {name: value for name, value in metadata.items() if name not in fresh},
                next((at for at in template.fresh_at if request.fields[at][0] == TIMEOUT), None),
                head.is_gzip,
            )
        return head
    # The checked fields do not differ from those of the first request.
    assert isinstance(steady, _SteadyFields)
    timeout_at = steady.timeout_at
    timeout_s = None if timeout_at is None else parse_timeout_s(request.fields[timeout_at][1])
    return CallHead(timeout_s, steady.is_gzip)


class _SteadyFields(NamedTuple):
    """What the calls of a template have in common."""

    values: dict[bytes, bytes]  # by name; the names of fields that differ are absent
    timeout_at: int | None  # the position of the timeout among the fields
    is_gzip: bool


def metadata_of(request: Request) -> dict[bytes, bytes]:
    """Return the fields of a call by name, in lower case. Values of a repeated name are joined by commas."""
    fields = request.fields if request.template is None else request.template.read(request.fields)
    metadata = dict(fields)
    if len(metadata) != len(fields):
        metadata = {}
        for name, value in fields:
            metadata[name] = metadata[name] + b"," + value if name in metadata else value
    return metadata


def field_of(request: Request, name: bytes) -> bytes | None:
    """Return one value of the metadata."""
    steady = request.template.memo if request.template is not None else None
    if isinstance(steady, _SteadyFields):
        value = steady.values.get(name)
        if value is not None:
            return value
    return metadata_of(request).get(name)


def _checked_head(request: Request, metadata: dict[bytes, bytes]) -> CallHead:
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
    return CallHead(None if timeout is None else parse_timeout_s(timeout), encoding == GZIP)


def parse_timeout_s(value: bytes) -> float:
    """Return the value of grpc-timeout: up to eight digits and a unit."""
    digits = value[:-1]
    if digits.isdigit() and len(digits) <= _MAX_TIMEOUT_DIGITS:
        unit_s = _UNIT_S.get(value[-1])
        if unit_s is not None:
            return int(digits) * unit_s
    raise GrpcError(StatusCode.INVALID_ARGUMENT, f"grpc-timeout is malformed: {value[:40]!r}")
