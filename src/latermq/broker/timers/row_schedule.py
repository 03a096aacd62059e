"""Scheduling in bulk: the rows of a batch become timers, each once however often it is sent, all of them or none."""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, compress, repeat
from typing import NamedTuple

import numpy as np

from latermq.arrays import Bools, Indices, Ints, Ints32
from latermq.broker.messages.limits import MAX_TIMER_PROPERTIES_BYTES
from latermq.broker.messages.writer import MessageWriter
from latermq.broker.tables.topics import UnsavedTopic
from latermq.broker.tables.writable_topics import WritableTopics
from latermq.broker.timers.known_names import KnownNames
from latermq.broker.timers.row_checks import check_rows, dues_of, refuse_row
from latermq.clock import Clock
from latermq.config import Config
from latermq.errors import FlowControl, IllegalMessage, NoPermission, TopicNotFound
from latermq.message.names import TIMER_TOPIC
from latermq.message.properties import KEY_SEPARATOR, KEYS, TAGS, UNIQUE_KEY, encode_properties
from latermq.message.record_writer import fill_templates, record_template
from latermq.message.slots import slot_of, slots_of
from latermq.message.timer_code import FLAG, KIND_SHIFT, TIMER
from latermq.model.rows import Column, RowBatch
from latermq.model.topic import Topic
from latermq.store.block import Block
from latermq.store.dispatch import HashedKeys
from latermq.store.queues.queue_table import QueueTable
from latermq.timer.admission import Admission, waiting_properties
from latermq.timer.service import TimerService

_MARK_DUE_MS = 1_111_111_111_111  # stands for the due time where the rest of the properties is made once
_POWERS_OF_TEN = 10 ** np.arange(1, 19, dtype=np.int64)


class Scheduled(NamedTuple):
    """What became of a batch."""

    scheduled: int
    known: int  # rows that were scheduled before, whatever became of them


class RowSchedule:
    """Schedules batches of rows. Called by the thread that appends."""

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
        chance: Callable[[], float],
    ) -> None:
        """`chance` gives numbers from 0 to 1, which decide which timers of a full second are refused."""
        self._writer = writer
        self._topics = topics
        self._queue_table = queues
        self._admission = admission
        self._timers = timers
        self._known = known
        self._clock = clock
        self._default_queues = config.broker.default_queues
        self._slot_limit = config.timer.slot_limit
        self._store_host = store_host
        self._chance = chance
        self._next_queue = 0
        self._stamp = b"\x02" + writer.stamp.removesuffix("\x02").encode()  # its end begins what follows

    def schedule(self, batch: RowBatch, born_host: bytes) -> Scheduled:
        """Append those rows whose names are new as timers, as one block; a row whose time has passed is due now.

        Where the store fails, nothing was scheduled, or a part that is known when the batch is sent again.
        """
        if not len(batch):
            return Scheduled(0, 0)
        now_ms = self._clock.now_ms()
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
            build = _Build(batch, rows, dues[rows], keys, self._stamp)
            queues = self._queues(batch, rows, configs)
            self._hold(batch, rows, queues)
            block = build.block(queues, hashes[rows], born_host, self._store_host, now_ms)
            longest = int(block.sizes.argmax())
            if block.sizes[longest] > self._writer.limits.max_waiting:
                raise IllegalMessage(
                    f"row {rows[longest]}: a timer of {block.sizes[longest]} bytes does not fit a segment",
                    hint="Send less, or raise store.segment",
                )
            for start, end in _pieces(block.sizes, self._writer.max_timer_block_bytes):
                self._writer.append_timers(block.part(start, end), _counts_by_topic(batch, rows[start:end]))
        return Scheduled(len(rows), len(batch) - len(rows))

    def _writable_topics(self, batch: RowBatch, born_host: bytes) -> list[Topic | None]:
        """The topics of the rows, made where they are missing and may be; None for one that no row names."""
        configs: list[Topic | None] = [None] * len(batch.topics)
        unsaved: UnsavedTopic | None = None
        used, first_rows = np.unique(batch.topic_of, return_index=True)
        for number, row in sorted(zip(used.tolist(), first_rows.tolist(), strict=True), key=lambda pair: pair[1]):
            try:
                configs[number] = self._topics.find(batch.topics[number], "", self._default_queues, by=born_host)
            except (IllegalMessage, NoPermission, TopicNotFound) as error:
                raise type(error)(f"row {row}: {error.message}", hint=error.hint) from None
            except UnsavedTopic as error:
                unsaved = error  # after all of them, so that they are saved together
        if unsaved is not None:
            raise unsaved
        return configs

    def _drop_repeated(self, batch: RowBatch, keys: list[bytes], hashes: Ints, new: Bools) -> None:
        """Of several rows with one name the first counts. Where all hashes differ, so do the names."""
        if len(np.unique(hashes)) == len(hashes):
            return
        seen = set()
        for row, name in enumerate(zip(batch.topic_of.tolist(), keys, strict=True)):
            new[row] &= name not in seen
            seen.add(name)

    def _check_room(self, dues: Ints) -> None:
        """Refuse the batch where so many more timers find no room, by the same rule as one alone."""
        timers, limit = self._timers, self._slot_limit
        if not limit:
            timers.limits.check(int(dues[0]), 1.0)
            return
        slots, firsts, counts = np.unique(slots_of(dues), return_index=True, return_counts=True)
        for slot_ms, first, count in zip(slots.tolist(), firsts.tolist(), counts.tolist(), strict=True):
            timers.limits.check(int(dues[first]), self._chance())
            total = timers.slots.count(slot_ms) + count
            if total > 2 * limit:
                timers.tallies.refused += count
                raise FlowControl(
                    f"{total} timers would be due within one second, the limit is {limit}",
                    hint="Schedule them at other times, or raise timer.slot_limit",
                )

    def _queues(self, batch: RowBatch, rows: Indices, configs: list[Topic | None]) -> Ints:
        """Which queue of its topic each row goes to: one after the other."""
        counts = np.array([config.write_queues if config else 1 for config in configs], np.int64)
        numbers: Ints = np.arange(self._next_queue, self._next_queue + len(rows)) % counts[batch.topic_of[rows]]
        self._next_queue += len(rows)
        return numbers

    def _hold(self, batch: RowBatch, rows: Indices, queues: Ints) -> None:
        """Make sure that each row finds its queue when it is due."""
        places, firsts = np.unique(batch.topic_of[rows].astype(np.int64) << 32 | queues, return_index=True)
        for place, first in zip(places.tolist(), firsts.tolist(), strict=True):
            try:
                self._queue_table.hold(batch.topics[place >> 32], place & 0xFFFFFFFF)
            except NoPermission as error:
                refuse_row(int(rows[first]), error.message, error.hint)


