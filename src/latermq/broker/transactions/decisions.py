"""Ends transactions as their producers decide: commits, rollbacks, and their repetitions."""

from itertools import islice

from latermq.broker.messages.write_gate import WriteGate
from latermq.broker.messages.writer import MessageWriter
from latermq.broker.timers.destinations import Destinations
from latermq.clock import Clock
from latermq.errors import IllegalOperation, TopicNotFound, TransactionNotFound
from latermq.group.transactions.half_topic import HalfTopic
from latermq.group.transactions.open_halves import MAX_SAME_KEY, Half, OpenHalves, reference_to
from latermq.message.half import final_properties, real_queue_id
from latermq.message.ids import pack_host
from latermq.message.names import HALF_TOPIC, TIMER_TOPIC, TRANSACTION_CHECK_TOPIC, shown
from latermq.message.properties import PRODUCER_GROUP, REAL_TOPIC, UNIQUE_KEY
from latermq.message.record import Message
from latermq.message.record_fields import SYSFLAG_COMMITTED, SYSFLAG_FROM_SENDER
from latermq.model.transaction import (
    COMMITTED,
    GIVEN_UP,
    OPEN,
    ROLLED_BACK,
    Decision,
    EndTransaction,
    TransactionTallies,
)
from latermq.store.log_reader import LogReader
from latermq.store.log_writer import Draft, LogWriter
from latermq.timer.admission import Wait

_MAX_HITS = 100  # records that a search for an ended transaction reads


