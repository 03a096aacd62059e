"""HPACK decoder. It has a dynamic table only until the peer has acknowledged that the table has size 0.

The announced size of the table is 0 (`Limits.header_table_bytes`), so soon a field means the same in every block and on
every connection. From then on decoded fields come from a cache that all connections share. A peer that acknowledges the
size but does not announce it in its next block (RFC 9113, section 4.3.1) is tolerated: it gets an error when it refers
to the dynamic table.
"""

from collections import deque
from functools import lru_cache

from latermq.protocol.http2.frames import DEFAULT_TABLE_BYTES, ConnectionFault, ErrorCode
from latermq.protocol.http2.hpack.fields import (
    CONTENT_LENGTH,
    MAX_KNOWN_NAME_BYTES,
    ORDINARY,
    Field,
    Pair,
    classified,
)
from latermq.protocol.http2.hpack.huffman import decode_huffman
from latermq.protocol.http2.hpack.static_table import STATIC_TABLE

_STATIC_FIELDS = tuple(classified(name, value) for name, value in STATIC_TABLE)
_STATIC_COUNT = len(_STATIC_FIELDS)
_LAST_INDEXED = 0x80 + _STATIC_COUNT  # the last field of the static table, in one byte
# The most bytes of a header list that one byte of a block can make: the longest field of the static table.
_MAX_EXPANSION = max(size_bytes for _, _, size_bytes in _STATIC_FIELDS)
# By the first byte of a field that is not indexed: how many bytes its index takes, or 0 if it has a name instead.
# Longer numbers and table size updates are rare and go another way.
_RARE = 3
_START_BYTES = bytes(
    0 if first in (0x00, 0x10, 0x40)
    else 1 if 0x40 < first <= 0x40 + _STATIC_COUNT or (first < 0x20 and first & 0x0F not in (0, 0x0F))
    else 2 if first in (0x0F, 0x1F)  # content-type and user-agent, mostly
    else _RARE
    for first in range(256)
)  # fmt: skip
FRESH_NAMES = {b"grpc-timeout", b"x-mq-request-id"}  # differ in every call, so they are not cached
_MAX_INTEGER_BYTES = 5  # after the prefix: more than enough for the largest frame

# A field, where it begins, and where the length of its value does. The latter is 0 for fields that have no value of
# their own, or one whose length takes several bytes.
FieldPlace = tuple[Field, int, int]


class FieldCache:
    """Decoded fields by their bytes in a block. Bounded: at most `max_entries` fields of at most `max_bytes` each."""

    __slots__ = ("max_bytes", "max_entries", "ordinary", "special")

    def __init__(self, max_entries: int = 4096, max_bytes: int = 512) -> None:
        self.max_entries = max_entries
        self.max_bytes = max_bytes
        self.ordinary: dict[bytes, Pair] = {}
        self.special: dict[bytes, Field] = {}

    def put(self, encoded: bytes, field: Field) -> None:
        if len(encoded) <= self.max_bytes:
            if len(self.ordinary) + len(self.special) >= self.max_entries:
                self.ordinary.clear()  # hot fields return with the next requests
                self.special.clear()
            if field[1] == ORDINARY:
                self.ordinary[encoded] = field[0]
            else:
                self.special[encoded] = field

    def statistics(self) -> dict[str, int]:
        return {"cached_fields": len(self.ordinary) + len(self.special), "max_cached_fields": self.max_entries}


