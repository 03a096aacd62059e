"""Records of the timer topic that nobody can understand: no start stops at them, and none of them comes early."""

import pytest

from latermq.broker.broker import Broker
from latermq.clock import SimulatedClock
from latermq.config import TimerConfig
from latermq.handover.cut import FOREVER_MS
from latermq.message.names import TIMER_DEAD_LETTER_TOPIC, TIMER_TOPIC
from latermq.message.properties import encode_properties
from latermq.message.timer_code import kind_and_due, timer_code_of
from latermq.model.timers import Verdict
from latermq.pipeline.source.records import KINDS, RecordBlock
from latermq.store.files.memory_disk import MemoryDisk
from latermq.store.log_writer import Draft
from tests.fault.test_level_model import CHECKPOINT
from tests.support.brokers_in_memory import HOST, bodies, messages, open_broker, pass_time, send

NAMED = {"REAL_TOPIC": "orders", "REAL_QID": "0"}
DUE_MS = str(SimulatedClock().now_ms() + 60_000)
NO_DUE = {
    "letters": {**NAMED, "UNIQ_KEY": "letters", "LMQ_DUE_MS": "soon"},
    "superscript": {**NAMED, "UNIQ_KEY": "superscript", "LMQ_DUE_MS": "²"},
    "far-too-late": {**NAMED, "UNIQ_KEY": "far-too-late", "LMQ_DUE_MS": "9" * 30},
    "endless": {**NAMED, "UNIQ_KEY": "endless", "LMQ_DUE_MS": "9" * 5_000},
    "none": {**NAMED, "UNIQ_KEY": "none"},
    "negative": {**NAMED, "UNIQ_KEY": "negative", "TIMER_OUT_MS": "-5"},
}
NO_PLACE = {
    "no-topic": {"REAL_QID": "0", "UNIQ_KEY": "no-topic", "LMQ_DUE_MS": DUE_MS},
    "no-queue": {"REAL_TOPIC": "orders", "UNIQ_KEY": "no-queue", "LMQ_DUE_MS": DUE_MS},
    "moved-nowhere": {"LMQ_MOVE": "1", "LMQ_DUE_MS": DUE_MS},
}
NOTHING = {
    "cut": {"LMQ_CUT": "1:x", "TIMER_DEL_UNIQKEY": "latermq.cut", "LMQ_DUE_MS": DUE_MS},
    "short-cut": {"LMQ_CUT": "1", "TIMER_DEL_UNIQKEY": "latermq.cut", "LMQ_DUE_MS": DUE_MS},
    "cancel": {"TIMER_DEL_UNIQKEY": "+", "LMQ_DUE_MS": DUE_MS},
    "cancel-of-nothing": {"TIMER_DEL_UNIQKEY": "nobody", "LMQ_DUE_MS": "x"},
}
ODD_ID = {**NAMED, "UNIQ_KEY": "odd-id", "LMQ_DUE_MS": DUE_MS, "LMQ_TIMER_ID": "seven"}
ALL = {**NO_DUE, **NO_PLACE, **NOTHING, "odd-id": ODD_ID}


NOW_MS, WINDOW_MS = SimulatedClock().now_ms(), 600_000


def cut_of(number: object, frontier: object, handback_windows: int, last_windows: int) -> dict[str, str]:
    """A cut as a client could send it to RocketMQ's broker, which stores any property. Times count in windows."""
    handback, last = (NOW_MS + windows * WINDOW_MS for windows in (handback_windows, last_windows))
    text = ":".join(map(str, (number, frontier, handback, FOREVER_MS, last, NOW_MS + 9 * WINDOW_MS)))
    return {"LMQ_CUT": text, "TIMER_DEL_UNIQKEY": "anything", "TIMER_OUT_MS": DUE_MS}


FIRST_CUT = cut_of(5, FOREVER_MS, 2, 0)
ODD_CUTS = {
    "superscript": [cut_of("²", FOREVER_MS, 2, 0)],
    "endless": [cut_of(1, "9" * 5_000, 2, 0)],
    "beyond-64-bits": [cut_of(1, "9" * 30, 2, 0)],
    "frontier-before-its-handback": [cut_of(1, NOW_MS, 2, 0)],
    "handback-before-the-last-one": [cut_of(1, FOREVER_MS, 0, 2)],
    "overlapping-windows": [FIRST_CUT, cut_of(6, FOREVER_MS, 3, 1)],
    "lower-number": [FIRST_CUT, cut_of(4, FOREVER_MS, 3, 2)],
}


