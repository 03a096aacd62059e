"""Names of far timers are read while delivered ones are swept, from damaged files, and with strange unique keys."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from latermq.errors import StoreError
from latermq.store.files.disk import FileDisk
from latermq.timer.far.far_names import FOLDER, MARKER, SWEEP_ROWS, FarNames
from tests.fault.test_far_name_kills import waiting

pytestmark = pytest.mark.real


@pytest.fixture
def names(tmp_path: Path) -> Iterator[FarNames]:
    names = FarNames(FileDisk(tmp_path))
    yield names
    names.close()


def swept(names: FarNames, wake_ms: int, times: int = 2) -> None:
    for _ in range(times):  # the second run removes the first timer of a name that has no others left
        names.sweep(wake_ms, wake_ms)


def add(names: FarNames, count: int, name: str = "", due_from_ms: int = 100) -> None:
    start = names.upto
    rows = [waiting(entry, name, due_ms=due_from_ms + entry - start) for entry in range(start, start + count)]
    names.adopt(rows, start + count, retention_ms=0)


# While rows are swept


def test_a_look_up_that_pauses_while_rows_are_swept_misses_no_timer(names: FarNames) -> None:
    add(names, 3, "same")
    look_up = names.pending("far", "same", 0)
    first = next(look_up)
    swept(names, 101)
    assert [one.entry for one in (first, *look_up)] == [0, 1, 2]
    assert [one.entry for one in names.pending("far", "same", 101)] == [1, 2]


def test_a_list_that_pauses_while_rows_are_swept_misses_no_timer(names: FarNames) -> None:
    add(names, 3, "same")
    found, start = names.due_between(101, 200, b"", 1)
    swept(names, 101)
    while start is not None:
        more, start = names.due_between(101, 200, start, 1)
        found += more
    assert [one.entry for _, _, one in found] == [1, 2]


def test_one_run_reads_a_bounded_number_of_rows_of_a_name(names: FarNames, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 5 * SWEEP_ROWS
    add(names, count, "same")
    read, whole = [0], names._from

    def counted(start: bytes) -> Iterator[tuple[bytes, bytes]]:
        for row in whole(start):
            read[0] += 1
            yield row

    monkeypatch.setattr(names, "_from", counted)
    most = 0
    for _ in range(20):
        read[0] = 0
        names.sweep(100 + count, 100 + count)
        most = max(most, read[0])
    assert most <= SWEEP_ROWS + 5, "and a row after those of each kind"
    assert not list(whole(b"n")), "all of them are gone"


def test_unique_keys_with_a_zero_byte_are_names_of_their_own(names: FarNames) -> None:
    for name in ("a", "a\0z", "a"):
        add(names, 2, name)
    assert [one.entry for one in names.pending("far", "a", 0)] == [0, 1, 4, 5]
    assert [one.entry for one in names.pending("far", "a\0z", 0)] == [2, 3]


# Damaged and missing files


def damage(names: FarNames) -> None:
    """Overwrite the middle of the file with the rows."""
    [path] = names._disk.library_folder(FOLDER).glob("*.sst")
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 64] = bytes(64)
    path.write_bytes(content)


def test_a_damaged_file_is_an_error_not_the_end_of_a_list(tmp_path: Path) -> None:
    names = FarNames(FileDisk(tmp_path))
    add(names, 20_000)
    names.save()
    names.close()
    damage(names)
    names = FarNames(FileDisk(tmp_path))
    keys = [("far", b"t%d" % number) for number in range(20_000)]
    for read in (
        lambda: names.due_between(0, 1 << 60, b"", 1 << 30),
        lambda: list(names.waiting(1 << 60, 0)),
        lambda: names.known(keys, 0),
        lambda: [list(names.pending(topic, key.decode(), 0)) for topic, key in keys],
        lambda: swept(names, 0, times=100),
    ):
        with pytest.raises(StoreError, match=r"cannot read the names of far timers: Corruption.*Restore timerfarnames"):
            read()
    names.close()


@pytest.mark.parametrize("lost", ["timerfarnames", "timerfarnames/CURRENT"])
def test_a_start_without_the_folder_of_names_is_refused(tmp_path: Path, lost: str) -> None:
    names = FarNames(FileDisk(tmp_path))
    add(names, 10)
    names.close()
    path = tmp_path / lost
    path.unlink() if path.is_file() else shutil.rmtree(path)
    with pytest.raises(StoreError, match=r"timerfarnames is missing or incomplete.*remove both"):
        FarNames(FileDisk(tmp_path))
    shutil.rmtree(tmp_path / FOLDER)
    (tmp_path / MARKER).unlink()
    assert FarNames(FileDisk(tmp_path)).upto == 0
