"""A broker in memory whose far timers outlive their records, with Spark simulated in plain Python."""

from random import Random

import msgspec

from latermq.broker.broker import Broker
from latermq.clock import SimulatedClock
from latermq.config import Duration, PipelineConfig, TimerConfig
from latermq.message.names import TIMER_TOPIC
from latermq.store.files.memory_disk import MemoryDisk
from tests.support.brokers_in_memory import STORE, messages, open_broker, pass_time, send
from tests.support.pipeline.spark_twin import SparkTwin

SHORT = msgspec.structs.replace(STORE, retention=Duration.parse("30s"))
PIPELINE = PipelineConfig(
    enabled=True,
    near_horizon=Duration.parse("12s"),
    window=Duration.parse("4s"),
    ingest_every=Duration.parse("1s"),
    roll_deadline=Duration.parse("2s"),
)
FAR_MS = 200_000


class FarBroker:
    """A broker whose segments expire after half a minute, with a simulated Spark that ingests at once."""

    def __init__(self) -> None:
        self.disk, self.clock = MemoryDisk(), SimulatedClock()
        self.twin = SparkTwin(Random(1))
        self.pipeline, self.timer = PIPELINE, TimerConfig()
        self.broker = self.open()
        self.twin.begin(self.broker)
        self.pass_time(1_000)

    def open(self) -> Broker:
        return open_broker(self.disk, self.clock, self.timer, SHORT, self.pipeline)

    def schedule(self, name: str, delay_ms: int = FAR_MS, key: str = "") -> None:
        send(self.broker, name.encode(), UNIQ_KEY=name, TIMER_DELAY_MS=str(delay_ms), KEYS=key or f"key-{name}")

    def pass_time(self, by_ms: int) -> None:
        for _ in range(0, by_ms, 1_000):
            self.broker.store.flush()
            self.twin.ingest(self.broker)
            self.twin.turn(self.broker)
            pass_time(self.broker, self.clock, 1_000)

    def lose_log(self) -> None:
        """Fill some segments, let them expire, and check that the timers' records are gone."""
        ahead = self.broker.store.queues.ensure(TIMER_TOPIC, 0).next_offset
        for _ in range(12):
            send(self.broker, b"x" * 50_000, topic="traffic")
        self.pass_time(40_000)
        send(self.broker, b"x" * 50_000, topic="traffic")
        self.upkeep()
        assert self.broker.store.queues.ensure(TIMER_TOPIC, 0).min_offset >= ahead, "their records are gone"

    def upkeep(self) -> None:
        self.broker.store.save(self.broker.store.plan_checkpoint())
        while (names := self.broker.far.expiring_entries()) is not None:
            self.broker.far.save_names(names)
        for removed in self.broker.retention.run():
            self.disk.remove(removed.path)

    def crash(self) -> None:
        self.replace_disk(self.disk.after_process_crash())

    def switch(self, *, enabled: bool) -> None:
        """Stop, and start with the pipeline on or off."""
        self.pipeline = msgspec.structs.replace(self.pipeline, enabled=enabled)
        self.crash()

    def replace_disk(self, disk: MemoryDisk) -> None:
        """Restart on another disk."""
        self.close()
        self.disk = disk
        self.broker = self.open()

    def close(self) -> None:
        self.broker.timers.engine.close()
        self.broker.far_names.close()

    def arrived(self) -> list[bytes]:
        return [message.body for queue_id in range(8) for message in messages(self.broker, "orders", queue_id)]
