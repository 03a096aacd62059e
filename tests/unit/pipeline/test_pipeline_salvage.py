"""What is saved of a window that cannot be played: every row that some file still holds, and what could not be read."""

from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest

from latermq.errors import CorruptStore
from latermq.handover.manifest import MANIFEST, encode_manifest
from latermq.handover.window import Window
from latermq.pipeline.timeline.root import Root, open_root
from latermq.pipeline.windows import attempt_writer
from latermq.pipeline.windows.attempts import read_attempt
from latermq.pipeline.windows.local_build import build_locally
from latermq.pipeline.windows.salvage import salvaged_rows
from latermq.server.windows.attempt_files import AttemptFiles
from latermq.timer.far import windows as timer_windows
from tests.support.faults.flaky_files import flaky
from tests.support.faults.timer_histories import History, append_rows, expected_rows, random_history, write_timeline


def build(root: Root, history: History, window: Window) -> Path:
    """The folder of an attempt."""
    attempt = build_locally(root, history.state(history.end), window, history.pull, now_ms=5)
    return Path(root.path, "windows", window.store_id, str(window.number), attempt.name)


def saved(root: Root, window: Window) -> tuple[set[tuple[int, int]], list[str]]:
    failures: list[str] = []
    found: set[tuple[int, int]] = set()
    for table in salvaged_rows(root, window, failures):
        assert table.schema.names == ["due_ms", "entry_offset", "record"]
        found |= set(zip(table["due_ms"].to_pylist(), table["entry_offset"].to_pylist(), strict=True))
    return found, failures


@pytest.fixture
def history() -> History:
    return random_history(5)


@pytest.fixture
def root(tmp_path: Path, history: History) -> Root:
    root = open_root(str(tmp_path))
    write_timeline(root.timeline, [history, random_history(9, store_id="another")], history.end)
    return root


def largest_window(history: History) -> Window:
    return max(history.windows, key=lambda window: len(expected_rows(history.rows, window)))


def keys(history: History, window: Window) -> set[tuple[int, int]]:
    return {(key[0], key[1]) for key in expected_rows(history.rows, window)}


def test_the_timeline_alone_tells_all_rows_of_a_window(root: Root, history: History) -> None:
    window = largest_window(history)
    found, failures = saved(root, window)
    assert found >= keys(history, window)
    assert failures == []


def test_a_timeline_whose_log_is_gone_is_read_file_by_file(root: Root, history: History) -> None:
    for path in Path(root.timeline, "_delta_log").iterdir():
        path.unlink()
    window = largest_window(history)
    assert saved(root, window)[0] >= keys(history, window)


def test_row_groups_of_a_damaged_attempt_are_saved_but_for_the_damaged_ones(
    root: Root, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_writer, "GROUP_ROWS", 2)
    window = largest_window(history)
    folder = build(root, history, window)
    for path in Path(root.timeline).rglob("*.parquet"):
        path.unlink()
    (part,) = folder.glob("*.parquet")
    record = pq.ParquetFile(part).metadata.row_group(0).column(3)
    data = bytearray(part.read_bytes())
    data[record.data_page_offset + record.total_compressed_size - 3] ^= 1
    part.write_bytes(data)
    (folder / "manifest.json").unlink()
    expected = keys(history, window)
    found, failures = saved(root, window)
    assert found < expected
    assert len(expected) - 2 <= len(found)
    assert len(failures) == 1
    assert "row group 0" in failures[0]


def test_a_read_that_fails_is_reported_and_the_next_one_saves_all(root: Root, history: History) -> None:
    window = largest_window(history)
    found, failures = saved(flaky(root, lambda path, number: number == 0), window)
    assert not found >= keys(history, window) or len(list(Path(root.timeline).glob("*.parquet"))) > 1
    assert "Input/output error" in failures[0]
    assert saved(root, window)[0] >= keys(history, window)


@pytest.mark.parametrize("has_page_checksums", [False, True])
def test_a_file_is_compared_as_a_whole_before_it_is_played_unless_its_pages_have_checksums(
    root: Root, history: History, has_page_checksums: bool
) -> None:
    window = largest_window(history)
    folder = build(root, history, window)
    manifest = read_attempt(root, window.store_id, window.number, folder.name).manifest
    assert manifest.page_checksums
    files = [msgspec.structs.replace(file, crc32=file.crc32 ^ 1) for file in manifest.files]
    changed = msgspec.structs.replace(manifest, files=files, page_checksums=has_page_checksums)
    (folder / MANIFEST).write_bytes(encode_manifest(changed))
    own = timer_windows.Window(window.number, window.cut_entry, window.from_ms, window.until_ms, lambda due_ms: due_ms)
    broker_files = AttemptFiles(root.uri, lambda: window.store_id)
    for was_checked in (True, False):
        rows, pieces = broker_files.pieces(own, folder.name, was_checked=was_checked)
        if was_checked or has_page_checksums:
            entries = [entry for piece in pieces for entry in piece.entries.tolist()]
            assert entries == [key[1] for key in expected_rows(history.rows, window)]
            assert rows == len(entries)
        else:
            with pytest.raises(CorruptStore, match="the checksum of"):
                list(pieces)
    with pytest.raises(CorruptStore, match="the checksum of"):
        broker_files.check(own, folder.name)


def test_files_without_a_row_of_the_window_are_not_read_in_one_go(tmp_path: Path, history: History) -> None:
    root = open_root(str(tmp_path))
    write_timeline(root.timeline, [history], 30)
    append_rows(root.timeline, history.rows[30:60], "s", 60)
    files = AttemptFiles(root.uri, lambda: "s")
    pieces = list(files.salvaged(timer_windows.Window(9, 1 << 40, 1 << 50, 1 << 51, lambda due_ms: due_ms), []))
    assert len(pieces) == len(list(Path(root.timeline).glob("*.parquet"))) > 1
    assert not any(len(rows.entries) for rows in pieces)
