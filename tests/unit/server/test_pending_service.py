"""Requests about timers, sent as frames: which code serves them, what is checked first, and when they are answered."""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from latermq.broker.messages.long_polling import WaitingPulls
from latermq.broker.messages.write_gate import WriteGate
from latermq.broker.tables.topics import Topics
from latermq.broker.timers.bulk_changes import BulkChanges
from latermq.broker.timers.pending import PendingTimers, SeenTimers
from latermq.broker.timers.pending_pages import DueRange
from latermq.clock import SimulatedClock
from latermq.config import Config
from latermq.errors import (
    Busy,
    IllegalMessage,
    IllegalOperation,
    InvalidParameter,
    LaterMQError,
    NoPermission,
    ServiceUnavailable,
    TopicNotFound,
)
from latermq.message.recall_handle import encode_recall_handle
from latermq.model.timers import Density, Outcome, PendingPage, PendingTimer, Verdict
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.frames import Command, FrameReader, encode_frame
from latermq.protocol.remoting.json_body import decode_body
from latermq.protocol.remoting.timers import PendingCount, decode_outcomes, decode_page
from latermq.server.handlers.timers import MAX_PAGE_BYTES, MAX_PAGE_TIMERS, TimerRequests
from latermq.server.remoting.connection import Connection
from latermq.server.remoting.sliced_requests import SlicedRequests
from latermq.timer.steps import Steps
from tests.support.request_tables import table_of

KEY = "7F0000010F2A0001"
DAY_MS = 86_400_000


class FakePending:
    """Answers with what the test sets, and records its calls."""

    def __init__(self) -> None:
        self.verdict = Verdict.CANCELLED
        self.error: LaterMQError | None = None
        self.calls: list[tuple[Any, ...]] = []
        self.key_bytes = 10
        self.far: list[tuple[int, int]] = []  # what has left the log
        self.fetched: Mapping[int, bytes] | None = None

    def _outcome(self, *call: Any) -> Outcome:
        self.calls.append(call)
        if self.error is not None:
            raise self.error
        return Outcome(self.verdict, call[1], KEY, 5, 1)

    def cancel_steps(self, topic: str, unique_key: str, seen: SeenTimers | None = None) -> Steps[Outcome]:
        yield
        return self._outcome("cancel", topic, unique_key, *([] if seen is None else [seen]))

    def cancel_key_steps(self, topic: str, key: str) -> Steps[list[Outcome]]:
        yield
        return [self._outcome("cancel_key", topic, key)] * 2

    def records_to_fetch_steps(self, topic: str, unique_key: str, key: str) -> Steps[list[tuple[int, int]]]:
        yield
        return self.far

    def move_steps(
        self, topic: str, unique_key: str, due_ms: int, fetched: Mapping[int, bytes], seen: SeenTimers | None
    ) -> Steps[Outcome]:
        yield
        self.fetched = fetched
        return self._outcome("move", topic, unique_key, due_ms, *([] if seen is None else [seen]))

    def move_key_steps(self, topic: str, key: str, due_ms: int, fetched: Mapping[int, bytes]) -> Steps[list[Outcome]]:
        yield
        return [self._outcome("move_key", topic, key, due_ms)]

    def status_steps(self, topic: str, unique_key: str) -> Steps[Outcome]:
        yield
        return self._outcome("status", topic, unique_key)

    def list_steps(self, due_range: DueRange, *, limit: int, **choice: Any) -> Steps[PendingPage]:
        yield
        self.calls.append(("list", limit, due_range, choice))
        timer = PendingTimer(1, "orders", KEY, "k" * self.key_bytes, "", 5, 0, 1, 4, "body")
        return PendingPage([timer] * limit, "more")

    def count_steps(self, due_range: DueRange, **choice: Any) -> Steps[int]:
        yield
        self.calls.append(("count", due_range, choice))
        return 17

    def density(self) -> Density:
        return Density(1000, [1, 2], [3], [4])


