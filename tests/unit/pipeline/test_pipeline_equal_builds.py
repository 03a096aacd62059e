"""Windows of random tables, built on Spark and without it: equal row by row, and as their definition says."""

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from latermq.handover.window import Window
from latermq.pipeline.timeline import sorted_files
from latermq.pipeline.timeline.root import Root, open_root
from latermq.pipeline.windows.attempts import Attempt, check_attempt, read_rows
from latermq.pipeline.windows.local_build import build_locally
from tests.fault.test_timeline_model import rewrite_some
from tests.support.faults.timer_histories import (
    History,
    append_rows,
    expected_rows,
    random_history,
    table_keys,
    write_timeline,
)
from tests.support.interpreted_queries import interpreted
from tests.support.needs import LONG

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STORES = ("s", "other", "s2")
WINDOWS = 6 if LONG else 1  # of each store


@pytest.fixture(autouse=True)
def quick(spark: "SparkSession") -> Iterator[None]:
    with interpreted(spark):
        yield


def rows_of(root: Root, attempt: Attempt) -> pa.Table | None:
    check_attempt(root, attempt)
    groups = list(read_rows(root, attempt))
    return pa.concat_tables(groups).combine_chunks() if groups else None


def write_table(root: Root, histories: dict[str, History], chance: Random) -> None:
    """Files of several row groups, by turns of all stores. Some rows are there twice, and some files were rewritten."""
    write_timeline(root.timeline, [], 0)
    ingested = dict.fromkeys(histories, 0)
    while unfinished := [name for name in histories if ingested[name] < histories[name].end]:
        name = chance.choice(unfinished)
        start = max(0, ingested[name] - chance.choice((0, 0, 15)))  # a driver that died repeats its last rows
        end = ingested[name] = min(histories[name].end, ingested[name] + chance.randint(10, 90))
        rows = [row for row in histories[name].rows if start <= row["entry_offset"] < end]
        append_rows(root.timeline, rows, name, end, group_rows=chance.randint(2, 12))
        if chance.random() < 0.2:
            rewrite_some(root, chance)


def check_row_groups(root: Root) -> None:
    files = [pq.ParquetFile(path) for path in Path(root.timeline).glob("*.parquet")]
    assert len(files) > 3
    assert any(file.num_row_groups > 2 for file in files)


@pytest.mark.parametrize("seed", range(60 if LONG else 2))
def test_windows_of_random_tables_are_equal_row_by_row(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    from latermq.pipeline.windows.spark_build import build_window

    monkeypatch.setattr(sorted_files, "GROUP_ROWS", 7)
    chance = Random(seed)
    histories = {name: random_history(seed * 10 + at, 200, name) for at, name in enumerate(STORES)}
    root = open_root(str(tmp_path))
    write_table(root, histories, chance)
    check_row_groups(root)
    compared = 0
    for history in chance.sample([*histories.values()], 3 if LONG else 2):
        fullest = sorted(history.windows, key=lambda one: -len(expected_rows(history.rows, one)))
        for window in fullest[:WINDOWS]:
            compared += check_window(spark, root, history, window, chance, build_window)
    assert compared > 5


def check_window(
    spark: "SparkSession", root: Root, history: History, window: Window, chance: Random, build_window: object
) -> int:
    """Compare the two builds with each other, and with the definition. Returns the number of rows."""
    assert callable(build_window)
    on_spark = rows_of(root, build_window(spark, root, window, now_ms=1, part_rows=chance.choice((6, 1_000))))
    # The broker's process may have been told of an older end of the table, and pull the rest.
    told = chance.choice((0, history.end // 2, history.end))
    held_bytes = chance.choice((300, 1 << 20))
    local = rows_of(
        root, build_locally(root, history.state(told), window, history.pull, now_ms=2, held_bytes=held_bytes)
    )
    assert (on_spark is None) == (local is None)
    if on_spark is None or local is None:
        assert expected_rows(history.rows, window) == []
        return 0
    assert on_spark.equals(local)
    assert table_keys(local) == expected_rows(history.rows, window)
    return len(local)
