"""A store that is put back from an old copy: what Spark holds beyond its end arrives, once, and so does what is new."""

from collections.abc import Callable, Iterator

import pytest

from latermq.broker.timers.lost_entries import LostEntries, LostRow, TimelineTail
from latermq.handover.cut import FOREVER_MS
from latermq.message.names import TIMER_TOPIC
from latermq.message.timer_code import CANCEL, MOVED, TIMER
from latermq.model.timers import Verdict
from latermq.store.files.memory_disk import MemoryDisk
from tests.support.brokers_in_memory import open_broker, send
from tests.support.pipeline.far_broker import FAR_MS, PIPELINE, FarBroker
from tests.support.pipeline.spark_twin import Row


@pytest.fixture
def far() -> FarBroker:
    far = FarBroker()
    far.twin.chance.seed(3)
    return far


def lost_to(far: FarBroker) -> TimelineTail:
    """What the timeline tells of what this store lacks."""
    dues = [row.due_ms for row in lost_rows(far) if row.record]
    newest = max((number for number, _ in far.twin.by_window), default=0)
    end = far.twin.ingested
    return TimelineTail(end, 9, end, min(dues, default=FOREVER_MS), max(dues, default=0), newest)


def lost_rows(far: FarBroker, first: int | None = None) -> list[LostRow]:
    if first is None:
        first = far.broker.far.next_entry
    rows = (row for row in far.twin.timeline.values() if row.entry >= first)
    return [lost_row(row) for row in sorted(rows, key=lambda row: row.entry) if row.record or row.kind != TIMER]


def lost_row(row: Row) -> LostRow:
    topic, _, unique_key = row.name.partition("+")
    if row.kind == CANCEL:
        topic, unique_key = "", row.name
    kind = {TIMER: "timer", CANCEL: "cancel", MOVED: "move"}[row.kind]
    return LostRow(row.entry, kind, row.due_ms, topic, unique_key, row.record)


def mend(far: FarBroker) -> None:
    """What the server does at its start."""
    entries = write_again(far)
    for move in entries.moves.values():
        far.broker.pending.move(move.topic, move.unique_key, move.due_ms)
    far.broker.store.flush()
    far.broker.ingest.end_repair()


def write_again(far: FarBroker) -> LostEntries:
    """All but moves to a near time."""
    entries = far.broker.lost_entries(lost_to(far))
    rows = lost_rows(far, far.broker.ingest.begin_repair(far.broker.far.next_entry))
    assert entries.write(rows) == len(rows)
    return entries


def ingest_all(far: FarBroker) -> None:
    end = far.broker.far.next_entry
    while far.twin.ingested < end or far.broker.ingest.offset < end:
        far.broker.store.flush()
        far.twin.ingest(far.broker)


@pytest.fixture
def copied(far: FarBroker) -> tuple[FarBroker, MemoryDisk]:
    return copied_before_more(far)


def copied_before_more(
    far: FarBroker, *, lagging: bool = False, first: Callable[[FarBroker], object] = lambda far: None
) -> tuple[FarBroker, MemoryDisk]:
    """A broker, and a copy of its store from before further timers, cancels and moves.

    While Spark lags, the last cut gives the broker all that the wheel can hold: `lagging` copies at such a time.
    `first` is what the broker does first of all that the copy lacks.
    """
    far.schedule("known")
    far.schedule("cancelled-later")
    far.schedule("moved-later")
    far.schedule("near-cancelled-later", 30_000)
    ingest_all(far)
    last = far.broker.far.frontier.last
    assert last is not None
    if lagging:
        reach_ms = last.frontier_ms + 10 * FAR_MS
        far.broker.far.append([], far.broker.far.cut_at(far.broker.far.next_entry, reach_ms, last.handback_ms))
    copy = far.disk.after_process_crash()
    first(far)
    if lagging:
        cut = far.broker.far.cut_at(far.broker.far.next_entry, last.frontier_ms, last.handback_ms)
        far.broker.far.append([], cut)
    for name in ("lost-1", "lost-2", "lost-3"):
        far.schedule(name, FAR_MS + 5_000)
    far.schedule("near-and-lost", 5_000)
    for name in ("cancelled-later", "near-cancelled-later"):
        assert far.broker.pending.cancel("orders", name).verdict == Verdict.CANCELLED
    moved_ms = far.clock.now_ms() + FAR_MS + 9_000
    assert far.broker.pending.move("orders", "moved-later", moved_ms).verdict == Verdict.MOVED
    assert far.broker.pending.cancel("orders", "lost-3").verdict == Verdict.CANCELLED
    far.pass_time(20_000)
    ingest_all(far)
    return far, copy


