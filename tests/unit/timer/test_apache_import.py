"""A store that Apache RocketMQ stopped with timers pending goes on: none comes twice, early or after its cancel."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from latermq.broker.broker import Broker
from latermq.clock import SimulatedClock
from latermq.config import Config, Size, StoreConfig, TimerConfig
from latermq.store.files.disk import FileDisk
from latermq.store.files.system_calls import SystemCalls
from latermq.store.message_store import MessageStore
from latermq.timer import apache_import
from tests.golden.files import DATA, golden_json, unpack
from tests.support.brokers_in_memory import run_until_quiet

KNOWN = golden_json("apache-store-timers.json")
TIMERS = {record["body"]: record for record in KNOWN["topics"]["rmq_sys_wheel_timer"]["0"]}
PENDING = ["timer, due in 36 h", "timer, due in 70 h"]
PRECISION_MS = 1_000


def open_broker(root: Path, clock: SimulatedClock, engine: str) -> Broker:
    store = StoreConfig(
        segment=Size(KNOWN["segment_bytes"]),
        reserve_step=Size(4096),
        queue_file_entries=KNOWN["queue_file_bytes"] // 20,
        index_slots=KNOWN["hash_slots"],
        index_entries=KNOWN["index_entries"],
    )
    config = Config(store=store, timer=TimerConfig(engine=engine))  # type: ignore[arg-type]
    return Broker(config, FileDisk(root), clock, host="127.0.0.1", port=10911, new_store_id="a" * 32)


def due_ms(body: str) -> int:
    return int(TIMERS[body]["properties"]["TIMER_OUT_MS"]) + PRECISION_MS


@pytest.fixture
def root(tmp_path: Path) -> Path:
    unpack(DATA / "apache-store-timers.tar.gz", tmp_path)
    return tmp_path


@pytest.mark.parametrize("engine", ["wheel", "rocksdb"])
@pytest.mark.parametrize("lost", [None, "latermq.checkpoint"])
def test_what_apache_left_pending_arrives_once_and_not_before_its_time(
    root: Path, engine: str, lost: str | None
) -> None:
    clock = SimulatedClock(TIMERS["timer, due in 36 h"]["store_ms"] + 5_000)
    broker = open_broker(root, clock, engine)
    assert [timer.sample for timer in broker.pending.list().timers] == PENDING
    assert broker.pending.count(topic="TopicGolden") == 2
    run_until_quiet(broker)
    broker.close()
    if lost:
        (root / lost).unlink()
    broker = open_broker(root, clock, engine)
    assert [timer.sample for timer in broker.pending.list().timers] == PENDING
    arrived: dict[str, int] = {}
    last_ms = due_ms(PENDING[-1])
    while clock.now_ms() < last_ms + 60_000:
        clock.advance(600_000)
        run_until_quiet(broker)
        broker.store.flush()
        run_until_quiet(broker)
    for body, stored_ms in delivered_timers(broker.store):
        assert body not in arrived, f"{body!r} came twice"
        arrived[body] = stored_ms
    assert sorted(arrived) == ["timer, delivered", *PENDING]
    for body in PENDING:
        assert arrived[body] >= due_ms(body)
    assert broker.pending.count() == 0
    broker.close()


def delivered_timers(store: MessageStore) -> list[tuple[str, int]]:
    found = []
    for queue in store.queues:
        for offset in range(queue.min_offset, queue.next_offset):
            entry = queue.entry(offset)
            message = store.reader.read_message(entry[0]) if entry else None
            if message is not None and message.topic == "TopicGolden" and message.body.startswith(b"timer, "):
                found.append((message.body.decode(), message.store_timestamp_ms))
    return found


def test_what_apache_did_is_looked_up_once(root: Path) -> None:
    clock = SimulatedClock(TIMERS["timer, due in 36 h"]["store_ms"] + 5_000)
    open_broker(root, clock, "wheel").close()
    assert (root / apache_import.PATH).exists()
    assert (root / "config/timercheck").stat().st_size == 4096


class SimulatedCrash(BaseException):
    """The process is gone."""


class MortalCalls(SystemCalls):
    """System calls of a process that dies when it has made so many."""

    calls_left = 1 << 30
    locks: list[int] = []  # noqa: RUF012

    def __getattribute__(self, name: str) -> Any:
        call = super().__getattribute__(name)
        if name.startswith("_") or name in {"calls_left", "locks", "close", "unmap"}:
            return call
        MortalCalls.calls_left -= 1
        if MortalCalls.calls_left < 0:
            raise SimulatedCrash
        return call

    def lock(self, path: str) -> int:
        fd = super().lock(path)
        MortalCalls.locks.append(fd)
        return fd


def test_the_first_start_on_a_store_of_apache_may_die_anywhere(
    root: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("latermq.store.files.disk.SystemCalls", MortalCalls)
    clock = SimulatedClock(TIMERS["timer, due in 36 h"]["store_ms"] + 5_000)

    def start(data: Path, calls: int) -> tuple[list[str], list[tuple[str, int, int, int]]]:
        MortalCalls.calls_left = calls
        broker = open_broker(data, clock, "wheel")
        MortalCalls.calls_left = 1 << 30
        MortalCalls.locks.clear()
        found = [timer.sample for timer in broker.pending.list().timers]
        queues = [(queue.topic, queue.queue_id, queue.min_offset, queue.next_offset) for queue in broker.store.queues]
        broker.close()
        return found, sorted(queues)

    deaths = 0
    expected = start(Path(shutil.copytree(root, tmp_path_factory.mktemp("whole") / "store")), 1 << 30)
    assert expected[0] == PENDING
    for calls in range(1, 1_000, 23):
        data = Path(shutil.copytree(root, tmp_path_factory.mktemp("dying") / "store"))
        try:
            start(data, calls)
        except SimulatedCrash:
            deaths += 1
            while MortalCalls.locks:
                os.close(MortalCalls.locks.pop())
        else:
            break
        assert start(data, 1 << 30) == expected, f"after a death behind {calls} calls"
    assert deaths > 5
