"""Pulls of the pipeline: flushed records of a queue, concatenated exactly as they are in the log."""

from typing import NamedTuple

import numpy as np

from latermq.broker.tables.topics import Topics
from latermq.errors import InvalidParameter, NoPermission, QueryNotFound
from latermq.model.topic import READ
from latermq.store.log_reader import LogReader

MAX_ENTRIES_PER_READ = 16_384  # queue entries: 320 KiB, and 4 MiB of records with 250 bytes each


class PulledRecords(NamedTuple):
    """Whole records, and where the next pull begins."""

    records: bytes
    next_offset: int
    min_offset: int
    flushed_offset: int  # the first entry that is not flushed


class RecordPulls:
    """Reads queues in bulk: a few array operations per pull, and one copy if the records are adjacent in the log."""

    def __init__(self, reader: LogReader, topics: Topics, *, max_bytes: int) -> None:
        """`max_bytes` limits every reply, also if the client requests more; a reply contains at least one record."""
        self._reader = reader
        self._topics = topics
        self._max_bytes = max_bytes

    def pull(
        self, topic: str, queue_id: int, offset: int, max_bytes: int, until_offset: int | None = None
    ) -> PulledRecords:
        """Flushed records from `offset` on, at most up to `until_offset`."""
        self._check_readable(topic, queue_id)
        queue = self._reader.queues.find(topic, queue_id)
        low = queue.min_offset if queue else 0
        high = self._reader.flushed_end(queue) if queue else 0
        if offset < low:
            raise QueryNotFound(
                f"entry {offset} of queue {queue_id} of topic {topic!r} is gone, minOffset is {low}",
                hint="Its records have expired; continue from minOffset",
            )
        end = queue.next_offset if queue else 0
        if offset > end:
            raise QueryNotFound(
                f"entry {offset} of queue {queue_id} of topic {topic!r} does not exist, the queue ends at {end}",
                hint="If this store was restored from an old backup, the client has read entries that the backup lacks",
            )
        stop = high if until_offset is None else min(high, until_offset)
        limit = max(1, min(max_bytes, self._max_bytes))
        pieces: list[bytes] = []
        while queue is not None and offset < stop and limit > 0:
            found = queue.array(offset, min(stop - offset, MAX_ENTRIES_PER_READ))
            sizes = found["size"].astype(np.int64)
            count = int(np.searchsorted(np.cumsum(sizes), limit, side="right"))
            if not count and not pieces:
                count = 1
            if count:
                pieces.append(self._reader.log.read_all(found["offset"][:count].astype(np.int64), sizes[:count]))
                limit -= len(pieces[-1])
                offset += count
            if count < len(found):
                break
        records = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        return PulledRecords(records, offset, low, high)

    def _check_readable(self, topic: str, queue_id: int) -> None:
        """Refuse unreadable topics. Unlike for consumers, the timer topic is readable here."""
        config = self._topics.require(topic)
        if not config.permissions & READ:
            raise NoPermission(f"topic {topic!r} is not readable", hint="Change its permission with updateTopic -p 6")
        queues = max(config.read_queues, config.write_queues)
        if not 0 <= queue_id < queues:
            raise InvalidParameter(f"topic {topic!r} has {queues} queues, none with the id {queue_id}")
