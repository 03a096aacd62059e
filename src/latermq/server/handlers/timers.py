"""Requests about pending timers: recall, cancel, move, status, list, count, density."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from latermq.broker.messages.long_polling import WaitingPulls
from latermq.broker.messages.write_gate import WriteGate
from latermq.broker.tables.topics import Topics
from latermq.broker.timers.bulk_changes import BulkChanges
from latermq.broker.timers.pending import PendingTimers, SeenTimers
from latermq.broker.timers.pending_pages import DueRange
from latermq.clock import Clock
from latermq.config import Config
from latermq.errors import FlowControl, IllegalOperation, InvalidParameter, LaterMQError, NoPermission
from latermq.message.recall_handle import RecallHandle, decode_recall_handle
from latermq.message.timer_code import MAX_ENTRY_DIGITS
from latermq.model.timers import Outcome, Verdict
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.frames import Command, encode_response
from latermq.protocol.remoting.json_body import encode_body
from latermq.protocol.remoting.timer_changes import VERDICTS, decode_changes, encode_change_outcomes
from latermq.protocol.remoting.timers import (
    ListTimersHeader,
    MoveTimerHeader,
    PendingCount,
    RecallHeader,
    TimerNameHeader,
    encode_density,
    encode_outcomes,
    encode_page,
)
from latermq.server.handlers.async_replies import answer
from latermq.server.handlers.flush_queue import FlushBarrier
from latermq.server.remoting.access import GET, PUB, on_cluster, on_topic, on_topic_if_named, on_topics
from latermq.server.remoting.connection import Connection
from latermq.server.remoting.endpoints import Endpoint
from latermq.server.remoting.sliced_requests import Reply, SlicedRequests, Slices
from latermq.timer.steps import Steps

MAX_PAGE_TIMERS = 1000
MAX_TIMER_IDS = 1000  # timer IDs of one name that a request may list
MAX_FETCHES = 100  # moves that wait for records from the timeline; the same limit as for look-ups
MAX_PAGE_BYTES = 4 << 20  # keys may be long, and clients reject frames that are too large

# Verdicts that depend on a log record. They are reported when the record is as safe as a sent message.
_LOGGED_VERDICTS = (Verdict.CANCELLED, Verdict.MOVED, Verdict.ACCEPTED)


Fetched = Mapping[int, bytes] | LaterMQError
FetchRecords = Callable[[Sequence[tuple[int, int]], Callable[[Fetched], None]], None]


def fetch_nothing(places: Sequence[tuple[int, int]], when_done: Callable[[Fetched], None]) -> None:
    """Fetch no records, for brokers without a timeline."""
    when_done({})


class _Name(NamedTuple):
    """The name of a timer in a request: its unique key or one of its message keys."""

    unique_key: str
    key: str


class TimerRequests:
    """Serves these requests."""

    def __init__(
        self,
        pending: PendingTimers,
        bulk: BulkChanges,
        topics: Topics,
        gate: WriteGate,
        waiting_pulls: WaitingPulls,
        clock: Clock,
        config: Config,
        flush_barrier: FlushBarrier,
        sliced: SlicedRequests,
        fetch_records: FetchRecords = fetch_nothing,
    ) -> None:
        """`fetch_records` fetches records of far timers that have left the log, and calls back on the loop."""
        self._pending = pending
        self._topics = topics
        self._gate = gate
        self._waiting_pulls = waiting_pulls
        self._clock = clock
        self._config = config
        self._sliced = sliced
        self._bulk = bulk
        self._fetch_records = fetch_records
        self._fetches = 0
        self._flush_barrier = flush_barrier

    @property
    def endpoints(self) -> list[Endpoint]:
        change = (on_topic("topic", PUB),)
        changes = (on_topics(lambda command, _: decode_changes(command.body).topics, PUB),)
        look = (on_topic("topic", PUB, GET),)
        search = (on_topic_if_named("topic", PUB, GET, otherwise=(GET,)),)
        sliced, code = Slices.SEARCH, Request
        return [
            Endpoint(code.RECALL_MESSAGE, self._recall, change, RecallHeader, slices=sliced, stores=True),
            Endpoint(code.CANCEL_TIMER, self._cancel, change, TimerNameHeader, slices=sliced, stores=True),
            Endpoint(code.MOVE_TIMER, self._move, change, MoveTimerHeader, slices=sliced, stores=True),
            Endpoint(code.CHANGE_TIMERS, self._change, changes, slices=Slices.ALL, stores=True),
            Endpoint(code.TIMER_STATUS, self._status, look, TimerNameHeader, slices=sliced),
            Endpoint(code.LIST_TIMERS, self._list, search, ListTimersHeader, slices=sliced),
            Endpoint(code.COUNT_TIMERS, self._count, search, ListTimersHeader, slices=sliced),
            Endpoint(code.TIMER_DENSITY, self._density, on_cluster(GET)),
        ]

    def _recall(self, connection: Connection, command: Command, header: RecallHeader) -> Steps[Reply]:
        """Serve RocketMQ's own cancel request: by handle only, with an error if nothing was cancelled."""
        self._check_allowed()
        self._topics.require(header.topic)
        handle = self._own_handle(header.topic, header.recallHandle)
        self._flush_barrier.check_room()
        outcome = yield from self._pending.cancel_steps(handle.topic, handle.unique_key)
        if outcome.verdict not in _LOGGED_VERDICTS:
            raise self._recalled_nothing(handle, outcome)
        reply = encode_response(command, fields={"msgId": handle.unique_key, "MSG_REGION": "DefaultRegion"})
        return self._flush_barrier.reply_when_flushed(connection, command, reply)

    def _recalled_nothing(self, handle: RecallHandle, outcome: Outcome) -> IllegalOperation:
        """Return the error. The time in the handle matters only if the directory does not know the timer."""
        left_ms = handle.timestamp_ms - self._clock.now_ms()
        if outcome.verdict == Verdict.NOT_FOUND and not 0 < left_ms < self._config.timer.max_delay:
            hint = "The due time in the handle has passed or is not valid"
        else:
            hint = "It was already delivered, or was never stored on this broker"
        return IllegalOperation(f"nothing was recalled: {outcome.verdict}", hint=hint)

    def _cancel(self, connection: Connection, command: Command, header: TimerNameHeader) -> Steps[Reply]:
        self._check_allowed()
        name = self._name(header)
        seen = _seen_timers(header)
        self._flush_barrier.check_room()
        pending = self._pending
        if name.key:
            outcomes = yield from pending.cancel_key_steps(header.topic, name.key)
        else:
            outcomes = [(yield from pending.cancel_steps(header.topic, name.unique_key, seen))]
        return self._reply_outcomes(connection, command, outcomes)

    def _move(self, connection: Connection, command: Command, header: MoveTimerHeader) -> Steps[Reply]:
        self._check_allowed()
        name = self._name(header)
        due_ms = self._due_ms(header)
        seen = _seen_timers(header)
        self._flush_barrier.check_room()
        pending = self._pending

        def move(fetched: Mapping[int, bytes]) -> Steps[Reply]:
            if name.key:
                outcomes = yield from pending.move_key_steps(header.topic, name.key, due_ms, fetched)
            else:
                outcomes = [(yield from pending.move_steps(header.topic, name.unique_key, due_ms, fetched, seen))]
            return self._reply_outcomes(connection, command, outcomes)

        places = yield from pending.records_to_fetch_steps(header.topic, name.unique_key, name.key)
        if not places:
            return (yield from move({}))
        if self._fetches >= MAX_FETCHES:
            raise FlowControl(f"{MAX_FETCHES} moves are waiting for the timeline", hint="Try again in a moment")
        self._fetches += 1
        self._fetch_records(places, lambda fetched: self._answer_later(connection, command, fetched, move))
        return None

    def _change(self, connection: Connection, command: Command, _: None) -> Steps[Reply]:
        """Cancel or move many names. Bulk jobs send these."""
        self._check_allowed()
        changes = decode_changes(command.body)
        self._flush_barrier.check_room()
        outcomes = yield from self._bulk.change_steps(changes, VERDICTS)
        reply = encode_response(command, body=encode_change_outcomes(outcomes))
        # Even names that an earlier request has changed may be unflushed.
        return self._flush_barrier.reply_when_flushed(connection, command, reply)

    def statistics(self) -> dict[str, int]:
        """How many moves wait for records from the timeline, and the limit."""
        return {"timeline_moves": self._fetches, "max_timeline_moves": MAX_FETCHES}

    def _answer_later(
        self,
        connection: Connection,
        command: Command,
        fetched: Mapping[int, bytes] | LaterMQError,
        move: Callable[[Mapping[int, bytes]], Steps[Reply]],
    ) -> None:
        self._fetches -= 1
        try:
            if isinstance(fetched, LaterMQError):
                raise fetched
            reply = self._sliced.answer(connection, command, move(fetched))
        except Exception as error:
            answer(connection, command, connection.refuse(command, error))
            return
        if reply is not None:
            answer(connection, command, reply)
        self._waiting_pulls.wake()

    def _status(self, connection: Connection, command: Command, header: TimerNameHeader) -> Steps[Reply]:
        name = self._name(header)
        if name.key:
            raise InvalidParameter(
                "the state of a timer is queried by unique key or recall handle",
                hint="LIST_TIMERS finds timers by message key",
            )
        outcome = yield from self._pending.status_steps(header.topic, name.unique_key)
        return self._reply_outcomes(connection, command, [outcome])

    def _list(self, connection: Connection, command: Command, header: ListTimersHeader) -> Steps[Reply]:
        due_range = DueRange(header.topic, header.fromMs, header.untilMs)
        limit = max(1, min(header.limit, MAX_PAGE_TIMERS))
        while True:
            steps = self._pending.list_steps(due_range, key=header.key, limit=limit, cursor=header.cursor)
            body = encode_page((yield from steps))
            if len(body) <= MAX_PAGE_BYTES or limit == 1:
                return encode_response(command, body=body)
            limit //= 2

    def _count(self, connection: Connection, command: Command, header: ListTimersHeader) -> Steps[Reply]:
        due_range = DueRange(header.topic, header.fromMs, header.untilMs)
        timers = yield from self._pending.count_steps(due_range, key=header.key)
        return encode_response(command, body=encode_body(PendingCount(timers=timers)))

    def _density(self, connection: Connection, command: Command, _: None) -> bytes:
        return encode_response(command, body=encode_density(self._pending.density()))

    def _check_allowed(self) -> None:
        if not self._config.timer.recall:
            raise NoPermission("this broker does not recall, cancel or move timers", hint="Set timer.recall = true")
        self._gate.check(is_retry=True)

    def _reply_outcomes(self, connection: Connection, command: Command, outcomes: Iterable[Outcome]) -> bytes | None:
        results = list(outcomes)
        reply = encode_response(command, body=encode_outcomes(results))
        if any(outcome.verdict in _LOGGED_VERDICTS for outcome in results):
            return self._flush_barrier.reply_when_flushed(connection, command, reply)
        return reply

    def _name(self, header: TimerNameHeader) -> _Name:
        if sum(bool(one) for one in (header.uniqueKey, header.key, header.recallHandle)) != 1:
            raise InvalidParameter("specify exactly one of uniqueKey, key and recallHandle")
        if header.recallHandle:
            return _Name(self._own_handle(header.topic, header.recallHandle).unique_key, "")
        return _Name(header.uniqueKey or "", header.key or "")

    def _own_handle(self, topic: str, text: str) -> RecallHandle:
        """Decode a handle, and check that this broker issued it for this topic."""
        handle = decode_recall_handle(text)
        if handle.topic != topic:
            raise IllegalOperation(f"the handle belongs to topic {handle.topic!r}, not {topic!r}")
        name = self._config.broker.name
        if handle.broker_name != name:
            raise IllegalOperation(
                f"the handle belongs to broker {handle.broker_name!r}; this is {name!r}",
                hint="Send the request to that broker",
            )
        return handle

    def _due_ms(self, header: MoveTimerHeader) -> int:
        if (header.dueMs is None) == (header.delayMs is None):
            raise InvalidParameter("specify exactly one of dueMs and delayMs")
        if header.dueMs is not None:
            return header.dueMs
        assert header.delayMs is not None
        return self._clock.now_ms() + header.delayMs


def _seen_timers(header: TimerNameHeader) -> SeenTimers | None:
    """Return the timers that the client has seen under the name, if the request lists them."""
    if header.timerIds is None:
        if header.scheduledBefore is not None:
            raise InvalidParameter("scheduledBefore requires timerIds")
        return None
    ids = header.timerIds.split(",")
    are_ids = all(one.isascii() and one.isdigit() and len(one) <= MAX_ENTRY_DIGITS for one in ids)
    if header.uniqueKey is None or len(ids) > MAX_TIMER_IDS or not are_ids:
        raise InvalidParameter(
            f"timerIds are up to {MAX_TIMER_IDS} numbers, joined by commas, of the timers of one unique key"
        )
    return SeenTimers(frozenset(map(int, ids)), header.scheduledBefore)
