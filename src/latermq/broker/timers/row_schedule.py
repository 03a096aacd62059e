"""Bulk scheduling: all rows of a batch become timers, or none. A row that is sent again is scheduled only once."""

from collections.abc import Callable, Iterable
from itertools import chain, compress, repeat
from typing import NamedTuple

import numpy as np

from latermq.arrays import Bools, Indices, Ints, Ints32
from latermq.broker.messages.limits import MAX_TIMER_PROPERTIES_BYTES
from latermq.broker.messages.writer import MessageWriter
from latermq.broker.tables.topics import UnsavedTopic
from latermq.broker.tables.writable_topics import WritableTopics
from latermq.broker.timers.known_names import KnownNames
from latermq.broker.timers.row_checks import check_rows, dues_of, reject_row
from latermq.clock import Clock
from latermq.config import Config
from latermq.errors import FlowControl, IllegalMessage, NoPermission, TopicNotFound
from latermq.message.names import TIMER_TOPIC
from latermq.message.properties import KEY_SEPARATOR, KEYS, TAGS, UNIQUE_KEY, encode_properties
from latermq.message.record_fields import SYSFLAG_ABRIDGED
from latermq.message.record_writer import fill_templates, record_template
from latermq.message.slots import slots_of
from latermq.message.timer_code import FLAG, KIND_SHIFT, TIMER
from latermq.model.rows import Column, RowBatch, RowLimits
from latermq.model.topic import Topic
from latermq.store.block import Block, pieces_of
from latermq.store.dispatch import HashedKeys
from latermq.store.queues.queue_table import QueueTable
from latermq.timer.admission import Admission, waiting_properties
from latermq.timer.service import TimerService

_PLACEHOLDER_DUE_MS = 1_111_111_111_111  # replaced by each due time; the properties around it are encoded once
_POWERS_OF_TEN = 10 ** np.arange(1, 19, dtype=np.int64)


class ScheduleResult(NamedTuple):
    """The result of scheduling a batch."""

    now_ms: int  # the time that delays count from
    is_known: Bools  # rows scheduled earlier, including cancelled and delivered ones

    @property
    def known(self) -> int:
        """The number of rows scheduled earlier."""
        return int(np.count_nonzero(self.is_known))

    @property
    def scheduled(self) -> int:
        """The number of new timers."""
        return len(self.is_known) - self.known


