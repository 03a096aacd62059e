"""Timers as rows of the brokers' bulk request, and their split into requests of bounded size."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from latermq.model.rows import Column, RowBatch
from latermq.protocol.remoting.rows import KEY_SEPARATOR, MAX_KEYS, ROWS_AT_ONCE

REQUEST_BYTES = 4 << 20  # of one request, unless a single row is larger


class Row(NamedTuple):
    """One timer, checked, with its unique key."""

    topic: str
    unique_key: str
    body: bytes
    key: bytes
    tag: bytes
    properties: bytes  # in their wire form
    time_ms: int
    is_delay: bool

    @property
    def size_bytes(self) -> int:
        """The size of what the sender chose."""
        return len(self.body) + len(self.key) + len(self.tag) + len(self.properties)


def split_rows(rows: Sequence[Row], numbers: Sequence[int], max_rows: int = ROWS_AT_ONCE) -> Iterator[list[int]]:
    """Split the rows with these numbers into requests of bounded size."""
    part: list[int] = []
    size = keys = 0
    for number in numbers:
        row = rows[number]
        row_bytes = row.size_bytes
        row_keys = 1 + row.key.count(KEY_SEPARATOR)
        if part and (len(part) == max_rows or size + row_bytes > REQUEST_BYTES or keys + row_keys > MAX_KEYS):
            yield part
            part, size, keys = [], 0, 0
        part.append(number)
        size += row_bytes
        keys += row_keys
    if part:
        yield part


def batch_of(rows: Sequence[Row]) -> RowBatch:
    """Return rows as columns, about 2 µs each."""
    topics, unique_keys, bodies, keys, tags, properties, times_ms, delays = zip(*rows, strict=True)
    names = list(dict.fromkeys(topics))
    index = {name: number for number, name in enumerate(names)}
    return RowBatch(
        names,
        np.fromiter(map(index.__getitem__, topics), np.uint16, len(rows)),
        np.array(times_ms, np.int64),
        np.array(delays, np.bool_),
        Column.of(key.encode() for key in unique_keys),
        Column.of(bodies),
        Column.of(keys),
        Column.of(tags),
        Column.of(properties),
    )
