"""Stores half messages: checks them like any other message, and that they can be committed later."""

from typing import NamedTuple

from latermq.broker.messages.writer import MessageWriter
from latermq.broker.tables.writable_topics import WritableTopics
from latermq.clock import Clock
from latermq.errors import IllegalMessage
from latermq.group.members import MAX_NAME_CHARS
from latermq.group.transactions.half_topic import HalfTopic
from latermq.group.transactions.open_halves import OpenHalves
from latermq.message.half import final_properties
from latermq.message.names import HALF_TOPIC
from latermq.message.properties import (
    FIRST_HALF,
    OWN_PREFIX,
    PRODUCER_GROUP,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TIMER_OUT_MS,
    TIMER_ROLL_TIMES,
    TRANSACTION_CHECKS,
    TRANSACTION_ID,
    UNIQUE_KEY,
    decode_properties,
    encode_properties,
    with_stamp,
)
from latermq.message.record_fields import SYSFLAG_FROM_SENDER, SYSFLAG_PREPARED, SYSFLAG_TRANSACTION_MASK
from latermq.store.log_writer import Appended, LogWriter

_MAX_KEY_CHARS = 255  # unique keys of RocketMQ's clients have 32 or 34


class StoredHalf(NamedTuple):
    """The position of a half, and the key by which it can be ended."""

    message_id: str
    queue_id: int  # the one of its final message
    queue_offset: int
    end_offset: int
    unique_key: str


class HalfWriter:
    """Appends half messages to the half topic."""

    def __init__(
        self,
        log_writer: LogWriter,
        topics: WritableTopics,
        writer: MessageWriter,
        halves: OpenHalves,
        half_topic: HalfTopic,
        clock: Clock,
    ) -> None:
        self._log_writer = log_writer
        self._topics = topics
        self._writer = writer
        self._halves = halves
        self._half_topic = half_topic
        self._clock = clock

    def send(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        properties: str,
        born_timestamp_ms: int,
        born_host: bytes,
        flag: int = 0,
        sysflag: int = SYSFLAG_PREPARED,
        reconsume_times: int = 0,
        default_topic: str = "",
        default_queues: int = 8,
        *,
        producer_group: str = "",
    ) -> StoredHalf:
        """Store a half. Its final message is admitted now, too, so that only the disk can prevent a commit."""
        if sysflag & SYSFLAG_TRANSACTION_MASK not in (0, SYSFLAG_PREPARED):
            raise IllegalMessage("a producer cannot send a committed message", hint="Send a half, then commit it")
        config = self._topics.find(topic, default_topic, default_queues, by=born_host)
        self._writer.limits.check_body(len(body))
        queue_id = self._writer.choose_queue(config, queue_id)
        known = self._known(properties, producer_group)
        self._halves.check_room(known[UNIQUE_KEY])
        now_ms = self._clock.now_ms()
        _, final = self._writer.admit_final(topic, queue_id, final_properties(known), now_ms)
        known |= {REAL_TOPIC: topic, REAL_QUEUE_ID: str(queue_id)}
        encoded = self._writer.limits.encode_properties(encode_properties(known), 0)
        self._writer.limits.check_waiting(len(body) + max(len(encoded), len(final)))
        self._log_writer.queues.hold(topic, queue_id)
        appended = Appended(
            *self._log_writer.append(
                HALF_TOPIC,
                0,
                body,
                encoded,
                born_timestamp_ms,
                born_host,
                flag,
                sysflag & SYSFLAG_FROM_SENDER,
                reconsume_times,
                now_ms,
            )
        )
        self._half_topic.note_stored(appended, now_ms, encoded)
        message_id = f"{self._writer.message_id_prefix}{appended.physical_offset:016X}"
        return StoredHalf(message_id, queue_id, appended.queue_offset, appended.end_offset, known[UNIQUE_KEY])

    def _known(self, properties: str, producer_group: str) -> dict[str, str]:
        """Return the properties that a half keeps, with those that it needs."""
        known = decode_properties(with_stamp(properties, self._writer.stamp.text))
        for name in [name for name in known if name.startswith(OWN_PREFIX)]:
            del known[name]
        # Those that only brokers write. The last two would mark this half as the copy of an earlier one.
        for name in (TIMER_OUT_MS, TIMER_ROLL_TIMES, FIRST_HALF, TRANSACTION_CHECKS):
            known.pop(name, None)
        group = known.setdefault(PRODUCER_GROUP, producer_group)
        if not group:
            raise IllegalMessage("the half message names no producer group", hint=f"Set the property {PRODUCER_GROUP}")
        # A half keeps both in memory.
        for what, text, limit in (
            ("producer group", group, MAX_NAME_CHARS),
            ("unique key", known.get(UNIQUE_KEY, ""), _MAX_KEY_CHARS),
        ):
            if len(text) > limit:
                raise IllegalMessage(f"the {what} has {len(text)} characters; the limit is {limit}")
        if not known.get(UNIQUE_KEY):
            known[UNIQUE_KEY] = self._writer.next_key()
        return known | {TRANSACTION_ID: known[UNIQUE_KEY]}
