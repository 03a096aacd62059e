"""A timeline that lost its last commits in a power cut, while the broker was told of them: all arrives, once."""

import pytest

from latermq.errors import InvalidParameter
from latermq.message.names import TIMER_TOPIC
from latermq.model.timers import Verdict
from tests.support.brokers_in_memory import pass_time
from tests.support.pipeline.far_broker import FAR_MS, FarBroker


@pytest.fixture
def far() -> FarBroker:
    far = FarBroker()
    far.twin.chance.seed(3)
    return far


def ingest_all(far: FarBroker) -> None:
    end = far.broker.far.next_entry
    while far.twin.ingested < end or far.broker.ingest.offset < end:
        far.broker.store.flush()
        far.twin.ingest(far.broker)


def lose_rows(far: FarBroker, end: int) -> None:
    """The table as it was when it ended there."""
    far.twin.ingested = end
    far.twin.timeline = {entry: row for entry, row in far.twin.timeline.items() if entry < end}


def begin(far: FarBroker) -> None:
    """What a driver does that finds its table so."""
    far.broker.store.flush()
    queue = far.broker.store.queues.ensure(TIMER_TOPIC, 0)
    flushed = far.broker.store.reader.flushed_end(queue)
    far.broker.ingest.begin(far.twin.ingested, min_entry=queue.min_offset, flushed_end=flushed)
    far.broker.ingest.save()


@pytest.mark.parametrize("left", [0, 3, 5, 8])
@pytest.mark.parametrize("crashes", [False, True])
def test_what_the_log_still_holds_is_ingested_again(far: FarBroker, left: int, crashes: bool) -> None:
    for number in range(6):
        far.schedule(f"t{number}")
    far.schedule("near", 5_000)
    assert far.broker.pending.cancel("orders", "t1").verdict == Verdict.CANCELLED
    moved_ms = far.clock.now_ms() + FAR_MS + 9_000
    assert far.broker.pending.move("orders", "t2", moved_ms).verdict == Verdict.MOVED
    ingest_all(far)
    lose_rows(far, left)
    if crashes:
        far.crash()
    begin(far)
    assert far.broker.ingest.offset == left
    if crashes:
        far.crash()
        assert far.broker.ingest.offset == left
    far.pass_time(FAR_MS + 40_000)
    assert sorted(far.arrived()) == [b"near", b"t0", b"t2", b"t3", b"t4", b"t5"]
    assert far.broker.pending.count() == 0
    far.close()


def test_the_log_is_kept_until_it_is_ingested_again(far: FarBroker) -> None:
    far.schedule("far")
    ingest_all(far)
    lose_rows(far, 0)
    begin(far)
    for _ in range(40):  # time passes, and nobody ingests
        far.clock.advance(1_000)
        far.broker.far.run()
        far.upkeep()
    assert far.broker.store.queues.ensure(TIMER_TOPIC, 0).min_offset == 0
    far.pass_time(FAR_MS + 20_000)
    assert far.arrived() == [b"far"]
    far.close()


def test_what_neither_the_table_nor_the_log_holds_is_told_and_near_timers_go_on(far: FarBroker) -> None:
    far.schedule("far")
    ingest_all(far)
    far.lose_log()
    lose_rows(far, 0)
    epoch = far.broker.ingest.epoch
    with pytest.raises(InvalidParameter, match="are in neither"):
        begin(far)
    assert far.broker.ingest.epoch == epoch
    far.schedule("near", 5_000)
    far.broker.store.flush()
    pass_time(far.broker, far.clock, 8_000)
    assert far.arrived() == [b"near"]
    far.close()