class Decisions:
    """Writes the record that ends a half, once. Repeating a decision succeeds, contradicting it fails."""

    def __init__(
        self,
        reader: LogReader,
        log_writer: LogWriter,
        writer: MessageWriter,
        halves: OpenHalves,
        half_topic: HalfTopic,
        destinations: Destinations,
        gate: WriteGate,
        clock: Clock,
        tallies: TransactionTallies,
    ) -> None:
        self._reader = reader
        self._log_writer = log_writer
        self._writer = writer
        self._halves = halves
        self._half_topic = half_topic
        self._destinations = destinations
        self._gate = gate
        self._clock = clock
        self._tallies = tallies

    def topics_of(self, request: EndTransaction) -> set[str]:
        """Return the real topics of the halves that the request names, for its permission."""
        half = self._open_half(request)
        if half is not None:
            return {half.topic}
        return {message.properties.get(REAL_TOPIC, "") for message in self._ended_halves(request)}

    def state_of(self, request: EndTransaction) -> str:
        """Return how the transaction stands that a request names by its key; empty if it is not known here."""
        if self._open_half(request) is not None:
            return OPEN
        ended = self._ended_halves(request)
        return self._common_ending(ended) if ended else ""

    def end(self, request: EndTransaction) -> int:
        """End a half; return the log offset up to which the log must be flushed for this to be safe."""
        half = self._open_half(request)
        if half is not None:
            self._check_group(half.producer_group, request)
        if request.decision is Decision.UNKNOWN:
            return 0
        if half is None:
            self._repeat(request)
            return self._log_writer.log.end
        # A transaction that was accepted must be able to end while new messages are refused.
        self._gate.check(is_retry=True)
        twins = [
            one
            for one in self._halves.by_key(half.unique_key)
            if one is not half and (one.producer_group, one.topic) == (half.producer_group, half.topic)
        ][: MAX_SAME_KEY - 1]
        if request.decision is Decision.COMMIT:
            end_offset = self._commit(half, twins)
            self._tallies.committed += 1
        else:
            end_offset = self._half_topic.end([], [], [half, *twins], self._clock.now_ms())[-1].end_offset
            self._tallies.rolled_back += 1
        self._tallies.rolled_back += len(twins)
        return end_offset

    def _open_half(self, request: EndTransaction) -> Half | None:
        if request.physical_offset is not None and request.queue_offset is not None:
            return self._halves.find(request.physical_offset, request.queue_offset)
        found = [
            half
            for half in self._halves.by_key(request.unique_key)
            if half.producer_group == request.producer_group and request.topic in ("", half.topic)
        ]
        return found[-1] if found else None

    def _check_group(self, producer_group: str, request: EndTransaction) -> None:
        if producer_group != request.producer_group:
            raise TransactionNotFound(
                f"the half message does not belong to producer group {shown(request.producer_group)}",
                hint="End a transaction as the group that began it",
            )

    # Commits

    def _commit(self, half: Half, twins: list[Half]) -> int:
        """Store the final message and the end of the half in one block. A delayed message begins to wait now."""
        message = self._reader.read_message(half.physical_offset)
        if message is None:
            raise TransactionNotFound(
                "the record of the half message is damaged",
                hint="Send the message again; restore the log if others fail",
            )
        queue_id = self._destinations.queue_for(half.topic, real_queue_id(message.properties))
        if isinstance(queue_id, str):
            raise TopicNotFound(
                f"the transaction cannot be committed: {queue_id}",
                hint="Create the topic and commit again; until then the transaction stays open",
            )
        self._log_writer.queues.ensure(half.topic, queue_id)
        now_ms = self._clock.now_ms()
        place, properties = self._writer.admit_final(half.topic, queue_id, final_properties(message.properties), now_ms)
        if place.wait == Wait.TIMER:
            now_ms = self._log_writer.monotonic_store_ms(TIMER_TOPIC, now_ms)
        sysflag = message.sysflag & SYSFLAG_FROM_SENDER
        draft = Draft(
            place.topic,
            place.queue_id,
            message.body,
            properties,
            message.born_timestamp_ms,
            pack_host(*message.born_host),
            message.flag,
            sysflag if place.wait else sysflag | SYSFLAG_COMMITTED,
            message.reconsume_times,
        )
        appended = self._half_topic.end([draft], [half], twins, now_ms)
        self._writer.note_final(place, half.topic, appended[0].queue_offset)
        return appended[-1].end_offset

    # Transactions that have ended

    def _repeat(self, request: EndTransaction) -> None:
        """Accept a decision that was already carried out, and refuse any other."""
        ended = self._ended_halves(request)
        if not ended:
            raise TransactionNotFound(
                "the log has no half message at these offsets or with this key",
                hint="It may have left the log; use the offsets of the reply to the send",
            )
        self._check_group(ended[0].properties.get(PRODUCER_GROUP, ""), request)
        ending = self._common_ending(ended)
        is_repeated = ending == COMMITTED if request.decision is Decision.COMMIT else ending != COMMITTED
        if not is_repeated:
            hint = f"The message is in {TRANSACTION_CHECK_TOPIC}" if ending == GIVEN_UP else ""
            raise IllegalOperation(f"the transaction cannot {request.decision.value}, it was {ending}", hint=hint)

    def _ended_halves(self, request: EndTransaction) -> list[Message]:
        """Return the half at these offsets, or all with this key and group, the newest first."""
        if request.physical_offset is not None and request.queue_offset is not None:
            if not self._half_topic.is_half(request.physical_offset, request.queue_offset):
                return []
            message = self._reader.read_message(request.physical_offset)
            return [message] if message is not None else []
        found = []
        for offset in islice(self._reader.search_key(HALF_TOPIC, request.unique_key), _MAX_HITS):
            message = self._reader.read_message(offset)
            if (
                message is not None
                and self._half_topic.is_half(offset, message.queue_offset)
                and message.properties.get(UNIQUE_KEY) == request.unique_key
                and message.properties.get(PRODUCER_GROUP) == request.producer_group
                and request.topic in ("", message.properties.get(REAL_TOPIC))
            ):
                found.append(message)
        return found

    def _common_ending(self, ended: list[Message]) -> str:
        """Return how halves with one key ended: at most one of them is committed."""
        endings = [self._ending(message) for message in ended]
        return COMMITTED if COMMITTED in endings else endings[0]

    def _ending(self, half: Message) -> str:
        """Return how a half ended. Records of RocketMQ's broker do not say so, but its final messages name the half."""
        ending = self._half_topic.ending(half.queue_offset)
        if ending:
            return ending
        topic, key = half.properties.get(REAL_TOPIC, ""), half.properties.get(UNIQUE_KEY, "")
        reference = reference_to(half.physical_offset)
        for offset in islice(self._reader.search_key(topic, key), _MAX_HITS):
            message = self._reader.read_message(offset)
            if message is not None and message.prepared_transaction_offset == reference:
                return COMMITTED
        return ROLLED_BACK
