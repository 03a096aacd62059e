"""What a Delta table's commits wrote is synced, each file once, data before the commit that names it."""

import errno
import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from latermq.errors import StoreError
from latermq.handover.window import Window
from latermq.pipeline.timeline.root import Root, open_root, write_file
from latermq.pipeline.timeline.table_sync import UNSYNCED_COMMITS, TableSync, newest_version
from latermq.pipeline.timeline.torn_commits import remove_torn_commits
from latermq.pipeline.windows.attempt_writer import write_attempt
from latermq.pipeline.windows.attempts import attempt_folder
from tests.support.faults.timer_histories import append_rows, random_history, timeline_rows, write_timeline
from tests.support.pipeline.local_swaps import LocalSwaps, rewrite_locally


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of what is synced, as it happens."""
    paths: list[str] = []
    sync = os.fsync

    def noted(handle: int) -> None:
        paths.append(str(Path(f"/proc/self/fd/{handle}").readlink()))
        sync(handle)

    monkeypatch.setattr(os, "fsync", noted)
    return paths


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return open_root(str(tmp_path / "pipeline"))


def files_of(root: Root) -> set[str]:
    return {str(path) for path in Path(root.timeline).rglob("*") if path.is_file()}


def remove_old_commits(root: Root) -> Path:
    """As Delta does once they are in a checkpoint and old enough; the one that is left."""
    DeltaTable(root.timeline).create_checkpoint()
    *old, last = sorted(Path(root.timeline, "_delta_log").glob("*.json"))
    for path in old:
        path.unlink()
    return last


def test_what_earlier_drivers_left_is_synced_once_and_then_what_each_commit_adds(root: Root, synced: list[str]) -> None:
    history = random_history(1)
    write_timeline(root.timeline, [history], 30)
    sync = TableSync(root, root.timeline)
    sync.sync()
    assert files_of(root) <= set(synced)
    for end in (60, 90):
        before = files_of(root)
        append_rows(root.timeline, history.rows[end - 30 : end], "s", end)
        append_rows(root.timeline, history.rows[end - 30 : end], "another", end)
        synced.clear()
        sync.sync()
        new = files_of(root) - before
        assert len(new) == 4
        files = [path for path in synced if Path(path).is_file()]
        assert sorted(files) == sorted(new)
        assert {root.timeline, f"{root.timeline}/_delta_log", root.path, str(Path(root.path).parent)} <= set(synced)
        commits = [path.endswith(".json") for path in files]
        assert commits == [False, True, False, True]
    synced.clear()
    sync.sync()
    assert not [path for path in synced if Path(path).is_file()]


def test_a_table_whose_old_commits_delta_removed_is_synced_like_any_other(root: Root, synced: list[str]) -> None:
    history = random_history(1)
    write_timeline(root.timeline, [history], 30)
    for end in (60, 90):
        append_rows(root.timeline, history.rows[end - 30 : end], "s", end)
    sync = TableSync(root, root.timeline)
    last = remove_old_commits(root)
    sync.sync()
    assert str(last) in synced
    # It may happen between two syncs of one driver, too: an archive is written rarely.
    append_rows(root.timeline, history.rows[:3], "s", 120)
    append_rows(root.timeline, history.rows[:3], "s", 150)
    last = remove_old_commits(root)
    sync.sync()
    assert str(last) in synced


def test_what_hadoop_keeps_beside_a_file_is_synced_with_it(root: Root, synced: list[str]) -> None:
    history = random_history(1)
    write_timeline(root.timeline, [history], 30)
    sync = TableSync(root, root.timeline)
    sync.sync()
    append_rows(root.timeline, history.rows[:3], "s", 60)
    log = Path(root.timeline, "_delta_log")
    commit = max(log.glob("*.json"))
    beside = [log / f".{commit.name}.crc", log / f"{commit.stem}.crc", log / f"{commit.stem}.checkpoint.parquet"]
    for path in (*beside, log / "_last_checkpoint"):
        path.write_bytes(b"x")
    synced.clear()
    sync.sync()
    assert {str(path) for path in (*beside, log / "_last_checkpoint")} <= set(synced)


def test_a_disk_that_fails_is_an_error_and_the_same_commits_are_synced_again(
    root: Root, synced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    history = random_history(1)
    write_timeline(root.timeline, [history], 30)
    sync = TableSync(root, root.timeline)
    sync.sync()
    append_rows(root.timeline, history.rows[:3], "s", 60)
    with monkeypatch.context() as patched:

        def fail(handle: int) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        patched.setattr(os, "fsync", fail)
        with pytest.raises(StoreError, match="Input/output error"):
            sync.sync()
    synced.clear()
    sync.sync()
    assert any(path.endswith(".parquet") for path in synced)


def test_a_small_file_is_synced_before_it_has_its_name_and_its_folders_after(root: Root, synced: list[str]) -> None:
    write_file(root, root.at("claims", "s"), b"1")
    draft, *folders = synced
    assert draft.startswith(f"{root.path}/claims/s.")
    assert folders == [f"{root.path}/claims", root.path, str(Path(root.path).parent)]


def test_a_manifest_is_synced_behind_all_it_names_and_the_folders_that_lead_to_it(
    root: Root, synced: list[str]
) -> None:
    window = Window("s", 4, 100, 0, 1000)
    attempt = write_attempt(root, window, [], made_by="local", table_version=1, ingest_offset=1, now_ms=1)
    folder = attempt_folder(root, window, attempt.name)
    at = synced.index(f"{folder}/manifest.json.draft")
    behind = [folder, *(str(path) for path in Path(folder).parents if Path(root.path) in path.parents), root.path]
    assert synced[at + 1 : at + 1 + len(behind)] == behind


def test_a_long_compaction_leaves_no_torn_commit_that_the_next_start_does_not_find(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ingest, which syncs the table too, may have nothing to do for hours."""
    pytest.importorskip("pyspark")
    from latermq.pipeline.timeline import clustering, torn_commits

    assert clustering.COMMITS_PER_SYNC <= UNSYNCED_COMMITS // 4
    monkeypatch.setattr(torn_commits, "UNSYNCED_COMMITS", 16)
    monkeypatch.setattr(clustering, "COMMITS_PER_SYNC", 4)
    history = random_history(1, steps=24)
    write_timeline(root.timeline, [history], 1)
    rows = [row for row in history.rows if row["entry_offset"] >= 1]
    for row in rows:
        append_rows(root.timeline, [row], "s", row["entry_offset"] + 1)
    sync = TableSync(root, root.timeline)
    sync.sync()
    durable = newest_version(Path(root.timeline))
    synced_paths: set[str] = set()
    monkeypatch.setattr(
        "latermq.pipeline.timeline.table_sync.sync_file", lambda path: synced_paths.add(Path(path).name)
    )

    swaps = LocalSwaps(root)
    assert len(swaps.files) > 16
    done = rewrite_locally(root, swaps, monkeypatch, sync)
    assert len(list(done)) == len(swaps.files) == newest_version(Path(root.timeline)) - durable
    for name in set(swaps.added) - synced_paths:  # a power cut
        Path(root.timeline, name).write_bytes(b"")
    remove_torn_commits(root, root.timeline)
    left = [row for path in DeltaTable(root.timeline).file_uris() for row in pq.read_table(path).to_pylist()]
    assert len(left) == len(timeline_rows(history.rows))