def _counts_by_topic(batch: RowBatch, rows: Indices) -> list[tuple[str, int]]:
    """The topics that these rows are for, each with the number of its rows."""
    counts = np.bincount(batch.topic_of[rows], minlength=len(batch.topics))
    return [(topic, count) for topic, count in zip(batch.topics, counts.tolist(), strict=True) if count]


def _pieces(sizes: Ints, max_bytes: int) -> Iterator[tuple[int, int]]:
    """Spans of rows whose records fit a segment together: one, unless segments are very small."""
    ends = np.cumsum(sizes)
    start = 0
    while start < len(sizes):
        done = int(ends[start - 1]) if start else 0
        end = max(start + 1, int(np.searchsorted(ends, done + max_bytes, side="right")))
        yield start, end
        start = end


def _digits(numbers: Ints) -> Ints:
    """How many digits each of these has."""
    digits: Ints = np.searchsorted(_POWERS_OF_TEN, numbers, side="right") + 1
    return digits


def _split(column: Column, separator: bytes) -> tuple[Column, Ints]:
    """The parts of all values between one-byte separators, and whose they are: no value is looked at by itself."""
    at = np.flatnonzero(np.frombuffer(column.data, np.uint8) == separator[0])
    # Parts follow each other in both lists alike: each begins with its value or behind a separator.
    starts = np.sort(np.concatenate((column.offsets[:-1], at + 1)))
    ends = np.sort(np.concatenate((column.offsets[1:], at)))
    offsets = np.concatenate(([0], np.cumsum(ends - starts)))
    owners = np.searchsorted(column.offsets[1:-1], starts, side="right")  # right for parts that are not empty
    return Column(column.data.replace(separator, b""), offsets), owners


