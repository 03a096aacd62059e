"""Timers on both engines: to the millisecond, over restarts, with cancels and moves, on a clock turned by hand."""

from collections.abc import Callable, Iterator

import msgspec
import pytest

from latermq.broker.broker import Broker
from latermq.broker.timers.pending import SeenTimers
from latermq.clock import SimulatedClock
from latermq.config import Duration, TimerConfig
from latermq.errors import FlowControl, IllegalMessage, StoreError
from latermq.message.batch import BatchMember, encode_batch
from latermq.message.names import TIMER_TOPIC
from latermq.message.properties import encode_properties
from latermq.model.timers import Verdict
from latermq.store.files.memory_disk import MemoryDisk
from tests.support.brokers_in_memory import HOST, STORE, bodies, messages, open_broker, pass_time, run_until_quiet, send

ENGINES = ("wheel", "rocksdb")
DAY_MS = 86_400_000


def send_with(broker: Broker, body: bytes, properties: dict[str, str]) -> None:
    broker.writer.send("orders", 0, body, encode_properties(properties), 1_700_000_000_000, HOST)


class Scene:
    """A broker with one engine, which can die and come back."""

    def __init__(self, engine: str, random_fraction: Callable[[], float] = lambda: 0.5, **settings: object) -> None:
        self.disk = MemoryDisk()
        self.clock = SimulatedClock()
        self.timer = TimerConfig(engine=engine, **settings)  # type: ignore[arg-type]
        self.broker = open_broker(self.disk, self.clock, self.timer, random_fraction=random_fraction)

    def send(self, body: bytes, delay_ms: int, **properties: str) -> None:
        send_with(self.broker, body, {"TIMER_DELAY_MS": str(delay_ms), **properties})

    def flush(self) -> None:
        self.broker.store.flush()
        run_until_quiet(self.broker)

    def checkpoint(self) -> None:
        self.flush()
        self.broker.store.save(self.broker.store.plan_checkpoint())

    def restart(self, *, clean: bool = False, engine: str = "") -> None:
        if clean:
            self.broker.close()
        self.disk = self.disk.after_process_crash()
        if engine:
            self.timer = TimerConfig(engine=engine)  # type: ignore[arg-type]
        self.broker = open_broker(self.disk, self.clock, self.timer)

    def pass_time(self, by_ms: int) -> None:
        pass_time(self.broker, self.clock, by_ms)

    def skip_until(self, time_ms: int) -> None:
        """Let much time pass, looking at the clock every ten minutes only."""
        while self.clock.now_ms() < time_ms:
            self.clock.advance(min(600_000, time_ms - self.clock.now_ms()))
            run_until_quiet(self.broker)
            self.flush()


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def scene(engine: str) -> Iterator[Scene]:
    scene = Scene(engine)
    yield scene
    scene.broker.timers.engine.close()


def test_a_timer_arrives_at_its_millisecond_and_not_before(scene: Scene) -> None:
    scene.send(b"later", 1_234)
    scene.pass_time(1_233)
    assert bodies(scene.broker) == []
    scene.pass_time(1)
    assert bodies(scene.broker) == [b"later"]
    scene.pass_time(10_000)
    assert bodies(scene.broker) == [b"later"]


def test_timers_of_many_seconds_arrive_in_the_order_of_their_due_times(scene: Scene) -> None:
    delays = [61_003, 999, 1_000, 1_001, 30_500, 7_000, 130_000]
    for delay_ms in delays:
        scene.send(b"%d" % delay_ms, delay_ms)
        scene.flush()
    start_ms = scene.clock.now_ms()
    scene.pass_time(140_000)
    arrived = [(int(message.body), message.store_timestamp_ms - start_ms) for message in messages(scene.broker)]
    assert arrived == [(delay_ms, delay_ms) for delay_ms in sorted(delays)]


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("checkpointed", [False, True])
def test_timers_outlive_a_restart(scene: Scene, clean: bool, checkpointed: bool) -> None:
    for number in range(50):
        scene.send(b"%d" % number, 500 * number + 700)
    if checkpointed:
        scene.checkpoint()
    scene.pass_time(3_000)
    early = bodies(scene.broker)
    assert early == [b"0", b"1", b"2", b"3", b"4"]
    scene.restart(clean=clean)
    assert bodies(scene.broker) == early
    scene.pass_time(30_000)
    assert sorted(map(int, bodies(scene.broker))) == list(range(50))


