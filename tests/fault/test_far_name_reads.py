"""Names of far timers are read while delivered ones are swept, from damaged files, and with strange unique keys."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from latermq.store.files.disk import FileDisk
from latermq.timer.far.far_names import SWEEP_ROWS, FarNames
from tests.fault.test_far_name_kills import waiting

pytestmark = pytest.mark.real


@pytest.fixture
def names(tmp_path: Path) -> Iterator[FarNames]:
    names = FarNames(FileDisk(tmp_path))
    yield names
    names.close()


def swept(names: FarNames, wake_ms: int) -> None:
    for _ in range(2):  # the second run removes the first timer of a name that has no others left
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
    assert most <= SWEEP_ROWS + 2
    assert not list(whole(b"n")), "all of them are gone"


def test_unique_keys_with_a_zero_byte_are_names_of_their_own(names: FarNames) -> None:
    for name in ("a", "a\0z", "a"):
        add(names, 2, name)
    assert [one.entry for one in names.pending("far", "a", 0)] == [0, 1, 4, 5]
    assert [one.entry for one in names.pending("far", "a\0z", 0)] == [2, 3]
