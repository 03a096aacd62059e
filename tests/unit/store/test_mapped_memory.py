"""How much memory the process keeps of the log that it has mapped."""

import threading
from pathlib import Path

import pytest

from latermq.store.commit_log import FOLDER, CommitLog
from latermq.store.files.disk import Disk, FileDisk
from latermq.store.files.memory_disk import MemoryDisk

SEGMENT = 8 << 20
RESIDENT = 1 << 20
PIECE = 100_000
STEP = 4 << 20  # memory is given up after this much growth
SLACK = STEP + (256 << 10)  # the kernel maps up to 16 pages around each fault


def log_on(disk: Disk) -> CommitLog:
    log = CommitLog(disk, segment_bytes=SEGMENT, reserve_step_bytes=SEGMENT // 4, resident_bytes=RESIDENT)
    log.open_at(0, 0)
    return log


def write(log: CommitLog, numbers: range) -> list[int]:
    """Write one piece per number and return the offsets."""
    places = []
    for number in numbers:
        at = log.place(PIECE)
        log.write(at, content(number))
        places.append(at)
    return places


def content(number: int) -> bytes:
    return number.to_bytes(4, "big") * (PIECE // 4)


def resident_bytes(folder: Path) -> int:
    """Return how much of the files in this folder the process has in its memory."""
    total, counts = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        fields = line.split()
        if "-" in fields[0] and not fields[0].endswith(":"):
            counts = len(fields) > 5 and fields[5].startswith(str(folder))
        elif counts and fields[0] == "Rss:":
            total += int(fields[1]) << 10
    return total


@pytest.fixture
def log(tmp_path: Path) -> CommitLog:
    return log_on(FileDisk(tmp_path))


def test_only_the_newest_part_of_the_log_stays_in_memory(log: CommitLog, tmp_path: Path) -> None:
    write(log, range(220))
    assert resident_bytes(tmp_path / FOLDER) > 2 * SEGMENT
    log.forget_pages_behind()
    assert 0 < resident_bytes(tmp_path / FOLDER) <= RESIDENT + SLACK
    log.close()


def test_nothing_that_was_given_up_is_lost(log: CommitLog) -> None:
    places = write(log, range(60))
    log.forget_pages_behind()
    places += write(log, range(60, 120))
    log.forget_pages_behind()
    log.flush()
    assert [log.read(at, PIECE) for at in places] == [content(number) for number in range(120)]
    log.close()


def test_what_readers_mapped_again_is_given_up_too(log: CommitLog, tmp_path: Path) -> None:
    places = write(log, range(200))
    log.forget_pages_behind()
    for at in places:
        log.read(at, PIECE)
    assert resident_bytes(tmp_path / FOLDER) > 2 * SEGMENT
    for first in range(200, 800, 50):
        write(log, range(first, first + 50))
        log.forget_pages_behind()
    assert resident_bytes(tmp_path / FOLDER) <= RESIDENT + SLACK
    log.close()


def test_a_short_log_stays_in_memory(log: CommitLog, tmp_path: Path) -> None:
    log.forget_pages_behind()
    write(log, range(RESIDENT // PIECE))
    before = resident_bytes(tmp_path / FOLDER)
    log.forget_pages_behind()
    assert resident_bytes(tmp_path / FOLDER) == before
    log.close()


def test_memory_is_given_up_beside_a_writer_a_reader_and_retention(log: CommitLog) -> None:
    stopping, failures = threading.Event(), []

    def forget() -> None:
        try:
            while not stopping.is_set():
                log.forget_pages_behind()
        except BaseException as error:
            failures.append(error)

    forgetting = threading.Thread(target=forget)
    forgetting.start()
    try:
        for number in range(600):
            (at,) = write(log, range(number, number + 1))
            assert log.read(at, PIECE) == content(number)
            if log.end - log.start > 3 * SEGMENT:
                log.drop_first_segment()
    finally:
        stopping.set()
        forgetting.join()
    assert failures == []
    log.close()


def test_a_simulated_disk_keeps_what_was_given_up() -> None:
    log = log_on(MemoryDisk())
    places = write(log, range(120))
    for _ in range(3):
        log.forget_pages_behind()
    assert [log.read(at, PIECE) for at in places] == [content(number) for number in range(120)]
    log.close()
