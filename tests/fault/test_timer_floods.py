"""Floods of timers: ever more are scheduled while many fall due, and every hand-over on the way stays bounded."""

from collections.abc import Callable

import msgspec
import pytest

from latermq.broker.broker import Broker
from latermq.clock import SimulatedClock
from latermq.config import Size, TimerConfig
from latermq.errors import FlowControl
from latermq.message.batch import BatchMember, encode_batch
from latermq.model.timers import Verdict
from latermq.store.files.memory_disk import MemoryDisk
from latermq.timer.intake.intake import READ_AT_ONCE
from tests.fault.test_timer_hazards import check_punctual, due_of
from tests.support.brokers_in_memory import HOST, STORE, bodies, messages, open_broker, send
from tests.support.needs import LONG
from tests.unit.timer.test_timers import ENGINES, Scene

FLUSH_EVERY_MS = 500
RATE = 50_000 if LONG else 5_000  # scheduled in a second,
BURST = 100_000 if LONG else 10_000  # while so many fall due in one
TICK_MS = 10
ROUNDS_A_TICK = 4
LARGE_STORE = msgspec.structs.replace(
    STORE, segment=Size(64 << 20), reserve_step=Size(1 << 20), queue_file_entries=300_000, index_entries=4_000_000
)


class Flood:
    """A broker whose timers grow in number all the time."""

    def __init__(self, engine: str) -> None:
        self._clock = SimulatedClock()
        self.timer = TimerConfig(
            engine=engine,  # type: ignore[arg-type]
            stage=Size(100 * BURST),
            max_waiting=RATE,
            max_loaded=BURST // 5,
        )
        self.broker: Broker = open_broker(MemoryDisk(), self._clock, self.timer, LARGE_STORE)
        self._sent = 0

    @property
    def now_ms(self) -> int:
        return self._clock.now_ms()

    def send(self, count: int, due_ms: Callable[[int], int]) -> None:
        """Schedule a batch, each due when `due_ms` says for its number."""
        members = [
            BatchMember(0, b"%d" % number, b"TIMER_DELIVER_MS\x01%d\x02" % due_ms(number))
            for number in range(self._sent, self._sent + count)
        ]
        self.broker.writer.send_batch("orders", 0, encode_batch(members), 1, HOST)
        self._sent += count

    def tick(self) -> None:
        """Let a moment pass, in which only so much can be done."""
        for _ in range(ROUNDS_A_TICK):
            self.broker.timers.run()
        self._check_bounds()
        self._clock.advance(TICK_MS)
        if self.now_ms % FLUSH_EVERY_MS == 0:
            self.broker.store.flush()
        if self.now_ms % 5_000 == 0:
            self.broker.store.save(self.broker.store.plan_checkpoint())

    def _check_bounds(self) -> None:
        told = self.broker.timers.statistics()
        assert told["timers_unread"] <= READ_AT_ONCE
        assert told["timers_unput"] <= self.timer.max_waiting
        assert told["timers_loaded"] <= self.timer.max_loaded + BURST + RATE, (
            "a second is loaded as a whole, but no two"
        )
        assert told["staged_bytes"] <= self.timer.stage + self.timer.block
        assert told["timers_done_beyond_marks"] <= BURST + RATE


@pytest.mark.parametrize("engine", ENGINES)
def test_many_fall_due_on_time_while_ever_more_are_scheduled(engine: str) -> None:
    flood = Flood(engine)
    burst_ms = flood.now_ms + 7_000
    for _ in range(BURST // 1_000):
        flood.send(1_000, lambda number: burst_ms + 1 + number % 1_000)
        flood.tick()
        flood.broker.store.flush()
    assert flood.now_ms < burst_ms - 5_000
    expected = BURST
    while flood.now_ms < burst_ms + 2_000:
        # One in ten soon, the others over the next hours.
        flood.send(RATE * TICK_MS // 1_000, lambda n: flood.now_ms + (700 if n % 10 == 0 else 3_600_000 + 997 * n))
        expected += RATE * TICK_MS // 10_000
        flood.tick()
    for _ in range(1_000 // TICK_MS):
        flood.tick()
    found = messages(flood.broker)
    assert len({message.body for message in found}) == len(found) == expected
    late_ms = [message.store_timestamp_ms - due_of(message) for message in found]
    assert 0 <= min(late_ms) <= max(late_ms) <= TICK_MS
    assert flood.broker.pending.count() == flood.broker.timers.statistics()["timers_pending"] > 5 * RATE
    flood.broker.timers.engine.close()


@pytest.mark.parametrize("engine", ENGINES)
def test_above_max_waiting_new_timers_are_refused_and_all_else_goes_on(engine: str) -> None:
    scene = Scene(engine, max_waiting=100)
    due_ms = scene.clock.now_ms() + 60_000
    for number in range(100):
        scene.send(b"%d" % number, 1_000 + number, UNIQ_KEY=f"u{number}")
    with pytest.raises(FlowControl, match="100 timers are waiting"):
        scene.send(b"100", 1_000)
    with pytest.raises(FlowControl, match="100 timers are waiting"):
        scene.broker.writer.send_batch(
            "orders", 0, encode_batch([BatchMember(0, b"x", b"TIMER_DELAY_MS\x0110\x02")]), 1, HOST
        )
    assert scene.broker.pending.cancel("orders", "u99").verdict == Verdict.CANCELLED
    assert scene.broker.pending.move("orders", "u98", due_ms).verdict == Verdict.MOVED
    send(scene.broker, b"now", topic="bills")
    send(scene.broker, b"level", topic="bills", DELAY="1")
    scene.pass_time(2_000)
    assert bodies(scene.broker) == [b"%d" % number for number in range(98)]
    assert bodies(scene.broker, "bills") == [b"now", b"level"]
    with pytest.raises(FlowControl):
        scene.send(b"100", 1_000)
    scene.flush()
    scene.send(b"99", 1_000)
    scene.pass_time(60_000)
    check_punctual(messages(scene.broker), 100)
    scene.broker.timers.engine.close()


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_second_with_more_timers_than_may_be_loaded_is_delivered_whole_and_on_time(
    engine: str, restarted: bool
) -> None:
    scene = Scene(engine, max_loaded=50)
    start_ms = scene.clock.now_ms() // 1_000 * 1_000
    for number in range(500):
        scene.send(b"%d" % number, start_ms + 20_001 + 2 * number - scene.clock.now_ms())
        if number % 7 == 0:
            scene.flush()
    for number in range(500, 600):
        scene.send(b"%d" % number, start_ms + 18_000 + 50 * (number - 500) - scene.clock.now_ms())
    scene.checkpoint()
    if restarted:
        scene.restart()
    scene.pass_time(30_000)
    check_punctual(messages(scene.broker), 600)
    scene.broker.timers.engine.close()
