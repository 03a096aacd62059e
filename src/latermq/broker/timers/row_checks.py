"""Validation of a batch of rows, before any of them is scheduled. Errors contain the number of the row."""

from collections.abc import Callable
from typing import NoReturn

import numpy as np

from latermq.arrays import Ints
from latermq.errors import IllegalMessage
from latermq.model.rows import RESERVED_PREFIXES, RESERVED_PROPERTIES, Column, RowBatch

# A name is at the beginning or after a value. One search per name: a regular expression of all is ten times slower.
_RESERVED_NAMES = (
    *(f"\x02{name}\x01".encode() for name in RESERVED_PROPERTIES),
    *(f"\x02{prefix}".encode() for prefix in RESERVED_PREFIXES),
)


def reject_row(row: int, reason: str, hint: str = "") -> NoReturn:
    """Reject a batch because of one of its rows."""
    raise IllegalMessage(f"row {row}: {reason}", hint=hint)


def check_rows(batch: RowBatch, max_body_bytes: int) -> None:
    """Reject rows that cannot be timers. Checks whole columns, and single rows only to find the invalid one."""
    if (batch.unique_keys.sizes == 0).any():
        reject_row(int(batch.unique_keys.sizes.argmin()), "it has no unique key", "Set a unique key in every row")
    longest = int(batch.bodies.sizes.max(initial=0))
    if longest > max_body_bytes:
        row = int((batch.bodies.sizes > max_body_bytes).argmax())
        reject_row(
            row,
            f"the body has {int(batch.bodies.sizes[row])} bytes, the limit is {max_body_bytes}",
            "Reduce the body, or raise broker.max_message",
        )
    if (batch.times_ms < 0).any():
        row = int((batch.times_ms < 0).argmax())
        reject_row(row, f"its time is {int(batch.times_ms[row])}", "Use milliseconds since 1970, or a delay from now")
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
            reject_row(row, f"a {name} is not valid UTF-8", "Encode binary values, for example as base64")


def _check_free_of(name: str, column: Column, forbidden: bytes, meaning: str) -> None:
    for byte in forbidden:
        at = column.data.find(byte)
        if at >= 0:
            reject_row(column.row_at(at), f"a {name} contains byte {byte}, which {meaning}", "Remove it")


def _check_properties(column: Column) -> None:
    """Check the wire form: name and value terminators alternate, and each row ends with a value terminator."""
    data = np.frombuffer(column.data, np.uint8)
    if not len(data):
        return
    positions = np.flatnonzero((data == 1) | (data == 2))
    terminators = data[positions]
    misplaced = np.flatnonzero(terminators != 1 + np.arange(len(terminators)) % 2)
    nonempty_rows = np.flatnonzero(column.sizes > 0)
    open_rows = nonempty_rows[data[column.offsets[1:][nonempty_rows] - 1] != 2]  # without a terminator at the end
    if len(misplaced) or len(open_rows):
        rows = [column.row_at(int(positions[misplaced[0]]))] if len(misplaced) else []
        reject_row(
            min([*rows, *open_rows[:1].tolist()]), "its properties are not in their wire form: name, 1, value, 2"
        )
    data_with_prefix = b"\x02" + column.data
    found = [at for name in _RESERVED_NAMES if (at := data_with_prefix.find(name)) >= 0]
    if found:
        name = data_with_prefix[min(found) + 1 : data_with_prefix.index(b"\x01", min(found))].decode()
        reject_row(
            column.row_at(min(found)),
            f"it has the reserved property {name}",
            "Set the key and the time in their columns",
        )


def dues_of(batch: RowBatch, now_ms: int, check_due: Callable[[int, int, str, bool], None]) -> Ints:
    """Return when each row is due, now at the earliest; `check_due` rejects due times that are too late."""
    max_ms = 1 << 61  # above every limit, and small enough for sums
    times_ms = np.minimum(batch.times_ms, max_ms)
    dues = np.where(batch.from_now, times_ms + now_ms, times_ms)
    for row in np.flatnonzero(dues == dues.max(initial=0))[:1].tolist():
        what = f"row {row}: its {'delay' if batch.from_now[row] else 'due time'} is {int(batch.times_ms[row])}"
        check_due(int(dues[row]), now_ms, what, bool(batch.from_now[row]))
    return np.maximum(dues, now_ms)