class Scene:
    """The parts of a broker that these requests need, with replies kept back as with sync flush."""

    def __init__(self) -> None:
        self.pending = FakePending()
        self.clock = SimulatedClock()
        self.timer = SimpleNamespace(recall=True, max_delay=3650 * DAY_MS)
        self.refusal: LaterMQError | None = None
        self.busy: LaterMQError | None = None
        self.kept: list[bytes] = []
        sliced = SlicedRequests(1_000)
        requests = TimerRequests(
            cast(PendingTimers, self.pending),
            cast(BulkChanges, None),
            cast(Topics, SimpleNamespace(require=self._require)),
            cast(WriteGate, SimpleNamespace(check=lambda is_retry: self._raise(self.refusal))),
            cast(WaitingPulls, SimpleNamespace(wake=lambda: None)),
            self.clock,
            cast(Config, SimpleNamespace(timer=self.timer, broker=SimpleNamespace(name="broker-a"))),
            self,
            sliced,
            lambda places, when_done: when_done({entry: b"record" for entry, _ in places}),
        )
        self.table = table_of(requests, sliced=sliced)

    def check_room(self) -> None:
        self._raise(self.busy)

    def reply_when_flushed(self, connection: Connection, command: Command, reply: bytes) -> bytes | None:
        self.kept.append(reply)
        return None

    def when_flushed(self, then: Callable[[], None]) -> None:
        then()

    @staticmethod
    def _raise(error: LaterMQError | None) -> None:
        if error is not None:
            raise error

    @staticmethod
    def _require(topic: str) -> None:
        if topic != "orders":
            raise TopicNotFound(f"topic {topic!r} does not exist")

    def ask(self, code: int, **fields: object) -> Command:
        texts = {name: str(value) for name, value in fields.items()}
        [command] = FrameReader().feed(encode_frame(code, 7, fields=texts))
        reply = self.table.serve(cast(Connection, None), command)
        [answer] = FrameReader().feed(self.kept.pop() if reply is None else reply)
        return answer

    def handle(self, topic: str = "orders", broker: str = "broker-a", left_ms: int = 60_000) -> str:
        return encode_recall_handle(topic, broker, self.clock.now_ms() + left_ms, KEY)

    def recall(self, topic: str = "orders", handle: str | None = None) -> Command:
        return self.ask(Request.RECALL_MESSAGE, topic=topic, recallHandle=self.handle() if handle is None else handle)


@pytest.mark.parametrize("verdict", [Verdict.CANCELLED, Verdict.ACCEPTED])
def test_a_recall_that_hits_is_answered_with_the_unique_key(verdict: Verdict) -> None:
    scene = Scene()
    scene.pending.verdict = verdict
    answer = scene.recall()
    assert (answer.code, answer.text_fields()["msgId"]) == (0, KEY)
    assert scene.pending.calls == [("cancel", "orders", KEY)]


@pytest.mark.parametrize("verdict", [Verdict.DELIVERED, Verdict.NOT_FOUND])
@pytest.mark.parametrize("left_ms", [60_000, 0, -5, 3650 * DAY_MS])
def test_a_recall_that_hits_nothing_says_so(verdict: Verdict, left_ms: int) -> None:
    scene = Scene()
    scene.pending.verdict = verdict
    with pytest.raises(IllegalOperation, match=f"nothing was recalled: {verdict}") as refused:
        scene.recall(handle=scene.handle(left_ms=left_ms))
    assert refused.value.code == 604
    mentions_time = "The due time in the handle" in refused.value.hint
    assert mentions_time == (verdict == Verdict.NOT_FOUND and left_ms != 60_000)


def test_a_timer_that_is_known_is_recalled_whatever_time_the_handle_says() -> None:
    scene = Scene()
    assert scene.recall(handle=scene.handle(left_ms=-1)).code == 0


def test_a_recall_is_checked_in_the_order_of_apache() -> None:
    scene = Scene()
    scene.timer.recall = False
    scene.refusal = ServiceUnavailable("stopping")
    expected: list[tuple[type[LaterMQError], str]] = [
        (NoPermission, "does not recall, cancel or move"),
        (ServiceUnavailable, "stopping"),
        (TopicNotFound, "invoices"),
    ]
    for error, reason in expected:
        with pytest.raises(error, match=reason):
            scene.recall("invoices", "no handle")
        if error is NoPermission:
            scene.timer.recall = True
        else:
            scene.refusal = None
    with pytest.raises(IllegalOperation, match="recall handle is invalid"):
        scene.recall("orders", "no handle")
    with pytest.raises(IllegalOperation, match="belongs to topic 'invoices', not 'orders'"):
        scene.recall("orders", scene.handle("invoices", "broker-b"))
    with pytest.raises(IllegalOperation, match="belongs to broker 'broker-b'; this is 'broker-a'"):
        scene.recall("orders", scene.handle("orders", "broker-b"))
    assert scene.pending.calls == []


