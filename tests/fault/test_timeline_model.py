"""A seeded model of the timeline: two stores, late and repeated ingest, compactions that die, and rolls at any moment.

A compaction dies before any of its steps, also between the groups of files that it rewrites one by one.

The oracle is plain Python over the entries of the stores (timer_histories.py): the rows of each window, and the pending
timers, by their definition. Whatever happened to the table before, every roll and every query must agree with it.
"""

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.transaction import AddAction, RemoveAction

from latermq.errors import IllegalOperation
from latermq.handover.window import Window
from latermq.model.pipeline_state import PipelineState
from latermq.pipeline.timeline.data_files import data_files
from latermq.pipeline.timeline.local_timeline import open_local_timeline
from latermq.pipeline.timeline.rewrite_plan import RewriteLimits, rewrite_groups
from latermq.pipeline.timeline.root import Root, open_root
from latermq.pipeline.timeline.sorted_files import Rewrite, rewrite
from latermq.pipeline.windows.attempts import Attempt, read_rows
from latermq.pipeline.windows.local_build import build_locally
from tests.support.faults.timer_histories import (
    History,
    Key,
    append_rows,
    expected_rows,
    frame,
    random_history,
    table_keys,
    write_timeline,
)
from tests.support.interpreted_queries import interpreted
from tests.support.needs import LONG

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# So small that a few rows become several files, and few files are merged.
TINY = RewriteLimits(sort_bytes=20_000, held_bytes=4_000, file_bytes=6_000, fan_in=3, narrow_ms=1)
LOCAL_HISTORIES = range(970) if LONG else range(8)
SPARK_HISTORIES = range(1_000, 1_030) if LONG else range(1_000, 1_001)


