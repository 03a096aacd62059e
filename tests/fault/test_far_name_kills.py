"""Names of far timers are written without a write-ahead log: a crash between any two steps loses none of them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from latermq.broker.timers import far_timers
from latermq.errors import StoreError
from latermq.message.properties import encode_properties
from latermq.message.timer_code import CANCEL, MOVED, TIMER
from latermq.model.timers import Verdict
from latermq.store.files.disk import FileDisk
from latermq.store.files.memory_disk import MemoryDisk
from latermq.timer.far import far_names
from latermq.timer.far.far_names import FarNames, Waiting
from tests.support.brokers_in_memory import send
from tests.support.needs import LONG, small_tmpfs
from tests.support.pipeline.far_broker import FAR_MS, FarBroker

pytestmark = pytest.mark.real
NAMES = 12
DUE_MS = 1 << 42
STEP_MS = 1 << 26  # a quarter of the period at whose end message keys are removed
# Adds names for ever, and saves some of them. Prints which ones it has saved.
ADDS_NAMES = """
import sys
from pathlib import Path
from latermq.store.files.disk import FileDisk
from latermq.timer.far import far_names
from tests.fault.test_far_name_kills import waiting

far_names.SAVED_AT_ONCE_BYTES = 20_000
names = far_names.FarNames(FileDisk(Path(sys.argv[1])))
while True:
    names.adopt([waiting(names.upto + number) for number in range(50)], names.upto + 50, retention_ms=0)
    print(names.saved_upto, flush=True)
