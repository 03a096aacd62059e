"""A broker in memory whose log expires, and whose derived files can be deleted between two starts."""

from random import Random

import msgspec

from latermq.broker.broker import Broker
from latermq.clock import SimulatedClock
from latermq.config import Duration, TimerConfig
from latermq.store.files.memory_disk import MemoryDisk
from tests.support.brokers_in_memory import STORE, bodies, open_broker, pass_time, run_until_quiet, send

# A few messages fill several queue and index files, and segments expire after half a minute.
AGING = msgspec.structs.replace(STORE, retention=Duration.parse("30s"), queue_file_entries=8, index_entries=20)


class AgingBroker:
    """A broker with methods to send, to expire the log and to restart."""

    def __init__(self, engine: str = "wheel") -> None:
        self.disk, self.clock = MemoryDisk(), SimulatedClock()
        self._timer = TimerConfig(engine=engine)  # type: ignore[arg-type]
        self.broker = self.open()

    def open(self) -> Broker:
        """Start a broker on the current disk."""
        return open_broker(self.disk, self.clock, self._timer, AGING)

    def send(self, body: str, topic: str = "orders", queue_id: int = 0, **properties: str) -> None:
        send(self.broker, body.encode(), topic, queue_id, **properties)

    def delay(self, body: str, level: int = 1) -> None:
        self.send(body, DELAY=str(level), UNIQ_KEY=body)

    def schedule(self, body: str, delay_ms: int) -> None:
        self.send(body, TIMER_DELAY_MS=str(delay_ms), UNIQ_KEY=body)

    def pass_time(self, by_ms: int) -> None:
        self.broker.store.flush()
        pass_time(self.broker, self.clock, by_ms)

    def age(self) -> None:
        """Let all messages sent so far expire. Pending timers are delivered first."""
        ahead = self.broker.store.log.end
        for _ in range(2):
            for _ in range(6):
                send(self.broker, b"x" * 50_000, topic="traffic")
            self.pass_time(40_000)
        send(self.broker, b"x" * 50_000, topic="traffic")
        self.retain()
        self.retain()  # by the marks of the first checkpoint
        assert self.broker.store.log.start >= ahead

    def retain(self) -> None:
        run_until_quiet(self.broker)
        self.broker.store.save(self.broker.store.plan_checkpoint())
        for removed in self.broker.retention.run():
            self.disk.remove(removed.path)
        self.broker.tables.save()

    def restart(self, *lost: str, clean: bool = False) -> None:
        """Stop or crash, delete these files, and start again."""
        if clean:
            self.broker.close()
        else:
            self.broker.timers.engine.close()
            self.broker.far_names.close()
        self.disk = self.disk.after_process_crash()
        for path in lost:
            folder, _, name = path.rpartition("/")
            assert name in self.disk.list_names(folder), path
            self.disk.remove(path)
        self.broker = self.open()

    def lose_power(self, chance: Random) -> None:
        """Simulate a power cut, which loses a random part of the unsynced data, and start again."""
        self.close()
        self.disk = self.disk.after_machine_crash(chance)
        self.broker = self.open()

    def bodies(self, topic: str = "orders", queue_id: int = 0) -> list[str]:
        return [body.decode() for body in bodies(self.broker, topic, queue_id)]

    def close(self) -> None:
        self.broker.timers.engine.close()
        self.broker.far_names.close()