class _Build:
    """Makes records of the timer topic out of columns: no row is looked at by itself, all are joined at once."""

    def __init__(self, batch: RowBatch, rows: Indices, dues: Ints, keys: list[bytes], stamp: bytes) -> None:
        self._batch = batch
        self._stamp = stamp
        self._rows = rows
        self._chosen = np.zeros(len(batch), bool)
        self._chosen[rows] = True
        self._dues = dues
        self._unique_keys = self._choose(keys)

    def _choose(self, values: list[bytes]) -> list[bytes]:
        return values if self._chosen.all() else list(compress(values, self._chosen.tolist()))

    def block(self, queues: Ints, unique_hashes: Ints, born_host: bytes, store_host: bytes, now_ms: int) -> Block:
        """The records, but for their places and their store time, which come when they are appended."""
        count = len(self._rows)
        template = record_template(TIMER_TOPIC, 0, born_timestamp_ms=now_ms, born_host=born_host, store_host=store_host)
        bodies = self._choose(self._batch.bodies.values())
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
        """The properties of all rows in pieces to be joined, and how long they are."""
        batch, rows = self._batch, self._rows
        named = f"{UNIQUE_KEY}\x01".encode()
        pieces: list[Iterable[bytes]] = [repeat(named, len(rows)), self._unique_keys]
        sizes = batch.unique_keys.sizes[rows] + len(named)
        if batch.properties.data:
            pieces.insert(0, self._choose(batch.properties.values()))
            sizes += batch.properties.sizes[rows]
        for column, name in ((batch.keys, KEYS), (batch.tags, TAGS)):
            if column.data:
                prefix = f"\x02{name}\x01".encode()
                pieces.append([prefix + value if value else b"" for value in self._choose(column.values())])
                own_sizes = column.sizes[rows]
                sizes += np.where(own_sizes > 0, own_sizes + len(prefix), 0)
        waiting, waiting_sizes = self._waiting(queues)
        pieces += (repeat(self._stamp, len(rows)), *waiting)
        sizes += waiting_sizes + len(self._stamp)
        if int(sizes.max()) > MAX_TIMER_PROPERTIES_BYTES:
            refuse_row(
                int(rows[sizes.argmax()]),
                f"the properties of a timer may take {MAX_TIMER_PROPERTIES_BYTES} bytes, these take more",
                "Move large values into the body",
            )
        return pieces, sizes

    def _waiting(self, queues: Ints) -> tuple[list[Iterable[bytes]], Ints]:
        """What `waiting_properties` gives each row: made once for each queue, the two times put in between."""
        batch, rows, dues = self._batch, self._rows, self._dues
        slots = slots_of(dues)
        rounded_mark = str(slot_of(_MARK_DUE_MS))
        places, place_of = np.unique(batch.topic_of[rows].astype(np.int64) << 32 | queues, return_inverse=True)
        befores, betweens = set(), []
        for place in places.tolist():
            waiting = waiting_properties({}, batch.topics[place >> 32], place & 0xFFFFFFFF, _MARK_DUE_MS)
            before, between = encode_properties(waiting).rsplit(str(_MARK_DUE_MS), 1)[0].split(rounded_mark, 1)
            befores.add(f"\x02{before}".encode())
            betweens.append(between.encode())
        [before_all] = befores  # the rounded time comes first, whatever the queue
        slot_texts = {slot: b"%d" % slot for slot in np.unique(slots).tolist()}
        pieces: list[Iterable[bytes]] = [
            repeat(before_all, len(rows)),
            map(slot_texts.__getitem__, slots.tolist()),
            map(betweens.__getitem__, place_of.tolist()),
            map(b"%d\x02".__mod__, dues.tolist()),
        ]
        between_sizes = np.array(list(map(len, betweens)), np.int64)[place_of]
        return pieces, len(before_all) + _digits(slots) + between_sizes + _digits(dues) + 1

    def _index_keys(self, unique_hashes: Ints) -> tuple[Ints32, Ints]:
        """The hashes under which the records are found, in the order of the records."""
        rows = np.arange(len(self._rows))
        if not self._batch.keys.data:
            return unique_hashes.astype(np.int32), rows
        key_hashes, key_rows = self._key_hashes()
        all_rows = np.concatenate([rows, key_rows])
        order = np.argsort(all_rows, kind="stable")
        return np.concatenate([unique_hashes, key_hashes]).astype(np.int32)[order], all_rows[order]

    def _key_hashes(self) -> tuple[Ints, Ints]:
        """The hash of every message key, and which of the chosen rows it is of."""
        column = self._batch.keys
        owners = np.arange(len(column))
        separator = KEY_SEPARATOR.encode()
        if separator in column.data:
            column, owners = _split(column, separator)
        hashes = HashedKeys(column.data, column.offsets).under([f"{TIMER_TOPIC}#"], np.zeros(len(column), np.intp))
        kept = (column.sizes > 0) & self._chosen[owners]
        return hashes[kept], np.searchsorted(self._rows, owners[kept])
