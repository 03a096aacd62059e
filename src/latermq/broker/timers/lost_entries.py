"""Entries of the timer topic that a store lacks because it was put back from an old copy, and a timeline still holds.

Their numbers must not be given out again: new timers would be taken for those that Spark holds, and one of the two
would be lost. So what the timeline knows is written again under the very numbers it had: far timers, cancels and moves
as they were, and blanks for all else. Cancels and moves act again on what the copy holds.

A move to a near time left no record with Spark. What it moved may still be in the copy or with Spark, where it counts
as taken; it is moved again, by a move of its own behind all others.
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
# A driver claims a batch before it appends it: half a million entries. No driver claims ten times as much.
MAX_BLANKS = 5_000_000


class Lost(NamedTuple):
    """What a timeline holds of a store beyond the store's own end."""

    end: int  # the timeline may hold entries below it
    epoch: int  # of the driver that wrote it last
    ingested: int  # the timeline holds all entries below it
    far_from_ms: int  # when the first and
    far_until_ms: int  # the last of its far timers are due, of those that the store lacks
    newest_window: int  # that has a folder


class LostRow(NamedTuple):
    """A row of the timeline. Only what was Spark's has a record; a cancel has a whole name as its unique key."""

    entry: int
    kind: str
    due_ms: int
    topic: str
    unique_key: str
    record: bytes

    @property
    def name(self) -> str:
        return self.unique_key if self.kind == "cancel" else timer_name(self.topic, self.unique_key)


class LostEntries:
    """Writes them again; nobody is served meanwhile. A death on the way leaves the rest to the next start.

    `moves` are left to whoever calls, to be repeated behind the last entry.
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
        lost: Lost,
    ) -> None:
        self._store = store
        self._log_writer = store.writer
        self._timers = timers
        self._pending = pending
        self._far = far
        self._ingest = ingest
        self._replay = replay
        self._topics = topics
        self._lost = lost
        self._now_ms = clock.now_ms()
        self._max_bytes = min(WRITTEN_BYTES_AT_ONCE, config.store.segment // 4)
        properties = encode_properties(blank_properties(self._now_ms)).encode()
        self._blank = Draft(TIMER_TOPIC, 0, b"", properties, self._now_ms, store_host)
        self._drafts: list[Draft] = []
        self._drafts_bytes = 0
        self._placed: deque[LostRow] = deque()  # those that are no blanks, of what is on its way
        last = self._far.frontier.last
        # Where the copy has no cut, Spark holds nothing but what is lost.
        first_ms = min(self._now_ms, lost.far_from_ms) // config.pipeline.window * config.pipeline.window
        self._handback_ms = last.handback_ms if last is not None else first_ms
        self._frontier_ms = last.frontier_ms if last is not None else FOREVER_MS
        # The last cut of the copy would give the broker what is Spark's, if it is from a time when Spark lagged.
        self._is_too_high = lost.far_from_ms < self._frontier_ms
        self._topics_made: dict[str, int] = {}  # with so many queues
        self.moves: dict[str, LostRow] = {}  # to a near time: the last thing that is known of these names

    def write(self, rows: Iterable[LostRow]) -> int:
        """Write what is missing up to the end that the timeline claims. How many rows there were.

        `rows` are in order, and all since the store was put back: what a start that died has written is known by its
        number and not written twice, but moves are found again.
        """
        first = self._next
        count = 0
        if self._lost.end - max(first, self._lost.ingested) > MAX_BLANKS:
            raise CorruptStore(
                f"the claim says that the timeline may hold entries below {self._lost.end}, but it ends at "
                f"{self._lost.ingested}, and the log at {first}",
                hint="Put back the timeline as it was; or, if the claim is wrong, remove it from claims/",
            )
        for row in rows:
            count += 1
            if not 0 <= row.entry < self._lost.end:
                raise CorruptStore(
                    f"the timeline has a row of entry {row.entry}, beyond {self._lost.end}, which was claimed",
                    hint="Put back the timeline as it was",
                )
            self.moves.pop(row.name, None)
            if row.kind == "move" and not row.record:
                self.moves[row.name] = row
                continue
            if row.entry < first:
                continue
            self._fill(row.entry)
            if row.record and self._is_too_high and row.due_ms < self._frontier_ms:
                raise CorruptStore(
                    f"entry {row.entry} of the timeline cannot have been Spark's", hint="Put the timeline back as well"
                )
            self._placed.append(row)
            self._add(self._draft(row))
        if self._next <= self._lost.end:
            self._fill(self._lost.end)
            # In one block with what comes last, so that whoever starts next finds it too or finds entries missing.
            cut = self._far.cut_at(self._next, self._frontier_ms, self._handback_ms)
            number = max(cut.number, self._lost.newest_window + 1)
            self._append(cut._replace(number=number, far_until_ms=max(cut.far_until_ms, self._lost.far_until_ms)))
        self._ingest.advance_to(self._lost.ingested, self._lost.epoch)
        self._store.flush()
        self._ingest.save()
        return count

    @property
    def _next(self) -> int:
        return self._far.next_entry + len(self._drafts)

    def _fill(self, upto: int) -> None:
        """Stand in for what is in no row: the broker's own timers, and cuts.

        So the first of these stands before, or is, the cut that made Spark's what the copy's last cut does not.
        """
        if self._is_too_high and self._next < upto:
            self._append(self._far.cut_at(self._next, self._handback_ms, self._handback_ms))
            self._is_too_high = False
        for _ in range(upto - self._next):
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
            if self._placed and self._placed[0].entry == place.queue_offset:
                self._act(self._placed.popleft(), draft, place)

    def _act(self, row: LostRow, draft: Draft, place: Appended) -> None:
        if row.record:
            self._keep_topic(row.topic, queue_id_of(draft.properties))
        replaced = decode_entry_id(draft.prepared_transaction_offset)
        if row.kind != "timer":
            size = place.end_offset - place.physical_offset
            self._replay.replay_record(place.physical_offset, size, place.queue_offset)
        elif replaced is None:
            self._timers.pending[row.topic] += 1
        else:  # a renewal: what it renewed is in the copy, and counted
            self._timers.settled.deliver(np.array([replaced[1]]), np.array([row.due_ms]))

    def _keep_topic(self, topic: str, queue_id: int) -> None:
        """A topic that the copy does not know yet is made again: its timers would else be dead letters."""
        if self._topics.find(topic) is None or topic in self._topics_made:
            queues = max(self._topics_made.get(topic, 0), queue_id + 1)
            if queues > self._topics_made.get(topic, 0):
                self._topics_made[topic] = queues
                self._topics.adopt(Topic(name=topic, read_queues=queues, write_queues=queues))

    def _draft(self, row: LostRow) -> Draft:
        if row.kind == "cancel":
            topic = row.unique_key.partition(SEPARATOR)[0]
            return self._pending.cancel_draft(topic, row.unique_key, row.due_ms)
        if waiting_name(row.record, row.entry, row.due_ms) is None:
            raise CorruptStore(
                f"the record of entry {row.entry} in the timeline is damaged, or another's",
                hint="Put back the timeline as it was",
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
    """The queue that a waiting record is for."""
    text = find_property(properties, REAL_QUEUE_ID.encode()) or b""
    return int(text) if text.isdigit() else 0
