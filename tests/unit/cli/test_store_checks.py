"""The doctor checks a stopped store: it reports each kind of damage with advice, and changes no file."""

import errno
import fcntl
import hashlib
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from latermq.broker.broker import Broker
from latermq.broker.pop.pop_request import PopRequest
from latermq.cli.doctor.checks import Check
from latermq.cli.doctor.store_checks import check_store
from latermq.clock import SystemClock
from latermq.config import Config, load_config
from latermq.errors import StoreError
from latermq.store.files.disk import FileDisk
from latermq.store.files.rehearsal_calls import RehearsalCalls
from latermq.store.files.rehearsal_disk import RehearsalDisk
from tests.support.brokers_in_memory import send

SETTINGS = (
    "store.segment=256KiB", "store.reserve_step=16KiB", "store.queue_file_entries=64", "store.index_slots=97",
    "store.index_entries=500", "broker.max_message=64KiB", "timer.log_file=1MiB",
)  # fmt: skip


def config(engine: str = "wheel") -> Config:
    return load_config(settings=[*SETTINGS, f"timer.engine={engine}"], environment={})


def make_store(data: Path, engine: str = "wheel", *, stop: bool = True) -> None:
    """A store with plain messages, levels and timers in it."""
    broker = Broker(config(engine), FileDisk(data), SystemClock(), host="127.0.0.1", port=10911, new_store_id="s" * 32)
    for number in range(200):
        send(broker, b"plain", queue_id=number % 4, KEYS=f"k{number}")
        send(broker, b"timer", TIMER_DELAY_SEC="3600", UNIQ_KEY=f"u{number}")
    send(broker, b"level", DELAY="18")
    broker.store.flush()
    broker.timers.run()
    broker.close()
    if not stop:
        (data / "abort").touch()


def digest(data: Path) -> dict[str, tuple[int, str]]:
    """The content of every file."""
    return {
        str(path.relative_to(data)): (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in sorted(data.rglob("*"))
        if path.is_file()
    }


def examine(data: Path, engine: str = "wheel") -> dict[str, Check]:
    before = digest(data)
    checks = check_store(data, config(engine))
    assert digest(data) == before, "the doctor has changed the store"
    return {check.check: check for check in checks}


def cut_short(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(20)


def overwrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(40)
        file.write(b"\xff" * 600)


def first_file(folder: Path) -> Path:
    return min(path for path in folder.iterdir() if path.is_file())


@pytest.mark.parametrize("engine", ["wheel", "rocksdb"])
def test_a_cleanly_stopped_store_is_ok(tmp_path: Path, engine: str) -> None:
    make_store(tmp_path, engine)
    checks = examine(tmp_path, engine)
    assert {name: check.status for name, check in checks.items()} == {"store": "ok"}
    assert "stopped cleanly" in checks["store"].details


def test_a_directory_without_a_store_has_no_line(tmp_path: Path) -> None:
    assert check_store(tmp_path / "nowhere", config()) == []
    assert check_store(tmp_path, config()) == []
    assert list(tmp_path.iterdir()) == []


def test_a_store_in_use_is_left_alone(tmp_path: Path) -> None:
    make_store(tmp_path)
    disk = FileDisk(tmp_path)
    disk.lock()
    try:
        [check] = check_store(tmp_path, config())
    finally:
        disk.unlock()
    assert (check.status, "running broker" in check.details) == ("ok", True)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("derived files", lambda data: shutil.rmtree(data / "consumequeue" / "orders" / "0")),
        ("derived files", lambda data: first_file(data / "consumequeue" / "orders" / "1").unlink()),
        ("derived files", lambda data: shutil.rmtree(data / "index")),
        ("derived files", lambda data: first_file(data / "index").unlink()),
        ("derived files", lambda data: cut_short(first_file(data / "index"))),
        ("derived files", lambda data: overwrite(first_file(data / "index"))),
        ("timer engine", lambda data: shutil.rmtree(data / "timerlog")),
        ("topics", lambda data: (data / "config" / "topics.json").unlink()),
        ("checkpoint", lambda data: (data / "latermq.checkpoint").unlink()),
    ],
)  # fmt: skip
def test_damage_that_a_start_repairs_is_reported(tmp_path: Path, name: str, damage: Callable[[Path], object]) -> None:
    make_store(tmp_path)
    damage(tmp_path)
    checks = examine(tmp_path)
    assert checks["store"].status == "warn"
    assert checks[name].status == "warn"
    assert checks[name].advice


