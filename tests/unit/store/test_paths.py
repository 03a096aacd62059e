"""No path leads out of a disk's directory: neither by its names nor by symbolic links."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from latermq.errors import StoreError
from latermq.message.names import is_file_name, is_stored_topic, shown
from latermq.store.files.disk import Disk, FileDisk
from latermq.store.files.memory_disk import MemoryDisk
from latermq.store.files.rehearsal_disk import RehearsalDisk

OUTSIDE = [
    "..", "../victim", "/etc/passwd", "a/../../victim", "a/..", "a//b", "./a", "a/", "a\0b", "x" * 256, "\ud800",
]  # fmt: skip
DISKS: list[Callable[[Path], Disk]] = [FileDisk, RehearsalDisk, lambda root: MemoryDisk()]


@pytest.mark.parametrize("make_disk", DISKS)
@pytest.mark.parametrize("path", OUTSIDE)
def test_no_operation_takes_a_path_that_leads_out(make_disk: Callable[[Path], Disk], path: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    disk = make_disk(tmp_path / "data")
    operations: list[Callable[[], object]] = [
        lambda: disk.map_file(path, 4096),
        lambda: disk.list_names(path),
        lambda: disk.file_size(path),
        lambda: disk.read(path),
        lambda: disk.replace(path, b""),
        lambda: disk.remove(path),
        lambda: disk.sync_names(path),
        lambda: disk.library_folder(path),
    ]
    for operation in operations:
        with pytest.raises(StoreError, match="not a path inside the data directory"):
            operation()
    assert list(tmp_path.iterdir()) == [tmp_path / "data"]


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A folder that is not the broker's."""
    victim = tmp_path / "victim"
    (victim / "0").mkdir(parents=True)
    (victim / "savings").write_bytes(b"all of it")
    (victim / "0" / "savings").write_bytes(b"all of it")
    return victim


def is_whole(victim: Path) -> bool:
    return (victim / "savings").read_bytes() == (victim / "0" / "savings").read_bytes() == b"all of it"


@pytest.mark.parametrize("link", ["orders", "orders/0", "orders/0/5", "orders/0/deep/5"])
def test_removing_takes_a_link_and_not_what_it_leads_to(link: str, tmp_path: Path, victim: Path) -> None:
    data = tmp_path / "data"
    disk = FileDisk(data)
    place = data / "consumequeue" / link
    place.parent.mkdir(parents=True)
    place.symlink_to(victim)
    disk.remove("consumequeue/orders")
    assert is_whole(victim)
    assert not (data / "consumequeue" / "orders").is_symlink()
    assert disk.list_names("consumequeue") == []


def test_a_link_where_a_folder_is_put_to_be_removed_is_not_followed(tmp_path: Path, victim: Path) -> None:
    data = tmp_path / "data"
    disk = FileDisk(data)
    (data / "removing-orders").symlink_to(victim)
    (data / "removing-others").symlink_to(victim)
    disk.map_file("consumequeue/orders/0/1", 4096).close()
    disk.remove("consumequeue/orders")
    disk.lock()  # clears away what a dead process was removing
    disk.unlock()
    assert is_whole(victim)
    assert [name for name in disk.list_names("") if name.startswith("removing-")] == []


def test_nothing_is_written_through_a_link_below_the_first_folder(tmp_path: Path, victim: Path) -> None:
    data = tmp_path / "data"
    disk = FileDisk(data)
    (data / "consumequeue").mkdir()
    (data / "consumequeue" / "orders").symlink_to(victim)
    (data / "commitlog").mkdir()
    (data / "commitlog" / "1").symlink_to(victim / "savings")
    (data / "config").mkdir()
    (data / "config" / "topics.json.draft").symlink_to(victim / "savings")
    for path in ("consumequeue/orders/0/1", "consumequeue/orders/savings", "commitlog/1"):
        with pytest.raises(StoreError, match="is a symbolic link"):
            disk.map_file(path, 4096)
        with RehearsalDisk(data) as rehearsal, pytest.raises(StoreError, match="is a symbolic link"):
            rehearsal.map_file(path, 4096)
    for path in ("config/topics.json", "consumequeue/orders/0/file"):
        with pytest.raises(StoreError, match="is a symbolic link"):
            disk.replace(path, b"attack")
    with pytest.raises(StoreError, match="is a symbolic link"):
        disk.remove("consumequeue/orders/0/savings")
    with pytest.raises(StoreError, match="is a symbolic link"):
        disk.list_names("consumequeue/orders")
    assert is_whole(victim)


