"""Header fields with the part of RFC 9113, section 8, that concerns a single field."""

import re
from functools import lru_cache

# What a request does with a field. Everything above ORDINARY is rare or occurs once per request.
ORDINARY = 0
METHOD = 1
SCHEME = 2
PATH = 3
AUTHORITY = 4
CONTENT_LENGTH = 5
MALFORMED = 6

Pair = tuple[bytes, bytes]  # name and value
# A pair, its kind, and the size that counts against the limit of a header list.
Field = tuple[Pair, int, int]

FIELD_OVERHEAD_BYTES = 32  # RFC 7541, section 4.1
_PSEUDO = {b":method": METHOD, b":scheme": SCHEME, b":path": PATH, b":authority": AUTHORITY}
_CONNECTION_SPECIFIC = {b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"}
# RFC 9110's token without upper-case letters.
_is_name = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+").fullmatch
_has_illegal_byte = re.compile(rb"[\x00\r\n]").search
_is_length = re.compile(rb"[0-9]{1,18}").fullmatch
_BLANKS = b" \t"


def classified(name: bytes, value: bytes) -> Field:
    """Return the field with its kind."""
    return ((name, value), _kind(name, value), len(name) + len(value) + FIELD_OVERHEAD_BYTES)


def _kind(name: bytes, value: bytes) -> int:
    if _has_illegal_byte(value) or value.strip(_BLANKS) != value:
        return MALFORMED
    kind = _known_name_kind(name) if len(name) <= MAX_KNOWN_NAME_BYTES else _name_kind(name)
    if kind == ORDINARY:
        return MALFORMED if name == b"te" and value != b"trailers" else ORDINARY
    if kind == CONTENT_LENGTH:
        return CONTENT_LENGTH if _is_length(value) else MALFORMED
    return kind


def _name_kind(name: bytes) -> int:
    """Return the kind of a field with a valid value."""
    if name[:1] == b":":
        return _PSEUDO.get(name, MALFORMED)
    if not _is_name(name) or name in _CONNECTION_SPECIFIC:
        return MALFORMED
    return CONTENT_LENGTH if name == b"content-length" else ORDINARY


# Values change with every call, names do not. Both bounds together limit the memory.
MAX_KNOWN_NAME_BYTES = 64
_known_name_kind = lru_cache(maxsize=1024)(_name_kind)