def test_what_fell_due_while_the_broker_was_down_arrives_at_its_start(scene: Scene) -> None:
    for number in range(20):
        scene.send(b"%d" % number, 1_000 + 60_000 * number)
    scene.checkpoint()
    scene.restart()
    scene.clock.advance(20 * DAY_MS)
    scene.restart()
    run_until_quiet(scene.broker)
    assert bodies(scene.broker) == [b"%d" % number for number in range(20)]


def test_the_engine_can_be_changed_with_timers_pending(scene: Scene, engine: str) -> None:
    for number in range(10):
        scene.send(b"%d" % number, 1_000 * number + 500)
    scene.checkpoint()
    scene.pass_time(3_000)
    scene.restart(clean=True, engine="rocksdb" if engine == "wheel" else "wheel")
    scene.pass_time(3_000)
    scene.restart(clean=True, engine=engine)
    scene.pass_time(10_000)
    assert bodies(scene.broker) == [b"%d" % number for number in range(10)]


def test_a_cancelled_timer_is_never_delivered(scene: Scene) -> None:
    for number in range(5):
        scene.send(b"%d" % number, 2_000, UNIQ_KEY=f"u{number}")
    outcome = scene.broker.pending.cancel("orders", "u3")
    assert (outcome.verdict, outcome.timers) == (Verdict.CANCELLED, 1)
    assert scene.broker.pending.cancel("orders", "u3").verdict == Verdict.CANCELLED
    assert scene.broker.pending.cancel("orders", "never").verdict == Verdict.NOT_FOUND
    assert scene.broker.pending.cancel("other", "u1").verdict == Verdict.NOT_FOUND
    assert scene.broker.pending.count() == 4
    scene.pass_time(2_000)
    assert bodies(scene.broker) == [b"0", b"1", b"2", b"4"]
    assert scene.broker.pending.cancel("orders", "u1").verdict == Verdict.DELIVERED
    assert scene.broker.pending.cancel("orders", "u3").verdict == Verdict.CANCELLED
    assert scene.broker.pending.count() == 0


@pytest.mark.parametrize("flushed_before", [False, True])
@pytest.mark.parametrize("checkpointed_after", [False, True])
def test_a_cancel_outlives_a_restart(scene: Scene, flushed_before: bool, checkpointed_after: bool) -> None:
    for number in range(6):
        scene.send(b"%d" % number, 10_000, UNIQ_KEY=f"u{number}")
    if flushed_before:
        scene.checkpoint()
    scene.broker.pending.cancel("orders", "u2")
    if checkpointed_after:
        scene.checkpoint()
    scene.restart()
    assert scene.broker.pending.status("orders", "u2").verdict == Verdict.CANCELLED
    scene.broker.pending.cancel("orders", "u4")
    assert scene.broker.pending.count(topic="orders") == 4
    scene.pass_time(20_000)
    assert bodies(scene.broker) == [b"0", b"1", b"3", b"5"]
    assert scene.broker.pending.count() == 0


def test_a_cancel_takes_every_timer_of_its_name_and_none_scheduled_later(scene: Scene) -> None:
    scene.send(b"first", 5_000, UNIQ_KEY="twin")
    scene.send(b"second", 6_000, UNIQ_KEY="twin")
    assert scene.broker.pending.cancel("orders", "twin").timers == 2
    scene.send(b"third", 5_500, UNIQ_KEY="twin")
    scene.pass_time(10_000)
    assert bodies(scene.broker) == [b"third"]


def test_a_cancel_by_property_takes_what_it_names(scene: Scene) -> None:
    for number in range(5):
        scene.send(b"%d" % number, 3_000, UNIQ_KEY=f"u{number}")
    scene.send(b"cancel", 3_000, TIMER_DEL_UNIQKEY="orders+u1", UNIQ_KEY="c1")
    scene.send(b"cancel without topic", 3_000, TIMER_DEL_UNIQKEY="u4", UNIQ_KEY="c4")
    scene.send(b"cancel of nothing", 3_000, TIMER_DEL_UNIQKEY="other+u2", UNIQ_KEY="c2")
    scene.send(b"cancel of nobody", 3_000, TIMER_DEL_UNIQKEY="orders+u9", UNIQ_KEY="c3")
    scene.pass_time(5_000)
    assert bodies(scene.broker) == [b"0", b"2", b"3"]


