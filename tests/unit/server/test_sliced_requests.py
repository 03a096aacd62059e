"""Look-ups by key and by name: what they read, what others get between, and what is said at the limit."""

from collections.abc import Callable, Iterator
from typing import cast

import pytest

from latermq.broker.broker import Broker
from latermq.clock import SimulatedClock
from latermq.config import TimerConfig
from latermq.errors import FlowControl, InvalidParameter, LaterMQError, MalformedRequest
from latermq.model.timers import Verdict
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.frames import Command, FrameReader, encode_frame, encode_response
from latermq.protocol.remoting.json_body import decode_body
from latermq.protocol.remoting.timers import PendingCount, decode_outcomes, decode_page
from latermq.server.broker.composition import timer_requests
from latermq.server.handlers.timers import Fetched
from latermq.server.remoting import sliced_requests
from latermq.server.remoting.connection import Connection
from latermq.server.remoting.sliced_requests import SlicedRequests
from latermq.store.files.memory_disk import MemoryDisk
from latermq.store.index import key_index
from latermq.timer.steps import Steps, at_once, spend
from tests.support.brokers_in_memory import bodies, open_broker, pass_time, send
from tests.support.request_tables import table_of
from tests.unit.message.test_timer_names import Work

PLAIN = 3_000  # messages that are no timers and have the same key


class Scene:
    """A broker that receives requests as frames; deferred work waits for the test."""

    def __init__(self, limit: int = 100_000) -> None:
        self.clock = SimulatedClock()
        self.broker: Broker = open_broker(MemoryDisk(), self.clock, TimerConfig(max_lookup=limit))
        self.put_off: list[Callable[[], None]] = []
        self.sliced = SlicedRequests(limit, self.put_off.append)
        self.sent: list[bytes] = []
        self.under_way = 0
        self.table = table_of(timer_requests(self.broker, self, self.sliced), sliced=self.sliced)

    def check_room(self) -> None:
        """The disk is never slow."""

    def reply_when_flushed(self, connection: Connection, command: Command, reply: bytes) -> bytes | None:
        return reply

    def when_flushed(self, then: Callable[[], None]) -> None:
        then()

    def send(self, reply: bytes) -> None:
        self.sent.append(reply)

    def refuse(self, command: Command, error: Exception) -> bytes:
        if isinstance(error, LaterMQError):
            return encode_response(command, error.code, remark=error.remark)
        return encode_response(command, LaterMQError.code, remark=f"internal error: {type(error).__name__}")

    def begin_work(self) -> None:
        self.under_way += 1

    def end_work(self) -> None:
        self.under_way -= 1

    def ask(self, code: int, **fields: object) -> Command | None:
        """The answer, where it comes at once."""
        texts = {name: str(value) for name, value in fields.items()}
        [command] = FrameReader().feed(encode_frame(code, 7, fields=texts))
        reply = self.table.serve(cast(Connection, self), command)
        return None if reply is None else next(iter(FrameReader().feed(reply)))

    def turns(self) -> Iterator[None]:
        """Each turn of the loop; others may do something in between."""
        while self.put_off:
            works, self.put_off = self.put_off, []
            self.sliced._later = self.put_off.append
            for work in works:
                work()
            yield

    def answer(self, code: int, **fields: object) -> Command:
        at_once = self.ask(code, **fields)
        if at_once is not None:
            return at_once
        for _ in self.turns():
            pass
        [answer] = FrameReader().feed(self.sent.pop())
        return answer

    def timer(self, unique_key: str, key: str = "", delay_ms: int = 60_000) -> None:
        keys = key or f"key of {unique_key}"
        send(self.broker, unique_key.encode(), UNIQ_KEY=unique_key, TIMER_DELAY_MS=str(delay_ms), KEYS=keys)

    def plain(self, key: str, count: int = PLAIN) -> None:
        for number in range(count):
            send(self.broker, b"x", UNIQ_KEY=f"p{number}", KEYS=key)


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    yield scene
    scene.broker.timers.engine.close()


