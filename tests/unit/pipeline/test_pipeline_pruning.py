"""What a query or a roll reads: the files of the span that is asked for, and not those of the whole timeline."""

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from latermq.errors import CorruptStore
from latermq.pipeline.timeline.local_timeline import open_local_timeline
from latermq.pipeline.timeline.root import Root, open_root
from tests.support.faults.timer_histories import History, append_rows, write_timeline
from tests.support.interpreted_queries import interpreted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DAY_MS = 86_400_000
DAYS = 24


@pytest.fixture(autouse=True)
def quick(spark: "SparkSession") -> Iterator[None]:
    with interpreted(spark):
        yield


@pytest.fixture(scope="module")
def history() -> History:
    """Four timers a day, in a topic for each half of the days. One of the four is cancelled, and one is moved."""
    history = History()
    history.cut(0, 0)
    for day in range(DAYS):
        topic = "even" if day < DAYS // 2 else "odd"
        first = history.end
        for number in range(4):
            history.send(day * DAY_MS + number, f"{day}-{number}", topic)
        history.cancel(f"{day}-1", topic)
        history.move(day * DAY_MS + 3_600_000, f"{day}-2", first + 2, topic)
    return history


@pytest.fixture(scope="module")
def root(history: History, tmp_path_factory: pytest.TempPathFactory) -> Root:
    """A timeline with a file for each day."""
    root = open_root(str(tmp_path_factory.mktemp("pruning")))
    write_timeline(root.timeline, [], 0)
    per_day = len(history.rows) // DAYS
    for day in range(DAYS):
        append_rows(root.timeline, history.rows[day * per_day : (day + 1) * per_day], "s", history.end)
    return root


def files_read(found: "DataFrame") -> list[int]:
    """The number of files that each scan of an executed query has read."""
    leaves = found._jdf.queryExecution().executedPlan().collectLeaves()
    scans = [leaves.apply(at) for at in range(leaves.size())]
    return [scan.metrics().apply("numFiles").value() for scan in scans if scan.metrics().contains("numFiles")]


@pytest.mark.parametrize(
    ("where", "days"),
    [
        (f"due_ms >= {3 * DAY_MS} AND due_ms < {5 * DAY_MS}", range(3, 5)),
        ("due BETWEEN '1970-01-04' AND '1970-01-04 23:00:00'", range(3, 4)),
        ("due >= TIMESTAMP '1970-01-20' AND store_id = 's'", range(19, DAYS)),
        ("topic = 'odd' AND due < '1970-01-16'", range(12, 15)),
    ],
)
def test_conditions_on_pending_timers_select_the_files_of_timers_and_takers(
    spark: "SparkSession", root: Root, history: History, where: str, days: range
) -> None:
    from latermq.pipeline.query.pending_timers import pending_rows, stored_takers

    state = history.state(history.end)
    timeline = spark.read.format("delta").load(root.timeline)
    counts = stored_takers(open_local_timeline(root, ""))
    assert tuple(counts) == (2 * DAYS, 0, 0)
    found = pending_rows(timeline, [state], counts).where(where)
    assert len(found.collect()) == 3 * len(days)
    timers, takers = files_read(found)
    assert timers == len(days)
    # Their names are not compared with a condition on topics.
    assert takers <= (15 if "topic" in where else len(days))


@pytest.mark.parametrize("most", [0, DAYS - 1, DAYS])
def test_the_files_of_a_timeline_have_the_rows_that_delta_finds(
    spark: "SparkSession", root: Root, tmp_path: Path, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from latermq.pipeline.query import pending_timers

    monkeypatch.setattr(pending_timers, "MAX_NAMED_FILES", most)
    odd = open_root(str(tmp_path / "day=1" / "a b[c]*{d},é"))
    shutil.copytree(root.timeline, tmp_path / "copy")
    DeltaTable(tmp_path / "copy").delete(f"due_ms >= {(DAYS - 1) * DAY_MS}")  # the rows of a file, which remains
    Path(odd.uri).mkdir(parents=True)
    (tmp_path / "copy").rename(odd.timeline)
    table = open_local_timeline(odd, "")
    assert table is not None
    found = pending_timers.stored_rows(spark, odd, table)
    expected = spark.read.format("delta").load(odd.timeline)
    assert found.schema == expected.schema
    assert sorted(found.collect()) == sorted(expected.collect())
    assert files_read(found) == [DAYS - 1]
    assert ("DeltaFileIndex" in plan_of(found)) == (most == 0)


def plan_of(found: "DataFrame") -> str:
    plan: str = found._jdf.queryExecution().executedPlan().toString()
    return plan


def test_a_missing_file_of_the_timeline_is_named(spark: "SparkSession", root: Root, tmp_path: Path) -> None:
    from latermq.pipeline.query.pending_timers import stored_rows

    own = open_root(str(tmp_path))
    shutil.copytree(root.timeline, own.timeline)
    table = open_local_timeline(own, "")
    assert table is not None
    lost = Path(table.table.file_uris()[0])
    lost.unlink()
    with pytest.raises(CorruptStore, match=lost.name):
        stored_rows(spark, own, table)


def test_a_roll_reads_the_files_of_its_window(spark: "SparkSession", root: Root, history: History) -> None:
    from latermq.handover.window import Window
    from latermq.pipeline.windows.survivors import window_rows, window_shape

    window = Window("s", 2, history.end, 7 * DAY_MS, 8 * DAY_MS)
    timeline = spark.read.format("delta").load(root.timeline)
    shape = window_shape(timeline, window, 1_000)
    assert shape.takers == (2, 0, 0)
    found = window_rows(timeline, window, shape)
    assert len(found.collect()) == 3
    assert max(files_read(found)) <= 1
    local = open_local_timeline(root, "s")
    assert local is not None
    assert local.estimated_rows(window) == 7  # timers and takers


def test_thousands_of_commits_cost_nothing_at_the_start(tmp_path: Path) -> None:
    """As after a month of ingest: what is read are the last checkpoint and the few commits after it."""
    root = open_root(str(tmp_path))
    history = History()
    history.cut(0, 0)
    history.send(100, "a")
    write_timeline(root.timeline, [history], history.end)
    first_s = _open_s(root)
    _add_commits(root, 4_000)
    DeltaTable(root.timeline).create_checkpoint()
    _add_commits(root, 49)
    assert DeltaTable(root.timeline).version() == 4_050
    timeline = open_local_timeline(root, "s")
    assert timeline is not None
    assert timeline.ingested == 4_050
    assert _open_s(root) < 10 * first_s + 0.5


def _add_commits(root: Root, count: int) -> None:
    """Commits like those of ingest that found nothing but cuts."""
    log = Path(root.timeline) / "_delta_log"
    first = DeltaTable(root.timeline).version() + 1
    for version in range(first, first + count):
        txn = {"txn": {"appId": "latermq-ingest-s", "version": version, "lastUpdated": 1}}
        (log / f"{version:020d}.json").write_text(json.dumps(txn) + "\n")


def _open_s(root: Root) -> float:
    began_s = time.monotonic()
    for _ in range(3):
        assert open_local_timeline(root, "s") is not None
    return (time.monotonic() - began_s) / 3