def test_a_moved_timer_arrives_once_at_its_new_time(scene: Scene) -> None:
    scene.send(b"moved later", 2_000, UNIQ_KEY="a")
    scene.send(b"moved sooner", 60_000, UNIQ_KEY="b")
    start_ms = scene.clock.now_ms()
    assert scene.broker.pending.move("orders", "a", start_ms + 9_000).verdict == Verdict.MOVED
    scene.flush()
    assert scene.broker.pending.move("orders", "b", start_ms + 1_000).verdict == Verdict.MOVED
    assert scene.broker.pending.count() == 2
    scene.restart()
    assert scene.broker.pending.count() == 2
    scene.pass_time(100_000)
    arrived = [(message.body, message.store_timestamp_ms - start_ms) for message in messages(scene.broker)]
    assert arrived == [(b"moved sooner", 1_000), (b"moved later", 9_000)]
    assert scene.broker.pending.move("orders", "a", start_ms + 500_000).verdict == Verdict.DELIVERED


def test_a_cancel_or_move_of_timers_that_were_seen_leaves_newer_ones_of_their_name_alone(scene: Scene) -> None:
    pending = scene.broker.pending
    due_ms = scene.clock.now_ms() + 60_000
    for number in range(3):
        scene.send(b"%d" % number, 2_000, UNIQ_KEY="name")  # timers 0, 1 and 2
    seen = SeenTimers(frozenset({1}), 3)
    assert pending.move("orders", "name", due_ms, seen=SeenTimers(frozenset({1}), 2)).verdict == Verdict.REPLACED
    assert pending.cancel("orders", "name", SeenTimers(frozenset({0, 1}), None)).verdict == Verdict.REPLACED
    assert pending.cancel("orders", "name", SeenTimers(frozenset({9}), 10)).verdict == Verdict.REPLACED
    assert pending.count() == 3
    # All of the name were there when it was looked at, though one of them was meant: they go together.
    assert pending.cancel("orders", "name", seen).timers == 3
    assert pending.cancel("orders", "name", seen).verdict == Verdict.CANCELLED
    scene.send(b"new", 2_000, UNIQ_KEY="name")
    assert pending.cancel("orders", "name", seen).verdict == Verdict.REPLACED
    assert pending.move("orders", "name", due_ms, seen=seen).verdict == Verdict.REPLACED
    scene.pass_time(2_000)
    assert bodies(scene.broker) == [b"new"]
    assert pending.cancel("orders", "name", seen).verdict == Verdict.DELIVERED


def test_a_timer_that_was_moved_since_it_was_seen_is_the_same_timer(scene: Scene) -> None:
    pending = scene.broker.pending
    scene.send(b"a", 2_000, UNIQ_KEY="name")
    seen = SeenTimers(frozenset({0}), 1)
    due_ms = scene.clock.now_ms() + 60_000
    assert pending.move("orders", "name", due_ms, seen=seen).verdict == Verdict.MOVED
    assert pending.move("orders", "name", due_ms, seen=seen).verdict == Verdict.MOVED
    assert pending.cancel("orders", "name", seen).verdict == Verdict.CANCELLED


def test_a_timer_far_ahead_rolls_and_arrives_at_its_millisecond(scene: Scene) -> None:
    start_ms = scene.clock.now_ms()
    due_ms = start_ms + 9 * DAY_MS + 12_345
    scene.send(b"far", due_ms - start_ms, UNIQ_KEY="far")
    scene.send(b"cancelled", due_ms - start_ms, UNIQ_KEY="gone")
    for day in range(10):
        scene.flush()
        if day == 3:
            assert scene.broker.pending.cancel("orders", "gone").timers == 1
        if day % 3 == 0:
            scene.checkpoint()
            scene.restart(clean=day % 2 == 0)
        scene.skip_until(min(due_ms - 20_000, start_ms + (day + 1) * DAY_MS))
    assert bodies(scene.broker) == []
    scene.pass_time(30_000)
    (message,) = messages(scene.broker)
    assert message.store_timestamp_ms == due_ms
    assert message.properties["LMQ_TIMER_ID"] == "0"
    assert int(message.properties["TIMER_ROLL_TIMES"]) >= 4


