"""Requests and trailers: the rules of RFC 9113, section 8, that concern a whole header list."""

from typing import NamedTuple

from latermq.protocol.http2.frames import ErrorCode, StreamFault
from latermq.protocol.http2.hpack.fields import CONTENT_LENGTH, MALFORMED, METHOD, ORDINARY, PATH, SCHEME, Field

Pairs = list[tuple[bytes, bytes]]


class Request(NamedTuple):
    """A valid header list of a request. It may be shared by calls: do not change `fields`."""

    method: bytes
    path: bytes
    scheme: bytes
    authority: bytes
    fields: Pairs  # without pseudo-header fields, in the order of arrival
    content_bytes: int | None  # the value of content-length


def request_of(fields: list[Field]) -> Request:
    """Return the request with these fields. Raises StreamFault if the request is malformed."""
    pseudo: list[bytes | None] = [None] * CONTENT_LENGTH
    pairs: Pairs = []
    content_bytes: int | None = None
    for name, value, kind, _ in fields:
        if kind == ORDINARY:
            pairs.append((name, value))
        elif kind < CONTENT_LENGTH:
            if pairs or content_bytes is not None:
                raise _malformed("a pseudo-header field follows an ordinary one")
            if pseudo[kind] is not None:
                raise _malformed("a pseudo-header field occurs twice")
            pseudo[kind] = value
        elif kind == CONTENT_LENGTH:
            if content_bytes not in (None, int(value)):
                raise _malformed("content-length has two values")
            content_bytes = int(value)
        else:
            raise _malformed("a header field is illegal")
    method, scheme, path, authority = pseudo[METHOD], pseudo[SCHEME], pseudo[PATH], pseudo[-1]
    if not method or not scheme or not path:
        raise _malformed(":method, :scheme or :path is missing")
    return Request(method, path, scheme, authority or b"", pairs, content_bytes)


def trailers_of(fields: list[Field]) -> Pairs:
    """Return the fields of trailers. Raises StreamFault if they are malformed."""
    if any(METHOD <= kind < CONTENT_LENGTH or kind == MALFORMED for _, _, kind, _ in fields):
        raise _malformed("a trailer field is illegal")
    return [(name, value) for name, value, _, _ in fields]


def _malformed(message: str) -> StreamFault:
    return StreamFault(ErrorCode.PROTOCOL_ERROR, message)
