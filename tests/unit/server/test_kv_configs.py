"""The name server's key-value table and the file behind it: bounded, kept before it is answered, off the loop."""

import asyncio
import threading

import pytest

from latermq.config import NameServerConfig, Size
from latermq.errors import InvalidParameter, LaterMQError, QueryNotFound, ServiceUnavailable, StoreError
from latermq.server.namesrv.background_files import BackgroundFile, BackgroundThread
from latermq.server.namesrv.kv_configs import KVConfigs
from latermq.store.files.memory_disk import MemoryDisk
from tests.integration.raw_client import eventually

BOUNDS = NameServerConfig()


def kept(error: LaterMQError | None) -> None:
    if error is not None:
        raise error


def test_keys_survive_a_restart() -> None:
    disk = MemoryDisk()
    table = KVConfigs(BOUNDS, disk)
    table.put("ns", "key", "a", kept)
    table.put("ns", "key", "b", kept)
    table.put("ns", "other", "c", kept)
    table.delete("ns", "other", kept)
    table.delete("ns", "never there", kept)
    again = KVConfigs(BOUNDS, disk)
    assert again.get("ns", "key") == "b"
    assert again.entries("ns") == {"key": "b"}
    statistics = again.statistics()
    assert statistics == table.statistics()
    assert (statistics["kv_entries"], statistics["kv_bytes"]) == (1, 6)
    assert (statistics["max_kv_entries"], statistics["max_kv_bytes"]) == (10_000, 1 << 20)


def test_a_namespace_that_was_never_used_or_is_empty_again_is_not_found() -> None:
    table = KVConfigs(BOUNDS)
    with pytest.raises(QueryNotFound):
        table.entries("ns")
    table.put("ns", "key", "a", kept)
    table.delete("ns", "key", kept)
    with pytest.raises(QueryNotFound):
        table.entries("ns")


def test_a_table_that_is_full_refuses_more() -> None:
    table = KVConfigs(NameServerConfig(max_kv=Size(12), max_kv_entries=2))
    table.put("ns", "key", "12345", kept)
    with pytest.raises(ServiceUnavailable, match=r"namesrv\.max_kv"):
        table.put("ns", "key", "12345678", kept)
    with pytest.raises(ServiceUnavailable, match=r"namesrv\.max_kv"):
        table.put("ns", "key", "12345€", kept)  # bytes count, not characters
    assert table.get("ns", "key") == "12345"
    table.put("ns", "key", "1", kept)
    table.put("n", "k", "2", kept)
    with pytest.raises(ServiceUnavailable, match=r"namesrv\.max_kv_entries"):
        table.put("n", "l", "", kept)


@pytest.mark.parametrize("name", ["", " ", "a\nb", "a\0", "x" * 256])
def test_a_name_that_cannot_be_is_refused(name: str) -> None:
    table = KVConfigs(BOUNDS)
    with pytest.raises(InvalidParameter):
        table.put(name, "key", "value", kept)
    with pytest.raises(InvalidParameter):
        table.put("ns", name, "value", kept)


class FillingDisk(MemoryDisk):
    """A disk that can be full, and whose writes can be held up."""

    def __init__(self) -> None:
        super().__init__()
        self.full = False
        self.may_write = threading.Event()
        self.may_write.set()
        self.writes = 0

    def replace(self, path: str, data: bytes) -> None:
        self.may_write.wait(10)
        if self.full:
            raise StoreError("no space")
        self.writes += 1
        super().replace(path, data)


def test_a_key_that_cannot_be_kept_is_not_taken() -> None:
    disk = FillingDisk()
    table = KVConfigs(BOUNDS, disk)
    table.put("ns", "first", "value", kept)
    disk.full = True
    with pytest.raises(StoreError):
        table.put("ns", "key", "value", kept)
    assert (table.get("ns", "key"), table.get("ns", "first")) == (None, "value")
    disk.full = False
    table.put("ns", "key", "value", kept)
    assert KVConfigs(BOUNDS, disk).entries("ns") == {"first": "value", "key": "value"}


def test_changes_are_written_beside_the_loop_and_together() -> None:
    disk = FillingDisk()
    answers: list[LaterMQError | None] = []

    async def scenario() -> None:
        background = BackgroundThread("test")
        table = KVConfigs(BOUNDS, disk, background)
        disk.may_write.clear()
        for number in range(1000):
            table.put("ns", str(number), "value", answers.append)
        await asyncio.sleep(0)
        assert answers == []
        assert table.statistics()["kv_waiting"] == 999
        disk.may_write.set()
        await eventually(lambda: len(answers) == 1000, "all to be answered")
        # A disk that is full fails those that wait as well: they were made on top of what is not kept.
        disk.may_write.clear()
        disk.full = True
        for number in range(3):
            table.put("lost", str(number), "value", answers.append)
        disk.may_write.set()
        await eventually(lambda: len(answers) == 1003, "all to be answered")
        assert table.statistics()["kv_entries"] == 1000
        background.stop()

    asyncio.run(scenario())
    assert answers[:1000] == [None] * 1000
    assert all(isinstance(error, StoreError) for error in answers[1000:])
    assert disk.writes == 2
    assert len(KVConfigs(BOUNDS, disk).entries("ns")) == 1000


def test_what_still_waits_at_the_end_is_written_then() -> None:
    disk = FillingDisk()
    contents = iter([b"first", b"second"])
    file = BackgroundFile(disk, "file", lambda: next(contents), lambda work, done: None)  # which never gets to it
    file.change(kept)
    file.change(kept)
    file.finish()
    assert disk.read("file") == b"second"


def test_a_table_that_does_not_parse_is_set_aside_and_names_its_file() -> None:
    disk = MemoryDisk()
    disk.replace("kvConfig.json", b"{")
    configs = KVConfigs(BOUNDS, disk)
    assert configs.trouble is not None
    assert configs.trouble.path == "kvConfig.json"
    assert configs.trouble.kept_as