"""


def waiting(entry: int, name: str = "", kind: int = TIMER, due_ms: int = DUE_MS) -> Waiting:
    name = name or f"t{entry}"
    properties = {"REAL_TOPIC": "far", "UNIQ_KEY": name, "KEYS": f"key-{name}"}
    if kind == CANCEL:
        properties["TIMER_DEL_UNIQKEY"] = f"far+{name}"
    return Waiting(entry, kind, due_ms, kind != CANCEL, encode_properties(properties).encode())


def upkeep(far: FarBroker) -> Iterator[None]:
    """A checkpoint, names added batch by batch and saved, and segments removed, one step at a time."""
    far.broker.store.save(far.broker.store.plan_checkpoint())
    yield
    while (names := far.broker.far.expiring_entries()) is not None:
        far.broker.far.save_names(names)
        yield
    for removed in far.broker.retention.run():
        far.disk.remove(removed.path)
        yield


def aged() -> FarBroker:
    """Timers that are about to leave the log. One was cancelled and one moved."""
    far = FarBroker()
    for number in range(NAMES):
        far.schedule(f"t{number}")
    assert far.broker.pending.cancel("orders", "t2").verdict == Verdict.CANCELLED
    assert far.broker.pending.move("orders", "t3", far.clock.now_ms() + FAR_MS).verdict == Verdict.MOVED
    for _ in range(12):
        send(far.broker, b"x" * 50_000, topic="traffic")
    far.pass_time(40_000)
    send(far.broker, b"x" * 50_000, topic="traffic")
    return far


def after_crash(far: FarBroker, kind: str, seed: int) -> MemoryDisk:
    return far.disk.after_process_crash() if kind == "process" else far.disk.after_machine_crash(Random(seed))


def check_all_known(far: FarBroker, where: str) -> None:
    pending = far.broker.pending
    for number in range(NAMES):
        found = pending.status("orders", f"t{number}").verdict
        assert found == (Verdict.CANCELLED if number == 2 else Verdict.PENDING), f"t{number} {where}"
    assert pending.count(topic="orders") == NAMES - 1, where


@pytest.mark.parametrize("kind", ["process", "machine"])
def test_a_crash_between_any_two_steps_loses_no_name(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(far_timers, "NAMES_AT_ONCE", 2)
    monkeypatch.setattr(far_names, "SAVED_AT_ONCE_BYTES", 500)  # two or three batches
    steps, is_done = 0, False
    while not is_done:
        far = aged()
        begun = upkeep(far)
        is_done = sum(1 for _ in zip(range(steps), begun, strict=False)) < steps
        saved, held = far.broker.far_names.saved_upto, far.broker.far_names.upto
        far.replace_disk(after_crash(far, kind, steps))
        assert saved <= far.broker.far_names.upto <= held
        check_all_known(far, f"after {steps} steps")
        for _ in range(2):  # retention goes by the checkpoint before
            far.pass_time(2_000)
            assert list(upkeep(far))
        assert far.broker.store.reader.read_message(0) is None, "their records are gone"
        check_all_known(far, f"after {steps} steps, and the rest")
        if is_done or steps % 5 == 0:
            assert far.broker.pending.cancel_key("orders", "key-t5")[0].verdict == Verdict.CANCELLED
            far.pass_time(FAR_MS)
            assert sorted(far.arrived()) == sorted(b"t%d" % number for number in range(NAMES) if number not in (2, 5))
        far.close()
        steps += 1
    assert steps > 8


def test_kill_9_leaves_exactly_the_names_below_the_mark(tmp_path: Path) -> None:
    chance = Random(7)
    for _ in range(20 if LONG else 3):
        with subprocess.Popen([sys.executable, "-c", ADDS_NAMES, str(tmp_path)], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline()]
            time.sleep(chance.random() * 0.5)
            os.kill(process.pid, signal.SIGKILL)
            lines += process.stdout.readlines()
        names = FarNames(FileDisk(tmp_path))
        found = sorted(one.entry for _, _, one in names.due_between(0, 2 * DUE_MS, b"", 1 << 30)[0])
        assert found == list(range(names.upto))
        assert names.upto >= int(lines[-1] if lines[-1].endswith(b"\n") else lines[-2])
        names.close()


def test_names_are_saved_again_when_a_full_disk_has_room(tmp_path: Path) -> None:
    with small_tmpfs(tmp_path / "disk", "200m") as folder:
        names = FarNames(FileDisk(folder))
        names.adopt([waiting(0)], 1, retention_ms=0)
        names.save()
        with (folder / "filler").open("wb", buffering=0) as filler, suppress(OSError):
            while filler.write(b"x" * 4_096):
                pass
        names.adopt([waiting(entry) for entry in range(1, 500)], 500, retention_ms=0)
        with pytest.raises(StoreError, match="Free disk space"):
            names.save()
        assert (names.saved_upto, names.upto) == (1, 500), "their records must stay in the log"
        assert names.known([("far", b"t400")], 0) == [True]
        (folder / "filler").unlink()
        deadline_s = time.monotonic() + 60
        while names.saved_upto < 500:
            assert time.monotonic() < deadline_s, "RocksDB did not recover"
            time.sleep(1.5)  # each try makes RocksDB wait for a second, and it recovers in between
            try:
                names.save()
            except StoreError:
                continue
        names.close()
        again = FarNames(FileDisk(folder))
        assert again.upto == 500
        again.close()


class Model:
    """Names in plain Python."""

    def __init__(self) -> None:
        self.timers: dict[str, dict[int, int]] = {}
        self.cancelled: set[str] = set()

    def adopt(self, one: Waiting, name: str) -> None:
        timers = self.timers.setdefault(name, {})
        if one.kind in (CANCEL, MOVED):
            ended = [entry for entry in timers if entry < one.entry]
            for entry in ended:
                del timers[entry]
            if ended and one.kind == CANCEL:
                self.cancelled.add(name)
        if one.kind != CANCEL:
            timers[one.entry] = one.due_ms

    def sweep(self, wake_ms: int) -> None:
        for timers in self.timers.values():
            for entry in [entry for entry, due_ms in timers.items() if due_ms < wake_ms]:
                del timers[entry]


@pytest.mark.parametrize("seed", range(40 if LONG else 4))
def test_names_agree_with_a_model_in_plain_python(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = Random(seed)
    monkeypatch.setattr(far_names, "SWEEP_ROWS", 1 << 30)
    disk, model, log = MemoryDisk(), Model(), list[tuple[Waiting, str]]()
    names, wake_ms = FarNames(disk), 0
    for _ in range(60):
        action = chance.random()
        if action < 0.6:
            for _ in range(chance.randrange(1, 8)):
                name, kind = f"n{chance.randrange(6)}", chance.choice((TIMER, TIMER, TIMER, MOVED, CANCEL))
                log.append((waiting(len(log), name, kind, wake_ms + chance.randrange(100) * STEP_MS), name))
            start = names.upto
            names.adopt([one for one, _ in log[start:]], len(log), retention_ms=DUE_MS)
            for one, name in log[start:]:
                model.adopt(one, name)
        elif action < 0.75:
            names.save()
        elif action < 0.9:
            wake_ms += chance.randrange(40) * STEP_MS
            names.sweep(wake_ms, wake_ms)
            model.sweep(wake_ms)
        else:  # a crash: what was not saved is added again, some of it for the second time
            disk = disk.after_process_crash()
            names.close()
            names = FarNames(disk)
            start = chance.randrange(names.upto + 1)
            names.adopt([one for one, _ in log[start:]], len(log), retention_ms=DUE_MS)
        for name, timers in model.timers.items():
            expected = sorted((entry, due_ms) for entry, due_ms in timers.items() if due_ms >= wake_ms)
            found = names.pending("far", name, wake_ms)
            assert sorted((one.entry, one.due_ms) for one in found) == expected
            is_known = bool(expected) or name in model.cancelled
            assert names.known([("far", name.encode())], wake_ms) == [is_known]
            by_key = set(names.unique_keys("far", f"key-{name}"))
            assert name in by_key or not expected
            assert by_key <= {name, None}
        every = sorted(one.entry for _, _, one in names.due_between(wake_ms, DUE_MS, b"", 1 << 30)[0])
        assert every == sorted(
            entry for timers in model.timers.values() for entry, due_ms in timers.items() if due_ms >= wake_ms
        )
        assert sorted(entry for _, entry in names.waiting(len(log), wake_ms)) == every
    names.close()
