"""Stores messages: single sends, batches, runs of the send lane, bulk timers. Turns delays into levels and timers."""

from collections.abc import Callable, Iterable
from itertools import count

from latermq.broker.messages.batch_admission import BatchAdmission, check_keys
from latermq.broker.messages.limits import MAX_TIMER_PROPERTIES_BYTES, MessageLimits
from latermq.broker.messages.long_polling import WaitingPulls
from latermq.broker.metrics.traffic import Traffic
from latermq.broker.tables.writable_topics import WritableTopics
from latermq.broker.timers.pending import PendingTimers, with_takes
from latermq.clock import Clock
from latermq.config import BrokerConfig
from latermq.errors import IllegalMessage, InvalidParameter
from latermq.message.half import is_half
from latermq.message.names import SCHEDULE_TOPIC, TIMER_TOPIC
from latermq.message.properties import (
    MAX_PROPERTIES_BYTES,
    OWN_PREFIX,
    TIMER_DELETE_KEY,
    TRANSACTION_PREPARED,
    UNIQUE_KEY,
    decode_properties,
    encode_properties,
    with_stamp,
)
from latermq.message.recall_handle import encode_recall_handle
from latermq.message.record_fields import SYSFLAG_ABRIDGED, SYSFLAG_FROM_SENDER, SYSFLAG_TRANSACTION_MASK
from latermq.message.slots import slot_of
from latermq.message.stamp import Stamp
from latermq.message.timer_name import meanings
from latermq.model.topic import Topic
from latermq.store.batch_block import Sender, append_batch
from latermq.store.block import Block
from latermq.store.log_writer import Draft, LogWriter, PlainMessage
from latermq.timer.admission import Admission, Admitted, Wait, cancel_properties
from latermq.timer.service import TimerService

# Where a sent message, or the first of a batch, was stored: message id, queue id, queue offset, end offset in the log,
# and the handle that recalls a timer. A plain tuple, because building a named one costs a send 0.25 µs twice.
Sent = tuple[str, int, int, int, str]


