"""What a timer costs the disk that is due far ahead: a broker in this process whose clock runs through weeks."""

import time
from pathlib import Path

from latermq.broker.broker import Broker
from latermq.clock import SimulatedClock
from latermq.config import Config, TimerConfig
from latermq.message.ids import pack_host
from latermq.message.names import TIMER_TOPIC
from latermq.store.disk import FileDisk
from latermq.timer.timer_log import UNIT_BYTES
from tests.bench.load import Figures

TOPIC = "bench-roll"
_HOST = pack_host("127.0.0.1", 40_000)
_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS
DELAY_MS = 40 * _DAY_MS
_LOOK_EVERY_MS = 10 * 60_000
_SAVE_EVERY_MS = 2 * _HOUR_MS
_SENT_BETWEEN_FLUSHES = 50_000


class CountingDisk(FileDisk):
    """Counts what small files take: that is the store's own, and what else this process writes is RocksDB's."""

    replaced_bytes = 0

    def replace(self, path: str, data: bytes) -> None:
        self.replaced_bytes += len(data)
        super().replace(path, data)


class AgeingBroker:
    """A broker over a store in a folder, with upkeep as a real one has it, and time that passes when told."""

    def __init__(self, folder: Path, engine: str) -> None:
        config = Config(timer=TimerConfig(engine="rocksdb" if engine == "rocksdb" else "wheel"))
        self.clock = SimulatedClock()
        self.disk = CountingDisk(folder)
        self.broker = Broker(config, self.disk, self.clock, host="127.0.0.1", port=10911, new_store_id="b" * 32)

    def schedule(self, count: int, body: bytes) -> None:
        """Timers that are due in the last hour before the end."""
        due_ms = self.clock.now_ms() + DELAY_MS - _HOUR_MS
        for number in range(count):
            properties = f"UNIQ_KEY\x017F0000011C0F2A139A5500{number:010X}\x02TIMER_DELIVER_MS\x01"
            properties += f"{due_ms + number * _HOUR_MS // count}\x02"
            self.broker.send(TOPIC, number % 8, body, properties, self.clock.now_ms(), _HOST)
            if number % _SENT_BETWEEN_FLUSHES == 0:
                self.save()
        self.save()

    def save(self) -> None:
        """Sync, let the engine have what is synced, and write a checkpoint."""
        store = self.broker.store
        store.log.prepare_ahead()
        store.index_pending()
        store.flush()
        self.deliver()
        store.save(store.plan_checkpoint())
        for removed in self.broker.retention.run():
            self.disk.remove(removed.path)

    def deliver(self) -> None:
        while self.broker.run_timers() == 0:
            pass

    def age(self, by_ms: int) -> None:
        end_ms = self.clock.now_ms() + by_ms
        saved_ms = self.clock.now_ms()
        while self.clock.now_ms() < end_ms:
            self.clock.advance(_LOOK_EVERY_MS)
            self.deliver()
            # What is not synced is not in the engine, and is looked at by itself for each second that passes.
            self.broker.store.flush()
            if self.clock.now_ms() - saved_ms >= _SAVE_EVERY_MS:
                saved_ms = self.clock.now_ms()
                self.save()
        self.save()

    def delivered(self) -> int:
        queues = (self.broker.store.find_queue(TOPIC, queue_id) for queue_id in range(8))
        return sum(queue.next_offset for queue in queues if queue is not None)


def measure_roll(folder: Path, engine: str, count: int, body_bytes: int) -> Figures:
    """Schedule timers 40 days ahead, let the time pass, and tell what was written until all were delivered."""
    written_bytes = _written_bytes()
    ageing = AgeingBroker(folder, engine)
    broker = ageing.broker
    try:
        started_s = time.process_time()
        ageing.schedule(count, b"x" * body_bytes)
        first_bytes = broker.store.log.end
        ageing.age(DELAY_MS + _LOOK_EVERY_MS)
        spent_s = time.process_time() - started_s
        rolls = broker.store.queue(TIMER_TOPIC, 0).next_offset - count
        delivered = ageing.delivered()
        log_bytes = broker.store.log.end
        engine_bytes = broker.timers.put_rows * UNIT_BYTES  # of the wheel: its timer log
    finally:
        broker.close()
    if engine == "rocksdb":
        engine_bytes = _written_bytes() - written_bytes - ageing.disk.replaced_bytes
    return {
        "rolls (per timer)": rolls / count,
        "commit log (bytes/timer)": log_bytes / count,
        "of it when it was scheduled (bytes/timer)": first_bytes / count,
        "engine (bytes/timer)": engine_bytes / count,
        "CPU (µs/roll)": spent_s * 1e6 / max(1, rolls),
        "delivered": float(delivered),
        "never stored": float(count - delivered),
    }


def _written_bytes() -> int:
    """What this process wrote through system calls. The store's large files are mapped, so theirs is not in it."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["wchar"])