def test_what_spark_holds_arrives_once_beside_what_is_new(copied: tuple[FarBroker, MemoryDisk]) -> None:
    far, copy = copied
    far.replace_disk(copy)
    assert far.broker.far.next_entry < far.twin.ingested
    mend(far)
    assert far.broker.far.next_entry == far.twin.ingested + 1  # and a cut
    assert (far.broker.ingest.offset, far.broker.ingest.epoch) == (far.twin.ingested, 9)
    for number in range(12):  # more than were lost: none of them is taken for one of those
        far.schedule(f"new-{number}", FAR_MS + 7_000)
    far.schedule("new-near", 4_000)
    far.pass_time(FAR_MS + 40_000)
    wanted = {"known", "moved-later", "lost-1", "lost-2", "new-near", *(f"new-{number}" for number in range(12))}
    assert sorted(far.arrived()) == sorted(name.encode() for name in wanted)
    assert far.broker.pending.count() == 0
    far.close()


def test_a_timer_that_only_spark_holds_is_found_by_its_name(copied: tuple[FarBroker, MemoryDisk]) -> None:
    far, copy = copied
    far.replace_disk(copy)
    mend(far)
    assert far.broker.pending.status("orders", "lost-1").verdict == Verdict.PENDING
    assert far.broker.pending.cancel("orders", "lost-1").verdict == Verdict.CANCELLED
    assert far.broker.pending.cancel("orders", "lost-3").verdict == Verdict.CANCELLED
    (outcome,) = far.broker.pending.cancel_key("orders", "key-lost-2")
    assert outcome.verdict == Verdict.CANCELLED
    far.pass_time(FAR_MS + 40_000)
    assert sorted(far.arrived()) == [b"known", b"moved-later"]
    assert far.broker.pending.count() == 0
    far.close()


