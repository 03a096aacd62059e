"""Commits of rewritten files whose answer is lost, or whose files were replaced meanwhile."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from latermq.pipeline.timeline.data_files import DataFile
from latermq.pipeline.timeline.root import open_root
from latermq.pipeline.timeline.sorted_files import WrittenFile
from tests.support.faults.timer_histories import random_history, timeline_rows, write_timeline
from tests.support.pipeline.local_swaps import LocalSwaps, rewrite_locally

pytest.importorskip("pyspark")


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_commit_that_conflicts_with_itself_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_committed: bool
) -> None:
    """An object store's client sends a commit again when no answer comes. The second one then finds the first."""
    from delta.exceptions import ConcurrentDeleteDeleteException

    class Unanswered(LocalSwaps):
        def commit(self, removed: Sequence[DataFile], written: Sequence[WrittenFile]) -> None:
            if is_committed:
                super().commit(removed, written)
            raise ConcurrentDeleteDeleteException("This transaction attempted to delete one or more files")

    root = open_root(str(tmp_path))
    history = random_history(1)
    write_timeline(root.timeline, [history], 40)
    done = list(rewrite_locally(root, Unanswered(root), monkeypatch))
    assert len(done) == is_committed
    rows = [row for path in DeltaTable(root.timeline).file_uris() for row in pq.read_table(path).to_pylist()]
    assert len(rows) == len(timeline_rows([row for row in history.rows if row["entry_offset"] < 40]))
    assert len(list(Path(root.timeline).glob("sorted-*"))) == is_committed, "files that are not needed are removed"
