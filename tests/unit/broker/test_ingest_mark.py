"""The ingest mark: each epoch is issued once, the offset only advances, and a crash loses no value that was sent."""

import pytest

from latermq.broker.timers.ingest_mark import PATH, IngestMark
from latermq.errors import CorruptStore, IllegalOperation, InvalidParameter, StoreError
from latermq.store.files.memory_disk import MemoryDisk


def begun(disk: MemoryDisk) -> tuple[IngestMark, int]:
    mark = IngestMark(disk)
    epoch = mark.begin()
    mark.save()
    return mark, epoch


def test_a_new_store_has_ingested_nothing_and_has_no_driver() -> None:
    mark = IngestMark(MemoryDisk())
    assert (mark.epoch, mark.offset) == (0, 0)
    assert mark.statistics() == {"ingest_epoch": 0, "ingest_offset": 0, "ingest_refused": 0}


def test_each_driver_gets_the_next_epoch_across_restarts() -> None:
    disk = MemoryDisk()
    epochs = [begun(disk)[1], begun(disk)[1], begun(disk.after_process_crash())[1]]
    assert epochs == [1, 2, 3]


def test_a_restart_keeps_epoch_and_offset() -> None:
    disk = MemoryDisk()
    mark, epoch = begun(disk)
    mark.commit(700, epoch, 1000)
    mark.save()
    again = IngestMark(disk.after_process_crash())
    assert (again.epoch, again.offset) == (epoch, 700)


def test_an_offset_counts_once_it_is_saved() -> None:
    disk = MemoryDisk()
    mark, epoch = begun(disk)
    assert mark.commit(700, epoch, 1000) == 700
    assert mark.offset == 0
    assert IngestMark(disk.after_process_crash()).offset == 0
    mark.save()
    assert mark.offset == 700


def test_the_offset_only_goes_forward() -> None:
    mark, epoch = begun(MemoryDisk())
    mark.commit(700, epoch, 1000)
    assert mark.commit(650, epoch, 1000) == 700
    assert mark.commit(700, epoch, 1000) == 700
    mark.save()
    assert mark.offset == 700


def test_a_driver_that_another_one_followed_is_refused() -> None:
    mark, old = begun(MemoryDisk())
    new = mark.begin()  # not even saved
    with pytest.raises(IllegalOperation, match=r"epoch 1 is over.*epoch 2") as caught:
        mark.commit(5, old, 10)
    assert "stop this one" in caught.value.hint
    with pytest.raises(IllegalOperation):
        mark.check(old)
    mark.check(new)
    assert mark.commit(5, new, 10) == 5


def test_an_epoch_that_was_never_handed_out_is_refused() -> None:
    mark, epoch = begun(MemoryDisk())
    with pytest.raises(IllegalOperation, match="never issued"):
        mark.commit(5, epoch + 1, 10)


@pytest.mark.parametrize("offset", [-1, 11])
def test_what_is_not_flushed_cannot_have_been_ingested(offset: int) -> None:
    mark, epoch = begun(MemoryDisk())
    with pytest.raises(InvalidParameter, match="flushed up to 10"):
        mark.commit(offset, epoch, 10)


def test_the_offset_goes_back_for_a_driver_whose_table_ends_below_it() -> None:
    disk = MemoryDisk()
    mark, old = begun(disk)
    mark.commit(700, old, 1000)
    mark.save()
    epoch = mark.begin(400, min_entry=300, flushed_end=1000)
    assert mark.offset == 400  # at once: entries that are needed again must not be removed meanwhile
    assert IngestMark(disk.after_process_crash()).offset == 700
    mark.save()
    again = IngestMark(disk.after_process_crash())
    assert (again.epoch, again.offset) == (epoch, 400)
    with pytest.raises(IllegalOperation, match="is over"):
        again.commit(700, old, 1000)
    assert again.commit(450, epoch, 1000) == 450


def test_a_driver_whose_table_is_ahead_of_the_offset_leaves_it_where_it_is() -> None:
    mark, epoch = begun(MemoryDisk())
    mark.commit(700, epoch, 1000)
    mark.begin(900, min_entry=300, flushed_end=1000)
    mark.save()
    assert mark.offset == 700


@pytest.mark.parametrize(("table_end", "reason"), [(299, "are in neither"), (1001, "flushed up to 1000")])
def test_no_epoch_is_given_where_table_and_log_do_not_fit(table_end: int, reason: str) -> None:
    mark, epoch = begun(MemoryDisk())
    mark.commit(700, epoch, 1000)
    mark.save()
    with pytest.raises(InvalidParameter, match=reason):
        mark.begin(table_end, min_entry=300, flushed_end=1000)
    assert (mark.epoch, mark.offset) == (epoch, 700)
    mark.check(epoch)


def test_a_log_that_begins_behind_a_table_which_was_never_ahead_is_no_loss() -> None:
    mark, epoch = begun(MemoryDisk())
    mark.commit(200, epoch, 1000)
    assert mark.begin(200, min_entry=300, flushed_end=1000) == epoch + 1


def test_an_epoch_that_could_not_be_saved_is_never_handed_out_again() -> None:
    disk = MemoryDisk()
    mark, _ = begun(disk)

    def fail(operation: str, path: str) -> None:
        raise StoreError("no disk space")

    disk.before_step = fail
    lost = mark.begin()
    with pytest.raises(StoreError):
        mark.save()
    disk.before_step = lambda operation, path: None
    assert mark.begin() == lost + 1
    mark.save()
    assert IngestMark(disk.after_process_crash()).epoch == lost + 1


def test_nothing_is_written_where_nothing_changed() -> None:
    disk = MemoryDisk()
    mark, epoch = begun(disk)
    mark.commit(0, epoch, 10)
    written: list[str] = []
    disk.before_step = lambda operation, path: written.append(path)
    mark.save()
    assert written == []


def test_a_damaged_file_is_refused_with_what_to_do() -> None:
    disk = MemoryDisk()
    begun(disk)
    data = disk.read(PATH)
    assert data is not None
    disk.replace(PATH, data.replace(b'"epoch":1', b'"epoch":7'))
    with pytest.raises(CorruptStore, match="damaged") as caught:
        IngestMark(disk)
    assert PATH in caught.value.hint
