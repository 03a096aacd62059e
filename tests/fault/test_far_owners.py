"""Whose a far timer is does not depend on cuts that were forgotten: it is cancelled, moved and found all the same."""

import pytest

from latermq.message.names import TIMER_TOPIC
from latermq.model.timers import Verdict
from tests.support.brokers_in_memory import messages, pass_time, send
from tests.support.pipeline.far_broker import FAR_MS, SHORT, FarBroker

DELAY_MS = 300_000


class Away(FarBroker):
    """The same beside a Spark that at times does not ingest."""

    is_away = False

    def pass_time(self, by_ms: int) -> None:
        for _ in range(0, by_ms, 1_000):
            self.broker.store.flush()
            if not self.is_away:
                self.twin.ingest(self.broker)
            self.twin.turn(self.broker)
            pass_time(self.broker, self.clock, 1_000)


def without_pipeline(far: Away) -> None:
    """The pipeline is switched off, for longer than records are kept."""
    far.switch(enabled=False)
    far.lose_log()
    far.lose_log()


def with_a_spark_that_lags(far: Away) -> None:
    """Spark has stopped to ingest, so the broker takes for itself what comes within two days."""
    far.is_away = True
    send(far.broker, b"new", topic="traffic", UNIQ_KEY="new", TIMER_DELAY_MS="1000")
    far.pass_time(20_000)
    far.is_away = False
    far.lose_log()


@pytest.fixture(params=[without_pipeline, with_a_spark_that_lags], ids=["off", "lagging"])
def far(request: pytest.FixtureRequest) -> Away:
    """A broker with two timers whose records have left the log, and under whose cuts all that is new is near."""
    far = Away()
    far.schedule("a", DELAY_MS)
    far.schedule("b", DELAY_MS)
    far.lose_log()
    request.param(far)
    far.upkeep()
    far.pass_time(1_000)
    return far


def finish(far: Away) -> list[bytes]:
    far.pass_time(DELAY_MS)
    return far.arrived()


@pytest.mark.parametrize("died", [False, True])
def test_a_far_timer_is_cancelled_after_its_cuts_are_forgotten(far: Away, died: bool) -> None:
    assert far.broker.pending.cancel("orders", "a").verdict == Verdict.CANCELLED
    if died:
        far.crash()
    assert far.broker.pending.cancel("orders", "a").verdict == Verdict.CANCELLED
    assert far.broker.pending.status("orders", "b").verdict == Verdict.PENDING
    assert finish(far) == [b"b"]
    far.close()


@pytest.mark.parametrize("died", [False, True])
def test_a_far_timer_is_moved_after_its_cuts_are_forgotten(far: Away, died: bool) -> None:
    due_ms = far.clock.now_ms() + 5_000
    ((entry, _),) = far.broker.pending.records_to_fetch("orders", "a", "")
    fetched = {entry: far.twin.timeline[entry].record}
    assert far.broker.pending.move("orders", "a", due_ms, fetched).verdict == Verdict.MOVED
    if died:
        far.crash()
    assert sorted(finish(far)) == [b"a", b"b"]
    assert {message.body: message.store_timestamp_ms for message in messages(far.broker)}[b"a"] == due_ms
    far.close()


def test_what_is_ingested_late_is_judged_by_the_cut_that_has_left_the_log() -> None:
    far = Away()
    far.pass_time(20_000)
    while far.broker.ingest.offset < far.broker.far.next_entry:
        far.broker.store.flush()
        far.twin.ingest(far.broker)
    far.is_away = True
    segment = far.broker.store.log.end // SHORT.segment
    while far.broker.store.log.end // SHORT.segment == segment:  # the last cut is in a segment that is over
        send(far.broker, b"x" * 50_000, topic="traffic")
    names = [f"late-{number}" for number in range(5)]
    for name in names:
        far.schedule(name)
    first = far.broker.far.next_entry - len(names)
    far.pass_time(60_000)
    send(far.broker, b"x" * 50_000, topic="traffic")
    far.upkeep()
    assert far.broker.store.queues.ensure(TIMER_TOPIC, 0).min_offset == first, "the cut before them is gone"
    far.pass_time(1_000)
    far.is_away = False
    far.pass_time(5_000)
    assert all(far.twin.timeline[first + number].record for number in range(5)), "Spark holds what is Spark's"
    far.lose_log()
    far.pass_time(FAR_MS)
    assert sorted(far.arrived()) == sorted(name.encode() for name in names)
    far.close()
