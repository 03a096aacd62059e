"""Requests and trailers: the rules of RFC 9113, section 8, that concern a whole header list."""

from typing import TYPE_CHECKING, NamedTuple

from latermq.protocol.http2.frames import ErrorCode, StreamFault
from latermq.protocol.http2.hpack.fields import AUTHORITY, CONTENT_LENGTH, MALFORMED, METHOD, PATH, SCHEME, Field, Pair

if TYPE_CHECKING:
    from latermq.protocol.http2.request_templates import Template

Pairs = list[Pair]


class Request(NamedTuple):
    """A valid header list of a request. It may be shared by calls: do not change `fields`."""

    method: bytes
    path: bytes
    scheme: bytes
    authority: bytes
    fields: Pairs  # without pseudo-header fields, in the order of arrival; `Template.read` if there is a template
    content_bytes: int | None  # the value of content-length
    template: "Template | None" = None  # the one that it fits


def request_of(special: list[Field], ordinary: Pairs, is_ordered: bool) -> Request:
    """Return the request with these fields. Raises StreamFault if the request is malformed."""
    if not is_ordered:
        raise _malformed("a pseudo-header field follows an ordinary one")
    pseudo: list[bytes | None] = [None] * CONTENT_LENGTH
    content_bytes: int | None = None
    for (_, value), kind, _ in special:
        if kind < CONTENT_LENGTH:
            if content_bytes is not None:
                raise _malformed("a pseudo-header field follows content-length")
            if pseudo[kind] is not None:
                raise _malformed("a pseudo-header field occurs twice")
            pseudo[kind] = value
        elif kind == CONTENT_LENGTH:
            if content_bytes not in (None, int(value)):
                raise _malformed("content-length has two values")
            content_bytes = int(value)
        else:
            raise _malformed("a header field is illegal")
    method, scheme, path, authority = pseudo[METHOD], pseudo[SCHEME], pseudo[PATH], pseudo[AUTHORITY]
    if not method or not scheme or not path:
        raise _malformed(":method, :scheme or :path is missing")
    return Request(method, path, scheme, authority or b"", ordinary, content_bytes)


def trailers_of(fields: list[Field]) -> Pairs:
    """Return the fields of trailers. Raises StreamFault if they are malformed."""
    if any(METHOD <= kind < CONTENT_LENGTH or kind == MALFORMED for _, kind, _ in fields):
        raise _malformed("a trailer field is illegal")
    return [pair for pair, _, _ in fields]


def _malformed(message: str) -> StreamFault:
    return StreamFault(ErrorCode.PROTOCOL_ERROR, message)
