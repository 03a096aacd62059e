"""The broker: what clients ask of it, over one store, without any socket."""

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import count

from latermq.broker.messages.batch_admission import BatchAdmission, check_keys
from latermq.broker.messages.long_polling import WaitingPulls
from latermq.broker.messages.progress import ConsumerProgress
from latermq.broker.messages.reader import MessageReader
from latermq.broker.metrics.topic_traffic import TopicTraffic
from latermq.broker.metrics.traffic import Traffic
from latermq.broker.notifications import Notices
from latermq.broker.tables.adopted_topics import adopt_awaited, adopt_queues
from latermq.broker.tables.config_files import DELAY_OFFSETS_PATH, TOPICS_PATH, load_table
from latermq.broker.tables.known_ends import delivered_until_ms, known_ends
from latermq.broker.tables.table_loader import open_tables
from latermq.broker.tables.table_saver import Tables
from latermq.broker.timers.far_timers import FarTimers
from latermq.broker.timers.ingest_mark import IngestMark
from latermq.broker.timers.pending import PendingTimers
from latermq.broker.timers.start_replay import StartReplay
from latermq.broker.timers.window_skips import WindowSkips
from latermq.clock import Clock
from latermq.config import Config
from latermq.errors import IllegalMessage, InvalidParameter, NoPermission, ServiceUnavailable
from latermq.group.filters import Filters
from latermq.group.locks import QueueLocks
from latermq.group.members import Members
from latermq.message.entry_id import MAX_LEVELS
from latermq.message.ids import pack_host
from latermq.message.names import SCHEDULE_TOPIC, TIMER_TOPIC
from latermq.message.properties import (
    CLUSTER,
    DEFAULT_REGION,
    MAX_PROPERTIES_BYTES,
    OWN_PREFIX,
    REGION,
    TIMER_DELETE_KEY,
    TIMER_OUT_MS,
    TRACE_ON,
    UNIQUE_KEY,
    decode_properties,
    encode_properties,
    with_stamp,
)
from latermq.message.recall_handle import encode_recall_handle
from latermq.message.record_fields import SYSFLAG_FROM_SENDER, SYSFLAG_TRANSACTION_MASK
from latermq.message.timer_code import timer_code_of
from latermq.message.timer_name import meanings
from latermq.model.offset_table import DelayOffsetTable
from latermq.model.topic import Topic
from latermq.store.batch_block import Sender, append_batch
from latermq.store.files.disk import Disk
from latermq.store.files.set_aside import Trouble
from latermq.store.log_writer import Draft
from latermq.store.message_store import MessageStore
from latermq.store.ranges import RangeSet
from latermq.store.retention import Retention
from latermq.timer.admission import Admission, Admitted, Wait, cancel_properties
from latermq.timer.apache_import import entries_settled_by_apache
from latermq.timer.delivery.clock_guard import ClockGuard
from latermq.timer.engine.choice import open_engine
from latermq.timer.far.far_names import FarNames
from latermq.timer.intake.renewal import load_renewal_window_ms
from latermq.timer.levels import LevelTable
from latermq.timer.service import TimerService

GROWTH_BYTES = 2_048  # what a record has beside body and properties, and what it may gain when it is written again
# Renewals and moves add properties of the broker's own.
MAX_TIMER_PROPERTIES_BYTES = MAX_PROPERTIES_BYTES - 128

# Where a sent message, or the first of a batch, was stored: message id, queue id, queue offset, end offset in the log,
# and the handle by which a timer is recalled. A plain tuple, because building a named one costs a send 0.25 µs twice.
Sent = tuple[str, int, int, int, str]


