"""Every kind of file of a table deleted, shortened and with flipped bits: all rows, or an error that names it."""

import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from deltalake import DeltaTable

from latermq.errors import CorruptStore
from latermq.pipeline.timeline.delta_reads import find_damage
from latermq.pipeline.timeline.local_timeline import open_local_timeline
from latermq.pipeline.timeline.root import Root, open_root
from latermq.pipeline.timeline.torn_commits import remove_torn_commits
from tests.support.faults.timer_histories import History, append_rows, expected_rows, random_history, write_timeline
from tests.support.needs import LONG
from tests.unit.pipeline.test_pipeline_local_build import built_keys

FLIPS = 200 if LONG else 12


@pytest.fixture(scope="module")
def history() -> History:
    return random_history(1)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, history: History) -> Root:
    """A table with commits before and after a checkpoint."""
    root = open_root(str(tmp_path_factory.mktemp("whole")))
    write_timeline(root.timeline, [history], 30)
    append_rows(root.timeline, [row for row in history.rows if 30 <= row["entry_offset"] < 90], "s", 90)
    DeltaTable(root.timeline).create_checkpoint()
    append_rows(root.timeline, [row for row in history.rows if row["entry_offset"] >= 90], "s", history.end)
    return root


@pytest.fixture
def root(whole: Root, tmp_path: Path) -> Root:
    shutil.copytree(whole.path, tmp_path / "copy")
    return open_root(str(tmp_path / "copy"))


def checkpoint_of(root: Root) -> Path:
    [path] = Path(root.timeline, "_delta_log").glob("*.checkpoint.parquet")
    return path


def pointer_of(root: Root) -> Path:
    return Path(root.timeline, "_delta_log", "_last_checkpoint")


def commit_of(root: Root, version: int) -> Path:
    return Path(root.timeline, "_delta_log", f"{version:020d}.json")


def data_of(root: Root) -> Path:
    """The largest data file."""
    return max(Path(root.timeline).glob("*.parquet"), key=lambda path: path.stat().st_size)


def halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


def check_rows(root: Root, history: History) -> None:
    """The largest window has the rows that it should have."""
    timeline = open_local_timeline(root, "s")
    window = max(history.windows, key=lambda one: len(expected_rows(history.rows, one)))
    ingested = timeline.ingested if timeline is not None else 0
    assert built_keys(root, history, window, ingested) == expected_rows(history.rows, window)


@pytest.mark.parametrize("damage", [Path.unlink, halve])
@pytest.mark.parametrize(
    "file_of", [checkpoint_of, pointer_of, lambda root: commit_of(root, 0), lambda root: commit_of(root, 3), data_of]
)
def test_after_the_start_of_a_driver_a_build_finds_all_rows(
    root: Root, history: History, file_of: Callable[[Root], Path], damage: Callable[[Path], None]
) -> None:
    damage(file_of(root))
    remove_torn_commits(root, root.timeline)
    check_rows(root, history)


def test_a_checkpoint_with_flipped_bytes_is_set_aside_wherever_they_are(whole: Root, history: History) -> None:
    chance = Random(5)
    copy = Path(f"{whole.path}-flipped")
    for _ in range(FLIPS):
        shutil.copytree(whole.path, copy)
        root = open_root(str(copy))
        path = checkpoint_of(root)
        flip(path, chance.randrange(path.stat().st_size))
        remove_torn_commits(root, root.timeline)
        timeline = open_local_timeline(root, "s")
        assert timeline is not None
        assert timeline.ingested == history.end
        shutil.rmtree(copy)


def test_without_a_driver_a_damaged_checkpoint_is_named(root: Root) -> None:
    chance = Random(6)
    path = checkpoint_of(root)
    content, errors = path.read_bytes(), []
    for _ in range(FLIPS):
        path.write_bytes(content)
        flip(path, chance.randrange(len(content)))
        try:
            open_local_timeline(root, "s")
        except CorruptStore as error:  # also where delta-rs panics
            errors.append(error)
    assert all("docs/operations.md" in error.hint for error in errors)
    assert any(f"_delta_log/{path.name}" in error.message for error in errors)


def test_a_checkpoint_that_is_needed_is_left_where_it_is(root: Root) -> None:
    commit_of(root, 0).unlink()  # as Delta does after a week
    halve(checkpoint_of(root))
    remove_torn_commits(root, root.timeline)
    assert checkpoint_of(root).is_file()
    with pytest.raises(CorruptStore, match=checkpoint_of(root).name):
        open_local_timeline(root, "s")


def test_each_damaged_file_is_found_and_named(root: Root) -> None:
    assert find_damage(root, root.timeline) == []
    data = data_of(root)
    flip(data, data.stat().st_size - 20)
    commit_of(root, 3).write_bytes(b"{")
    pointer_of(root).write_bytes(b"")
    found = find_damage(root, root.timeline)
    assert [one.partition(" ")[0].rstrip(":") for one in found] == [
        "_delta_log/_last_checkpoint", f"_delta_log/{commit_of(root, 3).name}", data.name,
    ]  # fmt: skip


def test_a_missing_checkpoint_is_named_and_without_its_pointer_the_table_is_read(root: Root, history: History) -> None:
    checkpoint_of(root).unlink()
    with pytest.raises(CorruptStore, match=r"_delta_log/0+2\.checkpoint\.parquet is missing.* remove _last_checkpoint"):
        open_local_timeline(root, "s")
    pointer_of(root).unlink()
    check_rows(root, history)


def test_a_damaged_data_file_is_named_by_the_build_that_needs_it(root: Root, history: History) -> None:
    data = data_of(root)
    flip(data, data.stat().st_size - 20)
    with pytest.raises(CorruptStore, match=data.name):
        check_rows(root, history)


def test_a_table_that_lost_its_log_is_not_taken_for_a_new_one(root: Root) -> None:
    shutil.rmtree(Path(root.timeline, "_delta_log"))
    with pytest.raises(CorruptStore, match="_delta_log has no commit, but there are data files"):
        open_local_timeline(root, "s")
