"""Pages and counts of far timers for the console, without Spark: compared with the definition of a pending timer."""

from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("deltalake")

from latermq.handover.window import Window
from latermq.pipeline.timeline.far_reads import MAX_DUE_MS, FarPlace, FarSpan, FarTimer, Spans
from latermq.pipeline.timeline.pending_counts import busiest_far_seconds, count_far_timers
from latermq.pipeline.timeline.pending_page import read_far_timers
from tests.support.faults.timer_histories import (
    NEVER_MS,
    History,
    append_rows,
    expected_rows,
    random_history,
    write_timeline,
)
from tests.support.needs import LONG

SEEDS = range(60) if LONG else range(3)
STORES = ["s", "t"]
START = FarPlace(0, "", -1)
ALL = FarSpan("", 0, MAX_DUE_MS)


def pages(root: Path, span: FarSpan, limit: int, stores: list[str] = STORES) -> list[FarTimer]:
    found: list[FarTimer] = []
    place: FarPlace | None = START
    while place is not None:
        read = read_far_timers(str(root), stores, span, place, limit)
        assert len(read.timers) <= limit
        found += read.timers
        place = read.next
    return found


def written(root: Path, seed: int) -> list[History]:
    """Two histories, in one timeline. An ingest that was repeated has written some of the rows twice."""
    histories = [random_history(seed * 2 + number, store_id=store) for number, store in enumerate(STORES)]
    write_timeline(str(root / "timeline"), histories, NEVER_MS)
    again = [row for row in histories[0].rows if row["record"] is not None][:20]
    append_rows(str(root / "timeline"), again, "s", NEVER_MS)
    return histories


def expected(histories: list[History], topic: str = "") -> list[tuple[int, str, int]]:
    """Due time, store and timer of each pending far timer."""
    return sorted(
        (due_ms, one.store_id, timer_id)
        for one in histories
        for due_ms, entry, timer_id, _ in expected_rows(one.rows, Window(one.store_id, 1, NEVER_MS, 0, NEVER_MS))
        if not topic or next(row["topic"] for row in one.rows if row["entry_offset"] == entry) == topic
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_pages_of_any_size_have_each_pending_timer_once_in_the_order_of_due_times(tmp_path: Path, seed: int) -> None:
    histories = written(tmp_path, seed)
    for span in (ALL, FarSpan("T", 0, MAX_DUE_MS), FarSpan("no such topic", 0, MAX_DUE_MS)):
        for limit in (1, 7, 500):
            found = [(one.place.due_ms, one.place.store_id, one.timer.timer_id) for one in pages(tmp_path, span, limit)]
            assert sorted(set(found)) == expected(histories, span.topic)
            assert found == sorted(found)
    some = pages(tmp_path, FarSpan("", 500, 1_500), 7, ["t"])
    assert {(one.place.due_ms, one.timer.timer_id) for one in some} == {
        (due_ms, timer_id) for due_ms, store, timer_id in expected(histories) if store == "t" and 500 <= due_ms <= 1_500
    }


def test_a_page_of_rows_that_are_there_twice_is_not_taken_for_the_last_one(tmp_path: Path) -> None:
    history = History()
    history.cut(1, 1)
    for number in range(6):
        history.send(100 + number, f"k{number}")
    write_timeline(str(tmp_path / "timeline"), [history], NEVER_MS)
    append_rows(str(tmp_path / "timeline"), history.rows[:3], "s", NEVER_MS)
    assert [one.timer.unique_key for one in pages(tmp_path, ALL, 2)] == ["k0", "k1", "k2", "k3", "k4", "k5"]


@pytest.mark.parametrize("seed", SEEDS)
def test_counts_and_busiest_seconds_are_those_of_the_pages(tmp_path: Path, seed: int) -> None:
    histories = [random_history(seed * 2 + number, store_id=store) for number, store in enumerate(STORES)]
    write_timeline(str(tmp_path / "timeline"), histories, NEVER_MS)
    dues = [one.place.due_ms for one in pages(tmp_path, ALL, 50)]
    counts = count_far_timers(str(tmp_path), STORES, Spans(0, 0, 100, 40))
    assert {number: count for number, count in enumerate(counts.tolist()) if count} == Counter(
        due_ms // 100 for due_ms in dues
    )
    heaviest = busiest_far_seconds(str(tmp_path), STORES, 0, MAX_DUE_MS, 3)
    by_second = Counter(due_ms // 1_000 * 1_000 for due_ms in dues)
    assert heaviest == sorted(by_second.items(), key=lambda one: (-one[1], one[0]))[:3]


def test_only_files_that_may_have_the_topic_count_for_how_far_a_page_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from latermq.pipeline.timeline.local_timeline import LocalTimeline

    many, few = History("s"), History("t")
    for history, count, first_ms, topic in ((many, 400, 1_000, "many"), (few, 3, 900_000, "rare")):
        history.cut(1, 1)
        for number in range(count):
            history.send(first_ms + number, f"k{number}", topic)
    write_timeline(str(tmp_path / "timeline"), [many, few], NEVER_MS)
    asked = []
    query = LocalTimeline.query

    def noted(timeline: LocalTimeline, sql: str) -> object:
        asked.append(sql)
        return query(timeline, sql)

    monkeypatch.setattr(LocalTimeline, "query", noted)
    assert len(pages(tmp_path, FarSpan("rare", 0, MAX_DUE_MS), 5)) == 3
    assert len(asked) == 1, "spans are not searched one after the other for a topic that they cannot have"
    assert pages(tmp_path, FarSpan("unknown", 0, MAX_DUE_MS), 5) == []
    assert len(asked) == 1
