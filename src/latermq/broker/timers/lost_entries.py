"""Lost entries of the timer topic: a store restored from an old backup lacks them, but the timeline has them.

Their numbers must not be used again. Otherwise a new timer would be mistaken for one that Spark has, and one of the two
would be lost. So the timeline's entries are written again with their old numbers: far timers, cancels and moves
unchanged, and blanks for all others. Cancels and moves are applied again to the timers in the backup.

A move to a near time left no record in the timeline. The timer that it moved may still be in the backup, or in the
timeline, where it counts as moved. It is moved again, by a new move after all other entries.
"""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from latermq.broker.tables.topics import Topics
from latermq.broker.timers.far_timers import FarTimers
from latermq.broker.timers.ingest_mark import IngestMark
from latermq.broker.timers.pending import PendingTimers
from latermq.broker.timers.start_replay import StartReplay
from latermq.clock import Clock
from latermq.config import Config
from latermq.errors import CorruptStore
from latermq.handover.cut import FOREVER_MS, Cut, blank_properties
from latermq.message.entry_id import decode_entry_id
from latermq.message.ids import pack_host
from latermq.message.names import TIMER_TOPIC
from latermq.message.properties import REAL_QUEUE_ID, encode_properties, find_property
from latermq.message.record import decode_record, record_properties
from latermq.message.record_fields import MIN_RECORD_BYTES
from latermq.message.timer_name import SEPARATOR, timer_name
from latermq.message.waiting_record import waiting_name
from latermq.model.topic import Topic
from latermq.store.log_writer import Appended, Draft
from latermq.store.message_store import MessageStore
from latermq.timer.service import TimerService

WRITTEN_AT_ONCE = 1_000
WRITTEN_BYTES_AT_ONCE = 8 << 20
# A driver claims a batch of up to half a million entries before it appends them. No driver claims ten times as many.
MAX_BLANKS = 5_000_000


class TimelineTail(NamedTuple):
    """The part of a timeline after the store's own end."""

    end: int  # the timeline may have entries below it
    epoch: int  # of the driver that wrote it last
    ingested: int  # the timeline has all entries below it
    far_from_ms: int  # the first due time of the far timers that the store lacks
    far_until_ms: int  # the last one
    newest_window: int  # with a folder


class LostRow(NamedTuple):
    """A row of the timeline. Only Spark's own entries have a record. The unique key of a cancel is a timer name."""

    entry: int
    kind: str
    due_ms: int  # of a cancel: 0 if unknown
    topic: str
    unique_key: str
    record: bytes
    takes: str = ""  # of a cancel: the due times of the entries that it ends, if known

    @property
    def name(self) -> str:
        return self.unique_key if self.kind == "cancel" else timer_name(self.topic, self.unique_key)