def test_a_recall_without_a_handle_is_one_with_an_invalid_handle() -> None:
    with pytest.raises(IllegalOperation, match="recall handle is invalid"):
        Scene().ask(Request.RECALL_MESSAGE, topic="orders")


@pytest.mark.parametrize(
    ("code", "fields", "call"),
    [
        (Request.CANCEL_TIMER, {"uniqueKey": KEY}, ("cancel", "orders", KEY)),
        (Request.CANCEL_TIMER, {"recallHandle": Scene().handle()}, ("cancel", "orders", KEY)),
        (Request.CANCEL_TIMER, {"key": "4711"}, ("cancel_key", "orders", "4711")),
        (Request.MOVE_TIMER, {"uniqueKey": KEY, "dueMs": 99}, ("move", "orders", KEY, 99)),
        (Request.MOVE_TIMER, {"recallHandle": Scene().handle(), "dueMs": 99}, ("move", "orders", KEY, 99)),
        (Request.MOVE_TIMER, {"key": "4711", "dueMs": 0}, ("move_key", "orders", "4711", 0)),
        (
            Request.CANCEL_TIMER,
            {"uniqueKey": KEY, "timerIds": "7,9", "scheduledBefore": 12},
            ("cancel", "orders", KEY, SeenTimers(frozenset({7, 9}), 12)),
        ),
        (
            Request.MOVE_TIMER,
            {"uniqueKey": KEY, "dueMs": 99, "timerIds": "7"},
            ("move", "orders", KEY, 99, SeenTimers(frozenset({7}), None)),
        ),
        (Request.TIMER_STATUS, {"uniqueKey": KEY}, ("status", "orders", KEY)),
        (Request.TIMER_STATUS, {"recallHandle": Scene().handle()}, ("status", "orders", KEY)),
    ],
)
def test_a_timer_is_named_by_unique_key_handle_or_message_key(
    code: int, fields: dict[str, object], call: tuple[Any, ...]
) -> None:
    scene = Scene()
    outcomes = decode_outcomes(scene.ask(code, topic="orders", **fields).body)
    assert outcomes == [Outcome(Verdict.CANCELLED, "orders", KEY, 5, 1)] * (2 if call[0] == "cancel_key" else 1)
    assert scene.pending.calls == [call]


def test_a_delay_counts_by_the_brokers_clock() -> None:
    scene = Scene()
    scene.ask(Request.MOVE_TIMER, topic="orders", uniqueKey=KEY, delayMs=1500)
    assert scene.pending.calls == [("move", "orders", KEY, scene.clock.now_ms() + 1500)]


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (Request.CANCEL_TIMER, {}),
        (Request.CANCEL_TIMER, {"uniqueKey": KEY, "key": "4711"}),
        (Request.CANCEL_TIMER, {"uniqueKey": ""}),
        (Request.CANCEL_TIMER, {"key": "4711", "timerIds": "1"}),
        (Request.CANCEL_TIMER, {"uniqueKey": KEY, "timerIds": "1,x"}),
        (Request.CANCEL_TIMER, {"uniqueKey": KEY, "timerIds": ""}),
        (Request.CANCEL_TIMER, {"uniqueKey": KEY, "timerIds": ",".join("1" * 1001)}),
        (Request.MOVE_TIMER, {"uniqueKey": KEY, "dueMs": 1, "scheduledBefore": 3}),
        (Request.TIMER_STATUS, {"key": "4711"}),
        (Request.MOVE_TIMER, {"uniqueKey": KEY}),
        (Request.MOVE_TIMER, {"uniqueKey": KEY, "dueMs": 1, "delayMs": 1}),
    ],
)
def test_a_request_that_leaves_open_what_is_meant_is_refused(code: int, fields: dict[str, object]) -> None:
    scene = Scene()
    with pytest.raises(InvalidParameter):
        scene.ask(code, topic="orders", **fields)
    assert scene.pending.calls == []


