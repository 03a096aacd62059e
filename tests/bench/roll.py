"""Disk writes of a timer that is due weeks ahead, with a broker in this process and a simulated clock."""

from pathlib import Path

import numpy as np

from latermq.broker.broker import Broker
from latermq.clock import SimulatedClock
from latermq.config import Config, TimerConfig
from latermq.message.ids import pack_host
from latermq.message.names import TIMER_TOPIC
from latermq.store.files.disk import FileDisk
from latermq.timer.engine.interface import Units
from latermq.timer.engine.rocksdb_engine import RocksEngine
from latermq.timer.engine.timer_log import UNIT_BYTES
from latermq.timer.intake.renewal import LONGEST_WINDOW_MS
from tests.bench.load import Figures

TOPIC = "bench-roll"
_HOST = pack_host("127.0.0.1", 40_000)
_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS
DELAY_MS = 40 * _DAY_MS
_LOOK_EVERY_MS = 10 * 60_000
_SAVE_EVERY_MS = 2 * _HOUR_MS
_SENT_BETWEEN_FLUSHES = 50_000
# How often RocksDB rewrites a row depends on the number of rows, so it gets this multiple of the broker's timers.
_ROWS_PER_TIMER = 500
_START_MS = 250_000 * _SAVE_EVERY_MS


class AgingBroker:
    """A broker on a store in a folder, with the upkeep of a real one and a simulated clock."""

    def __init__(self, folder: Path, engine: str) -> None:
        config = Config(timer=TimerConfig(engine="rocksdb" if engine == "rocksdb" else "wheel"))
        self.clock = SimulatedClock()
        self.disk = FileDisk(folder)
        self.broker = Broker(config, self.disk, self.clock, host="127.0.0.1", port=10911, new_store_id="b" * 32)

    def schedule(self, count: int, body: bytes) -> None:
        """Schedule timers that are due in the last hour of the delay."""
        due_ms = self.clock.now_ms() + DELAY_MS - _HOUR_MS
        for number in range(count):
            properties = f"UNIQ_KEY\x017F0000011C0F2A139A5500{number:010X}\x02TIMER_DELIVER_MS\x01"
            properties += f"{due_ms + number * _HOUR_MS // count}\x02"
            self.broker.writer.send(TOPIC, number % 8, body, properties, self.clock.now_ms(), _HOST)
            if number % _SENT_BETWEEN_FLUSHES == 0:
                self.save()
        self.save()

    def save(self) -> None:
        """Sync, pass the synced timers to the engine, and write a checkpoint."""
        store = self.broker.store
        store.log.prepare_ahead()
        store.pending_keys.put()
        store.flush()
        self.deliver()
        if store.log.end != store.checkpoint_offset:
            store.save(store.plan_checkpoint())
        for removed in self.broker.retention.run():
            self.disk.remove(removed.path)

    def deliver(self) -> None:
        while self.broker.timers.run() == 0:
            pass

    def age(self, by_ms: int) -> None:
        end_ms = self.clock.now_ms() + by_ms
        saved_ms = self.clock.now_ms()
        while self.clock.now_ms() < end_ms:
            self.clock.advance(_LOOK_EVERY_MS)
            self.deliver()
            # Timers that are not synced are not in the engine, and are examined one by one every second.
            self.broker.store.flush()
            if self.clock.now_ms() - saved_ms >= _SAVE_EVERY_MS:
                saved_ms = self.clock.now_ms()
                self.save()
        self.save()

    def delivered(self) -> int:
        queues = (self.broker.store.queues.find(TOPIC, queue_id) for queue_id in range(8))
        return sum(queue.next_offset for queue in queues if queue is not None)


def measure_roll(folder: Path, engine: str, count: int, body_bytes: int) -> Figures:
    """Schedule timers 40 days ahead, advance the clock, and return the bytes written until all are delivered."""
    aging = AgingBroker(folder / "store", engine)
    broker = aging.broker
    try:
        aging.schedule(count, b"x" * body_bytes)
        first_bytes = broker.store.log.end
        aging.age(DELAY_MS + _LOOK_EVERY_MS)
        rolls = broker.store.queues.ensure(TIMER_TOPIC, 0).next_offset - count
        figures = {
            "rolls (per timer)": rolls / count,
            "commit log (bytes/timer)": broker.store.log.end / count,
            "of it when it was scheduled (bytes/timer)": first_bytes / count,
            "engine (bytes/timer)": broker.timers.write_queue.put_rows * UNIT_BYTES / count,
            "delivered": float(aging.delivered()),
            "never stored": float(count - aging.delivered()),
        }
    finally:
        broker.close()
    if engine == "rocksdb":
        figures["engine (bytes/timer)"] = rocksdb_bytes(folder / "rows", count * _ROWS_PER_TIMER, round(rolls / count))
    return figures


def rocksdb_bytes(folder: Path, count: int, rolls: int) -> float:
    """Bytes that RocksDB writes per timer: its log, tables and compaction, with this many renewals per timer.

    This measures the engine alone: each row wakes in the last quarter of the window and is put again, like a renewal.
    """
    folder.mkdir()
    before = written_bytes()
    engine = RocksEngine(folder, mark="", from_ms=0)
    random = np.random.default_rng(1)
    next_entry, now_ms = 0, _START_MS

    def put(rows: int) -> None:
        nonlocal next_entry
        entries = np.arange(next_entry, next_entry + rows)
        wakes = now_ms + random.integers(LONGEST_WINDOW_MS * 3 // 4, LONGEST_WINDOW_MS, rows)
        engine.put(Units(entries, wakes, entries * 500, np.full(rows, 500), np.ones(rows, bool)), now_ms)
        next_entry += rows

    try:
        for _ in range(0, count, _SENT_BETWEEN_FLUSHES):
            put(min(_SENT_BETWEEN_FLUSHES, count - next_entry))
        while next_entry < count * (rolls + 1):
            woken = sum(len(units.entries) for units in engine.read(now_ms, now_ms + _LOOK_EVERY_MS))
            now_ms += _LOOK_EVERY_MS
            put(woken)
            if now_ms % _SAVE_EVERY_MS == 0:
                engine.sync()
                engine.forget_below(now_ms)
    finally:
        engine.close()
    return (written_bytes() - before) / count


def written_bytes() -> int:
    """Bytes that this process wrote with system calls, not through mapped files. Only RocksDB does so meanwhile."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["wchar"])
