"""The send lane: a fast path for runs of plain messages and ordinary timers, which nearly all messages are.

A message is plain if its topic is ordinary and open, the topic has the message's queue, and the message has nothing
that the broker must inspect: no delay, no transaction, no batch. A timer is ordinary if it would be plain without its
time (`Admission.ordinary_timer`). The lane leaves every other message untouched for `MessageWriter.send`, including
those that must be refused: the lane only ever decides to accept. Both paths store the same bytes and reply with the
same bytes (tests/unit/broker/test_send_lane.py).

Measured in runs of 64 with 200-byte bodies, in µs per message: 8.9 on the normal path, 6.2 on this one. Of these 6.2,
frame and header take 1.9, the checks here 0.6, record and queue entry 1.9, the key index 0.9 and the reply 0.7. A timer
takes 63 µs on the normal path and 24 on this one (14 in a quiet period).
"""

from collections.abc import Callable
from typing import NamedTuple

from latermq.broker.messages.limits import MAX_TIMER_PROPERTIES_BYTES
from latermq.broker.messages.writer import MessageWriter
from latermq.broker.tables.writable_topics import WritableTopics
from latermq.clock import Clock
from latermq.message.names import TIMER_TOPIC
from latermq.message.properties import MAX_PROPERTIES_BYTES, OWN_PREFIX, TRANSACTION_PREPARED, with_stamp
from latermq.message.record_fields import SYSFLAG_ABRIDGED, SYSFLAG_FROM_SENDER, SYSFLAG_TRANSACTION_MASK
from latermq.message.slots import slot_of
from latermq.message.timer_code import TIMER, timer_code
from latermq.model.topic import Topic
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.frames import Command
from latermq.protocol.remoting.send import SendReplies, SendRequest
from latermq.server.remoting.connection import Connection
from latermq.server.remoting.endpoints import RequestTable
from latermq.store.log_writer import PlainMessage
from latermq.store.queues.queue_table import QueueTable
from latermq.timer.admission import Admission, OrdinaryTimer

# Retry and dead-letter topics start with it. Other topics may too; their messages then use the normal path.
_GROUP_TOPIC_SIGN = "%"
MESSAGES_PER_RUN = 64  # then other work has its turn: about 1 ms if all are timers


class _Timer(NamedTuple):
    """The data of a timer that its stored position does not show: its destination, due time and unique key."""

    topic: str
    queue_id: int
    due_ms: int
    unique_key: str


