"""A table whose last commits a power cut left torn is opened again, as far as it is whole."""

from collections.abc import Callable
from pathlib import Path

import pytest

from latermq.errors import CorruptStore, LaterMQError
from latermq.handover.window import Window
from latermq.pipeline.timeline.local_timeline import open_local_timeline
from latermq.pipeline.timeline.root import Root, open_root
from latermq.pipeline.timeline.table_sync import added_files
from latermq.pipeline.timeline.torn_commits import remove_torn_commits
from latermq.pipeline.windows.attempts import read_rows
from latermq.pipeline.windows.local_build import build_locally
from tests.support.faults.timer_histories import append_rows, random_history, write_timeline

ENDS = (30, 60, 90, 120)


@pytest.fixture
def root(tmp_path: Path) -> Root:
    root = open_root(str(tmp_path / "pipeline"))
    history = random_history(1)
    write_timeline(root.timeline, [history], ENDS[0])
    for end in ENDS[1:]:
        append_rows(root.timeline, history.rows[end - 30 : end], "s", end)
    return root


def commit_of(root: Root, back: int) -> Path:
    """The last commit, or one before it."""
    return sorted(Path(root.timeline, "_delta_log").glob("*.json"))[-1 - back]


def data_of(root: Root, back: int) -> Path:
    [path] = added_files(commit_of(root, back), Path(root.timeline))
    return path


def end_of(root: Root) -> int:
    timeline = open_local_timeline(root, "s")
    assert timeline is not None
    return timeline.ingested


def empty(path: Path) -> None:
    path.write_bytes(b"")


def halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize("damage", [empty, halve, zero, Path.unlink])
@pytest.mark.parametrize("of", [commit_of, data_of])
@pytest.mark.parametrize("back", [0, 1, 2])
def test_commits_from_the_torn_one_on_are_taken_out(
    root: Root, back: int, of: Callable[[Root, int], Path], damage: Callable[[Path], None]
) -> None:
    damage(of(root, back))
    remove_torn_commits(root, root.timeline)
    assert end_of(root) == ENDS[-2 - back]
    timeline = open_local_timeline(root, "s")
    assert timeline is not None
    assert list(timeline.rows_from("s", 0))  # every file is read
    assert remove_torn_commits(root, root.timeline) == []


@pytest.mark.parametrize("damage", [empty, halve, zero, Path.unlink])
@pytest.mark.parametrize("of", [commit_of, data_of])
@pytest.mark.parametrize("back", [0, 1])
def test_a_build_without_spark_skips_torn_commits_and_changes_nothing(
    root: Root, back: int, of: Callable[[Root, int], Path], damage: Callable[[Path], None]
) -> None:
    history = random_history(1)
    window = Window("s", 1, history.end, 0, 1 << 60)

    def rows() -> list[tuple[int, ...]]:
        attempt = build_locally(root, history.state(ENDS[-1]), window, history.pull, now_ms=5)
        return [tuple(row.values()) for table in read_rows(root, attempt) for row in table.to_pylist()]

    whole = rows()
    damage(of(root, back))
    before = {path: path.read_bytes() for path in Path(root.timeline).rglob("*") if path.is_file()}
    assert rows() == whole
    assert {path: path.read_bytes() for path in Path(root.timeline).rglob("*") if path.is_file()} == before


def test_a_whole_table_is_left_as_it_is(root: Root) -> None:
    before = {path: path.read_bytes() for path in Path(root.path).rglob("*") if path.is_file()}
    assert remove_torn_commits(root, root.timeline) == []
    assert {path: path.read_bytes() for path in Path(root.path).rglob("*") if path.is_file()} == before


def test_files_that_a_later_commit_removed_need_not_be_there(root: Root) -> None:
    from deltalake import DeltaTable

    table = DeltaTable(root.timeline)
    table.optimize.compact()
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert remove_torn_commits(root, root.timeline) == []
    assert end_of(root) == ENDS[-1]


def test_a_torn_checkpoint_and_its_pointer_are_done_without(root: Root) -> None:
    from deltalake import DeltaTable

    DeltaTable(root.timeline).create_checkpoint()
    log = Path(root.timeline, "_delta_log")
    [checkpoint] = log.glob("*.checkpoint.parquet")
    halve(checkpoint)
    with pytest.raises(LaterMQError):
        open_local_timeline(root, "s")
    remove_torn_commits(root, root.timeline)
    assert end_of(root) == ENDS[-1]


def test_a_checkpoint_behind_a_torn_commit_goes_with_it(root: Root) -> None:
    from deltalake import DeltaTable

    DeltaTable(root.timeline).create_checkpoint()
    empty(data_of(root, 1))
    remove_torn_commits(root, root.timeline)
    assert end_of(root) == ENDS[-3]
    assert not Path(root.timeline, "_delta_log", "_last_checkpoint").exists()


def test_checksums_that_are_not_of_their_file_are_removed(root: Root) -> None:
    commit = commit_of(root, 0)
    sums = commit.with_name(f".{commit.name}.crc")
    sums.write_bytes(b"")
    remove_torn_commits(root, root.timeline)
    assert not sums.exists()
    assert end_of(root) == ENDS[-1]


def test_a_table_that_is_damaged_further_back_is_not_touched(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("latermq.pipeline.timeline.torn_commits.UNSYNCED_COMMITS", 2)
    halve(commit_of(root, 3))
    assert remove_torn_commits(root, root.timeline) == []
    with pytest.raises((CorruptStore, LaterMQError)):
        open_local_timeline(root, "s")