def outcomes(answer: Command) -> list[tuple[str, Verdict]]:
    return [(one.unique_key, one.verdict) for one in decode_outcomes(answer.body)]


# A key that many plain messages share


@pytest.mark.parametrize("code", [Request.CANCEL_TIMER, Request.LIST_TIMERS, Request.COUNT_TIMERS, Request.MOVE_TIMER])
def test_plain_messages_with_the_same_key_cost_those_who_look_for_timers_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    scene.timer("t1", "hot")
    scene.plain("hot")
    scene.timer("t2", "hot")
    work = Work(scene.broker, monkeypatch)
    moved = {"delayMs": 5_000} if code == Request.MOVE_TIMER else {}
    assert scene.ask(code, topic="orders", key="hot", **moved) is not None, "it takes one slice"
    assert work.records <= 20


def test_a_key_of_plain_messages_alone_is_searched_in_slices(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.plain("hot")
    work = Work(scene.broker, monkeypatch)
    assert scene.ask(Request.CANCEL_TIMER, topic="orders", key="hot") is None
    slices, before = [work.records], work.records
    for _ in scene.turns():
        slices.append(work.records - before)
        before = work.records
    assert max(slices) <= sliced_requests.SLICE_STEPS
    assert sum(slices) == PLAIN
    [answer] = FrameReader().feed(scene.sent.pop())
    assert outcomes(answer) == []


def test_the_limit_of_a_look_up_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(limit=1_000)
    scene.plain("hot")
    answer = scene.answer(Request.CANCEL_TIMER, topic="orders", key="hot")
    assert answer.code == InvalidParameter.code
    assert "stopped after 1000" in str(answer.remark)
    assert "timer.max_lookup" in str(answer.remark)
    with pytest.raises(InvalidParameter, match="stopped after 1000"):
        scene.broker.pending.cancel_key("orders", "hot")
    scene.timer("t1", "hot")
    assert outcomes(scene.answer(Request.CANCEL_TIMER, topic="orders", key="hot")) == [("t1", Verdict.CANCELLED)]
    scene.broker.timers.engine.close()


def test_too_many_timers_of_a_key_are_an_error_and_no_short_list(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("latermq.broker.timers.pending_pages.MAX_NAMES", 10)
    monkeypatch.setattr("latermq.broker.timers.pending.MAX_NAMES", 10)
    for number in range(11):
        scene.timer(f"t{number}", "hot")
    for code in (Request.CANCEL_TIMER, Request.LIST_TIMERS, Request.COUNT_TIMERS):
        with pytest.raises(InvalidParameter, match="more than 10 timers have the key"):
            scene.ask(code, topic="orders", key="hot")
    assert scene.broker.pending.count() == 11


def test_timers_of_a_key_are_listed_page_by_page(scene: Scene) -> None:
    for number in range(25):
        scene.timer(f"t{number:02}", "hot", 60_000 - number % 7)
    found: list[tuple[int, str]] = []
    cursor = ""
    for _ in range(3):
        answer = scene.answer(Request.LIST_TIMERS, topic="orders", key="hot", limit=10, cursor=cursor)
        page = decode_page(answer.body)
        found += [(timer.due_ms, timer.unique_key) for timer in page.timers]
        cursor = page.next
    assert (len(found), cursor) == (25, "")
    assert found == sorted(found)


# A name or a hash chain with a long history


def test_many_timers_of_one_name_are_cancelled_in_slices_and_others_are_served_between(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(900):
        scene.timer("many")
    scene.timer("other")
    assert scene.ask(Request.CANCEL_TIMER, topic="orders", uniqueKey="many") is None
    assert scene.broker.pending.count() == 901
    answer = scene.ask(Request.CANCEL_TIMER, topic="orders", uniqueKey="other")
    assert answer is not None
    assert outcomes(answer) == [("other", Verdict.CANCELLED)]
    for _ in scene.turns():
        pass
    [answer] = FrameReader().feed(scene.sent.pop())
    assert outcomes(answer) == [("many", Verdict.CANCELLED)]
    assert scene.broker.pending.count() == 0


def test_what_is_delivered_or_scheduled_between_two_slices_counts(scene: Scene) -> None:
    for number in range(600):
        scene.timer("many", delay_ms=1_000 + 60_000 * (number % 2))
    assert scene.ask(Request.CANCEL_TIMER, topic="orders", uniqueKey="many") is None
    turns = scene.turns()
    next(turns)
    pass_time(scene.broker, scene.clock, 2_000)
    scene.timer("many")
    for _ in turns:
        pass
    [answer] = FrameReader().feed(scene.sent.pop())
    [outcome] = decode_outcomes(answer.body)
    assert (outcome.verdict, outcome.timers) == (Verdict.CANCELLED, 301)
    pass_time(scene.broker, scene.clock, 100_000)
    assert len(bodies(scene.broker)) == 300
    assert scene.broker.pending.count() == 0


def test_a_cancel_comes_to_an_end_though_others_schedule_under_its_name_all_the_time(scene: Scene) -> None:
    for _ in range(600):
        scene.timer("many")
    assert scene.ask(Request.CANCEL_TIMER, topic="orders", uniqueKey="many") is None
    turns = 0
    for _ in scene.turns():
        turns += 1
        scene.timer("many")
    [answer] = FrameReader().feed(scene.sent.pop())
    [outcome] = decode_outcomes(answer.body)
    assert (outcome.verdict, outcome.timers) == (Verdict.CANCELLED, 600 + turns - 1)
    assert turns < 20
    assert scene.broker.pending.count() == 1


def test_a_cancel_by_property_of_too_many_timers_is_refused_before_it_is_stored(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("latermq.broker.timers.pending.MAX_STEPS_AT_ONCE", 50)
    for _ in range(60):
        scene.timer("many")
    stored = scene.broker.store.log.end
    with pytest.raises(InvalidParameter, match="stopped"):
        send(scene.broker, b"cancel", TIMER_DELAY_MS="1000", TIMER_DEL_UNIQKEY="many")
    assert scene.broker.store.log.end == stored


def test_a_chain_of_other_keys_is_walked_in_slices_too(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_index, "STEPS_AT_ONCE", 1)
    scene.plain("hot", 2_000)  # in 97 slots: every chain is long
    scene.timer("t1", "cold")
    seen = sum(1 for offset in scene.broker.store.reader.search_key("orders", "cold") if offset == key_index.NO_HIT)
    assert seen >= 20
    assert outcomes(scene.answer(Request.CANCEL_TIMER, topic="orders", key="cold")) == [("t1", Verdict.CANCELLED)]


def test_a_search_for_a_message_takes_so_many_steps_and_no_more(scene: Scene) -> None:
    scene.plain("hot", 500)
    wanted = {"max_found": 5, "begin_ms": 0, "end_ms": 1 << 60}
    assert len(at_once(scene.broker.reader.find_by_key("orders", "hot", unique=False, **wanted), 10)) == 5
    with pytest.raises(InvalidParameter, match="stopped after 10 "):
        at_once(scene.broker.reader.find_by_key("orders", "hot", unique=True, **wanted), 10)


def test_a_file_of_the_index_may_go_while_a_search_pauses(scene: Scene) -> None:
    scene.plain("hot", 12_000)  # more than one file of the index holds
    found = scene.broker.store.reader.search_key("orders", "hot")
    first = [next(found) for _ in range(5)]
    index = scene.broker.store.index
    assert len(index._files) > 1
    assert index.drop_below(first[-1])
    assert all(offset == key_index.NO_HIT or offset < first[0] for offset in found)


def test_more_look_ups_than_so_many_are_put_off_to_the_client(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sliced_requests, "MAX_RUNNING", 2)
    scene.plain("hot", 300)
    for _ in range(2):
        assert scene.ask(Request.CANCEL_TIMER, topic="orders", key="hot") is None
    with pytest.raises(FlowControl, match="2 look-ups are in progress"):
        scene.ask(Request.CANCEL_TIMER, topic="orders", key="hot")
    scene.sliced.stop()
    assert (len(scene.sent), len(scene.sliced)) == (2, 0)
    for _ in scene.turns():
        pass


def test_a_look_up_that_breaks_does_not_stop_the_others(scene: Scene) -> None:
    def broken() -> Steps[bytes | None]:
        yield from spend(sliced_requests.SLICE_STEPS)
        raise RuntimeError("an invariant is broken")

    scene.plain("hot", 300)
    [command] = FrameReader().feed(encode_frame(Request.CANCEL_TIMER, 7))
    assert scene.sliced.answer(cast(Connection, scene), command, broken()) is None
    assert scene.ask(Request.CANCEL_TIMER, topic="orders", key="hot") is None
    assert scene.under_way == 2
    for _ in scene.turns():
        pass
    assert (len(scene.sent), len(scene.sliced), scene.under_way) == (2, 0, 0)
    [answer] = FrameReader().feed(scene.sent[0])
    assert (answer.opaque, answer.code) == (7, LaterMQError.code)
    assert answer.remark == "internal error: RuntimeError"


def test_a_move_whose_record_comes_from_the_timeline_after_the_stop_writes_nothing(scene: Scene) -> None:
    """The store is closed a moment later, and the answer would wait for a flush that nobody does any more."""
    fetches: list[Callable[[Fetched], None]] = []
    requests = timer_requests(scene.broker, scene, scene.sliced, lambda places, when_done: fetches.append(when_done))
    scene.table = table_of(requests, sliced=scene.sliced)
    scene.timer("t1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scene.broker.pending, "records_to_fetch_steps", lambda *name: (yield from _places()))
        assert scene.ask(Request.MOVE_TIMER, topic="orders", uniqueKey="t1", delayMs=5_000) is None
    scene.sliced.stop()
    stored = scene.broker.store.log.end
    fetches.pop()({})
    assert scene.broker.store.log.end == stored
    [answer] = FrameReader().feed(scene.sent.pop())
    assert "the broker is stopping" in (answer.remark or "")


def _places() -> Steps[list[tuple[int, int]]]:
    yield
    return [(0, 60_000)]


# Numbers that no timer has


@pytest.mark.parametrize("cursor", [f"{10**30}:1", f"1:{10**30}", "²:1", "9" * 5_000 + ":1", "1", ":"])
def test_a_cursor_that_no_page_gave_is_refused(scene: Scene, cursor: str) -> None:
    scene.timer("t1")
    with pytest.raises(InvalidParameter, match="is not a valid cursor"):
        scene.ask(Request.LIST_TIMERS, cursor=cursor)


@pytest.mark.parametrize("ids", ["9" * 5_000, f"1,{10**18}", "²"])
def test_ids_that_no_timer_has_are_refused(scene: Scene, ids: str) -> None:
    scene.timer("t1")
    with pytest.raises(InvalidParameter, match="timerIds"):
        scene.ask(Request.CANCEL_TIMER, topic="orders", uniqueKey="t1", timerIds=ids)


@pytest.mark.parametrize("from_ms", [1 << 62, (1 << 63) - 1])
def test_a_time_behind_all_timers_finds_none(scene: Scene, from_ms: int) -> None:
    scene.timer("t1")
    assert decode_page(scene.answer(Request.LIST_TIMERS, fromMs=from_ms).body).timers == []
    assert decode_body(scene.answer(Request.COUNT_TIMERS, fromMs=from_ms).body, PendingCount).timers == 0


@pytest.mark.parametrize("from_ms", [1 << 63, 10**30])
def test_a_time_that_java_has_no_number_for_is_refused(scene: Scene, from_ms: int) -> None:
    with pytest.raises(MalformedRequest):
        scene.ask(Request.LIST_TIMERS, fromMs=from_ms)
