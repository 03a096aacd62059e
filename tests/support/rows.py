"""Row batches for tests, built from a list of rows."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from latermq.message.properties import encode_properties
from latermq.model.rows import Column, RowBatch


class Row(NamedTuple):
    """One timer to schedule."""

    key: str
    due_ms: int = 0
    delay_ms: int | None = None
    topic: str = "orders"
    body: bytes = b"body"
    keys: str = ""
    tags: str = ""
    properties: Mapping[str, str] = MappingProxyType({})


def batch_of(rows: Sequence[Row]) -> RowBatch:
    topics = list(dict.fromkeys(row.topic for row in rows))
    return RowBatch(
        topics=topics,
        topic_of=np.array([topics.index(row.topic) for row in rows], np.uint16),
        times_ms=np.array([row.due_ms if row.delay_ms is None else row.delay_ms for row in rows], np.int64),
        from_now=np.array([row.delay_ms is not None for row in rows], bool),
        unique_keys=Column.of(row.key.encode() for row in rows),
        bodies=Column.of(row.body for row in rows),
        keys=Column.of(row.keys.encode() for row in rows),
        tags=Column.of(row.tags.encode() for row in rows),
        properties=Column.of(encode_properties(row.properties).encode() for row in rows),
    )