class LostEntries:
    """Writes lost entries again, before clients are served. After a crash the next start writes the rest.

    The caller must repeat `moves` after the last entry.
    """

    def __init__(
        self,
        store: MessageStore,
        timers: TimerService,
        pending: PendingTimers,
        far: FarTimers,
        ingest: IngestMark,
        replay: StartReplay,
        topics: Topics,
        clock: Clock,
        config: Config,
        store_host: bytes,
        tail: TimelineTail,
    ) -> None:
        self._store = store
        self._log_writer = store.writer
        self._timers = timers
        self._pending = pending
        self._far = far
        self._ingest = ingest
        self._replay = replay
        self._topics = topics
        self._tail = tail
        self._now_ms = clock.now_ms()
        self._max_bytes = min(WRITTEN_BYTES_AT_ONCE, config.store.segment // 4)
        properties = encode_properties(blank_properties(self._now_ms)).encode()
        self._blank = Draft(TIMER_TOPIC, 0, b"", properties, self._now_ms, store_host)
        self._drafts: list[Draft] = []
        self._drafts_bytes = 0
        self._pending_rows: deque[LostRow] = deque()  # rows of the drafts that are not blanks
        last = self._far.frontier.last
        # If the backup has no cut, all of Spark's timers are lost entries.
        first_ms = min(self._now_ms, tail.far_from_ms) // config.pipeline.window * config.pipeline.window
        self._handback_ms = last.handback_ms if last is not None else first_ms
        self._frontier_ms = last.frontier_ms if last is not None else FOREVER_MS
        # If Spark lagged at the time of the backup, the backup's last cut would make the broker own timers of Spark's.
        self._is_frontier_too_late = tail.far_from_ms < self._frontier_ms
        self._created_topics: dict[str, int] = {}  # their numbers of queues
        self.moves: dict[str, LostRow] = {}  # moves to a near time that are the last change of their name

    def write(self, rows: Iterable[LostRow]) -> int:
        """Write the missing entries up to the claimed end of the timeline; return the number of rows.

        `rows` are in order and begin where the backup ended. Entries that an interrupted start has written are
        recognised by their numbers and not written twice, but their moves are collected again.
        """
        first = self._next
        count = 0
        if self._tail.end - max(first, self._tail.ingested) > MAX_BLANKS:
            raise CorruptStore(
                f"the claim says that the timeline may have entries below {self._tail.end}, but it ends at "
                f"{self._tail.ingested}, and the log at {first}",
                hint="Restore the timeline; or, if the claim is wrong, remove it from claims/",
            )
        for row in rows:
            count += 1
            if not 0 <= row.entry < self._tail.end:
                raise CorruptStore(
                    f"the timeline has a row of entry {row.entry}, past its claimed end {self._tail.end}",
                    hint="Restore the timeline",
                )
            self.moves.pop(row.name, None)
            if row.kind == "move" and not row.record:
                self.moves[row.name] = row
                continue
            if row.entry < first:
                continue
            self._fill(row.entry)
            if row.record and self._is_frontier_too_late and row.due_ms < self._frontier_ms:
                raise CorruptStore(
                    f"entry {row.entry} of the timeline cannot have been Spark's", hint="Restore the timeline too"
                )
            self._pending_rows.append(row)
            self._add(self._draft(row))
        if self._next <= self._tail.end:
            self._fill(self._tail.end)
            # In one block with the last entries, so that after a crash either the cut exists or entries are missing.
            cut = self._far.cut_at(self._next, self._frontier_ms, self._handback_ms)
            number = max(cut.number, self._tail.newest_window + 1)
            self._append(cut._replace(number=number, far_until_ms=max(cut.far_until_ms, self._tail.far_until_ms)))
        self._ingest.advance_to(self._tail.ingested, self._tail.epoch)
        self._store.flush()
        self._ingest.save()
        return count

    @property
    def _next(self) -> int:
        return self._far.next_entry + len(self._drafts)

    def _fill(self, end: int) -> None:
        """Write blanks for entries without a row: the broker's own timers, and cuts.

        The first such entry is, or precedes, the cut that gave Spark the timers that the backup's last cut leaves to
        the broker. So if such a cut is needed, it replaces this entry.
        """
        if self._is_frontier_too_late and self._next < end:
            self._append(self._far.cut_at(self._next, self._handback_ms, self._handback_ms))
            self._is_frontier_too_late = False
        for _ in range(end - self._next):
            self._add(self._blank)

    def _add(self, draft: Draft) -> None:
        size = MIN_RECORD_BYTES + len(TIMER_TOPIC) + len(draft.body) + len(draft.properties)
        if len(self._drafts) >= WRITTEN_AT_ONCE or (self._drafts and self._drafts_bytes + size > self._max_bytes):
            self._append(None)
        self._drafts.append(draft)
        self._drafts_bytes += size

    def _append(self, cut: Cut | None) -> None:
        drafts, self._drafts, self._drafts_bytes = self._drafts, [], 0
        if cut is None:
            not_before_ms = self._log_writer.monotonic_store_ms(TIMER_TOPIC, self._now_ms)
            appended = self._log_writer.append_all(drafts, not_before_ms)
        else:
            appended = self._far.append(drafts, cut)
        for draft, place in zip(drafts, appended, strict=False):
            if self._pending_rows and self._pending_rows[0].entry == place.queue_offset:
                self._apply(self._pending_rows.popleft(), draft, place)

    def _apply(self, row: LostRow, draft: Draft, place: Appended) -> None:
        if row.record:
            self._ensure_topic(row.topic, queue_id_of(draft.properties))
        replaced_id = decode_entry_id(draft.prepared_transaction_offset)
        if row.kind != "timer":
            size = place.end_offset - place.physical_offset
            self._replay.replay_record(place.physical_offset, size, place.queue_offset)
        elif replaced_id is None:
            self._timers.pending[row.topic] += 1
        else:  # a renewal: the renewed timer is in the backup, and counted
            self._timers.settled.deliver(np.array([replaced_id[1]]), np.array([row.due_ms]))

    def _ensure_topic(self, topic: str, queue_id: int) -> None:
        """Create a topic that the backup lacks, because its timers would otherwise become dead letters."""
        if self._topics.find(topic) is None or topic in self._created_topics:
            queues = max(self._created_topics.get(topic, 0), queue_id + 1)
            if queues > self._created_topics.get(topic, 0):
                self._created_topics[topic] = queues
                self._topics.adopt(Topic(name=topic, read_queues=queues, write_queues=queues))

    def _draft(self, row: LostRow) -> Draft:
        if row.kind == "cancel":
            topic = row.unique_key.partition(SEPARATOR)[0]
            return self._pending.cancel_draft(topic, row.unique_key, row.due_ms or self._now_ms, row.takes)
        if waiting_name(row.record, row.entry, row.due_ms) is None:
            raise CorruptStore(
                f"the record of entry {row.entry} in the timeline is damaged, or belongs to another entry",
                hint="Restore the timeline",
            )
        message = decode_record(row.record)
        return Draft(
            TIMER_TOPIC,
            0,
            message.body,
            record_properties(row.record),
            message.born_timestamp_ms,
            pack_host(*message.born_host),
            message.flag,
            message.sysflag,
            message.reconsume_times,
            message.prepared_transaction_offset,
        )


def queue_id_of(properties: bytes) -> int:
    """Return the destination queue of a waiting record."""
    text = find_property(properties, REAL_QUEUE_ID.encode()) or b""
    return int(text) if text.isdigit() else 0
