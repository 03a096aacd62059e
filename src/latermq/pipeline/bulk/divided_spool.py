"""The division of spooled rows into shares: files that each hold the rows of one share for one broker."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from latermq.model.rows import Column, RowBatch
from latermq.pipeline.bulk.job_keys import keys_of
from latermq.pipeline.bulk.row_frames import Request, pieces_of, select_rows
from latermq.pipeline.bulk.shares import HEADS, heads_of
from latermq.pipeline.bulk.spool import SpoolFile, read_spool, write_spool
from latermq.pipeline.timeline.root import Root
from latermq.protocol.remoting.rows import MAX_TOPICS, ROWS_AT_ONCE, decode_rows

# Of rows that wait for others of their share and broker.
BUFFER_BYTES = 64 << 20


def divide_spool(root: Root, folder: str, files: Sequence[SpoolFile], shares: int) -> list[SpoolFile]:
    """Write the rows of these files to files of shares, which are numbered in the order of their keys.

    Broker by broker, because a process can hold a file of each share open, but not of each share and broker.
    """
    divided: list[SpoolFile] = []
    for broker in sorted({file.broker for file in files}):
        own = [file for file in files if file.broker == broker]
        divided += write_spool(root, folder, _divided(root, broker, own, shares))
    return divided


def _divided(root: Root, broker: str, files: Sequence[SpoolFile], shares: int) -> Iterator[Request]:
    waiting = _Waiting(broker)
    for body, _ in read_spool(root, files):
        batch = decode_rows(body)
        share_of = heads_of(keys_of(batch)) // (HEADS // shares)
        for share in np.unique(share_of).tolist():
            yield from waiting.add(share, select_rows(batch, np.flatnonzero(share_of == share)))
    yield from waiting.rest()


class _Waiting:
    """Rows of each share, until there are enough for a request."""

    def __init__(self, broker: str) -> None:
        self._broker = broker
        self._batches: dict[int, list[RowBatch]] = {}
        self._size_bytes = 0

    def add(self, share: int, batch: RowBatch) -> Iterator[Request]:
        batches = self._batches.setdefault(share, [])
        if sum(len(one.topics) for one in batches) + len(batch.topics) > MAX_TOPICS:
            yield from self._take(share)
        self._batches.setdefault(share, []).append(batch)
        self._size_bytes += _size_bytes(batch)
        if sum(map(len, self._batches[share])) >= ROWS_AT_ONCE:
            yield from self._take(share)
        if self._size_bytes >= BUFFER_BYTES:
            yield from self.rest()

    def rest(self) -> Iterator[Request]:
        for share in list(self._batches):
            yield from self._take(share)

    def _take(self, share: int) -> Iterator[Request]:
        batches = self._batches.pop(share)
        if batches:
            self._size_bytes -= sum(map(_size_bytes, batches))
            yield from pieces_of(join_rows(batches), self._broker, share)


def _size_bytes(batch: RowBatch) -> int:
    return sum(len(column.data) for column in (batch.bodies, batch.keys, batch.tags, batch.properties))


def join_rows(batches: Sequence[RowBatch]) -> RowBatch:
    """The rows of several batches as one."""
    topics: dict[str, int] = {}
    topic_of = []
    for batch in batches:
        numbers = [topics.setdefault(topic, len(topics)) for topic in batch.topics]
        topic_of.append(np.array(numbers, np.uint16)[batch.topic_of])
    return RowBatch(
        list(topics),
        np.concatenate(topic_of),
        np.concatenate([batch.times_ms for batch in batches]),
        np.concatenate([batch.from_now for batch in batches]),
        _join(batch.unique_keys for batch in batches),
        _join(batch.bodies for batch in batches),
        _join(batch.keys for batch in batches),
        _join(batch.tags for batch in batches),
        _join(batch.properties for batch in batches),
    )


def _join(columns: Iterable[Column]) -> Column:
    listed = list(columns)
    sizes = np.concatenate([column.sizes for column in listed])
    return Column(b"".join(column.data for column in listed), np.concatenate(([0], np.cumsum(sizes))))