@pytest.mark.parametrize(
    ("said", "damage"),
    [
        ("a segment is missing", lambda data: shutil.rmtree(data / "commitlog")),
        ("latermq.checkpoint", lambda data: (data / "latermq.checkpoint").write_bytes(b"not a checkpoint")),
    ],
)  # fmt: skip
def test_damage_that_prevents_a_start_is_reported_with_advice(
    tmp_path: Path, said: str, damage: Callable[[Path], object]
) -> None:
    make_store(tmp_path)
    damage(tmp_path)
    check = examine(tmp_path)["store"]
    assert check.status == "fail"
    assert said in check.details
    assert check.advice


def test_a_file_truncated_by_a_killed_start_is_not_damage(tmp_path: Path) -> None:
    make_store(tmp_path)
    cut_short(first_file(tmp_path / "consumequeue" / "orders" / "2"))
    assert examine(tmp_path)["store"].status in ("ok", "warn")


def test_a_broker_that_starts_during_the_check_is_not_reported_as_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_store(tmp_path)
    started: list[Broker] = []

    def start_first(*arguments: object, **options: object) -> object:
        monkeypatch.undo()
        started.append(
            Broker(config(), FileDisk(tmp_path), SystemClock(), host="127.0.0.1", port=1, new_store_id="s" * 32)
        )
        raise StoreError("cannot read timerlog: a file is gone")

    monkeypatch.setattr("latermq.broker.broker.open_engine", start_first)
    (check,) = check_store(tmp_path, config())
    started[0].close()
    assert (check.status, "running broker" in check.details) == ("ok", True)


def test_holes_in_files_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue's file is nearly all holes: reading them took minutes with thousands of queues."""
    read_bytes = 0
    read = RehearsalCalls.read

    def count(calls: RehearsalCalls, fd: int, size: int, at: int) -> bytes:
        nonlocal read_bytes
        data = read(calls, fd, size, at)
        read_bytes += len(data)
        return data

    monkeypatch.setattr(RehearsalCalls, "read", count)
    large = load_config(settings=[*SETTINGS, "store.queue_file_entries=300000"], environment={})
    broker = Broker(large, FileDisk(tmp_path), SystemClock(), host="127.0.0.1", port=1, new_store_id="s" * 32)
    for queue_id in range(4):
        send(broker, b"plain", queue_id=queue_id)
    broker.close()
    (check,) = check_store(tmp_path, large)
    assert check.status == "ok"
    assert read_bytes < 2 << 20


def test_a_store_whose_files_cannot_be_read_fails_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_store(tmp_path)

    def fail(calls: RehearsalCalls, path: str, **options: bool) -> int:
        raise OSError(errno.EMFILE, "Too many open files", path)

    monkeypatch.setattr(RehearsalCalls, "open", fail)
    monkeypatch.setattr(RehearsalCalls, "lock", lambda calls, path: 0)
    monkeypatch.setattr(RehearsalCalls, "close", lambda calls, fd: None)
    (check,) = check_store(tmp_path, config())
    assert (check.status, "Too many open files" in check.details) == ("fail", True)


def test_the_next_start_removes_copies_that_a_killed_doctor_left(tmp_path: Path) -> None:
    make_store(tmp_path, "rocksdb")
    names = {path.name for path in tmp_path.iterdir()}
    RehearsalDisk(tmp_path).library_folder("timerrocksdb")
    assert {path.name for path in tmp_path.iterdir()} > names
    make_store(tmp_path, "rocksdb")
    assert {path.name for path in tmp_path.iterdir()} == names


def test_a_start_does_not_fail_while_doctor_checks_the_lock(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as asking:
        fcntl.flock(asking, fcntl.LOCK_EX)
        threading.Timer(0.02, fcntl.flock, (asking, fcntl.LOCK_UN)).start()
        FileDisk(tmp_path, time.sleep).lock()


def test_messages_in_flight_are_shown_because_apaches_broker_does_not_know_them(tmp_path: Path) -> None:
    make_store(tmp_path)
    assert "messages in flight" not in examine(tmp_path)
    broker = Broker(config(), FileDisk(tmp_path), SystemClock(), host="127.0.0.1", port=10911, new_store_id="s" * 32)
    broker.groups.require("readers")
    [topic] = {
        queue.topic for queue in broker.store.queues if queue.queue_id == 1 and not queue.topic.startswith("rmq_")
    }
    popped = broker.pops.pop(PopRequest("readers", topic, 1, 5, 3_600_000))
    assert popped.messages == 5
    broker.pop_positions.commit()
    broker.close()
    check = examine(tmp_path)["messages in flight"]
    assert (check.status, check.details) == ("ok", "5 of groups that pop")
    assert "Apache" in check.advice
