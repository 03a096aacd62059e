"""Asks producers for their decision on transactions that they have left open, and gives up those that stay open."""

from collections.abc import Callable

from latermq.broker.messages.write_gate import WriteGate
from latermq.broker.tables.topics import Topics
from latermq.clock import Clock
from latermq.errors import IllegalMessage, ServiceUnavailable
from latermq.group.members import Channel, Members
from latermq.group.transactions.half_topic import HalfTopic
from latermq.group.transactions.open_halves import Half, OpenHalves
from latermq.message.ids import pack_host
from latermq.message.names import TRANSACTION_CHECK_TOPIC
from latermq.message.properties import encode_properties
from latermq.message.record import Message
from latermq.message.record_fields import SYSFLAG_FROM_SENDER
from latermq.model.topic import READ, Topic
from latermq.model.transaction import GIVEN_UP, TransactionTallies
from latermq.store.log_reader import LogReader
from latermq.store.log_writer import Draft

_HALVES_PER_RUN = 64  # about 2 ms; then other work has its turn
_BYTES_PER_RUN = 1 << 20
_PAUSED_MS = 1_000  # until a producer that has unread data is asked again, and between runs that are held back

SendCheck = Callable[[Channel, Message], None]


class TransactionChecks:
    """Runs the schedule of `OpenHalves`."""

    def __init__(
        self,
        reader: LogReader,
        members: Members,
        topics: Topics,
        halves: OpenHalves,
        half_topic: HalfTopic,
        gate: WriteGate,
        clock: Clock,
        tallies: TransactionTallies,
        *,
        trusted_now_ms: Callable[[], int | None],
    ) -> None:
        """`trusted_now_ms` returns the time, or None after a jump of the clock."""
        self._reader = reader
        self._members = members
        self._topics = topics
        self._halves = halves
        self._half_topic = half_topic
        self._gate = gate
        self._clock = clock
        self._tallies = tallies
        self._trusted_now_ms = trusted_now_ms
        self._turn = 0  # the producers of a group take turns

    def note_connected(self, producer_groups: list[str]) -> bool:
        """Note the producer groups of a heartbeat. Returns whether there is something to ask them now."""
        now_ms = self._clock.now_ms()
        return sum(self._halves.note_connected(group, now_ms) for group in producer_groups) > 0

    def wait_ms(self) -> int | None:
        """Return how long `run` has nothing to do; None if nothing is planned."""
        next_ms = self._halves.next_check_ms()
        return None if next_ms is None else max(0, next_ms - self._clock.now_ms())

    def run(self, send: SendCheck) -> int | None:
        """Send the checks that are due; return the time until the next run in milliseconds, None if none is planned.

        While an end could not be stored, or the clock is not trusted, no producer is asked, and nothing is given up.
        """
        try:
            self._gate.check(is_retry=True)
        except ServiceUnavailable:
            return _PAUSED_MS
        now_ms = self._trusted_now_ms()
        if now_ms is None:
            return _PAUSED_MS
        ask, give_up = self._halves.due(now_ms, _HALVES_PER_RUN)
        for half in give_up:
            self._give_up(half, now_ms)
        sent_bytes = 0
        for half in ask:
            if sent_bytes >= _BYTES_PER_RUN:
                break
            members = self._members.producers(half.producer_group)
            producers = [one.channel for one in members if not one.channel.is_closing]
            ready = [channel for channel in producers if not channel.is_paused]
            message = self._reader.read_message(half.physical_offset) if ready else None
            if ready and message is None:
                self._give_up(half, now_ms)
            elif message is not None:
                self._turn += 1
                send(ready[self._turn % len(ready)], message)
                self._halves.note_asked(half, now_ms)
                self._tallies.checks += 1
                sent_bytes += half.size
            elif producers:
                self._halves.postpone(half, now_ms + _PAUSED_MS)
            else:
                self._halves.note_unreachable(half, now_ms)
        return self.wait_ms()

    def _give_up(self, half: Half, now_ms: int) -> None:
        """Move a half to the topic for transactions that no producer ended."""
        message = self._reader.read_message(half.physical_offset)
        if message is None:  # the record is damaged: one bad sector must not stop the checks of all others
            self._half_topic.end([], [], [half], now_ms)
            self._tallies.given_up += 1
            return
        if self._topics.find(TRANSACTION_CHECK_TOPIC) is None:
            self._topics.adopt(Topic(name=TRANSACTION_CHECK_TOPIC, read_queues=1, write_queues=1, permissions=READ))
        draft = Draft(
            TRANSACTION_CHECK_TOPIC,
            0,
            message.body,
            encode_properties(message.properties).encode(),
            message.born_timestamp_ms,
            pack_host(*message.born_host),
            message.flag,
            message.sysflag & SYSFLAG_FROM_SENDER,
            message.reconsume_times,
        )
        try:
            self._half_topic.end([draft], [half], [], now_ms, outcome=GIVEN_UP)
        except IllegalMessage:  # a half of another broker that does not fit a segment of this one
            self._halves.postpone(half, now_ms + self._halves.schedule.every_ms)
            return
        self._tallies.given_up += 1
