"""Pages and counts of far timers for the console, without Spark: compared with the definition of a pending timer."""

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("deltalake")

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from latermq.handover.window import Window
from latermq.pipeline.timeline import second_counts
from latermq.pipeline.timeline.data_files import DataFile
from latermq.pipeline.timeline.far_reads import MAX_DUE_MS, FarPlace, FarSpan, FarTimer, Spans
from latermq.pipeline.timeline.pending_counts import PendingCounts
from latermq.pipeline.timeline.pending_page import read_far_timers
from latermq.pipeline.timeline.root import Root, open_root
from latermq.pipeline.timeline.second_counts import SecondCounts, counts_of, read_second_counts
from latermq.pipeline.timeline.sorted_files import FILE_SCHEMA, write_run
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


def check_counts(counts: PendingCounts, root: Path, spans: Spans, dues: list[int]) -> None:
    found = counts.by_span(str(root), STORES, spans)
    assert {number: count for number, count in enumerate(found.tolist()) if count} == Counter(
        (due_ms - spans.start_ms) // spans.length_ms for due_ms in dues if spans.first_ms <= due_ms < spans.end_ms
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_counts_and_busiest_seconds_are_those_of_the_pages(tmp_path: Path, seed: int) -> None:
    """With and without what is kept: from an earlier version of the table, of its old files, and of nothing."""
    histories = [random_history(seed * 2 + number, store_id=store) for number, store in enumerate(STORES)]
    keeping, forgetting = PendingCounts(1 << 20), PendingCounts(0)
    write_timeline(str(tmp_path / "timeline"), histories, 60)
    for ingested in (60, NEVER_MS):
        if ingested > 60:
            for history in histories:
                rows = [row for row in history.rows if row["entry_offset"] >= 60]
                append_rows(str(tmp_path / "timeline"), rows, history.store_id, ingested)
        dues = [one.place.due_ms for one in pages(tmp_path, ALL, 500)]
        for counts in (keeping, keeping, forgetting):
            for spans in (
                Spans(0, 0, 100, 40),  # no whole seconds
                Spans(0, 0, 1_000, 4),
                Spans(700, 0, 1_000, 4),  # the first second in part
                Spans(1_000, 1_000, 1_000, 1),
                Spans(999, 0, 2_000, 1),
                Spans(2_500, 1_000, 60_000, 2),
            ):
                check_counts(counts, tmp_path, spans, dues)
            for first_ms, last_ms in ((0, MAX_DUE_MS), (250, 2_100), (1_200, 1_700), (1_000, 1_999), (999, 1_000)):
                by_second = Counter(due_ms // 1_000 * 1_000 for due_ms in dues if first_ms <= due_ms <= last_ms)
                heaviest = counts.busiest_seconds(str(tmp_path), STORES, first_ms, last_ms, 3)
                assert heaviest == sorted(by_second.items(), key=lambda one: (-one[1], one[0]))[:3]
        assert counts.by_span(str(tmp_path), ["unknown"], Spans(0, 0, 1_000, 4)).sum() == 0
    assert keeping.statistics()["files"] == 4
    assert forgetting.statistics() == {"files": 0, "bytes": 0}


def test_a_file_is_read_once_and_forgotten_with_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = str(tmp_path / "timeline")
    history = History()
    history.cut(1, 1)
    for number in range(6):
        history.send(5_000 + number * 400, f"k{number}")
    write_timeline(uri, [history], NEVER_MS)
    read: list[str] = []

    def noted(root: Root, file: DataFile) -> dict[str, SecondCounts]:
        read.append(file.path)
        return read_second_counts(root, file)

    monkeypatch.setattr(second_counts, "read_second_counts", noted)
    counts, spans = PendingCounts(1 << 20), Spans(0, 0, 1_000, 10)
    for _ in range(2):
        assert counts.by_span(str(tmp_path), ["s"], spans).tolist() == [0, 0, 0, 0, 0, 3, 2, 1, 0, 0]
    assert len(read) == 1
    assert counts.by_span(str(tmp_path), ["s"], Spans(8_000, 8_000, 1_000, 10)).sum() == 0
    history.cancel("k0")
    history.send(7_500, "k6")
    append_rows(uri, history.rows[6:], "s", NEVER_MS + 1)
    for _ in range(2):
        assert counts.by_span(str(tmp_path), ["s"], spans).tolist() == [0, 0, 0, 0, 0, 2, 2, 2, 0, 0]
    assert len(read) == 2
    DeltaTable(uri).optimize.compact()
    assert counts.by_span(str(tmp_path), ["s"], spans).tolist() == [0, 0, 0, 0, 0, 2, 2, 2, 0, 0]
    assert len(read) == 3
    assert counts.statistics()["files"] == 1


def test_a_heavy_second_is_found_between_a_thousand_heavier_hours(tmp_path: Path) -> None:
    hour_ms, hours = 3_600_000, 1_005
    dues = [number * hour_ms + second * 1_000 for number in range(hours) for second in (1, 2, 3, 4)]
    dues += [hours * hour_ms + 5_000] * 3  # the fewest timers of all hours, in one second
    history = History()
    history.cut(1, 1)
    for number, due_ms in enumerate(dues):
        history.send(due_ms, f"k{number}")
    write_timeline(str(tmp_path / "timeline"), [history], NEVER_MS)
    heaviest = PendingCounts(1 << 20).busiest_seconds(str(tmp_path), ["s"], 0, MAX_DUE_MS, 2)
    assert heaviest == [(hours * hour_ms + 5_000, 3), (1_000, 1)]


@pytest.mark.parametrize("nulls", ["none", "takers", "some", "unknown"])
def test_far_timers_are_told_from_other_rows_with_and_without_statistics(tmp_path: Path, nulls: str) -> None:
    """Of a file that compaction has written: records are read only if nothing else says which rows have one."""
    rows = 50
    has_record = [nulls != "some" or number % 3 > 0 for number in range(rows)]
    is_taker = [nulls != "none" and number % 5 == 0 for number in range(rows)]
    columns: dict[str, Any] = {
        "store_id": ["st"[number % 2] for number in range(rows)],
        "entry_offset": range(rows),
        "timer_id": range(rows),
        "kind": ["cancel" if taker else "timer" for taker in is_taker],
        "due_ms": [1_700_000_000_000 + number * 300 for number in range(rows)],
        "topic": ["t"] * rows,
        "unique_key": [str(number) for number in range(rows)],
        "keys": [None] * rows,
        "tags": [None] * rows,
        "record": [b"record" if has and not taker else None for has, taker in zip(has_record, is_taker, strict=True)],
        "taker": [int(taker) for taker in is_taker],
        "due": [None] * rows,
    }
    table = pa.table({name: pa.array(list(values), FILE_SCHEMA.field(name).type) for name, values in columns.items()})
    root = open_root(str(tmp_path))
    (tmp_path / "timeline").mkdir()
    if nulls == "unknown":
        pq.write_table(table, tmp_path / "timeline" / "part-0.parquet", write_statistics=False, row_group_size=7)
        path = "part-0.parquet"
    else:
        [path] = [one.path for one in write_run(root, [table], 1 << 20)]
    far = [
        (store, due_ms // 1_000)
        for store, due_ms, record in zip(columns["store_id"], columns["due_ms"], columns["record"], strict=True)
        if record is not None
    ]
    for store_id, stores in ((None, "st"), ("s", "st")):
        file = DataFile(path, 0, rows, store_id, None, None, None, 0)
        found = read_second_counts(root, file)
        expected_ = Counter(second for store, second in far) if store_id else None
        for store in found:
            seconds, counts = found[store].between(0, 1 << 40)
            wanted = expected_ or Counter(second for one, second in far if one == store)
            assert dict(zip(seconds.tolist(), counts.tolist(), strict=True)) == wanted
        assert set(found) == ({store_id} if store_id else set(stores))


def test_counts_of_any_width_are_found_between_any_seconds() -> None:
    for seconds in ([], [7], [0, 255], [0, 255, 256], [5, 5, 3, 1 << 40, 3, 5], list(range(300)) * 300):
        counts = counts_of([np.array(seconds[:4], np.int64), np.array(seconds[4:], np.int64)])
        wanted = Counter(seconds)
        edges = sorted({edge for second in seconds[:10] + seconds[-3:] for edge in (second - 1, second, second + 1)})
        for first in (0, *edges):
            for end in (*edges, 1 << 41):
                found, timers = counts.between(first, end)
                assert dict(zip(found.tolist(), timers.tolist(), strict=True)) == {
                    second: count for second, count in wanted.items() if first <= second < end
                }
        parts = [[wanted[second] for second in wanted if low <= second < high] for low, high in pairwise(edges)]
        assert counts.sums(np.array(edges, np.int64)).tolist() == [sum(part) for part in parts]
        assert counts.heaviest(np.array(edges, np.int64)).tolist() == [max(part, default=0) for part in parts]


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