@pytest.mark.parametrize(
    ("properties", "delay_ms"),
    [
        ({"TIMER_DELAY_SEC": "2", "TIMER_DELAY_MS": "7000", "TIMER_DELIVER_MS": "1"}, 2_000),
        ({"TIMER_DELAY_MS": "3000", "TIMER_DELIVER_MS": "1", "__STARTDELIVERTIME": "2"}, 3_000),
        ({"DELAY": "2", "TIMER_DELAY_SEC": "1", "TIMER_DEL_UNIQKEY": "x+y"}, 5_000),
        ({"TIMER_DELIVER_MS": "+4000", "__STARTDELIVERTIME": "+9000"}, 4_000),
        ({"__STARTDELIVERTIME": "+6000"}, 6_000),
        ({"TIMER_DELIVER_MS": "1000"}, 0),
        ({"TIMER_DELAY_SEC": "0"}, 0),
        ({"DELAY": "0", "TIMER_DELAY_MS": "1500"}, 1_500),
        ({"TIMER_DELAY_MS": "1500", "TIMER_OUT_MS": "1", "LMQ_DUE_MS": "1"}, 1_500),
    ],
)
def test_the_first_way_to_name_a_time_counts(scene: Scene, properties: dict[str, str], delay_ms: int) -> None:
    now_ms = scene.clock.now_ms()
    given = {name: str(now_ms + int(value)) if value[0] == "+" else value for name, value in properties.items()}
    send_with(scene.broker, b"x", given)
    if delay_ms:
        scene.pass_time(delay_ms - 1)
        assert bodies(scene.broker) == []
        scene.pass_time(1)
    assert bodies(scene.broker) == [b"x"]


