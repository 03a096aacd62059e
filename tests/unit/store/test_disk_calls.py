"""The simulated disk makes the very system calls that the real one makes, in the same order."""

import contextlib
import ctypes
import errno
import os
import threading
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from random import Random
from typing import Any

import pytest

from latermq.errors import StoreError
from latermq.store.files import system_calls
from latermq.store.files.disk import CallDisk, Disk, FileDisk
from latermq.store.files.memory_disk import MemoryDisk, SimulatedCrash

# Everything in `os` that changes files, and what it is called; the disk may use no other.
CHANGES = {
    "ftruncate": "truncate",
    "pwrite": "write",
    "fdatasync": "sync",
    "fsync": "sync folder",
    "mkdir": "make folder",
    "rmdir": "remove folder",
    "unlink": "unlink",
    "rename": "rename",
    "remove": "",
    "replace": "",
    "truncate": "",
    "write": "",
    "pwritev": "",
    "link": "",
    "symlink": "",
    "posix_fallocate": "",
}
Call = tuple[str, str]
DATA = b"data" * 3_000


def everything(disk: Disk) -> None:
    """Every operation of a disk, in the states that make a difference."""
    disk.lock()
    file = disk.map_file("consumequeue/orders/0/1", 1 << 16)
    file.reserve(20_000)
    file.reserve(20_000)
    file.write(4_096, memoryview(DATA))
    file.sync()
    file.sync()
    assert file.zero_from(5_000)
    assert not file.zero_from(5_000)
    assert file.read(4_990, 20) == DATA[894:904] + bytes(10)
    file.close()
    disk.map_file("consumequeue/orders/0/1", 1 << 16).close()
    disk.map_file("consumequeue/orders/1/1", 1 << 16).close()
    disk.replace("config/topics.json", b"old")
    disk.replace("config/topics.json", b"new")
    disk.replace("empty", b"")
    disk.sync_names("config")
    disk.remove("empty")
    disk.remove("missing")
    disk.remove("consumequeue/orders")
    disk.library_folder("rocks")
    disk.library_folder("rocks")
    disk.unlock()


