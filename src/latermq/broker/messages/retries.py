"""Retries and dead letters of messages that a consumer failed to handle."""

from latermq.broker.messages.writer import MessageWriter, Sent
from latermq.broker.tables.writable_topics import WritableTopics
from latermq.errors import MessageNotFound
from latermq.group.locks import QueueLocks
from latermq.group.retry_backoff import next_wait
from latermq.group.subscriptions import SubscriptionGroups
from latermq.message.entry_id import MAX_LEVELS
from latermq.message.ids import pack_host
from latermq.message.names import RETRY_PREFIX, dead_letter_topic, retry_topic
from latermq.message.properties import (
    DEAD_LETTER_REASON,
    DELAY_LEVEL,
    MAX_PROPERTIES_BYTES,
    ORIGIN_MESSAGE_ID,
    RETRY_TOPIC,
    WAIT_STORE_OK,
    decode_properties,
    encode_properties,
    without_scheduling,
)
from latermq.message.record import Message
from latermq.message.record_fields import SYSFLAG_FROM_SENDER
from latermq.model.group import Group
from latermq.model.retry import RetryMessage, SendBack
from latermq.store.log_reader import LogReader

DEAD_LETTER_QUEUES = 1
ANY_QUEUE = -1


class Retries:
    """Appends failed messages to the retry topic of their group, or to its dead letters."""

    def __init__(
        self,
        log_reader: LogReader,
        groups: SubscriptionGroups,
        locks: QueueLocks,
        topics: WritableTopics,
        writer: MessageWriter,
    ) -> None:
        self._log_reader = log_reader
        self._groups = groups
        self._locks = locks
        self._topics = topics
        self._writer = writer

    def send_back(self, request: SendBack, by: bytes = b"") -> int:
        """Retry a message that a consumer failed on; return the new end of the log, 0 if the group has no retries."""
        group = self._groups.require(request.group, by)
        if group.retry_queues <= 0:
            return 0
        topic = retry_topic(group.name)
        # Before the look-up of the message, and for dead letters too: RocketMQ reports errors in this order.
        self._topics.create_retry_topic(topic, group.retry_queues, by)
        message = self._log_reader.read_message(request.physical_offset)
        if message is None:
            raise MessageNotFound(
                f"no message begins at {request.physical_offset} of the log",
                hint="It may have expired; send it again from its source",
            )
        properties = without_scheduling(message.properties)
        properties.setdefault(RETRY_TOPIC, message.topic)
        if not properties.get(ORIGIN_MESSAGE_ID, "").strip():
            properties[ORIGIN_MESSAGE_ID] = message.message_id
        properties[WAIT_STORE_OK] = "false"
        limit = _limit(group, request.max_retries)
        if request.delay_level < 0:
            return self._dead_letter(group, message, properties, "its consumer gave up on it", by=by)[3]
        if message.reconsume_times >= limit:
            reason = _failed_too_often(message.failures, limit)
            return self._dead_letter(group, message, properties, reason, by=by)[3]
        name, wait = next_wait(group, message.failures - 1)
        if request.delay_level:
            name, wait = DELAY_LEVEL, str(min(request.delay_level, MAX_LEVELS))
        properties[name] = wait
        return self._writer.send(
            topic,
            ANY_QUEUE,
            message.body,
            encode_properties(properties),
            message.born_timestamp_ms,
            pack_host(*message.born_host),
            message.flag,
            message.sysflag & SYSFLAG_FROM_SENDER,
            message.failures,
            is_retry=True,
        )[3]

    def send(self, request: RetryMessage, body: bytes, born_host: bytes) -> Sent:
        """Store a message that a client sends to a retry topic itself.

        Clients do so after a failed send-back, and after the last attempt of an orderly consumer. A group whose
        members hold queue locks consumes in order: its messages arrive here after all their attempts.
        """
        group = self._groups.require(request.topic.removeprefix(RETRY_PREFIX), born_host)
        limit = _limit(group, request.max_retries)
        in_order = self._locks.is_held(group.name)
        self._writer.limits.check_body(len(body))
        if in_order or request.reconsume_times > limit:
            # A client counts the next attempt. A message without a next attempt has failed this many times.
            too_often = _failed_too_often(request.reconsume_times, limit)
            reason = (
                too_often if request.reconsume_times > limit else "its consumer, which consumes in order, gave up on it"
            )
            message = Message(
                request.topic,
                body,
                flag=request.flag,
                sysflag=request.sysflag,
                born_timestamp_ms=request.born_timestamp_ms,
                reconsume_times=request.reconsume_times - 1,
            )
            properties = without_scheduling(decode_properties(request.properties))
            return self._dead_letter(group, message, properties, reason, by=born_host, born_host=born_host)
        is_retry = request.reconsume_times > 0
        return self._writer.send(
            request.topic,
            request.queue_id,
            body,
            _with_level_only(request.properties) if is_retry else request.properties,
            request.born_timestamp_ms,
            born_host,
            request.flag,
            request.sysflag,
            request.reconsume_times,
            request.default_topic,
            request.default_queues,
            is_retry=is_retry,
        )

    def _dead_letter(
        self,
        group: Group,
        message: Message,
        properties: dict[str, str],
        reason: str,
        *,
        by: bytes,
        born_host: bytes | None = None,
    ) -> Sent:
        """Append a message to its group's dead letters, with one more failure and the reason."""
        sysflag = message.sysflag & SYSFLAG_FROM_SENDER
        encoded = self._writer.limits.encode_properties(encode_properties(properties), sysflag)
        with_reason = encoded + encode_properties({DEAD_LETTER_REASON: reason}).encode()
        if len(with_reason) <= MAX_PROPERTIES_BYTES:
            encoded = with_reason  # otherwise the dead letter has no reason, which is better than losing it
        topic = dead_letter_topic(group.name)
        self._topics.create_retry_topic(topic, DEAD_LETTER_QUEUES, by)
        return self._writer.append_admitted(
            topic,
            0,
            message.body,
            encoded,
            message.born_timestamp_ms,
            pack_host(*message.born_host) if born_host is None else born_host,
            message.flag,
            sysflag,
            message.failures,
        )


def _limit(group: Group, requested: int | None) -> int:
    """How many retries a message of the group gets."""
    return group.max_retries if requested is None else requested


def _failed_too_often(failures: int, limit: int) -> str:
    return f"attempt {failures} failed, the limit is {limit} retries"


def _with_level_only(encoded: str) -> str:
    """The properties of a retry without those of an earlier delay. The level stays: it is the delay of this retry."""
    received = decode_properties(encoded)
    properties = without_scheduling(received)
    if DELAY_LEVEL in received:
        properties[DELAY_LEVEL] = received[DELAY_LEVEL]
    return encode_properties(properties)
