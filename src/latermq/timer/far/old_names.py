"""Names of far timers in the first and in the second format, which a start converts.

In the first format, the rows `n` had the entry in their key, and rows `p` repeated the due time. In both, the message
keys were rows `k` (topic, message key, unique key → due time).
"""

import struct
from collections.abc import Iterator
from typing import Any

from rocksdict import Rdict, WriteBatch, WriteOptions

from latermq.timer.far.message_keys import message_key_row, period_of

_ROWS_AT_ONCE = 10_000
_OLD = struct.Struct(">qq")  # due time, timer id
_DUE = struct.Struct(">q")
_FIRST = struct.Struct(">qqq?")  # entry, due time, timer id, whether there are more


def convert(db: Rdict, how: WriteOptions) -> int:
    """Replace all rows of the first format; return their number. After a crash midway, the next call does the rest."""
    count = 0
    for rows in _pieces(db):
        batch = WriteBatch(raw_mode=True)
        names = list(dict.fromkeys(key[1:-9] for key, _ in rows))
        values: Any = db.get([b"n" + name for name in names])
        found: dict[bytes, bytes | None] = dict(zip(names, values, strict=True))
        for key, value in rows:
            name, entry = key[1:-9], int.from_bytes(key[-8:], "big")
            batch.delete(key)
            first = found[name]
            if first is None:
                found[name] = _FIRST.pack(entry, *_OLD.unpack(value), False)
            else:
                batch.put(b"x" + key[1:], value)
                found[name] = first[:-1] + b"\1"
        for name, first in found.items():
            batch.put(b"n" + name, first)
        db.write(batch, how)
        count += len(rows)
    batch = WriteBatch(raw_mode=True)
    batch.delete_range(b"p", b"q")
    db.write(batch, how)
    db.flush()
    return count


def convert_message_keys(db: Rdict, how: WriteOptions) -> None:
    """Replace the rows `k`. After a crash midway, the next call does all of it again."""
    rows = db.iter()
    rows.seek(b"k")
    batch = WriteBatch(raw_mode=True)
    while rows.valid() and rows.key().startswith(b"k"):
        (due_ms,) = _DUE.unpack(rows.value())
        batch.put(message_key_row(period_of(due_ms), rows.key()[1:]), b"")
        if batch.len() == _ROWS_AT_ONCE:
            db.write(batch, how)
            batch = WriteBatch(raw_mode=True)
        rows.next()
    rows.status()  # raises if the rows ended because a file is damaged
    batch.delete_range(b"k", b"l")
    db.write(batch, how)
    db.flush()


def _pieces(db: Rdict) -> Iterator[list[tuple[bytes, bytes]]]:
    piece: list[tuple[bytes, bytes]] = []
    rows = db.iter()
    rows.seek(b"n")
    while rows.valid() and rows.key().startswith(b"n"):
        if len(rows.value()) == _OLD.size:
            piece.append((rows.key(), rows.value()))
            if len(piece) == _ROWS_AT_ONCE:
                yield piece
                piece = []
        rows.next()
    rows.status()  # raises if the rows ended because a file is damaged
    if piece:
        yield piece
