"""HPACK encoder without state: static table and literals, so a block can be built once and sent on every connection."""

from collections.abc import Iterable

from latermq.protocol.http2.hpack.static_table import STATIC_TABLE

_PAIRS = {pair: index for index, pair in enumerate(STATIC_TABLE, 1) if pair[1]}
_NAMES: dict[bytes, int] = {}
for _index, (_name, _) in enumerate(STATIC_TABLE, 1):
    _NAMES.setdefault(_name, _index)


def encode_fields(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return a header block. Values are not Huffman-coded: the time costs more than the bytes."""
    out = bytearray()
    for name, value in fields:
        pair = _PAIRS.get((name, value))
        if pair is not None:
            out += _integer(pair, 7, 0x80)
            continue
        index = _NAMES.get(name, 0)
        out += _integer(index, 4, 0)
        if not index:
            out += _integer(len(name), 7, 0)
            out += name
        out += _integer(len(value), 7, 0)
        out += value
    return bytes(out)


def _integer(value: int, prefix_bits: int, pattern: int) -> bytes:
    limit = (1 << prefix_bits) - 1
    if value < limit:
        return bytes((pattern | value,))
    out = bytearray((pattern | limit,))
    value -= limit
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
