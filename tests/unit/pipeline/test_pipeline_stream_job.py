"""The state of a stream's job: which batches are finished, whose they are, and that nothing else is kept."""

from pathlib import Path

import pytest

from latermq.errors import CorruptStore, InvalidParameter
from latermq.pipeline.bulk.bulk_schedule import Order
from latermq.pipeline.bulk.row_frames import Target
from latermq.pipeline.bulk.stream_job import (
    StreamProgress,
    batch_folder,
    check_query,
    finish_batch,
    read_progress,
)
from latermq.pipeline.timeline.root import open_root
from latermq.protocol.remoting.rows import unique_key_of


def test_a_finished_batch_is_remembered_by_its_number_alone(tmp_path: Path) -> None:
    root = open_root(str(tmp_path))
    assert read_progress(root, "job") is None
    for batch in (3, 4, 5):
        folder = Path(batch_folder(root, "job", batch)) / "scheduled"
        folder.mkdir(parents=True)
        (folder / "x.keys").write_bytes(b"x")
    finish_batch(root, "job", "query", 4)
    assert read_progress(root, "job") == StreamProgress("query", 4)
    assert [path.name for path in (tmp_path / "bulk" / "job" / "batches").iterdir()] == ["5"]
    finish_batch(root, "job", "query", 5)
    finish_batch(root, "job", "query", 6)  # a batch without rows has no folder
    assert list((tmp_path / "bulk" / "job" / "batches").iterdir()) == []


def test_a_batch_is_finished_only_for_its_own_query() -> None:
    progress = StreamProgress("query", 4)
    assert [progress.covers("query", batch) for batch in (3, 4, 5)] == [True, True, False]
    assert not progress.covers("other", 3)
    check_query(None, "query", "job")
    check_query(progress, "query", "job")
    with pytest.raises(InvalidParameter, match=r"belongs to the streaming query query, not to other.*new name"):
        check_query(progress, "other", "job")


def test_a_damaged_state_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bulk" / "job").mkdir(parents=True)
    (tmp_path / "bulk" / "job" / "stream.json").write_text('{"query": 5}')
    with pytest.raises(CorruptStore, match=r"stream\.json"):
        read_progress(open_root(str(tmp_path)), "job")


def test_batches_of_a_stream_have_names_and_folders_of_their_own(tmp_path: Path) -> None:
    order = Order(str(tmp_path), "h:1", "job", Target("job", ("broker-a",)), "run")
    first, second = order.of_batch(1), order.of_batch(2)
    assert unique_key_of(first.target.job, "k") not in (
        unique_key_of("job", "k"),
        unique_key_of(second.target.job, "k"),
    )
    assert first.folder == f"{tmp_path}/bulk/job/batches/1/spool"
    assert (first.keys_folder, order.keys_folder) == (f"{tmp_path}/bulk/job/batches/1", f"{tmp_path}/bulk/job")
    assert order.of_batch(1) == first