def test_a_record_that_has_left_the_log_is_fetched_before_it_is_moved() -> None:
    scene = Scene()
    scene.pending.far = [(4, 900)]
    scene.pending.verdict = Verdict.MOVED
    assert scene.ask(Request.MOVE_TIMER, topic="orders", uniqueKey=KEY, dueMs=1).code == 0
    assert scene.pending.fetched == {4: b"record"}
    assert scene.pending.calls == [("move", "orders", KEY, 1)]


def test_what_the_broker_refuses_to_move_is_an_error() -> None:
    scene = Scene()
    scene.pending.error = IllegalMessage("too far ahead")
    with pytest.raises(IllegalMessage, match="too far ahead"):
        scene.ask(Request.MOVE_TIMER, topic="orders", uniqueKey=KEY, dueMs=1)


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (Request.RECALL_MESSAGE, {"recallHandle": Scene().handle()}),
        (Request.CANCEL_TIMER, {"uniqueKey": KEY}),
        (Request.MOVE_TIMER, {"uniqueKey": KEY, "dueMs": 9}),
    ],
)
def test_nothing_is_changed_while_it_is_forbidden_or_the_disk_is_full_or_hangs(
    code: int, fields: dict[str, object]
) -> None:
    scene = Scene()
    scene.busy = Busy("100000 messages are waiting for the disk")
    with pytest.raises(Busy):
        scene.ask(code, topic="orders", **fields)
    scene.refusal = ServiceUnavailable("the disk is full")
    with pytest.raises(ServiceUnavailable):
        scene.ask(code, topic="orders", **fields)
    scene.timer.recall = False
    with pytest.raises(NoPermission):
        scene.ask(code, topic="orders", **fields)
    assert scene.pending.calls == []


@pytest.mark.parametrize("verdict", list(Verdict))
def test_what_was_written_is_reported_when_it_is_flushed_and_all_else_at_once(verdict: Verdict) -> None:
    scene = Scene()
    scene.pending.verdict = verdict
    [command] = FrameReader().feed(encode_frame(Request.CANCEL_TIMER, 7, fields={"topic": "t", "uniqueKey": KEY}))
    reply = scene.table.serve(cast(Connection, None), command)
    assert (reply is None) == (verdict in (Verdict.CANCELLED, Verdict.MOVED, Verdict.ACCEPTED))
    assert bool(scene.kept) == (reply is None)


def test_a_page_is_bounded_in_timers() -> None:
    scene = Scene()
    choice = {"topic": "orders", "key": "4711", "fromMs": 5, "untilMs": 9, "limit": 5_000_000, "cursor": "c"}
    page = decode_page(scene.ask(Request.LIST_TIMERS, **choice).body)
    assert (len(page.timers), page.next) == (MAX_PAGE_TIMERS, "more")
    expected = ("list", MAX_PAGE_TIMERS, DueRange("orders", 5, 9), {"key": "4711", "cursor": "c"})
    assert scene.pending.calls == [expected]


@pytest.mark.parametrize(("key_bytes", "limit", "listed"), [(30_000, 1000, 125), (MAX_PAGE_BYTES, 4, 1)])
def test_a_page_is_bounded_in_bytes_but_holds_a_timer(key_bytes: int, limit: int, listed: int) -> None:
    scene = Scene()
    scene.pending.key_bytes = key_bytes
    body = scene.ask(Request.LIST_TIMERS, limit=limit).body
    assert len(decode_page(body).timers) == listed
    assert len(body) <= MAX_PAGE_BYTES or listed == 1


def test_timers_are_counted_and_their_density_is_reported() -> None:
    scene = Scene()
    assert decode_body(scene.ask(Request.COUNT_TIMERS, topic="orders").body, PendingCount).timers == 17
    assert scene.pending.calls == [("count", DueRange("orders", 0, 0), {"key": ""})]
    assert msgspec.json.decode(scene.ask(Request.TIMER_DENSITY).body) == {
        "startMs": 1000, "seconds": [1, 2], "minutes": [3], "hours": [4],
    }  # fmt: skip
