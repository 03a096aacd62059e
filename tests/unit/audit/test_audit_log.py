"""The audit log: its files stay private, bounded and readable, and a disk that fails stops nobody."""

import asyncio
import os
import time
from collections.abc import Callable, Coroutine
from pathlib import Path

import msgspec
import pytest

from latermq.audit.audit_log import MAX_BOUNDED_LINES, AuditLog, open_audit
from latermq.audit.records import CountKey
from latermq.audit.rotated_file import RotatedFile
from latermq.clock import SimulatedClock
from latermq.config import AuditConfig, Duration, Size
from latermq.errors import ConfigError

SMALL = AuditConfig(
    file_size=Size(64 << 10), files=3, flush_every=Duration(3_600_000), max_waiting=3_000, max_counters=4
)
SENDS = CountKey("alice", "10.0.0.7", "Pub", "Topic:orders", "allowed", 1, "Allow Pub on Topic:orders")


def lines(path: Path) -> list[dict[str, object]]:
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]


def run_with_log(folder: Path, scenario: Callable[[AuditLog], Coroutine[None, None, None]]) -> None:
    async def main() -> None:
        log = AuditLog(SMALL, folder, "broker broker-a", SimulatedClock())
        log.start()
        try:
            await scenario(log)
        finally:
            log.stop()

    asyncio.run(main())


async def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.01)


def note(log: AuditLog, request: str = "AUTH_CREATE_USER", user: str = "root") -> None:
    log.note(user=user, source="10.0.0.7:4711", request=request, result="allowed", details={"username": "a\x1b[2J"})


def test_requests_and_counts_are_written_to_private_files(tmp_path: Path) -> None:
    async def scenario(log: AuditLog) -> None:
        note(log)
        first, second = log.tally(SENDS), log.tally(SENDS)  # of two connections
        first.add(1)
        first.add(63)
        second.add(1)
        first.add(-1)
        log.count(SENDS._replace(result="refused"))
        log.flush()
        first.add(5)
        await until(lambda: log.statistics()["audit_waiting"] == 0)

    run_with_log(tmp_path / "audit", scenario)
    [request] = lines(tmp_path / "audit/broker.jsonl")
    assert request == {
        "time": "2027-01-15T08:00:00.000Z", "part": "broker broker-a", "user": "root", "from": "10.0.0.7:4711",
        "request": "AUTH_CREATE_USER", "result": "allowed", "details": {"username": "a\\x1b[2J"},
    }  # fmt: skip
    counts = lines(tmp_path / "audit/broker-counts.jsonl")
    assert [(line["result"], line["count"]) for line in counts] == [("refused", 1), ("allowed", 64), ("allowed", 5)]
    assert counts[1]["by"] == "Allow Pub on Topic:orders"
    for path in (tmp_path / "audit").iterdir():
        assert path.stat().st_mode & 0o777 == 0o600


def test_untrusted_clients_and_many_kinds_cannot_make_it_grow(tmp_path: Path) -> None:
    async def scenario(log: AuditLog) -> None:
        for number in range(100):
            log.count(SENDS._replace(source=f"10.0.0.{number}"))
            assert len(log.counters) <= SMALL.max_counters
        for _ in range(MAX_BOUNDED_LINES + 50):
            log.note(user="eve", source="10.0.0.9:1", request="DELETE_TOPIC", result="refused")
        for _ in range(MAX_BOUNDED_LINES + 30):
            log.note(user="eve", source="10.0.0.9", request="POST /timers", result="allowed", is_bounded=True)
        log.note(user="eve", source="10.0.0.9:1", request="UPDATE_TOPIC", result="allowed")

    run_with_log(tmp_path, scenario)
    counts = lines(tmp_path / "broker-counts.jsonl")
    assert sum(int(str(line["count"])) for line in counts) == 180
    written = lines(tmp_path / "broker.jsonl")
    assert len(written) == 2 * MAX_BOUNDED_LINES + 1
    assert written[-1]["request"] == "UPDATE_TOPIC"


def test_lines_wait_for_a_disk_that_fails_and_are_lost_above_a_bound(tmp_path: Path) -> None:
    async def scenario(log: AuditLog) -> None:
        note(log, "FIRST")
        await until(lambda: log.statistics()["audit_waiting"] == 0)
        folder.rename(tmp_path / "moved")
        folder.write_text("not a folder")
        for number in range(SMALL.max_waiting + 7):
            note(log, f"N{number}")
        assert log.statistics()["audit_lost"] == 7
        folder.unlink()
        (tmp_path / "moved").rename(folder)
        await until(lambda: log.statistics()["audit_waiting"] == 0)

    folder = tmp_path / "audit"
    run_with_log(folder, scenario)
    found = [line["request"] for path in sorted(folder.glob("broker.jsonl*"), reverse=True) for line in lines(path)]
    assert found[-1] == f"N{SMALL.max_waiting - 1}"
    assert len(set(found)) == len(found)
    assert len(list(folder.glob("broker.jsonl*"))) == SMALL.files


def test_files_are_rotated_and_a_torn_line_is_ended(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    (tmp_path / "a.jsonl.7").write_text("of a larger number of files\n")
    path.write_bytes(b"torn")
    file = RotatedFile(path, 100, 3)
    for number in range(40):
        file.append(b"%09d\n" % number, sync=False)
    path.rename(tmp_path / "moved")  # by an operator
    file.append(b"000000040\n", sync=True)
    file.close()
    assert path.read_text() == "000000040\n"
    assert {one.name for one in tmp_path.iterdir()} == {"a.jsonl", "a.jsonl.1", "a.jsonl.2", "moved"}
    assert all(one.stat().st_size <= 100 for one in tmp_path.iterdir())
    single = RotatedFile(tmp_path / "b.jsonl", 10, 1)
    for _ in range(3):
        single.append(b"123456789\n", sync=False)
    single.close()
    assert [one.name for one in tmp_path.glob("b.*")] == ["b.jsonl"]


def test_a_link_or_a_pipe_is_not_written(tmp_path: Path) -> None:
    target = tmp_path / "target"
    (tmp_path / "link.jsonl").symlink_to(target)
    os.mkfifo(tmp_path / "pipe.jsonl")
    for name in ("link", "pipe"):
        with pytest.raises(OSError, match=r"links|not a file"):
            RotatedFile(tmp_path / f"{name}.jsonl", 100, 2).append(b"x\n", sync=False)
    assert not target.exists()


def test_two_processes_cannot_write_the_same_files(tmp_path: Path) -> None:
    first = AuditLog(SMALL, tmp_path, "broker a", SimulatedClock())
    with pytest.raises(ConfigError, match="another process writes"):
        AuditLog(SMALL, tmp_path, "broker b", SimulatedClock())
    other = AuditLog(SMALL, tmp_path, "proxy", SimulatedClock())
    other.stop()
    first.stop()
    AuditLog(SMALL, tmp_path, "broker b", SimulatedClock()).stop()


def test_a_folder_that_cannot_be_made_is_an_error_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot write the audit log") as caught:
        open_audit(AuditConfig(folder=str(tmp_path / "file/audit")), tmp_path, "broker a", SimulatedClock())
    assert "audit.folder" in caught.value.hint
    assert open_audit(AuditConfig(enabled=False), tmp_path, "broker a", SimulatedClock()) is None