def test_a_file_that_is_a_link_is_read_and_replaced_but_not_written_to(tmp_path: Path, victim: Path) -> None:
    data = tmp_path / "data"
    disk = FileDisk(data)
    (data / "config").mkdir()
    (data / "config" / "topics.json").symlink_to(victim / "savings")
    assert disk.read("config/topics.json") == b"all of it"
    disk.replace("config/topics.json", b"new")
    assert disk.read("config/topics.json") == b"new"
    assert is_whole(victim)


def test_the_directory_and_its_own_folders_may_lie_elsewhere(tmp_path: Path) -> None:
    """As operators move the log, or everything, to another disk."""
    (tmp_path / "disk" / "data").mkdir(parents=True)
    (tmp_path / "other" / "queues").mkdir(parents=True)
    (tmp_path / "disk" / "data" / "consumequeue").symlink_to(tmp_path / "other" / "queues")
    (tmp_path / "data").symlink_to(tmp_path / "disk" / "data")
    disk = FileDisk(tmp_path / "data")
    file = disk.map_file("consumequeue/orders/0/1", 4096)
    file.reserve(4096)
    file.write(0, memoryview(b"entry"))
    file.sync()
    file.close()
    assert (tmp_path / "other" / "queues" / "orders" / "0" / "1").read_bytes()[:5] == b"entry"
    disk.remove("consumequeue/orders")
    assert list((tmp_path / "other" / "queues").iterdir()) == []
    assert (tmp_path / "data" / "consumequeue").is_symlink()


def test_a_topic_on_another_disk_is_removed_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FileDisk(tmp_path)
    disk.map_file("consumequeue/orders/0/1", 4096).close()

    def rename(self: Path, target: Path) -> Path:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(Path, "rename", rename)
    disk.remove("consumequeue/orders")
    assert disk.list_names("consumequeue") == []


def test_a_linked_folder_counts_with_the_disk_that_it_is_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Status:
        def __init__(self, used: int) -> None:
            self.f_blocks, self.f_bfree, self.f_bavail = 100, 100 - used, 100 - used

    disk = FileDisk(tmp_path / "data")
    (tmp_path / "other").mkdir()
    monkeypatch.setattr(os, "statvfs", lambda path: Status(90 if "commitlog" in str(path) else 20))
    assert disk.used_ratio() == pytest.approx(0.2)
    (tmp_path / "data" / "commitlog").symlink_to(tmp_path / "other")
    assert disk.used_ratio() == pytest.approx(0.9)


def test_names_that_are_no_file_names_are_told() -> None:
    assert all(map(is_file_name, ("a", "%RETRY%g", "..a", "a.", "ä" * 127)))
    assert not any(map(is_file_name, ("", ".", "..", "a/b", "a\0", "ä" * 128, "\udcff")))


def test_retry_topics_of_pop_consumers_are_topics_of_a_store() -> None:
    assert all(map(is_stored_topic, ("orders", "%RETRY%group+orders", "%DLQ%group")))
    assert not any(map(is_stored_topic, ("", "..", "a+b", "%RETRY%g+../x", "%RETRY%g++x", "a/b", "a.b")))


def test_a_long_name_is_cut_where_it_is_shown() -> None:
    assert shown("a\nb") == "'a\\nb'"
    assert len(shown("x" * 10_000)) < 50