def recorded(monkeypatch: pytest.MonkeyPatch, root: Path, act: Callable[[], None]) -> list[Call]:
    """The calls that change something below this folder, as `SimulatedCalls` names them."""
    calls: list[Call] = []

    def relative(place: int | str | Path) -> str:
        path = Path(f"/proc/self/fd/{place}").readlink() if isinstance(place, int) else Path(place)
        return str(path.relative_to(root)).removeprefix(".")

    def noting(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(place: int | str | Path, *rest: Any, **named: Any) -> Any:
            assert CHANGES[name], f"os.{name} is none of the calls that are simulated"
            path = relative(place)
            answer = real(place, *rest, **named)
            calls.append((CHANGES[name], path))
            return answer

        return call

    def opening(path: str | Path, flags: int, *rest: Any, **named: Any) -> int:
        size = Path(path).stat().st_size if Path(path).exists() else -1
        fd = real_open(path, flags, *rest, **named)
        if flags & os.O_CREAT and size < 0:
            calls.append(("create", relative(path)))
        elif flags & os.O_TRUNC and size > 0:
            calls.append(("truncate", relative(path)))
        return int(fd)

    def allocating(fd: int, mode: int, start: int, size: int) -> int:
        calls.append(("punch" if mode else "allocate", relative(fd)))
        return int(real_fallocate(fd, mode, start, size))

    real_open, real_fallocate = os.open, system_calls._fallocate
    with monkeypatch.context() as patch:
        for name in CHANGES:
            patch.setattr(os, name, noting(name, getattr(os, name)))
        patch.setattr(os, "open", opening)
        patch.setattr(system_calls, "_fallocate", allocating)
        act()
    return calls


def test_both_disks_make_the_same_calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    memory = MemoryDisk()
    memory.calls.made = []
    everything(memory)
    # In memory a block is written in two halves, so that a test can fail it half-way.
    simulated = [call for call, _ in groupby(memory.calls.made)]
    real = FileDisk(tmp_path)
    made = recorded(monkeypatch, tmp_path, lambda: everything(real))
    assert simulated == made
    assert {call for call, _ in made} >= {"create", "allocate", "punch", *filter(None, CHANGES.values())}


def test_a_call_that_is_not_there_is_found_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def act() -> None:
        (tmp_path / "a").touch()
        (tmp_path / "a").replace(tmp_path / "b")

    with pytest.raises(AssertionError, match="none of the calls that are simulated"):
        recorded(monkeypatch, tmp_path, act)


# What the simulated machine leaves


def test_a_file_dies_between_its_making_and_its_size() -> None:
    disk = MemoryDisk()
    disk.crash_after(2)  # the folder and the file
    with pytest.raises(SimulatedCrash):
        disk.map_file("log/0", 4_096)
    assert disk.after_process_crash().file_size("log/0") == 0


def test_nothing_that_is_done_after_the_death_leaves_a_trace() -> None:
    disk = MemoryDisk()
    file = disk.map_file("log/0", 4_096)
    file.reserve(4_096)
    disk.crash_after(0)
    with pytest.raises(SimulatedCrash):
        disk.replace("a", b"1")
    with pytest.raises(SimulatedCrash):
        disk.remove("log/0")
    file.map[:3] = b"ghost"[:3]
    assert disk.after_process_crash().mapped("log/0").map[:3] == bytes(3)


def test_a_small_file_is_the_old_or_the_new_one_at_every_death() -> None:
    for machine in (False, True):
        found = set()
        for calls in range(6):
            for halfway in (False, True):
                disk = MemoryDisk()
                disk.replace("a", b"old")
                disk.crash_after(calls, halfway=halfway)
                with contextlib.suppress(SimulatedCrash):
                    disk.replace("a", b"new one")
                left = disk.after_machine_crash(Random(calls)) if machine else disk.after_process_crash()
                found.add(left.read("a"))
        assert found == {b"old", b"new one"}


def test_a_power_cut_takes_names_and_lengths_that_were_not_synced() -> None:
    fates = set()
    for seed in range(40):
        disk = MemoryDisk()
        disk.map_file("log/0", 4_096).sync()
        disk.map_file("log/1", 4_096)
        left = disk.after_machine_crash(Random(seed))
        assert left.file_size("log/0") == 4_096
        fates.add(left.file_size("log/1") if "1" in left.list_names("log") else None)
    assert fates == {None, 0, 4_096}


def test_a_folder_that_is_removed_is_whole_or_gone_at_every_death() -> None:
    for calls in range(8):
        disk = MemoryDisk()
        for name in ("0", "1", "2"):
            disk.map_file(f"queue/{name}", 4_096).sync()
        disk.crash_after(calls)
        with contextlib.suppress(SimulatedCrash):
            disk.remove("queue")
        left = disk.after_process_crash()
        assert left.list_names("queue") in ([], ["0", "1", "2"])
        left.lock()
        assert not any(name.startswith("removing") for name in left.list_names(""))


def test_writing_where_no_space_is_reserved_is_found_out() -> None:
    disk = MemoryDisk()
    file = disk.map_file("log/0", 1 << 16)
    file.reserve(4_096)
    file.map[5_000] = 1
    with pytest.raises(AssertionError, match="without reserved space"):
        disk.after_process_crash()


# Where a file system can do less


@pytest.mark.parametrize("make_disk", [lambda folder: MemoryDisk(), FileDisk], ids=["memory", "real"])
def test_space_is_reserved_without_the_call_and_never_over_data(
    make_disk: Callable[[Path], CallDisk], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = make_disk(tmp_path)
    file = disk.map_file("log/0", 1 << 20)
    file.reserve(300_000)
    file.write(100, memoryview(DATA))
    file.close()
    if isinstance(disk, MemoryDisk):
        disk.calls.can_allocate = disk.calls.can_punch = False
    else:
        monkeypatch.setattr(system_calls, "_fallocate", _unsupported)
    again = disk.map_file("log/0", 1 << 20)  # nothing is known to be reserved
    again.reserve(1 << 20)
    assert again.read(100, len(DATA)) == DATA
    assert again.read(0, 100) + again.read(100 + len(DATA), 1 << 20) == bytes((1 << 20) - len(DATA))
    if isinstance(disk, FileDisk):
        assert (tmp_path / "log/0").stat().st_blocks * 512 >= 1 << 20
    assert again.zero_from(200)
    assert again.read(100, 1 << 20).rstrip(b"\0") == DATA[:100]
    assert not again.zero_from(200)


def _unsupported(*arguments: int) -> int:
    ctypes.set_errno(errno.EOPNOTSUPP)
    return -1


def test_two_threads_that_reserve_the_same_bytes_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The preparer was still filling what the writer had reserved too, and wrote its zeros over what was written."""
    monkeypatch.setattr(system_calls, "_fallocate", _unsupported)
    disk = FileDisk(tmp_path)
    file = disk.map_file("log/0", 1 << 20)
    filling, go_on = threading.Event(), threading.Event()
    real_write = os.pwrite

    def slow_write(fd: int, data: bytes, at: int) -> int:
        if threading.current_thread() is not threading.main_thread():
            filling.set()
            go_on.wait(0.5)
        return real_write(fd, data, at)

    monkeypatch.setattr(os, "pwrite", slow_write)
    preparer = threading.Thread(target=file.reserve, args=(1 << 20,))
    preparer.start()
    assert filling.wait(5)
    file.reserve(8_192)
    file.map[:4] = b"data"
    go_on.set()
    preparer.join()
    assert file.map[:4] == b"data"
    file.close()


def test_a_disk_that_copies_on_write_and_is_full_is_an_error() -> None:
    disk = MemoryDisk()
    file = disk.map_file("index/0", 1 << 16)
    file.reserve(1 << 16)
    disk.calls.copies_on_write = True
    disk.capacity_bytes = disk.used_bytes
    with pytest.raises(StoreError, match="No space left"):
        file.write(0, memoryview(b"slots"))