class HeaderDecoder:
    """The decoder of one connection. It must see every block, in order."""

    __slots__ = (
        "_cache",
        "_max_list_bytes",
        "_max_table_bytes",
        "_table",
        "_table_bytes",
        "_table_limit",
    )

    def __init__(self, cache: FieldCache, max_list_bytes: int) -> None:
        self._cache = cache
        self._max_list_bytes = max_list_bytes
        self._max_table_bytes = DEFAULT_TABLE_BYTES  # what SETTINGS permits
        self._table_limit = DEFAULT_TABLE_BYTES  # what the peer chose within it
        self._table: deque[Field] = deque()  # the newest first
        self._table_bytes = 0

    @property
    def is_stateless(self) -> bool:
        """Whether equal blocks have equal fields from now on."""
        return self._max_table_bytes == 0

    @property
    def table_bytes(self) -> int:
        return self._table_bytes

    def limit_table(self, max_bytes: int) -> None:
        """Apply the announced table size, which the peer has acknowledged."""
        self._max_table_bytes = max_bytes
        self._table_limit = min(self._table_limit, max_bytes)
        self._evict(self._table_limit)

    def decode(self, block: bytes) -> list[Field] | None:
        """Return the fields of a block, or None if they are larger than the limit. Raises ConnectionFault."""
        try:
            return self._fields(block)
        except IndexError:
            raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, "a header block is truncated") from None

    def is_short(self, block: bytes) -> bool:
        """Whether equal blocks have equal fields, and this one is too short to exceed the limit."""
        return self._max_table_bytes == 0 and len(block) * _MAX_EXPANSION <= self._max_list_bytes

    def split(self, block: bytes) -> tuple[list[Field], list[Pair], bool] | None:
        """Return the fields of a request: special ones, ordinary ones, and whether the special ones came first.

        None if they are larger than the limit.
        """
        if self.is_short(block):
            try:
                found = self._split_known(block)
            except IndexError:
                found = None  # truncated; `decode` says so
            if found is not None:
                return found
        return _split(self.decode(block))

    def _split_known(self, block: bytes) -> tuple[list[Field], list[Pair], bool] | None:
        """Split a block of ordinary form. A loop per field: measured 0.3 µs for a cached one."""
        special: list[Field] = []
        ordinary: list[Pair] = []
        is_ordered = True
        at = 0
        end = len(block)
        known = self._cache.ordinary.get
        starts = _START_BYTES
        while at < end:
            first = block[at]
            start = at
            if first > 0x80:
                if first > _LAST_INDEXED:
                    return None
                field = _STATIC_FIELDS[first - 0x81]
                at += 1
            else:
                size = starts[first]
                if size == 0:
                    length = block[at + 1] & 0x7F
                    if length == 0x7F:
                        return None
                    at += length + 2
                elif size == _RARE:
                    return None
                else:
                    at += size
                value_at = at
                length = block[at] & 0x7F
                if length == 0x7F:
                    return None
                at += length + 1
                encoded = block[start:at]
                pair = known(encoded)
                if pair is not None:
                    ordinary.append(pair)
                    continue
                cached = self._cache.special.get(encoded)
                if cached is None:
                    if at > end:
                        return None
                    cached = self._new_field(encoded, value_at - start)
                field = cached
            if field[1] == ORDINARY:
                ordinary.append(field[0])
            else:
                special.append(field)
                if ordinary and field[1] < CONTENT_LENGTH:
                    is_ordered = False
        return special, ordinary, is_ordered

    def _new_field(self, encoded: bytes, value_at: int) -> Field:
        """Decode a literal field whose lengths take one byte each, and cache it."""
        first = encoded[0]
        size = _START_BYTES[first]
        if size == 0:
            name = encoded[2:value_at]
            if encoded[1] >= 0x80:
                name = _known_name(name) if len(name) <= MAX_KNOWN_NAME_BYTES else decode_huffman(name)
        elif size == 1:
            name = self._indexed(first & (0x3F if first >= 0x40 else 0x0F))[0][0]
        else:
            # A longer index has its highest bit set here. It is out of range, too.
            name = self._indexed(0x0F + encoded[1])[0][0]
        value = encoded[value_at + 1 :]
        if encoded[value_at] >= 0x80:
            value = decode_huffman(value)
        field = classified(name, value)
        if name not in FRESH_NAMES:
            self._cache.put(encoded, field)
        return field

    def places(self, block: bytes) -> list[FieldPlace]:
        """Return the fields of a valid block of a connection without a dynamic table, with their places."""
        found: list[FieldPlace] = []
        at = 0
        while at < len(block):
            start = at
            first = block[at]
            value_at = 0
            if 0x20 <= first < 0x40:
                return []  # a table size update; it occurs once
            if first >= 0x80:
                index, at = _integer(block, at, 7)
                field = self._indexed(index)
            else:
                name, value_at = self._name(block, at)
                value, at = _string(block, value_at)
                field = classified(name, value)
                if block[value_at] & 0x7F == 0x7F:
                    value_at = 0
            found.append((field, start, value_at))
        return found

    def _fields(self, block: bytes) -> list[Field] | None:
        """Decode a block. Fields beyond the limit still change the table, but are not kept."""
        fields: list[Field] = []
        room_bytes = self._max_list_bytes
        at = 0
        is_first = True
        while at < len(block):
            first = block[at]
            if 0x20 <= first < 0x40:
                at = self._resize(block, at, is_first)
                continue
            is_first = False
            if first >= 0x80:
                index, at = _integer(block, at, 7)
                field = self._indexed(index)
            else:
                field, at = self._literal(block, at)
                if first >= 0x40:
                    self._add(field)
            room_bytes -= field[2]
            if room_bytes >= 0:
                fields.append(field)
        return fields if room_bytes >= 0 else None

    def _indexed(self, index: int) -> Field:
        if 0 < index <= _STATIC_COUNT:
            return _STATIC_FIELDS[index - 1]
        if 0 < index <= _STATIC_COUNT + len(self._table):
            return self._table[index - _STATIC_COUNT - 1]
        raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, f"a header block refers to index {index}, which is not set")

    def _literal(self, block: bytes, at: int) -> tuple[Field, int]:
        name, at = self._name(block, at)
        value, at = _string(block, at)
        return classified(name, value), at

    def _name(self, block: bytes, at: int) -> tuple[bytes, int]:
        """Return the name of a literal field, and the position after it."""
        index, at = _integer(block, at, 6 if block[at] >= 0x40 else 4)
        if index:
            return self._indexed(index)[0][0], at
        return _string(block, at, is_name=True)

    def _resize(self, block: bytes, at: int, is_first: bool) -> int:
        size_bytes, at = _integer(block, at, 5)
        if not is_first:
            raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, "a table size update follows a header field")
        if size_bytes > self._max_table_bytes:
            raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, f"the peer wants a table of {size_bytes} bytes")
        self._table_limit = size_bytes
        self._evict(size_bytes)
        return at

    def _add(self, field: Field) -> None:
        size_bytes = field[2]
        self._evict(self._table_limit - size_bytes)
        if size_bytes <= self._table_limit:
            self._table.appendleft(field)
            self._table_bytes += size_bytes

    def _evict(self, limit_bytes: int) -> None:
        while self._table and self._table_bytes > limit_bytes:
            self._table_bytes -= self._table.pop()[2]