class MessageWriter:
    """Admits messages, appends them, and notifies deliveries and waiting pulls."""

    def __init__(
        self,
        log_writer: LogWriter,
        topics: WritableTopics,
        limits: MessageLimits,
        admission: Admission,
        timers: TimerService,
        pending: PendingTimers,
        waiting_pulls: WaitingPulls,
        traffic: Traffic,
        clock: Clock,
        settings: BrokerConfig,
        stamp: Stamp,
        *,
        store_host: bytes,
        random_fraction: Callable[[], float],
    ) -> None:
        """`random_fraction` returns numbers from 0 to 1, which select the timers of a full second to refuse."""
        self._log_writer = log_writer
        self._queues = log_writer.queues
        self._topics = topics
        self._gate = topics.gate
        self._open_topics = topics.open
        self.limits = limits
        self._max_body, self._max_waiting = limits.max_body, limits.max_waiting
        self._admission = admission
        self._timers = timers
        self._pending = pending
        self._waiting_pulls = waiting_pulls
        self._traffic = traffic
        self._now_ms = clock.now_ms
        self._settings = settings
        self._store_host = store_host
        self._random_fraction = random_fraction
        self.message_id_prefix = store_host.hex().upper()
        self.stamp = stamp
        self._stamp_text = stamp.text
        self._next_queue = 0

    # Single messages

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
        """Store one message. A retry was accepted once before: a filling disk refuses it later than new messages."""
        topic_config = self._open_topics.get(topic) if self._gate.refusal is None else None
        if topic_config is None:
            topic_config = self._topics.find(topic, default_topic, default_queues, is_retry=is_retry, by=born_host)
        if len(body) > self._max_body and not is_retry:
            self.limits.check_body(len(body))
        if not 0 <= queue_id < topic_config.write_queues:
            queue_id = self.choose_queue(topic_config, queue_id)
        wait, now_ms, real_topic, real_queue_id = Wait.NONE, 0, topic, queue_id
        # All properties that need admission contain one of these; few other messages do.
        needs_admission = "DEL" in properties or "TIMER_" in properties or OWN_PREFIX in properties
        is_abridged = False
        if needs_admission:
            now_ms = self._now_ms()  # also the store time, from which a level's due time counts
            place = self._admission.admit(topic, queue_id, properties, now_ms, is_abridged=not is_retry)
            topic, queue_id, properties, wait = place[:4]
            is_abridged = wait == Wait.TIMER and not is_retry
            if wait >= Wait.TIMER:
                self._check_timer(place, sysflag, self.stamp.most_bytes if is_abridged else 0)
                now_ms = self._log_writer.monotonic_store_ms(TIMER_TOPIC, now_ms)
            if wait == Wait.CANCEL:
                draft = Draft(
                    topic, queue_id, body, b"", born_timestamp_ms, born_host, flag,
                    sysflag & SYSFLAG_FROM_SENDER, reconsume_times,
                )  # fmt: skip
                return self._send_cancel(place, real_topic, real_queue_id, draft, now_ms)
        if not is_retry and not is_abridged:  # a retry has the stamp from its first send
            properties = with_stamp(properties, self._stamp_text)
        # The same checks as in `encode_properties`, which is called only to name the error: this saves 0.2 µs.
        encoded = properties.encode()
        if sysflag & SYSFLAG_TRANSACTION_MASK or "\0" in properties or len(encoded) > MAX_PROPERTIES_BYTES:
            encoded = self.limits.encode_properties(properties, sysflag)
        if wait:
            if len(body) + len(encoded) > self._max_waiting:
                self.limits.check_waiting(len(body) + len(encoded))
            self._queues.hold(real_topic, real_queue_id)
        at, queue_offset, end_offset = self._log_writer.append(
            topic,
            queue_id,
            body,
            encoded,
            born_timestamp_ms,
            born_host,
            flag,
            sysflag & SYSFLAG_FROM_SENDER | (SYSFLAG_ABRIDGED if is_abridged else 0),
            reconsume_times,
            now_ms,
        )
        handle = ""
        if wait:
            self._note_waiting(place, real_topic, queue_offset)
            if wait == Wait.TIMER and not is_retry:
                unique_key = decode_properties(properties)[UNIQUE_KEY]
                handle = self.recall_handle(real_topic, slot_of(place.due_ms), unique_key)
        elif (topic, queue_id) in self._waiting_pulls.by_queue or topic in self._waiting_pulls.other_topics:
            self._waiting_pulls.mark_ready(topic, queue_id)
        self._traffic.messages_in += 1
        return f"{self.message_id_prefix}{at:016X}", real_queue_id, queue_offset, end_offset, handle

    def append_admitted(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        encoded: bytes,
        born_timestamp_ms: int,
        born_host: bytes,
        flag: int,
        sysflag: int,
        reconsume_times: int,
    ) -> Sent:
        """Store a message that the caller has admitted and that does not wait, such as a dead letter."""
        at, queue_offset, end_offset = self._log_writer.append(
            topic, queue_id, body, encoded, born_timestamp_ms, born_host, flag, sysflag, reconsume_times
        )
        self._waiting_pulls.mark_ready(topic, queue_id)
        self._traffic.messages_in += 1
        return f"{self.message_id_prefix}{at:016X}", queue_id, queue_offset, end_offset, ""

    # Final messages of transactions

    def next_key(self) -> str:
        """Return a unique key for a message that has none."""
        return self._admission.next_name()

    def admit_final(self, topic: str, queue_id: int, properties: dict[str, str], now_ms: int) -> tuple[Admitted, bytes]:
        """Return where the final message of a transaction would be stored now, and its encoded properties.

        The number of timers that may be due in one second does not limit it: the broker has accepted it.
        """
        place = self._admission.admit(topic, queue_id, encode_properties(properties), now_ms)
        if place.wait == Wait.CANCEL:
            raise IllegalMessage("a cancel cannot be part of a transaction", hint="Send it as a normal message")
        if place.wait == Wait.TIMER:
            self.limits.check_timer(place.properties, 0)
        return place, self.limits.encode_properties(place.properties, 0)

    def note_final(self, place: Admitted, topic: str, queue_offset: int) -> None:
        """Report a final message that was stored as admitted."""
        if place.wait:
            self._note_waiting(place, topic, queue_offset)
        else:
            self._waiting_pulls.mark_ready(place.topic, place.queue_id)
        self._traffic.messages_in += 1

    def _send_cancel(self, place: Admitted, topic: str, queue_id: int, draft: Draft, now_ms: int) -> Sent:
        """Store RocketMQ's own cancel message, under the first of its possible names that has timers."""
        name, effect = self._pending.plan_cancel(meanings(decode_properties(place.properties)[TIMER_DELETE_KEY], topic))
        properties = cancel_properties(place.properties, name, is_effective=effect.timer_count > 0)
        properties = with_takes(properties, effect.takes, MAX_TIMER_PROPERTIES_BYTES)
        self.limits.check_timer(properties, 0)
        draft = draft._replace(properties=self.limits.encode_properties(properties, 0))
        (appended,) = self._log_writer.append_all([draft], now_ms)
        self._pending.apply(appended.queue_offset, appended.end_offset, effect)
        self._timers.tallies.cancelled += effect.timer_count
        self._timers.note_timer()
        self._traffic.messages_in += 1
        message_id = f"{self.message_id_prefix}{appended.physical_offset:016X}"
        return message_id, queue_id, appended.queue_offset, appended.end_offset, ""

    def _check_timer(self, place: Admitted, sysflag: int, left_out_bytes: int = 0) -> None:
        """Refuse a timer or a cancel that cannot be stored."""
        self.limits.check_timer(place.properties, sysflag, left_out_bytes)
        if place.wait == Wait.TIMER:
            self._check_room(place.due_ms)

    def _check_room(self, due_ms: int) -> None:
        self._timers.limits.check(due_ms, self._random_fraction())

    def _note_waiting(self, place: Admitted, topic: str, entry: int) -> None:
        """Report a waiting message that was stored as this entry, in the order of entries."""
        if place.wait == Wait.LEVEL:
            self._timers.note_level(place.level, place.due_ms, entry)
            return
        self._timers.note_timer()
        self._timers.pending[topic] += 1

    def choose_queue(self, topic: Topic, queue_id: int) -> int:
        """Return the queue, or choose one for a sender that leaves the choice to the broker with a negative id."""
        if 0 <= queue_id < max(topic.read_queues, topic.write_queues):
            return queue_id  # if the topic shrinks, this queue may only be read, but it still accepts messages
        if queue_id >= 0:
            raise InvalidParameter(
                f"topic {topic.name!r} has {topic.write_queues} queues to write to, none with the id {queue_id}",
                hint="Fetch the route of the topic again",
            )
        self._next_queue += 1
        return self._next_queue % topic.write_queues

    def recall_handle(self, topic: str, rounded_ms: int, unique_key: str) -> str:
        """The handle with which a sender recalls the timer of this name and time."""
        return encode_recall_handle(topic, self._settings.name, rounded_ms + 1, unique_key)

    # Batches

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
        """Store all messages of a batch body, or none; those with a delay wait, the others are visible at once.

        The queue offset is that of the first message that does not wait, or of the first record if all of them do.
        """
        topic_config = self._topics.find(topic, default_topic, default_queues, by=born_host)
        self.limits.check_body(len(data))
        if not 0 <= queue_id < topic_config.write_queues:
            queue_id = self.choose_queue(topic_config, queue_id)
        now_ms = self._now_ms()
        batch = BatchAdmission(
            self._admission,
            topic,
            queue_id,
            now_ms,
            check=lambda place, body: self._admit_member(place, body, sysflag),
            check_room=None if self._timers.limits.unchecked_room() > 0 else self._check_room,
            max_messages=self._settings.max_batch_messages,
            max_timer_properties=MAX_TIMER_PROPERTIES_BYTES,
            max_waiting=self._max_waiting,
            is_plain=not sysflag & SYSFLAG_TRANSACTION_MASK and TRANSACTION_PREPARED.encode() not in data,
        ).admit(data)
        rows = batch.rows
        check_keys(data, rows.properties, self._settings.max_batch_keys)
        self._queues.hold(topic, queue_id)
        sender = Sender(born_timestamp_ms, born_host, self._store_host, sysflag & SYSFLAG_FROM_SENDER, reconsume_times)
        offsets = append_batch(self._log_writer, rows, sender, now_ms)
        first_offsets = {
            queue: self._queues.ensure(*queue).next_offset - rows.queue_of.count(number)
            for number, queue in enumerate(rows.queues)
        }
        if batch.levels:
            entries = {queue: count(offset) for queue, offset in first_offsets.items()}
            for level, due_ms in batch.levels:
                self._timers.note_level(level, due_ms, next(entries[SCHEDULE_TOPIC, level - 1]))
        if batch.timers:
            self._timers.note_timer()
            self._timers.pending[topic] += batch.timers
        if (topic, queue_id) in first_offsets:
            self._waiting_pulls.mark_ready(topic, queue_id)
        self._traffic.messages_in += len(offsets)
        first = first_offsets.get((topic, queue_id), first_offsets[rows.queues[0]])
        ids = ",".join([f"{self.message_id_prefix}{at:016X}" for at in offsets])
        return ids, queue_id, first, self._log_writer.log.end, ""

    def _admit_member(self, place: Admitted, body: bytes, sysflag: int) -> bytes:
        """The encoded properties of a message of a batch; raises an error if it cannot be stored at this place."""
        if place.wait == Wait.CANCEL:
            raise IllegalMessage("a batch cannot contain a cancel", hint="Send the cancel as a single message")
        if TRANSACTION_PREPARED in place.properties and is_half(0, place.properties):
            raise IllegalMessage("a batch cannot contain a half message", hint="Send it as a single message")
        if place.wait == Wait.TIMER:
            self._check_timer(place, sysflag)
        properties = self.limits.encode_properties(place.properties, sysflag)
        if place.wait:
            self.limits.check_waiting(len(body) + len(properties))
        return properties

    # Runs of the send lane

    def timer_room(self, now_ms: int) -> int:
        """How many ordinary timers can be stored now in a row; 0 if each of them needs a check."""
        if self._log_writer.monotonic_store_ms(TIMER_TOPIC, now_ms) != now_ms:
            return 0
        return self._timers.limits.unchecked_room()

    def append_run(
        self, run: list[PlainMessage], born_host: bytes, now_ms: int, timer_topics: dict[int, str] | None
    ) -> list[tuple[int, int]]:
        """Store messages that the lane has admitted; return physical and queue offset of each one that was stored.

        `timer_topics` are the real topics of the timers among them, by index in the run; None if there are none.
        """
        appended = self._log_writer.append_run(run, born_host, now_ms)
        count = len(appended)
        self._traffic.messages_in += count
        if timer_topics:
            self._timers.note_timer()
            pending = self._timers.pending
            for number, topic in timer_topics.items():
                if number < count:
                    pending[topic] += 1
        if self._waiting_pulls.by_queue or self._waiting_pulls.other_topics:
            for number, message in enumerate(run[:count]):
                if not timer_topics or number not in timer_topics:
                    self._waiting_pulls.mark_ready(message[0], message[1])
        return appended

    # Bulk scheduling

    @property
    def max_timer_block_bytes(self) -> int:
        """How long a block of timers may be: half a segment, so that little of a segment stays unused."""
        return self._log_writer.segment_bytes // 2

    def append_timers(self, block: Block, timers_by_topic: Iterable[tuple[str, int]]) -> None:
        """Store a block of timers that the caller has admitted, with their number per real topic."""
        self._log_writer.append_block(block)
        for topic, timers in timers_by_topic:
            self._timers.pending[topic] += timers
        self._traffic.messages_in += len(block.sizes)
        self._timers.note_timer()