def broker_with(records: dict[str, dict[str, str]]) -> tuple[MemoryDisk, SimulatedClock, Broker]:
    """A broker that has such records behind its checkpoint, and ordinary ones around them."""
    disk, clock = MemoryDisk(), SimulatedClock()
    broker = open_broker(disk, clock)
    send(broker, b"first", UNIQ_KEY="first", TIMER_DELAY_MS="60000")
    for name, properties in records.items():
        draft = Draft(TIMER_TOPIC, 0, name.encode(), encode_properties(properties).encode(), 1, HOST)
        broker.store.writer.append_all([draft], clock.now_ms())
    send(broker, b"last", UNIQ_KEY="last", TIMER_DELAY_MS="60000")
    return disk, clock, broker


@pytest.mark.parametrize("engine", ["wheel", "rocksdb"])
@pytest.mark.parametrize("lost", [False, True], ids=["checkpoint", "no-checkpoint"])
def test_a_start_passes_over_what_it_cannot_understand(engine: str, lost: bool) -> None:
    disk, clock, broker = broker_with(ALL)
    broker.timers.engine.close()
    disk = disk.after_process_crash()
    if lost:
        disk.remove(CHECKPOINT)
    broker = open_broker(disk, clock, TimerConfig(engine=engine))  # type: ignore[arg-type]
    broker.store.flush()
    pass_time(broker, clock, 59_000)
    assert bodies(broker) == [], "none of them came early"
    pass_time(broker, clock, 2_000)
    assert sorted(bodies(broker)) == [b"first", b"last", b"odd-id"]
    dead = {message.body.decode() for message in messages(broker, TIMER_DEAD_LETTER_TOPIC)}
    assert dead == NO_DUE.keys() | NO_PLACE.keys(), "all that are timers are dead letters"
    assert broker.replay.unreadable_records.count == 2, broker.replay.unreadable_records.first
    assert broker.pending.cancel("orders", "last").verdict == Verdict.DELIVERED
    broker.timers.engine.close()


@pytest.mark.parametrize("lost", [False, True], ids=["checkpoint", "no-checkpoint"])
@pytest.mark.parametrize("cuts", ODD_CUTS.values(), ids=ODD_CUTS)
def test_a_start_passes_over_cuts_that_no_broker_has_written(cuts: list[dict[str, str]], lost: bool) -> None:
    disk, clock, broker = broker_with({str(number): cut for number, cut in enumerate(cuts)})
    broker.timers.engine.close()
    disk = disk.after_process_crash()
    if lost:
        disk.remove(CHECKPOINT)
    broker = open_broker(disk, clock)
    assert broker.replay.unreadable_records.count == 1, broker.replay.unreadable_records.first
    broker.far.run()
    broker.store.flush()
    pass_time(broker, clock, 61_000)
    assert sorted(bodies(broker)) == [b"first", b"last"]
    broker.timers.engine.close()


def test_a_timer_with_an_odd_id_is_found_and_cancelled() -> None:
    _, clock, broker = broker_with({"odd-id": ODD_ID})
    assert broker.pending.status("orders", "odd-id").verdict == Verdict.PENDING
    assert broker.pending.cancel("orders", "odd-id").verdict == Verdict.CANCELLED
    broker.store.flush()
    pass_time(broker, clock, 61_000)
    assert sorted(bodies(broker)) == [b"first", b"last"]
    broker.timers.engine.close()


def test_the_pipeline_reads_kind_and_due_time_as_the_broker_does() -> None:
    _, _, broker = broker_with(ALL | {"no-cut": {**NAMED, "LMQ_CUT": "1", "LMQ_DUE_MS": DUE_MS}})
    queue = broker.store.queues.ensure(TIMER_TOPIC, 0)
    places = [queue.entry(offset) for offset in range(queue.next_offset)]
    records = [broker.store.log.read(place[0], place[1]) for place in places if place]
    block = RecordBlock(records, is_timer_topic=True)
    codes = [kind_and_due(timer_code_of(encode_properties(one).encode(), 1_000)) for one in ALL.values()]
    kinds = [("timer", "cancel", "move", "cut")[kind] for kind, _ in codes]
    assert [KINDS[kind] for kind in block.kinds][1:-2] == kinds
    assert block.dues[0][1:-2].tolist() == [due_ms for _, due_ms in codes]
    assert KINDS[block.kinds[-2]] == "timer", "a cut names what a cut names"
    broker.timers.engine.close()
