"""What a bulk job must remember outlives a power cut; a plan that lost a part is not played as if it were whole."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from latermq.errors import CorruptStore
from latermq.pipeline.bulk import bulk_job, plan_runner
from latermq.pipeline.bulk.plan_runner import run_plan, sync_plan
from latermq.pipeline.timeline.root import Root, open_root


@pytest.fixture
def root(tmp_path: Path) -> Root:
    """With a plan of two files, both of which were played."""
    for folder in ("plan", "results"):
        (tmp_path / "bulk" / "j" / folder).mkdir(parents=True)
        for name in ("a.parquet", "b.parquet"):
            table = pa.table({"store_id": ["s"] * 3, "verdict": ["cancelled"] * 3})
            pq.write_table(table, tmp_path / "bulk" / "j" / folder / name)
    return open_root(str(tmp_path))


def play(root: Root) -> tuple[int, Counter[str]]:
    return run_plan(root, "j", 6, "nowhere:1", lambda done: None, lambda rows: None)


def test_a_plan_that_was_played_is_told_as_it_was(root: Root) -> None:
    assert play(root) == (6, Counter(cancelled=6))


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"")])
def test_a_plan_that_lacks_rows_is_refused(root: Root, damage: Callable[[Path], None]) -> None:
    damage(Path(root.at("bulk", "j", "plan", "b.parquet")))
    with pytest.raises(CorruptStore, match="is damaged") as caught:
        play(root)
    assert "another job" in caught.value.hint


def test_a_plan_is_synced_with_its_folder(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    for name in ("sync_file", "sync_folder"):
        monkeypatch.setattr(plan_runner, name, lambda path: synced.append(Path(path).name))
    sync_plan(root, "j")
    assert synced == ["a.parquet", "b.parquet", "plan"]


def test_the_brokers_of_a_job_are_safe_before_the_first_row_goes_to_one(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    named: list[bool] = []
    path = root.at("bulk", "j", bulk_job.BROKERS)
    monkeypatch.setattr(bulk_job, "sync_folder", lambda folder: named.append(Path(path).parent == folder))
    assert bulk_job.brokers_of_job(root, "j", ["b", "a"]) == ["a", "b"]
    assert named == [True]