class SendLane:
    """The send lane of a broker with an IPv4 address and asynchronous flush, for connections over IPv4."""

    def __init__(
        self,
        writer: MessageWriter,
        topics: WritableTopics,
        queues: QueueTable,
        admission: Admission,
        clock: Clock,
        table: RequestTable,
        between_runs: Callable[[], None],
    ) -> None:
        self._writer = writer
        self._append_run = writer.append_run
        self._gate = topics.gate
        self._open_topics = topics.open
        self._has_queue = queues.has
        self._ordinary_timer = admission.ordinary_timer
        self._now_ms = clock.now_ms
        self._table = table
        self._endpoint = table[Request.SEND_MESSAGE_V2]
        self._between_runs = between_runs
        self._stamp_text = writer.stamp.text
        self._max_timer_properties = MAX_TIMER_PROPERTIES_BYTES - writer.stamp.most_bytes
        # A larger timer needs a further check that it fits in a segment when it is delivered.
        self._max_body = min(writer.limits.max_body, writer.limits.max_waiting - MAX_PROPERTIES_BYTES)
        self._replies = SendReplies(writer.message_id_prefix)

    def serve_runs(self, connection: Connection, commands: list[Command], at: int, replies: list[bytes]) -> int:
        """Store messages from index `at`, append a reply for each, and return the index of the first one left."""
        while at < len(commands):
            stored = self._store_run(connection, commands[at : at + MESSAGES_PER_RUN], replies)
            at += stored
            if stored < MESSAGES_PER_RUN:
                break
            self._between_runs()
        return at

    def _store_run(self, connection: Connection, commands: list[Command], replies: list[bytes]) -> int:
        """Do the same for one run, and return its length."""
        if self._gate.refusal is not None:
            return 0
        timers: dict[int, _Timer] = {}
        now_ms = self._now_ms()
        run = self._find_run(connection, commands, now_ms, timers)
        if not run:
            return 0
        timer_topics = {number: timer.topic for number, timer in timers.items()} if timers else None
        appended = self._append_run(run, connection.peer_host, now_ms, timer_topics)
        template, prefixes, of_timer = self._replies.template, self._replies.prefixes, self._replies.of_timer
        for number, (command, (physical_offset, queue_offset)) in enumerate(zip(commands, appended, strict=False)):
            if number in timers:
                topic, queue_id, due_ms, unique_key = timers[number]
                handle = self._writer.recall_handle(topic, slot_of(due_ms), unique_key)
                replies.append(of_timer(command.opaque, physical_offset, queue_id, queue_offset, handle))
            else:
                reply = template % (command.opaque, physical_offset, run[number][1], queue_offset)
                replies.append(prefixes[len(reply)] + reply)
        return len(appended)

    def _find_run(
        self, connection: Connection, commands: list[Command], now_ms: int, timers: dict[int, _Timer]
    ) -> list[PlainMessage]:
        """Return the messages before the first that the lane cannot accept. Adds the timers to `timers`, by index."""
        open_topics, max_body, stamp = self._open_topics, self._max_body, self._stamp_text
        timer_room: int | None = None
        permitted: Topic | None = None
        user, checked_at = "", 0
        run: list[PlainMessage] = []
        for command in commands:
            if not isinstance(command, SendRequest) or command.flag:
                break
            header = command.json_fields
            topic, queue_id, properties, sysflag = header.topic, header.queueId, header.properties, header.sysFlag
            config = open_topics.get(topic)
            if (
                config is None
                or not 0 <= queue_id < config.write_queues
                or topic[0] == _GROUP_TOPIC_SIGN
                or len(command.body) > max_body
                or header.batch
                or sysflag & SYSFLAG_TRANSACTION_MASK
                or TRANSACTION_PREPARED in properties
                or "\0" in properties
            ):
                break
            if config is not permitted or header.AccessKey != user:
                # Once for consecutive messages of a user to one topic: comparing them takes 0.04 µs per message.
                if permitted is not None:
                    self._table.repeated(len(run) - checked_at - 1)
                    permitted = None
                if not self._table.permits(connection, self._endpoint, command, header):
                    break
                permitted, user, checked_at = config, header.AccessKey, len(run)
            timer: OrdinaryTimer | None = None
            # The same check as in `MessageWriter.send`. Searching a str takes 0.04 µs, bytes five times as long.
            needs_look = "DEL" in properties or "TIMER_" in properties or OWN_PREFIX in properties
            if needs_look:
                if timer_room is None:
                    timer_room = self._writer.timer_room(now_ms)
                timer = self._ordinary_timer(topic, queue_id, properties, now_ms)
                # If the timer's queue does not exist yet, `MessageWriter.send` first reserves it (`queues.hold`).
                if timer is None or len(timers) >= timer_room or not self._has_queue(topic, queue_id):
                    break
                properties, sysflag = timer.properties, sysflag & SYSFLAG_FROM_SENDER | SYSFLAG_ABRIDGED
            else:
                properties, sysflag = with_stamp(properties, stamp), sysflag & SYSFLAG_FROM_SENDER
            try:
                encoded = properties.encode()
            except UnicodeEncodeError:
                break
            if len(encoded) > (MAX_PROPERTIES_BYTES if timer is None else self._max_timer_properties):
                break
            code = None
            if timer is not None:
                timers[len(run)] = _Timer(topic, queue_id, timer.due_ms, timer.unique_key)
                topic, queue_id, code = TIMER_TOPIC, 0, timer_code(TIMER, timer.due_ms)
            run.append(
                (
                    topic, queue_id, command.body, encoded, header.bornTimestamp, header.flag,
                    sysflag, header.reconsumeTimes, code,
                )
            )  # fmt: skip
        if permitted is not None:  # -1 if the message that was checked is left to the normal path
            self._table.repeated(len(run) - checked_at - 1)
        return run
