"""A store whose names of far timers are in the first format: all of them are found after an upgrade."""

import struct
import subprocess
import sys
from pathlib import Path

import pytest
from rocksdict import Options, Rdict

from latermq.errors import StoreError
from latermq.model.timers import Verdict
from latermq.store.files.disk import FileDisk
from latermq.timer.far import far_names, old_names
from latermq.timer.far.far_names import FOLDER, MARKER, FarName, FarNames
from tests.fault.test_far_name_kills import waiting
from tests.support.pipeline.far_broker import FAR_MS, FarBroker

pytestmark = pytest.mark.real
NAMES = 200
CONVERTS = """
import sys
from pathlib import Path
from latermq.store.files.disk import FileDisk
from latermq.timer.far import far_names, old_names

old_names._ROWS_AT_ONCE = 7
flush_after = int(sys.argv[2])
whole = old_names._pieces

def pieces(db):
    for number, piece in enumerate(whole(db)):
        if number == flush_after:
            db.flush()
            import os, signal
            os.kill(os.getpid(), signal.SIGKILL)
        yield piece

old_names._pieces = pieces
far_names.FarNames(FileDisk(Path(sys.argv[1])))
"""


def write_first_format(folder: Path, timers: list[tuple[str, str, FarName]], upto: int) -> None:
    """Write rows as the first format had them, into RocksDB's write-ahead log."""
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    db = Rdict(str(folder), options)
    for topic, unique_key, one in timers:
        name = f"{topic}\0{unique_key}".encode()
        due = struct.pack(">q", one.due_ms)
        db[b"p" + name] = due
        db[b"n" + name + b"\0" + struct.pack(">q", one.entry)] = due + struct.pack(">q", one.timer_id)
        db[b"k" + f"{topic}\0key-{unique_key}\0{unique_key}".encode()] = due
    db[b"m"] = struct.pack(">q", upto)
    db.close()


def to_first_format(far: FarBroker) -> None:
    """Stop, and write the names again as the first format had them."""
    timers, _ = far.broker.far_names.due_between(0, 1 << 60, b"", 1 << 30)
    upto = far.broker.far_names.upto
    assert len(timers) == NAMES
    far.close()
    far.disk = far.disk.after_process_crash()
    folder = far.disk.library_folder(FOLDER)
    for path in folder.iterdir():
        path.unlink()
    write_first_format(folder, timers, upto)
    far.disk.replace(MARKER, b"1\n")
    far.broker = far.open()


def test_after_an_upgrade_every_name_can_be_cancelled_and_moved() -> None:
    far = FarBroker()
    for number in range(NAMES):
        far.schedule(f"t{number}")
    far.lose_log()
    to_first_format(far)
    pending = far.broker.pending
    for number in range(NAMES):
        match number % 4:
            case 0:
                assert pending.cancel("orders", f"t{number}").verdict == Verdict.CANCELLED
            case 1:
                assert [one.verdict for one in pending.cancel_key("orders", f"key-t{number}")] == [Verdict.CANCELLED]
            case _:
                assert pending.status("orders", f"t{number}").verdict == Verdict.PENDING
    assert pending.count(topic="orders") == NAMES // 2
    for _ in range(100):
        far.broker.far.sweep_names()
    far.pass_time(FAR_MS)
    assert sorted(far.arrived()) == sorted(b"t%d" % number for number in range(NAMES) if number % 4 > 1)
    far.close()


def first_format_with_duplicates(folder: Path) -> list[tuple[str, str, FarName]]:
    timers = [("far", f"t{number % 23}", FarName(number, number, 1_000 + number)) for number in range(100)]
    disk = FileDisk(folder)
    write_first_format(disk.library_folder(FOLDER), timers, 100)
    disk.replace(MARKER, b"1\n")
    return timers


def check_converted(folder: Path, timers: list[tuple[str, str, FarName]]) -> None:
    names = FarNames(FileDisk(folder))
    assert names.upto == names.saved_upto == 100
    found, _ = names.due_between(0, 1 << 60, b"", 1 << 30)
    assert sorted(found, key=lambda one: one[2].entry) == timers
    for key in {unique_key for _, unique_key, _ in timers}:
        own = [one for _, unique_key, one in timers if unique_key == key]
        assert sorted(names.pending("far", key, 0)) == own
        assert list(names.unique_keys("far", f"key-{key}")) == [key]
    assert not list(names._rows(b"p"))
    assert not list(names._rows(b"k"))
    names.close()
    assert FileDisk(folder).read(MARKER) == b"3\n"


def test_a_start_that_is_killed_while_it_converts_is_finished_by_the_next(tmp_path: Path) -> None:
    for killed_at in (0, 1, 6, 14):
        folder = tmp_path / str(killed_at)
        folder.mkdir()
        timers = first_format_with_duplicates(folder)
        started = [sys.executable, "-c", CONVERTS, str(folder), str(killed_at)]
        assert subprocess.run(started, check=False).returncode == -9
        check_converted(folder, timers)


def test_more_rows_than_are_converted_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(old_names, "_ROWS_AT_ONCE", 10)
    check_converted(tmp_path, first_format_with_duplicates(tmp_path))


def test_message_keys_of_the_second_format_find_their_timers_and_are_removed_when_their_period_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(old_names, "_ROWS_AT_ONCE", 7)
    period_ms, disk = 1 << 28, FileDisk(tmp_path)
    before = FarNames(disk)
    rows = [waiting(entry, due_ms=1_000 + entry // 10 * period_ms) for entry in range(30)]
    before.adopt([one._replace(properties=one.properties.partition(b"KEYS")[0]) for one in rows], 30, retention_ms=0)
    for entry, one in enumerate(rows):
        before._writable[b"k" + f"far\0order {entry % 10}\0t{entry}".encode()] = struct.pack(">q", one.due_ms)
    before.close()
    disk.replace(MARKER, b"2\n")
    names = FarNames(disk)
    assert [list(names.unique_keys("far", f"order {one}")) for one in range(10)] == [
        [f"t{one}", f"t{one + 10}", f"t{one + 20}"] for one in range(10)
    ]
    assert not list(names._rows(b"k"))
    names.sweep(2 * period_ms - 1, 0)
    assert list(names.unique_keys("far", "order 3")) == [None, "t23"]
    names.sweep(2 * period_ms, 0)
    assert list(names.unique_keys("far", "order 3")) == ["t23"]
    names.close()
    assert disk.read(MARKER) == b"3\n"


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    FileDisk(tmp_path).replace(far_names.MARKER, b"4\n")
    with pytest.raises(StoreError, match="format of timerfarnames that this release does not know"):
        FarNames(FileDisk(tmp_path))