class Broker:
    """Topics, groups, offsets and messages of one broker."""

    def __init__(
        self,
        config: Config,
        disk: Disk,
        clock: Clock,
        *,
        host: str,
        port: int,
        new_store_id: str,
        client_clock: Clock | None = None,
        chance: Callable[[], float] = lambda: 0.5,
    ) -> None:
        """`clock` is the time of messages; clients' heartbeats and locks may go by another.

        `chance` gives numbers from 0 to 1, by which some timers of a full second are refused.
        """
        self.config = config
        self.clock = clock
        self._disk = disk
        self.store_host = pack_host(host, port)
        self._message_id_prefix = self.store_host.hex().upper()
        levels = LevelTable(config.timer.levels)
        precision_ms = int(config.timer.import_precision)
        self.store = MessageStore(
            disk,
            config.store,
            clock,
            store_host=self.store_host,
            new_store_id=new_store_id,
            waiting_codes={
                SCHEDULE_TOPIC: levels.due_ms,
                TIMER_TOPIC: lambda properties, store_timestamp_ms: timer_code_of(properties, precision_ms),
            },
        )
        settings = config.broker
        self._max_message = int(settings.max_message)
        # RocketMQ's broker adds these to messages, but not to those in batches; clients' traces read them.
        self.stamp = encode_properties({CLUSTER: settings.cluster, REGION: DEFAULT_REGION, TRACE_ON: "true"})
        # What waits is written again later, with a longer topic or with what the broker tells of it.
        self.max_waiting = self.store.writer.max_block_bytes - GROWTH_BYTES
        self.client_clock = client_clock or clock
        self.troubles: list[Trouble] = []  # with config files that were not understood
        self.topics, self.groups, self.offsets = open_tables(disk, settings, clock, self.client_clock, self.troubles)
        self._open_for_clients()
        self.retention = Retention(self.store, config.store, clock)
        self.traffic, self.timer_traffic = Traffic(), Traffic()  # the latter: into the engine and out, renewals too
        self.reader = MessageReader(self.store.reader, self.topics, self.groups, settings, self.traffic)
        self.progress = ConsumerProgress(self.store.reader, self.topics, self.groups, self.offsets, settings)
        self.topic_traffic = TopicTraffic(self.store.queues, clock.monotonic_s())
        self._next_queue = 0
        unsound = {trouble.path for trouble in self.troubles}
        self.tables = Tables(
            disk, clock, self.store, self.topics, self.groups, self.offsets, self._delay_marks, unsound=unsound
        )
        # Saves a topic before its first message, at once. Where the disk must not be waited for it raises UnsavedTopic,
        # and whoever asked asks again once the tables are saved.
        self.save_topic: Callable[[], None] = self.tables.save
        # None while messages are taken; else why not. Retries are taken for longer than new messages.
        self._refusal: ServiceUnavailable | None = None
        self._retry_refusal: ServiceUnavailable | None = None
        self.ingest = IngestMark(disk)
        self.far_names = FarNames(disk)
        if not self.store.recovery.had_checkpoint:
            self.store.queues.go_on_from(
                known_ends(disk, self.topics, self.offsets, self.ingest, self.far_names, self.troubles)
            )
            self._take_over_delay_offsets()
        self.clamped_offsets = self.progress.clamp()
        self.tables.encode_offsets(self.offsets.stale_blocks)  # all, while nobody waits
        self.adopted_topics = adopt_queues(self.topics, self.store.queues, self.troubles, settings.default_queues)
        self.topics.is_lost = any(trouble.is_lost for trouble in self.troubles if trouble.path == TOPICS_PATH)
        self.tables.load_unused()
        self.admission = Admission(levels, config.timer.max_delay, self._next_timer_name)
        self._names_given = 0
        self.chance = chance
        self._took_over_timers = False
        self._open_waiting(levels)
        if self.topics.is_lost:
            self.adopted_topics += adopt_awaited(self.topics, self.timers.pending)
        # Where a checkpoint and its engine were gone on from, they do for the next start too, and nobody waits for the
        # disk. Of an engine that is filled again the old checkpoint must not speak.
        if self.store.recovery.resumed is None or not self.has_whole_engine:
            self.store.save(self.store.plan_checkpoint())

    def _open_for_clients(self) -> None:
        """All that is kept of connected clients, each with its bound."""
        settings = self.config.broker
        self.members = Members(settings)
        self.notices = Notices(self.members, settings.max_held_notices)
        self.filters = Filters(settings)
        self.locks = QueueLocks(self.client_clock, settings.queue_lock_timeout, settings.max_queue_locks)
        self.waiting = WaitingPulls(
            settings.max_waiting_pulls,
            settings.max_waiting_pulls_per_connection,
            settings.max_waiting_filters,
            settings.pull_work,
        )

    def _open_waiting(self, levels: LevelTable) -> None:
        """All that has to do with messages that wait."""
        config, clock = self.config, self.clock
        self.timers = self._open_timers(levels)
        self.pending = PendingTimers(
            self.store.reader,
            self.store.writer,
            self.timers,
            self.far_names,
            self.admission,
            clock,
            store_host=self.store_host,
            max_steps=config.timer.max_lookup,
            on_changed=self.timers.note_timer,
        )
        self.replay = StartReplay(self.store, self.far_names, self.timers)
        self.replay.run()
        self.timers.start(clock.now_ms())
        if self._took_over_timers:
            self.timers.recount()
        self.far = FarTimers(
            self._disk,
            self.store,
            self.timers,
            self.ingest,
            self.far_names,
            clock,
            config.pipeline,
            store_host=self.store_host,
            retention_ms=config.store.retention,
            doomed_until=self.retention.doomed_until,
        )
        self.window_skips = WindowSkips(self.store, self.timers, self.pending, self.far_names, self.far.notes)
        self.retention.add_guard(self.timers.needed_from)
        self.retention.add_guard(self.far.needed_from)

    def _place_of(self, topic: str, queue_id: int) -> int | str:
        """To which queue a message is delivered that waited; or why to none: it becomes a dead letter then."""
        place = self.topics.readable_queue(topic, queue_id)
        if isinstance(place, str) or self.store.queues.can_deliver_to(topic, place):
            return place
        return f"queue {place} of topic {topic!r} would be one more than store.max_queues allows"

    def _open_timers(self, levels: LevelTable) -> TimerService:
        recovery, waiting = self.store.recovery, self.store.waiting
        if not recovery.had_checkpoint:
            # Before the engine takes the place of RocketMQ's files.
            done = entries_settled_by_apache(self._disk, self.store.reader)
            # Where RocketMQ alone has worked on the store, nothing was counted when it was opened.
            is_taken_over = not waiting.scheduled and not self.far_names.upto
            self._took_over_timers = len(done) > 0 or is_taken_over
            waiting.delivered.setdefault(0, RangeSet()).add_ranges(done)
        is_clean = not recovery.crashed
        engine, self.has_whole_engine = open_engine(
            self._disk, self.config.timer, waiting.recovered_marks, is_clean=is_clean
        )
        timers = TimerService(
            self.store,
            engine,
            levels,
            ClockGuard(self.clock, self.config.clock.max_step, self._disk),
            self.config.timer,
            renewal_window_ms=load_renewal_window_ms(self._disk, self.config.store.retention),
            marks=waiting.recovered_marks,
            is_engine_whole=self.has_whole_engine,
            place_of=self._place_of,
            on_delivered=self.waiting.touch,
        )
        timers.pending.update(waiting.scheduled)
        timers.pending.subtract(waiting.finished)
        if not recovery.had_checkpoint:
            timers.pending.update(self._count_far())
        return timers

    def _count_far(self) -> Counter[str]:
        """How many timers wait for each topic whose records have left the log. Without a checkpoint only names tell."""
        queue = self.store.queues.find(TIMER_TOPIC, 0)
        delivered = self.store.waiting.delivered.get(0, RangeSet())
        waiting = self.far_names.waiting(queue.min_offset if queue else 0, delivered_until_ms(self._disk))
        return Counter(topic for topic, entry in waiting if entry not in delivered)

    def _next_timer_name(self) -> str:
        """A unique key for a timer that came without one: no record has the next offset, so no name has it yet."""
        queue = self.store.queues.find(TIMER_TOPIC, 0)
        self._names_given += 1
        return f"{self.store.store_id[:16]}{queue.next_offset if queue else 0:014X}{self._names_given % 65_536:04X}"

    def _take_over_delay_offsets(self) -> None:
        """Without a checkpoint RocketMQ's file says what was delivered; beyond it the log's own deliveries count."""
        table = load_table(self._disk, DELAY_OFFSETS_PATH, DelayOffsetTable, self.troubles)
        for level, offset in table.offsets.items():
            queue = self.store.queues.find(SCHEDULE_TOPIC, level - 1)
            if queue is not None and 1 <= level <= MAX_LEVELS:
                delivered = self.store.waiting.delivered.setdefault(level, RangeSet())
                delivered.forget_below(max(queue.min_offset, min(offset, queue.next_offset)))

    # Sending

    def send(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        properties: str,
        born_timestamp_ms: int,
        born_host: bytes,
        flag: int = 0,
        sysflag: int = 0,
        reconsume_times: int = 0,
        default_topic: str = "",
        default_queues: int = 8,
        *,
        is_retry: bool = False,
    ) -> Sent:
        """Store one message. A retry was accepted once: it is refused for want of space at the last mark only."""
        topic_config = self.topics.open.get(topic) if self._refusal is None else None
        if topic_config is None:
            topic_config = self.writable_topic(topic, default_topic, default_queues, is_retry=is_retry, by=born_host)
        if len(body) > self._max_message and not is_retry:
            raise self.too_long(len(body))
        if not 0 <= queue_id < topic_config.write_queues:
            queue_id = self._choose_queue(topic_config, queue_id)
        wait, now_ms, real_topic, real_queue_id = Wait.NOT, 0, topic, queue_id
        # All properties that need a closer look hold one of these; hardly any other message does.
        needs_look = "DEL" in properties or "TIMER_" in properties or OWN_PREFIX in properties
        if not is_retry:  # those have it from the first time
            properties = with_stamp(properties, self.stamp)
        if needs_look:
            now_ms = self.clock.now_ms()  # also the store time, from which a level's due time counts
            place = self.admission.admit(topic, queue_id, properties, now_ms)
            topic, queue_id, properties, wait = place[:4]
            if wait >= Wait.TIMER:
                self._check_timer(place, sysflag)
                now_ms = self.store.writer.not_before_last(TIMER_TOPIC, now_ms)
            if wait == Wait.CANCEL:
                draft = Draft(
                    topic, queue_id, body, b"", born_timestamp_ms, born_host, flag,
                    sysflag & SYSFLAG_FROM_SENDER, reconsume_times,
                )  # fmt: skip
                return self._send_cancel(place, real_topic, real_queue_id, draft, now_ms)
        # The checks of `admit_properties`, which is called only to say what is wrong: 0.2 µs saved.
        encoded = properties.encode()
        if sysflag & SYSFLAG_TRANSACTION_MASK or "\0" in properties or len(encoded) > MAX_PROPERTIES_BYTES:
            encoded = self.admit_properties(properties, sysflag)
        if wait and len(body) + len(encoded) > self.max_waiting:
            raise self._too_long_to_wait(len(body) + len(encoded))
        if wait:
            self.store.queues.hold(real_topic, real_queue_id)
        at, queue_offset, end_offset = self.store.writer.append(
            topic,
            queue_id,
            body,
            encoded,
            born_timestamp_ms,
            born_host,
            flag,
            sysflag & SYSFLAG_FROM_SENDER,
            reconsume_times,
            now_ms,
        )
        handle = ""
        if wait:
            self._note_waiting(place, real_topic, queue_offset)
            if wait == Wait.TIMER and not is_retry:
                handle = self.recall_handle(real_topic, properties)
        elif (topic, queue_id) in self.waiting.by_queue:
            self.waiting.touch(topic, queue_id)
        self.traffic.messages_in += 1
        return f"{self._message_id_prefix}{at:016X}", real_queue_id, queue_offset, end_offset, handle

    def _send_cancel(self, place: Admitted, topic: str, queue_id: int, draft: Draft, now_ms: int) -> Sent:
        """Store RocketMQ's own cancel, of the first name that it can mean and that anything is known of."""
        name, toll = self.pending.pending_under(meanings(decode_properties(place.properties)[TIMER_DELETE_KEY], topic))
        properties = cancel_properties(place.properties, name, is_effective=toll.timers > 0)
        self._check_timer_properties(properties)
        draft = draft._replace(properties=self.admit_properties(properties, 0))
        (appended,) = self.store.writer.append_all([draft], now_ms)
        self.pending.act(appended.queue_offset, appended.end_offset, toll)
        self.timers.tallies.cancelled += toll.timers
        self.timers.note_timer()
        self.traffic.messages_in += 1
        message_id = f"{self._message_id_prefix}{appended.physical_offset:016X}"
        return message_id, queue_id, appended.queue_offset, appended.end_offset, ""

    def _check_timer(self, place: Admitted, sysflag: int) -> None:
        """Refuse a timer or a cancel that cannot be taken."""
        if sysflag & SYSFLAG_TRANSACTION_MASK:
            raise IllegalMessage(
                "a transaction message cannot wait for a timer", hint="Send the timer when the transaction is done"
            )
        self._check_timer_properties(place.properties)
        if place.wait == Wait.TIMER:
            self.timers.limits.check(place.due_ms, self.chance())

    def _check_timer_properties(self, encoded: str) -> None:
        if len(encoded.encode()) > MAX_TIMER_PROPERTIES_BYTES:
            raise IllegalMessage(
                f"the properties of a timer may take {MAX_TIMER_PROPERTIES_BYTES} bytes, these take more",
                hint="Move large values into the body",
            )

    def _note_waiting(self, place: Admitted, topic: str, entry: int) -> None:
        """A message was stored that waits, as this entry; told in the order of entries."""
        if place.wait == Wait.LEVEL:
            self.timers.note_level(place.level, place.due_ms, entry)
            return
        self.timers.note_timer()
        self.timers.pending[topic] += 1

    def timer_room(self, now_ms: int) -> int:
        """How many ordinary timers can be stored now in a row; 0 where each of them needs a closer look."""
        if self.store.writer.not_before_last(TIMER_TOPIC, now_ms) != now_ms:
            return 0
        return self.timers.limits.unchecked_room()

    def note_timers(self, topics: Iterable[str]) -> None:
        """Timers were stored that are for these topics."""
        self.timers.note_timer()
        for topic in topics:
            self.timers.pending[topic] += 1

    def recall_handle(self, topic: str, properties: str) -> str:
        """What a sender needs to recall the timer with these properties."""
        known = decode_properties(properties)
        return self.handle_of(topic, int(known[TIMER_OUT_MS]), known[UNIQUE_KEY])

    def handle_of(self, topic: str, rounded_ms: int, unique_key: str) -> str:
        """The same where name and time are known."""
        return encode_recall_handle(topic, self.config.broker.name, rounded_ms + 1, unique_key)

    def send_batch(
        self,
        topic: str,
        queue_id: int,
        data: bytes,
        born_timestamp_ms: int,
        born_host: bytes,
        *,
        sysflag: int = 0,
        reconsume_times: int = 0,
        default_topic: str = "",
        default_queues: int = 8,
    ) -> Sent:
        """Store all messages of a batch body, or none; those with a delay wait, the others are there at once.

        The queue offset is that of the first message that does not wait, or of the first record where all do.
        """
        topic_config = self.writable_topic(topic, default_topic, default_queues, by=born_host)
        if len(data) > self._max_message:
            raise self.too_long(len(data))
        if not 0 <= queue_id < topic_config.write_queues:
            queue_id = self._choose_queue(topic_config, queue_id)
        now_ms = self.clock.now_ms()
        batch = BatchAdmission(
            self.admission,
            topic,
            queue_id,
            now_ms,
            check=lambda place, body: self._admit_member(place, body, sysflag),
            check_room=None if self.timers.limits.unchecked_room() > 0 else self._check_room,
            max_messages=self.config.broker.max_batch_messages,
            max_timer_properties=MAX_TIMER_PROPERTIES_BYTES,
            max_waiting=self.max_waiting,
            is_plain=not sysflag & SYSFLAG_TRANSACTION_MASK,
        ).admit(data)
        rows = batch.rows
        check_keys(data, rows.properties, self.config.broker.max_batch_keys)
        self.store.queues.hold(topic, queue_id)
        sender = Sender(born_timestamp_ms, born_host, self.store_host, sysflag & SYSFLAG_FROM_SENDER, reconsume_times)
        offsets = append_batch(self.store.writer, rows, sender, now_ms)
        first_offsets = {
            queue: self.store.queues.ensure(*queue).next_offset - rows.queue_of.count(number)
            for number, queue in enumerate(rows.queues)
        }
        if batch.levels:
            entries = {queue: count(offset) for queue, offset in first_offsets.items()}
            for level, due_ms in batch.levels:
                self.timers.note_level(level, due_ms, next(entries[SCHEDULE_TOPIC, level - 1]))
        if batch.timers:
            self.timers.note_timer()
            self.timers.pending[topic] += batch.timers
        if (topic, queue_id) in first_offsets:
            self.waiting.touch(topic, queue_id)
        self.traffic.messages_in += len(offsets)
        first = first_offsets.get((topic, queue_id), first_offsets[rows.queues[0]])
        ids = ",".join([f"{self._message_id_prefix}{at:016X}" for at in offsets])
        return ids, queue_id, first, self.store.log.end, ""

    def _admit_member(self, place: Admitted, body: bytes, sysflag: int) -> bytes:
        """The properties of a message of a batch, which goes to this place; refused where it cannot be taken."""
        if place.wait == Wait.CANCEL:
            raise IllegalMessage("it cancels a timer, which a batch cannot", hint="Send it by itself")
        if place.wait == Wait.TIMER:
            self._check_timer(place, sysflag)
        properties = self.admit_properties(place.properties, sysflag)
        if place.wait and len(body) + len(properties) > self.max_waiting:
            raise self._too_long_to_wait(len(body) + len(properties))
        return properties

    def _check_room(self, due_ms: int) -> None:
        self.timers.limits.check(due_ms, self.chance())

    def writable_topic(
        self, topic: str, default_topic: str, default_queues: int, *, is_retry: bool = False, by: bytes = b""
    ) -> Topic:
        """The topic of a message, made for the host `by` where it is missing; saved, and open to the send lane."""
        refusal = self._retry_refusal if is_retry else self._refusal
        if refusal is not None:
            raise refusal
        config = self.topics.for_send(topic, default_topic, default_queues, by)
        if not self.topics.is_saved(topic):
            # A message that waits for a topic which a crash forgot could not be delivered: the topic is saved first.
            self.save_topic()
        self.topics.open[topic] = config
        return config

    def make_retry_topic(self, topic: str, queues: int, by: bytes) -> None:
        """A group's retry or dead-letter topic, made where it is missing; refused where nothing may be put into it."""
        self.topics.make_retry(topic, queues, by)
        self.writable_topic(topic, "", queues, is_retry=True)

    def admit_properties(self, properties: str, sysflag: int) -> bytes:
        """The properties as bytes, if a message may have them."""
        if sysflag & SYSFLAG_TRANSACTION_MASK:
            raise NoPermission("transaction messages are not taken", hint="Send a normal message")
        if "\0" in properties:
            raise IllegalMessage("a property holds a zero byte", hint="Encode binary values, for example as base64")
        try:
            encoded = properties.encode()
        except UnicodeEncodeError:
            raise IllegalMessage("a property is no valid Unicode text") from None
        if len(encoded) > MAX_PROPERTIES_BYTES:
            raise IllegalMessage(
                f"the properties take {len(encoded)} bytes, the limit is {MAX_PROPERTIES_BYTES}",
                hint="Move large values into the body",
            )
        return encoded

    def too_long(self, size: int) -> IllegalMessage:
        """The error of a body that is longer than one may be."""
        return IllegalMessage(
            f"the body has {size} bytes, the limit is {self._max_message}",
            hint="Send less, or raise broker.max_message",
        )

    def _too_long_to_wait(self, size: int) -> IllegalMessage:
        return IllegalMessage(
            f"body and properties take {size} bytes: what waits and takes more than {self.max_waiting} "
            "does not fit a segment when it is delivered",
            hint="Send less, or raise store.segment",
        )

    def _choose_queue(self, topic: Topic, queue_id: int) -> int:
        """A queue for a sender that leaves the choice to the broker (a negative id)."""
        if 0 <= queue_id < topic.read_queues:
            return queue_id  # one that is being given up: still read, so still taken
        if queue_id >= 0:
            raise InvalidParameter(
                f"topic {topic.name!r} has {topic.write_queues} queues to write to, none with the id {queue_id}",
                hint="Ask the name server for its route again",
            )
        self._next_queue += 1
        return self._next_queue % topic.write_queues

    # Topics and groups

    def delete_topic(self, topic: str) -> list[Callable[[], None]]:
        """Forget a topic, its queues and all offsets in it; what is returned does so on disk, like `Tables.savers`."""
        self.topics.check_removable(topic)
        remove_files = self.store.remove_topic(topic)  # first: the disk may be full
        self.topics.remove(topic)
        self.offsets.remove_topic(topic)
        self.topics.leaving.add(topic)

        def remove() -> None:
            try:
                remove_files()
            finally:
                self.topics.leaving.discard(topic)

        return [remove, *self.tables.savers()]

    def delete_group(self, group: str, *, clean_offsets: bool) -> None:
        """Forget a group's configuration, and on request its offsets."""
        self.groups.remove(group)
        if clean_offsets:
            self.offsets.remove_group(group)

    # Upkeep, called from time to time

    def _delay_marks(self) -> dict[int, int]:
        return self.timers.level_marks()

    def run_timers(self) -> int:
        """Deliver what is due; how many milliseconds may pass until the next call."""
        wait_ms = self.timers.run()
        self.settle()
        return wait_ms

    def settle(self) -> None:
        """Wake the pulls that wait for what was appended."""
        self.waiting.wake()

    def sample_traffic(self) -> None:
        """Remember the counters that rates are told from; call it about once a second."""
        now_s = self.clock.monotonic_s()
        self.traffic.sample(now_s)
        self.timer_traffic.messages_in = self.timers.intake.rows
        self.timer_traffic.messages_out = self.timers.settled.delivered_rows
        self.timer_traffic.sample(now_s)

    def expire_clients(self) -> set[str]:
        """Forget clients that sent no heartbeat; the consumer groups that changed."""
        self.locks.expire()
        return self.members.expire(self.client_clock.monotonic_s() - self.config.broker.client_timeout / 1000)

    def check_disk(self) -> None:
        """Stop or resume taking messages as the disk fills and empties."""
        used = self.store.used_ratio()
        high, full = self.config.store.disk_high, self.config.store.disk_full
        self._refusal = self._retry_refusal = None
        if used > high:
            self._refusal = ServiceUnavailable(
                f"the disk is {used:.0%} full, new messages are refused above {high:.0%}",
                hint="Free disk space, shorten store.retention or raise store.disk_high",
            )
        if used > full:
            self._retry_refusal = ServiceUnavailable(
                f"the disk is {used:.0%} full, retries are refused above {full:.0%}",
                hint="Free disk space; the message stays with its consumer until then",
            )

    def check_changeable(self) -> None:
        """Refuse to cancel or move a timer while not even a retry would be taken."""
        if self._retry_refusal is not None:
            raise self._retry_refusal

    @property
    def takes_messages(self) -> bool:
        """Whether new messages are stored at present."""
        return self._refusal is None

    def refuse(self, reason: str) -> None:
        """Take no more messages: the broker is stopping."""
        self._refusal = ServiceUnavailable(reason, hint="Send to another broker, or again in a moment")
        self._retry_refusal = self._refusal

    def close(self) -> None:
        """Stop cleanly."""
        self.store.save(self.store.plan_checkpoint())  # first: tables tell of nothing that it does not
        self.tables.save()
        self.store.close()
        self.timers.engine.close()
        self.far_names.close()

    def statistics(self) -> dict[str, int]:
        """Sizes of everything that could grow."""
        return {
            **self.store.statistics(),
            **self.groups.statistics(),
            **self.members.statistics(),
            **self.offsets.statistics(),
            **self.locks.statistics(),
            **self.filters.statistics(),
            **self.reader.statistics(),
            **self.waiting.statistics(),
            **self.notices.statistics(),
            **self.timers.statistics(),
            **self.topic_traffic.statistics(),
            "topics": len(self.topics.table.topics),
            "config_files_set_aside": sum(bool(trouble.kept_as) for trouble in self.troubles),
            **self.topics.auto_created.statistics(),
            **self.groups.auto_created.statistics(),
            "host_auto_created": max(self.topics.auto_created.most, self.groups.auto_created.most),
        }
