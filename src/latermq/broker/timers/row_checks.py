"""Whether the rows of a batch can be scheduled, told before anything is; what is wrong names its row."""

from collections.abc import Callable
from typing import NoReturn

import numpy as np

from latermq.arrays import Ints
from latermq.errors import IllegalMessage
from latermq.model.rows import RESERVED_PREFIXES, RESERVED_PROPERTIES, Column, RowBatch

# Names stand at the begin and behind each value. Looked for one by one: a pattern of them all takes ten times as long.
_RESERVED_NAMES = (
    *(f"\x02{name}\x01".encode() for name in RESERVED_PROPERTIES),
    *(f"\x02{prefix}".encode() for prefix in RESERVED_PREFIXES),
)


def refuse_row(row: int, reason: str, hint: str = "") -> NoReturn:
    """Refuse a batch for one of its rows."""
    raise IllegalMessage(f"row {row}: {reason}", hint=hint)


def check_rows(batch: RowBatch, max_body_bytes: int) -> None:
    """Refuse what no timer can have: a look at whole columns, and at single rows only where one is wrong."""
    if (batch.unique_keys.sizes == 0).any():
        refuse_row(int(batch.unique_keys.sizes.argmin()), "it has no unique key", "Give every row a key")
    longest = int(batch.bodies.sizes.max(initial=0))
    if longest > max_body_bytes:
        row = int((batch.bodies.sizes > max_body_bytes).argmax())
        refuse_row(
            row,
            f"the body has {int(batch.bodies.sizes[row])} bytes, the limit is {max_body_bytes}",
            "Schedule less, or raise broker.max_message",
        )
    if (batch.times_ms < 0).any():
        row = int((batch.times_ms < 0).argmax())
        refuse_row(row, f"its time is {int(batch.times_ms[row])}", "Give milliseconds since 1970, or a delay from now")
    for name, column in (("unique key", batch.unique_keys), ("key", batch.keys), ("tag", batch.tags)):
        _check_text(name, column)
        _check_free_of(name, column, b"\x01\x02", "separates properties")
    _check_text("property", batch.properties)
    _check_properties(batch.properties)


def _check_text(name: str, column: Column) -> None:
    _check_free_of(name, column, b"\0", "is a zero byte")
    if column.data.isascii():
        return
    for row, value in enumerate(column.values()):
        try:
            value.decode()
        except UnicodeDecodeError:
            refuse_row(row, f"a {name} is no UTF-8", "Encode binary values, for example as base64")


def _check_free_of(name: str, column: Column, letters: bytes, what: str) -> None:
    for letter in letters:
        at = column.data.find(letter)
        if at >= 0:
            refuse_row(column.row_at(at), f"a {name} holds byte {letter}, which {what}", "Leave it out")


def _check_properties(column: Column) -> None:
    """They come in their wire form: names and values end in turn, and each row ends where a value does."""
    data = np.frombuffer(column.data, np.uint8)
    if not len(data):
        return
    positions = np.flatnonzero((data == 1) | (data == 2))
    ends = data[positions]
    wrong = np.flatnonzero(ends != 1 + np.arange(len(ends)) % 2)
    filled = np.flatnonzero(column.sizes > 0)
    torn = filled[data[column.offsets[1:][filled] - 1] != 2]
    if len(wrong) or len(torn):
        rows = [column.row_at(int(positions[wrong[0]]))] if len(wrong) else []
        refuse_row(min([*rows, *torn[:1].tolist()]), "its properties are not in their wire form: name, 1, value, 2")
    named = b"\x02" + column.data
    found = [at for name in _RESERVED_NAMES if (at := named.find(name)) >= 0]
    if found:
        name = named[min(found) + 1 : named.index(b"\x01", min(found))].decode()
        refuse_row(
            column.row_at(min(found)),
            f"it has a property {name}, which a row cannot have",
            "Its columns say the key and the time",
        )


def dues_of(batch: RowBatch, now_ms: int, check_due: Callable[[int, int, str, bool], None]) -> Ints:
    """When each row is due, at the earliest now; `check_due` refuses what is too far ahead."""
    most_ms = 1 << 61  # beyond any limit, and small enough for sums
    times_ms = np.minimum(batch.times_ms, most_ms)
    dues = np.where(batch.from_now, times_ms + now_ms, times_ms)
    for row in np.flatnonzero(dues == dues.max(initial=0))[:1].tolist():
        what = f"row {row}: its {'delay' if batch.from_now[row] else 'due time'} is {int(batch.times_ms[row])}"
        check_due(int(dues[row]), now_ms, what, bool(batch.from_now[row]))
    return np.maximum(dues, now_ms)