class RowSchedule:
    """Schedules batches of rows. Called by the appending thread."""

    def __init__(
        self,
        writer: MessageWriter,
        topics: WritableTopics,
        queues: QueueTable,
        admission: Admission,
        timers: TimerService,
        known: KnownNames,
        clock: Clock,
        config: Config,
        *,
        store_host: bytes,
        random_fraction: Callable[[], float],
    ) -> None:
        """`random_fraction` returns random numbers from 0 to 1; they select the timers of a full second to reject."""
        self._writer = writer
        self._topics = topics
        self._queue_table = queues
        self._admission = admission
        self._timers = timers
        self._known = known
        self._clock = clock
        self.limits = RowLimits(
            int(config.broker.max_message), config.timer.max_delay, config.broker.auto_create_topics
        )
        self._default_queues = config.broker.default_queues
        self._slot_limit = config.timer.slot_limit
        self._store_host = store_host
        self._random_fraction = random_fraction
        self._next_queue = 0
        self._max_properties = MAX_TIMER_PROPERTIES_BYTES - writer.stamp.most_bytes

    def schedule(self, batch: RowBatch, born_host: bytes) -> ScheduleResult:
        """Append the rows with new names as timers, as one block. A row whose time has passed is due now.

        If the store fails, no row was scheduled, or some were; these are known when the batch is sent again.
        """
        now_ms = self._clock.now_ms()
        if not len(batch):
            return ScheduleResult(now_ms, np.zeros(0, bool))
        check_rows(batch, self._writer.limits.max_body)
        dues = dues_of(batch, now_ms, self._admission.check_due)
        configs = self._writable_topics(batch, born_host)
        keys = batch.unique_keys.values()
        hashed = HashedKeys(batch.unique_keys.data, batch.unique_keys.offsets)
        new = ~self._known.known(batch.topics, batch.topic_of.astype(np.intp), keys, hashed)
        hashes = hashed.under([f"{TIMER_TOPIC}#"], np.zeros(len(keys), np.intp))
        self._drop_repeated(batch, keys, hashes, new)
        rows = np.flatnonzero(new)
        if len(rows):
            self._check_room(dues[rows])
            builder = _BlockBuilder(batch, rows, dues[rows], keys, self._max_properties)
            queues = self._queues(batch, rows, configs)
            self._reserve_queues(batch, rows, queues)
            block = builder.build(queues, hashes[rows], born_host, self._store_host, now_ms)
            longest = int(block.sizes.argmax())
            if block.sizes[longest] > self._writer.limits.max_waiting:
                raise IllegalMessage(
                    f"row {rows[longest]}: a timer of {block.sizes[longest]} bytes does not fit a segment",
                    hint="Reduce the message, or raise store.segment",
                )
            for start, end in pieces_of(block.sizes, self._writer.max_timer_block_bytes):
                self._writer.append_timers(block.part(start, end), _counts_by_topic(batch, rows[start:end]))
        return ScheduleResult(now_ms, ~new)

    def _writable_topics(self, batch: RowBatch, born_host: bytes) -> list[Topic | None]:
        """Return the topics of the rows, auto-created if that is allowed; None for a topic without rows."""
        configs: list[Topic | None] = [None] * len(batch.topics)
        unsaved: UnsavedTopic | None = None
        used, first_rows = np.unique(batch.topic_of, return_index=True)
        for number, row in sorted(zip(used.tolist(), first_rows.tolist(), strict=True), key=lambda pair: pair[1]):
            try:
                configs[number] = self._topics.find(batch.topics[number], "", self._default_queues, by=born_host)
            except (IllegalMessage, NoPermission, TopicNotFound) as error:
                raise type(error)(f"row {row}: {error.message}", hint=error.hint) from None
            except UnsavedTopic as error:
                unsaved = error  # raised after the loop, so that all new topics are saved together
        if unsaved is not None:
            raise unsaved
        return configs

    def _drop_repeated(self, batch: RowBatch, keys: list[bytes], hashes: Ints, new: Bools) -> None:
        """Keep the first of several rows with the same name. If all hashes differ, so do the names."""
        if len(np.unique(hashes)) == len(hashes):
            return
        seen = set()
        for row, name in enumerate(zip(batch.topic_of.tolist(), keys, strict=True)):
            new[row] &= name not in seen
            seen.add(name)

    def _check_room(self, dues: Ints) -> None:
        """Reject the batch if a second has no room for its timers. The same rule applies to a single timer."""
        timers, limit = self._timers, self._slot_limit
        if not limit:
            timers.limits.check(int(dues[0]), 1.0)
            return
        slots, firsts, counts = np.unique(slots_of(dues), return_index=True, return_counts=True)
        for slot_ms, first, count in zip(slots.tolist(), firsts.tolist(), counts.tolist(), strict=True):
            timers.limits.check(int(dues[first]), self._random_fraction())
            total = timers.slots.count(slot_ms) + count
            if total > 2 * limit:
                timers.tallies.refused += count
                raise FlowControl(
                    f"{total} timers would be due within the same second, the limit is {limit}",
                    hint="Schedule them at other times, or raise timer.slot_limit",
                )

    def _queues(self, batch: RowBatch, rows: Indices, configs: list[Topic | None]) -> Ints:
        """Return the queue of each row. A topic's queues are used in turn."""
        counts = np.array([config.write_queues if config else 1 for config in configs], np.int64)
        queues: Ints = np.arange(self._next_queue, self._next_queue + len(rows)) % counts[batch.topic_of[rows]]
        self._next_queue += len(rows)
        return queues

    def _reserve_queues(self, batch: RowBatch, rows: Indices, queues: Ints) -> None:
        """Reserve the queue of each row, so that it exists when the row is due."""
        places, firsts = np.unique(batch.topic_of[rows].astype(np.int64) << 32 | queues, return_index=True)
        for place, first in zip(places.tolist(), firsts.tolist(), strict=True):
            try:
                self._queue_table.hold(batch.topics[place >> 32], place & 0xFFFFFFFF)
            except NoPermission as error:
                reject_row(int(rows[first]), error.message, error.hint)