@pytest.mark.parametrize("rows_before", range(7))
def test_a_death_half_way_leaves_it_to_the_next_start(
    copied: tuple[FarBroker, MemoryDisk], rows_before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    far, copy = copied
    far.replace_disk(copy)
    lost = lost_to(far)
    monkeypatch.setattr("latermq.broker.timers.lost_entries.WRITTEN_AT_ONCE", 2)

    def dying() -> Iterator[LostRow]:
        yield from lost_rows(far)[:rows_before]
        raise InterruptedError

    far.broker.ingest.begin_repair(far.broker.far.next_entry)
    with pytest.raises(InterruptedError):
        far.broker.lost_entries(lost).write(dying())
    far.crash()
    assert far.broker.far.next_entry < lost.end
    mend(far)
    far.crash()
    assert far.broker.far.next_entry == lost.end + 1
    far.schedule("new")
    far.pass_time(FAR_MS + 40_000)
    assert sorted(far.arrived()) == [b"known", b"lost-1", b"lost-2", b"moved-later", b"new"]
    assert far.broker.pending.count() == 0
    far.close()


@pytest.mark.parametrize("first", ["cancel", "timer", "nothing"])
def test_a_copy_from_a_time_when_spark_lagged_takes_nothing_that_is_sparks(far: FarBroker, first: str) -> None:
    doings: dict[str, Callable[[FarBroker], object]] = {
        "cancel": lambda far: far.broker.pending.cancel("orders", "near-cancelled-later"),
        "timer": lambda far: far.schedule("very-far", 20 * FAR_MS),
        "nothing": lambda far: None,
    }
    far, copy = copied_before_more(far, lagging=True, first=doings[first])
    far.replace_disk(copy)
    mend(far)
    far.pass_time(FAR_MS + 40_000)
    assert sorted(far.arrived()) == [b"known", b"lost-1", b"lost-2", b"moved-later"]
    assert far.broker.pending.count() == (first == "timer")
    far.close()


def test_a_copy_from_before_the_first_cut_goes_on_too() -> None:
    far = FarBroker()
    disk, clock = MemoryDisk(), far.clock
    broker = open_broker(disk, clock, pipeline=PIPELINE)
    send(broker, b"near", UNIQ_KEY="near", TIMER_DELAY_MS="5000")
    broker.store.flush()
    copy = disk.after_process_crash()
    far.replace_disk(disk.after_process_crash())
    broker.timers.engine.close()
    far.twin.begin(far.broker)
    far.pass_time(1_000)
    far.schedule("lost")
    far.schedule("lost-and-soon", 20_000)
    far.pass_time(2_000)
    ingest_all(far)
    far.replace_disk(copy)
    assert far.broker.ingest.epoch == 0
    mend(far)
    far.schedule("new")
    far.pass_time(FAR_MS + 40_000)
    assert sorted(far.arrived()) == [b"lost", b"lost-and-soon", b"near", b"new"]
    assert far.broker.pending.count() == 0
    far.close()


def test_a_far_timer_that_was_moved_to_a_near_time_is_moved_again(far: FarBroker) -> None:
    far.schedule("known")
    far.schedule("moved-and-cancelled")
    ingest_all(far)
    copy = far.disk.after_process_crash()
    for name in ("known", "moved-and-cancelled"):
        assert far.broker.pending.move("orders", name, far.clock.now_ms() + 8_000).verdict == Verdict.MOVED
    assert far.broker.pending.cancel("orders", "moved-and-cancelled").verdict == Verdict.CANCELLED
    far.broker.store.flush()
    ingest_all(far)
    far.replace_disk(copy)
    mend(far)
    far.pass_time(20_000)
    assert far.arrived() == [b"known"]
    far.pass_time(FAR_MS + 20_000)
    assert far.arrived() == [b"known"]
    assert far.broker.pending.count() == 0
    far.close()


@pytest.mark.parametrize("deaths", range(5))
def test_a_move_to_a_near_time_outlives_deaths_before_it_is_repeated(
    far: FarBroker, deaths: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("known", "cancelled", "moved-on"):
        far.schedule(name)
    ingest_all(far)
    copy = far.disk.after_process_crash()
    near_ms = far.clock.now_ms() + 8_000
    for name in ("known", "cancelled", "moved-on"):
        assert far.broker.pending.move("orders", name, near_ms).verdict == Verdict.MOVED
    far.schedule("lost")
    assert far.broker.pending.cancel("orders", "cancelled").verdict == Verdict.CANCELLED
    assert far.broker.pending.move("orders", "moved-on", near_ms + 5_000).verdict == Verdict.MOVED
    far.schedule("lost-too")
    far.broker.store.flush()
    ingest_all(far)
    far.replace_disk(copy)
    monkeypatch.setattr("latermq.broker.timers.lost_entries.WRITTEN_AT_ONCE", 1)
    for rows_before in range(deaths):
        lost, rows = lost_to(far), lost_rows(far, far.broker.ingest.begin_repair(far.broker.far.next_entry))

        def dying(rows: list[LostRow] = rows, count: int = 2 * rows_before) -> Iterator[LostRow]:
            yield from rows[:count]
            raise InterruptedError

        with pytest.raises(InterruptedError):
            far.broker.lost_entries(lost).write(dying())
        far.crash()
    if deaths:
        write_again(far)  # and a death before the moves
        far.crash()
        assert far.broker.ingest.repair_from is not None
    mend(far)
    assert far.broker.ingest.repair_from is None
    assert (far.broker.ingest.offset, far.broker.ingest.epoch) == (far.twin.ingested, 9)
    far.crash()
    far.pass_time(10_000)
    assert far.arrived() == [b"known"]
    far.pass_time(10_000)
    assert sorted(far.arrived()) == [b"known", b"moved-on"]
    far.pass_time(FAR_MS + 20_000)
    assert sorted(far.arrived()) == [b"known", b"lost", b"lost-too", b"moved-on"]
    assert far.broker.pending.count() == 0
    far.close()


def test_large_timers_are_written_again_in_blocks_that_fit_a_segment(far: FarBroker) -> None:
    copy = far.disk.after_process_crash()
    for number in range(30):
        send(far.broker, bytes([number]) * 30_000, UNIQ_KEY=f"u{number}", TIMER_DELAY_MS=str(FAR_MS))
    ingest_all(far)
    far.replace_disk(copy)
    mend(far)
    far.pass_time(FAR_MS + 20_000)
    assert sorted(far.arrived()) == [bytes([number]) * 30_000 for number in range(30)]
    far.close()


def test_it_outlives_a_lost_checkpoint(copied: tuple[FarBroker, MemoryDisk]) -> None:
    far, copy = copied
    far.replace_disk(copy)
    mend(far)
    far.broker.store.save(far.broker.store.plan_checkpoint())
    again = far.disk.after_process_crash()
    again.remove("latermq.checkpoint")
    far.replace_disk(again)
    assert far.broker.store.queues.ensure(TIMER_TOPIC, 0).next_offset == far.twin.ingested + 1
    far.pass_time(FAR_MS + 40_000)
    assert sorted(far.arrived()) == [b"known", b"lost-1", b"lost-2", b"moved-later"]
    far.close()