class Store:
    """One store: its whole history, and how far ingest and deliveries have come."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.ingested = 0
        self.done_ms = 0  # T: windows that end before it are finished

    def state(self) -> PipelineState:
        state = self.history.state(self.ingested, done_upto=self._done_upto, done_wake_ms=self.done_ms)
        state.windows = [window for window in state.windows if window.until_ms > self.done_ms]
        return state

    @property
    def _done_upto(self) -> int:
        """P: all entries up to the cut of the first unfinished window are settled as far as T."""
        return next((window.cut_entry for window in self.history.windows if window.until_ms > self.done_ms), 0)

    def windows(self) -> list[Window]:
        return [window for window in self.history.windows if window.until_ms > self.done_ms]

    def pending(self) -> set[tuple[str, int]]:
        return {
            (row["store_id"], row["entry_offset"])
            for row in self.history.pending()
            if row["due_ms"] >= self.done_ms or row["entry_offset"] >= self._done_upto
        }


class Killed(IllegalOperation):
    """The driver dies here."""


def check_local_roll(root: Root, store: Store, window: Window, chance: Random) -> None:
    held_bytes = chance.choice((300, 1 << 20))
    attempt = build_locally(root, store.state(), window, store.history.pull, now_ms=5, held_bytes=held_bytes)
    assert keys_of(root, attempt) == expected_rows(store.history.rows, window)


def keys_of(root: Root, attempt: Attempt) -> list[Key]:
    groups = list(read_rows(root, attempt))
    return table_keys(pa.concat_tables(groups)) if groups else []


def rewrite_some(root: Root, chance: Random) -> None:
    """A compaction without a JVM, which may die after any group, its files written or committed."""
    table = DeltaTable(root.timeline)
    while groups := rewrite_groups(data_files(table), TINY):
        group = groups[0]
        if chance.random() < 0.1:
            return
        are_sorted = all(file.is_sorted for file in group) and len({file.store_id for file in group}) == 1
        written = rewrite(root, Rewrite([file.path for file in group], are_sorted, TINY))
        if chance.random() < 0.1:
            return
        actions: list[AddAction | RemoveAction] = [RemoveAction(file.path, False, 1) for file in group]
        actions += [AddAction(file.path, file.size_bytes, {}, 1, False, file.stats) for file in written]
        table.create_write_transaction(actions, "append", table.schema())


def two_stores(seed: int, steps: int) -> list[Store]:
    return [Store(random_history(seed * 2 + number, steps, name)) for number, name in enumerate(("s", "other"))]


@pytest.mark.parametrize("seed", LOCAL_HISTORIES)
def test_rolls_without_a_jvm_agree_with_the_oracle(seed: int, tmp_path: Path) -> None:
    """Without Spark: ingest in any steps, with a table of either version, compactions, and rolls between them."""
    chance = Random(seed)
    root = open_root(str(tmp_path))
    stores = two_stores(seed, 60)
    version = chance.choice("1222")
    write_timeline(root.timeline, [], 0, version=version)
    rolls = 0
    while rolls < 12:
        store = chance.choice(stores)
        if chance.random() < 0.4 and store.ingested < store.history.end:
            start, store.ingested = store.ingested, chance.randint(store.ingested + 1, store.history.end)
            new = [row for row in store.history.rows if start <= row["entry_offset"] < store.ingested]
            append_rows(root.timeline, new, store.history.store_id, store.ingested)
        elif version == "2" and chance.random() < 0.3:
            rewrite_some(root, chance)
        else:
            check_local_roll(root, store, chance.choice(store.windows()), chance)
            rolls += 1


class SparkModel:
    """The table as a driver maintains it."""

    def __init__(self, spark: "SparkSession", root: Root, seed: int) -> None:
        from latermq.pipeline.timeline.timeline import create_timeline

        self._spark, self._root, self._chance = spark, root, Random(seed)
        self.stores = two_stores(seed, 120)
        create_timeline(spark, root)

    def run(self, steps: int) -> None:
        actions = (self.ingest, self.ingest, self.compact, self.roll, self.query, self.advance)
        for action in (*self._chance.choices(actions, k=steps), self.ingest, self.compact, self.roll, self.query):
            action(self._chance.choice(self.stores))

    def ingest(self, store: Store) -> None:
        """Append a batch, perhaps one that overlaps with what a driver that died has appended."""
        from latermq.pipeline.timeline.timeline import append

        history = store.history
        start = max(0, store.ingested - self._chance.choice((0, 0, 10)))
        end = self._chance.randint(store.ingested, history.end)
        rows = [row for row in history.rows if start <= row["entry_offset"] < end]
        append(frame(self._spark, rows).coalesce(1), self._root, history.store_id, start, end, 0)
        store.ingested = max(store.ingested, end)

    def advance(self, store: Store) -> None:
        """Finish windows that ingest has passed."""
        passed = [one.until_ms for one in store.history.windows if one.cut_entry < store.ingested]
        store.done_ms = max(store.done_ms, self._chance.choice([0, *passed[:-1]]))

    def compact(self, store: Store) -> None:
        """Compact the table, or die before one of the steps."""
        from latermq.pipeline.timeline.compact import compact

        left = self._chance.choice((1, 2, 3, 4, 5, 6, 7, 8, 99, 99, 99))

        def fence() -> None:
            nonlocal left
            left -= 1
            if not left:
                raise Killed("the driver dies here")

        states = [one.state() for one in self.stores]
        keep_ms = self._chance.choice((0, 200))
        try:
            compact(self._spark, self._root, states, keep_ms=keep_ms, vacuum_hours=0, limits=TINY, fence=fence)
        except Killed:
            return

    def roll(self, store: Store) -> None:
        from latermq.pipeline.windows.spark_build import build_window

        windows = store.windows()
        if not windows:
            return
        window = self._chance.choice(windows)
        check_local_roll(self._root, store, window, self._chance)
        if window.cut_entry <= store.ingested:
            attempt = build_window(self._spark, self._root, window, now_ms=1, part_rows=self._chance.choice((5, 1_000)))
            assert keys_of(self._root, attempt) == expected_rows(store.history.rows, window)

    def query(self, store: Store) -> None:
        """Pending timers of the table and of the entries that it lacks."""
        from latermq.pipeline.query.pending_timers import pending_rows, stored_rows, stored_takers
        from latermq.pipeline.windows.survivors import TakerCounts

        table = open_local_timeline(self._root, "")
        assert table is not None
        stored: Any = stored_rows(self._spark, self._root, table)
        lacking = [row for one in self.stores for row in one.history.rows if row["entry_offset"] >= one.ingested]
        states = [one.state() for one in self.stores]
        entries = stored.unionByName(frame(self._spark, lacking)) if lacking else stored
        low, high = sorted(self._chance.choices(range(3_000), k=2))
        stored_counts = stored_takers(table)
        takers = TakerCounts(*((count or 0) + len(lacking) for count in stored_counts))
        found = pending_rows(entries, states, takers).where(f"due_ms BETWEEN {low} AND {high}")
        dues = {
            (row["store_id"], row["entry_offset"]): row["due_ms"] for one in self.stores for row in one.history.rows
        }
        wanted = {key for one in self.stores for key in one.pending() if low <= dues[key] <= high}
        rows = [(row.store_id, row.entry_offset) for row in found.collect()]
        assert sorted(rows) == sorted(wanted)


@pytest.fixture
def quick(spark: "SparkSession") -> Iterator["SparkSession"]:
    with interpreted(spark):
        yield spark


@pytest.mark.parametrize("seed", SPARK_HISTORIES)
def test_a_driver_that_ingests_compacts_rolls_and_dies_agrees_with_the_oracle(
    quick: "SparkSession", seed: int, tmp_path: Path
) -> None:
    SparkModel(quick, open_root(str(tmp_path)), seed).run(30 if LONG else 10)