def _counts_by_topic(batch: RowBatch, rows: Indices) -> list[tuple[str, int]]:
    """Return the topics of these rows, each with its number of rows."""
    counts = np.bincount(batch.topic_of[rows], minlength=len(batch.topics))
    return [(topic, count) for topic, count in zip(batch.topics, counts.tolist(), strict=True) if count]


def _digit_counts(numbers: Ints) -> Ints:
    """Return the number of decimal digits of each number."""
    counts: Ints = np.searchsorted(_POWERS_OF_TEN, numbers, side="right") + 1
    return counts


def _split(column: Column, separator: bytes) -> tuple[Column, Ints]:
    """Split all values together at a one-byte separator; return the parts and the row of each part."""
    separators = np.flatnonzero(np.frombuffer(column.data, np.uint8) == separator[0])
    # A part begins with its value or after a separator. Sorted, starts and ends have the parts in the same order.
    starts = np.sort(np.concatenate((column.offsets[:-1], separators + 1)))
    ends = np.sort(np.concatenate((column.offsets[1:], separators)))
    offsets = np.concatenate(([0], np.cumsum(ends - starts)))
    rows = np.searchsorted(column.offsets[1:-1], starts, side="right")  # correct for non-empty parts
    return Column(column.data.replace(separator, b""), offsets), rows