@pytest.mark.parametrize("name", ["TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "__STARTDELIVERTIME"])
@pytest.mark.parametrize("value", ["soon", "-1", "1.5", "9" * 18, "9" * 400, "+5", " 5", "٣"])
def test_a_time_that_is_none_is_refused_by_name(scene: Scene, name: str, value: str) -> None:
    with pytest.raises(IllegalMessage, match=name):
        send_with(scene.broker, b"x", {name: value})
    assert scene.broker.pending.count() == 0


def test_the_longest_delay_is_taken_and_a_millisecond_more_is_not() -> None:
    scene = Scene("wheel", max_delay=Duration.parse("40d"))
    send(scene.broker, b"x", TIMER_DELAY_MS=str(40 * DAY_MS))
    with pytest.raises(IllegalMessage, match="max_delay"):
        send(scene.broker, b"x", TIMER_DELAY_MS=str(40 * DAY_MS + 1))
    with pytest.raises(IllegalMessage, match="max_delay"):
        send(scene.broker, b"x", TIMER_DELIVER_MS=str(scene.clock.now_ms() + 40 * DAY_MS + 20_000))


def test_a_batch_may_mix_timers_levels_and_messages_for_now(scene: Scene) -> None:
    members = [{}, {"TIMER_DELAY_MS": "1500"}, {"DELAY": "1"}, {"TIMER_DELAY_SEC": "2"}]
    data = encode_batch(
        BatchMember(0, b"%d" % number, encode_properties(given).encode()) for number, given in enumerate(members)
    )
    scene.broker.writer.send_batch("orders", 0, data, 1, HOST)
    assert scene.broker.pending.count() == 2
    scene.pass_time(5_000)
    assert bodies(scene.broker) == [b"0", b"2", b"1", b"3"]
    bad = encode_batch(
        [BatchMember(0, b"x", b"TIMER_DELAY_MS\x01100\x02"), BatchMember(0, b"y", b"TIMER_DELAY_MS\x01a\x02")]
    )
    with pytest.raises(IllegalMessage, match="message 1"):
        scene.broker.writer.send_batch("orders", 0, bad, 1, HOST)


def test_a_full_second_refuses_ever_more_and_at_last_all(engine: str) -> None:
    draws = iter(float(number % 10) / 10 for number in range(100_000))
    scene = Scene(engine, random_fraction=lambda: next(draws), slot_limit=100)  # the only randomness there is
    passed: list[int] = []
    due_ms = scene.clock.now_ms() // 1000 * 1000 + 20_500
    for number in range(500):
        try:
            send(scene.broker, b"x", TIMER_DELIVER_MS=str(due_ms))
            passed.append(number)
        except FlowControl:
            pass
        if number % 50 == 0:
            scene.flush()
    assert passed[:100] == list(range(100))
    assert 100 < len(passed) <= 200
    send(scene.broker, b"another second", TIMER_DELIVER_MS=str(due_ms + 1_000))
    scene.broker.timers.engine.close()


def test_pending_timers_are_listed_page_by_page_in_due_order(scene: Scene) -> None:
    for number in range(25):
        scene.send(
            b"body %d" % number, 1_000 * (25 - number) + 60_000, UNIQ_KEY=f"u{number}", KEYS=f"k{number % 5} all"
        )
        if number % 10 == 0:
            scene.flush()
    send(scene.broker, b"else", topic="bills", TIMER_DELAY_MS="90000")
    listed: list[str] = []
    cursor = ""
    while True:
        page = scene.broker.pending.list(topic="orders", limit=10, cursor=cursor)
        listed += [timer.unique_key for timer in page.timers]
        cursor = page.next
        if not cursor:
            break
    assert listed == [f"u{number}" for number in reversed(range(25))]
    assert scene.broker.pending.count(topic="orders") == 25
    assert scene.broker.pending.count() == 26
    now_ms = scene.clock.now_ms()
    assert scene.broker.pending.count(from_ms=now_ms + 61_000, until_ms=now_ms + 66_000) == 5
    assert scene.broker.pending.count(topic="bills", from_ms=now_ms + 61_000, until_ms=now_ms + 66_000) == 0
    assert len(scene.broker.pending.list(topic="orders", key="k3").timers) == 5
    density = scene.broker.pending.density()
    assert sum(density.seconds) == 26
    assert {outcome.verdict for outcome in scene.broker.pending.cancel_key("orders", "k3")} == {Verdict.CANCELLED}
    assert scene.broker.pending.count(topic="orders") == 20


def test_consumers_cannot_read_the_timer_topic_and_producers_not_write_it(scene: Scene) -> None:
    scene.send(b"x", 1_000)
    with pytest.raises(Exception, match="rmq_sys_wheel_timer"):
        send(scene.broker, b"x", topic=TIMER_TOPIC)


def test_a_clock_set_back_brings_no_cancelled_timer_back(scene: Scene) -> None:
    scene.send(b"warm", 100)
    scene.pass_time(20_000)
    scene.checkpoint()
    scene.clock.step(-1_500)
    scene.send(b"cancelled", 1_000, UNIQ_KEY="u")
    scene.flush()
    assert scene.broker.pending.cancel("orders", "u").verdict == Verdict.CANCELLED
    scene.checkpoint()
    scene.checkpoint()
    scene.pass_time(10_000)
    assert bodies(scene.broker) == [b"warm"]
    assert scene.broker.pending.count() == 0


@pytest.mark.parametrize("value", ["²", "9" * 5_000, "x"])
def test_a_count_of_rolls_from_outside_is_dropped(scene: Scene, value: str) -> None:
    start_ms = scene.clock.now_ms()
    scene.send(b"x", 3 * DAY_MS, TIMER_ROLL_TIMES=value)
    scene.flush()
    scene.skip_until(start_ms + 3 * DAY_MS + 600_000)
    (message,) = messages(scene.broker)
    assert message.properties["TIMER_ROLL_TIMES"] == "1"


def test_a_shorter_retention_changes_nothing_for_what_waits(engine: str) -> None:
    clock, disk, timer = SimulatedClock(), MemoryDisk(), TimerConfig(engine=engine)  # type: ignore[arg-type]
    for retention, key in (("72h", "first"), ("24h", "second")):
        store = msgspec.structs.replace(STORE, retention=Duration.parse(retention))
        broker = open_broker(disk, clock, timer, store)
        if key == "first":
            for name in ("kept", "cancelled"):
                send(broker, name.encode(), TIMER_DELAY_MS=str(40 * 3_600_000), UNIQ_KEY=name)
            broker.store.flush()
            run_until_quiet(broker)
            broker.close()
            disk = disk.after_process_crash()
    assert broker.pending.cancel("orders", "cancelled").verdict == Verdict.CANCELLED
    for _ in range(41):
        for _ in range(20):
            send(broker, b"x" * 4_000, topic="bills")
        clock.advance(3_600_000)
        run_until_quiet(broker)
        broker.store.save(broker.store.plan_checkpoint())
        broker.retention.run()
        run_until_quiet(broker)
    assert bodies(broker) == [b"kept"]
    broker.timers.engine.close()


def test_what_stays_behind_after_a_failed_append_is_neither_lost_nor_early(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, start_ms = scene.broker, scene.clock.now_ms()

    def timer(queue_id: int, delay_ms: int) -> None:
        properties = encode_properties({"TIMER_DELAY_MS": str(delay_ms)})
        broker.writer.send("orders", queue_id, b"%d" % delay_ms, properties, 1, HOST)
        run_until_quiet(broker)
        scene.clock.advance(25)
        run_until_quiet(broker)

    timer(1, 1_100)
    timer(0, 1_900)
    timer(0, 1_500)
    scene.clock.advance(3_000)
    queue = broker.store.queues.ensure("orders", 0)

    def fail(count: int = 1) -> None:
        raise StoreError("no space, as injected")

    with monkeypatch.context() as patch:
        patch.setattr(queue, "make_room", fail)
        broker.timers.run()
        broker.store.flush()
        broker.timers.run()
        broker.store.save(broker.store.plan_checkpoint())
    scene.restart()
    scene.pass_time(10_000)
    stored = messages(scene.broker, queue_id=0) + messages(scene.broker, queue_id=1)
    assert sorted(int(message.body) for message in stored) == [1_100, 1_500, 1_900]
    assert all(message.store_timestamp_ms >= start_ms + int(message.body) for message in stored)


def test_a_slot_that_an_older_round_holds_is_free_when_that_is_delivered() -> None:
    scene = Scene("wheel")
    scene.send(b"overdue", 10_000)
    scene.checkpoint()
    scene.clock.advance(14 * DAY_MS - 6 * 3_600_000)
    scene.restart()
    send(scene.broker, b"next round", TIMER_DELAY_MS=str(6 * 3_600_000 + 10_000))
    for _ in range(10):
        scene.pass_time(2_000)
        scene.checkpoint()
    assert bodies(scene.broker) == [b"overdue"]
    assert (scene.broker.timers.failure, scene.broker.timers.statistics()["timers_unput"]) == ("", 0)


@pytest.mark.parametrize("unique_key", ["a b", "x+y", "tab\tx", "ü", "k" * 1_000])
def test_any_unique_key_names_its_timer(scene: Scene, unique_key: str) -> None:
    scene.send(b"x", 5_000, UNIQ_KEY=unique_key)
    assert scene.broker.pending.status("orders", unique_key).verdict == Verdict.PENDING
    assert scene.broker.pending.cancel("orders", unique_key).verdict == Verdict.CANCELLED
    scene.pass_time(10_000)
    assert bodies(scene.broker) == []


def test_a_range_may_have_no_end(scene: Scene) -> None:
    for number in range(10):
        scene.send(b"x", 60_000 + 7_000 * number)
    scene.flush()
    now_ms = scene.clock.now_ms()
    assert scene.broker.pending.count(from_ms=now_ms) == len(scene.broker.pending.list(from_ms=now_ms).timers) == 10
    assert scene.broker.pending.count(until_ms=now_ms + 68_000) == 2


def test_a_timer_that_is_moved_all_the_time_is_known_by_its_last_move(scene: Scene) -> None:
    scene.send(b"x", 60_000, UNIQ_KEY="u")
    for number in range(30):
        due_ms = scene.clock.now_ms() + 60_000 + number
        assert scene.broker.pending.move("orders", "u", due_ms).timers == 1
        if number % 10 == 0:
            scene.restart()
    assert scene.broker.pending.status("orders", "u").due_ms == due_ms
    assert scene.broker.pending.cancel("orders", "u").timers == 1
    assert scene.broker.pending.cancel("orders", "u").verdict == Verdict.CANCELLED
    scene.pass_time(70_000)
    assert bodies(scene.broker) == []