def _integer(block: bytes, at: int, prefix_bits: int) -> tuple[int, int]:
    """Return an integer with the given prefix, and the position after it."""
    limit = (1 << prefix_bits) - 1
    value = block[at] & limit
    at += 1
    if value < limit:
        return value, at
    for shift in range(0, 7 * _MAX_INTEGER_BYTES, 7):
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, "an integer in a header block is too long")


def _string(block: bytes, at: int, is_name: bool = False) -> tuple[bytes, int]:
    is_huffman = block[at] >= 0x80
    length, at = _integer(block, at, 7)
    end = at + length
    if end > len(block):
        raise IndexError
    data = block[at:end]
    if is_huffman:
        data = _known_name(data) if is_name and length <= MAX_KNOWN_NAME_BYTES else decode_huffman(data)
    return data, end


_known_name = lru_cache(maxsize=1024)(decode_huffman)


def _split(fields: list[Field] | None) -> tuple[list[Field], list[Pair], bool] | None:
    if fields is None:
        return None
    special: list[Field] = []
    ordinary: list[Pair] = []
    is_ordered = True
    for field in fields:
        if field[1] == ORDINARY:
            ordinary.append(field[0])
        else:
            special.append(field)
            if ordinary and field[1] < CONTENT_LENGTH:
                is_ordered = False
    return special, ordinary, is_ordered