class _BlockBuilder:
    """Builds records of the timer topic from columns, without a loop over rows. One join makes the block."""

    def __init__(self, batch: RowBatch, rows: Indices, dues: Ints, keys: list[bytes], max_properties: int) -> None:
        self._batch = batch
        self._max_properties = max_properties
        self._rows = rows
        self._is_selected = np.zeros(len(batch), bool)
        self._is_selected[rows] = True
        self._dues = dues
        self._unique_keys = self._select(keys)

    def _select(self, values: list[bytes]) -> list[bytes]:
        return values if self._is_selected.all() else list(compress(values, self._is_selected.tolist()))

    def build(self, queues: Ints, unique_hashes: Ints, born_host: bytes, store_host: bytes, now_ms: int) -> Block:
        """Return the records. Their offsets and store time are set when they are appended."""
        count = len(self._rows)
        template = record_template(
            TIMER_TOPIC, 0, born_timestamp_ms=now_ms, born_host=born_host, store_host=store_host,
            sysflag=SYSFLAG_ABRIDGED,
        )  # fmt: skip
        bodies = self._select(self._batch.bodies.values())
        properties, properties_bytes = self._properties(queues)
        data = bytearray().join(
            chain.from_iterable(
                zip(repeat(template.before_body, count), bodies, repeat(template.after_body, count), *properties,
                    strict=True)
            )
        )  # fmt: skip
        body_bytes = self._batch.bodies.sizes[self._rows]
        sizes = template.size + body_bytes + properties_bytes
        fill_templates(data, sizes, len(template.before_body), bodies, body_bytes, properties_bytes)
        key_hashes, key_rows = self._index_keys(unique_hashes)
        return Block(
            data=data,
            sizes=sizes,
            store_timestamp_at=np.full(count, template.store_timestamp_at),
            tags=self._dues | FLAG | TIMER << KIND_SHIFT,
            queues=[(TIMER_TOPIC, 0)],
            queue_of=np.zeros(count, np.intp),
            key_hashes=key_hashes,
            key_rows=key_rows,
            level=0,
            entries=np.zeros(count, np.int64),
        )

    def _properties(self, queues: Ints) -> tuple[list[Iterable[bytes]], Ints]:
        """Return the properties of all rows as pieces to be joined, and their sizes."""
        batch, rows = self._batch, self._rows
        prefix = f"{UNIQUE_KEY}\x01".encode()
        pieces: list[Iterable[bytes]] = [repeat(prefix, len(rows)), self._unique_keys]
        sizes = batch.unique_keys.sizes[rows] + len(prefix)
        if batch.properties.data:
            pieces.insert(0, self._select(batch.properties.values()))
            sizes += batch.properties.sizes[rows]
        for column, name in ((batch.keys, KEYS), (batch.tags, TAGS)):
            if column.data:
                name_prefix = f"\x02{name}\x01".encode()
                pieces.append([name_prefix + value if value else b"" for value in self._select(column.values())])
                value_sizes = column.sizes[rows]
                sizes += np.where(value_sizes > 0, value_sizes + len(name_prefix), 0)
        waiting, waiting_sizes = self._waiting_properties(queues)
        pieces += waiting
        sizes += waiting_sizes
        if int(sizes.max()) > self._max_properties:
            reject_row(
                int(rows[sizes.argmax()]),
                f"its properties exceed {self._max_properties} bytes, the limit for a timer",
                "Move large values into the body",
            )
        return pieces, sizes

    def _waiting_properties(self, queues: Ints) -> tuple[list[Iterable[bytes]], Ints]:
        """Return each row's `waiting_properties`, encoded once per queue with the due time inserted."""
        batch, rows, dues = self._batch, self._rows, self._dues
        places, place_of = np.unique(batch.topic_of[rows].astype(np.int64) << 32 | queues, return_inverse=True)
        before_dues = []
        for place in places.tolist():
            waiting = waiting_properties(
                {}, batch.topics[place >> 32], place & 0xFFFFFFFF, _PLACEHOLDER_DUE_MS, is_abridged=True
            )
            before_due = encode_properties(waiting).rsplit(str(_PLACEHOLDER_DUE_MS), 1)[0]
            before_dues.append(f"\x02{before_due}".encode())
        pieces: list[Iterable[bytes]] = [
            map(before_dues.__getitem__, place_of.tolist()),
            map(b"%d\x02".__mod__, dues.tolist()),
        ]
        before_sizes = np.array(list(map(len, before_dues)), np.int64)[place_of]
        return pieces, before_sizes + _digit_counts(dues) + 1

    def _index_keys(self, unique_hashes: Ints) -> tuple[Ints32, Ints]:
        """Return the key index hashes of the records and the row of each hash, in row order."""
        rows = np.arange(len(self._rows))
        if not self._batch.keys.data:
            return unique_hashes.astype(np.int32), rows
        key_hashes, key_rows = self._key_hashes()
        all_rows = np.concatenate([rows, key_rows])
        order = np.argsort(all_rows, kind="stable")
        return np.concatenate([unique_hashes, key_hashes]).astype(np.int32)[order], all_rows[order]

    def _key_hashes(self) -> tuple[Ints, Ints]:
        """Return the hash of every message key of the selected rows, and the index of its row among them."""
        column = self._batch.keys
        rows = np.arange(len(column))
        separator = KEY_SEPARATOR.encode()
        if separator in column.data:
            column, rows = _split(column, separator)
        hashes = HashedKeys(column.data, column.offsets).under([f"{TIMER_TOPIC}#"], np.zeros(len(column), np.intp))
        is_wanted = (column.sizes > 0) & self._is_selected[rows]
        return hashes[is_wanted], np.searchsorted(self._rows, rows[is_wanted])
