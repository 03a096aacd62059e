"""A broker on a memory disk with a simulated clock, for tests of timing."""

from collections.abc import Callable

from latermq.broker.broker import Broker
from latermq.clock import SimulatedClock
from latermq.config import BrokerConfig, Config, PipelineConfig, Size, StoreConfig, TimerConfig, TransactionConfig
from latermq.message.ids import pack_host
from latermq.message.properties import encode_properties
from latermq.message.record import Message
from latermq.store.files.disk import Disk

HOST = pack_host("127.0.0.1", 40_000)
STORE = StoreConfig(
    segment=Size(256 * 1024),
    reserve_step=Size(16 * 1024),
    queue_file_entries=64,
    index_slots=97,
    index_entries=5_000,
)
# Properties that the broker adds to every message from a client.
STAMP = {"CLUSTER": "DefaultCluster", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
MESSAGE_LIMIT = Size(64 * 1024)


def open_broker(
    disk: Disk,
    clock: SimulatedClock,
    timer: TimerConfig | None = None,
    store: StoreConfig = STORE,
    pipeline: PipelineConfig | None = None,
    settings: BrokerConfig | None = None,
    transaction: TransactionConfig | None = None,
    random_fraction: Callable[[], float] = lambda: 0.5,
    *,
    defers_topic_saves: bool = False,
) -> Broker:
    config = Config(
        broker=settings or BrokerConfig(),
        store=store,
        timer=timer or TimerConfig(),
        pipeline=pipeline or PipelineConfig(),
        transaction=transaction or TransactionConfig(),
    )
    return Broker(
        config,
        disk,
        clock,
        host="127.0.0.1",
        port=10911,
        new_store_id="s" * 32,
        random_fraction=random_fraction,
        defers_topic_saves=defers_topic_saves,
    )


def send(broker: Broker, body: bytes, topic: str = "orders", queue_id: int = 0, **properties: str) -> None:
    broker.writer.send(topic, queue_id, body, encode_properties(properties), 1_700_000_000_000, HOST)


def run_until_quiet(broker: Broker) -> None:
    """Run deliveries until none is possible at the current simulated time."""
    while broker.timers.run() == 0:
        pass


def pass_time(broker: Broker, clock: SimulatedClock, by_ms: int) -> None:
    """Advance the clock and run deliveries at the times that they request, as the server does."""
    run_until_quiet(broker)
    left_ms = by_ms
    while left_ms > 0:
        step_ms = max(1, min(left_ms, broker.timers.run()))
        clock.advance(step_ms)
        left_ms -= step_ms
        run_until_quiet(broker)


def messages(broker: Broker, topic: str = "orders", queue_id: int = 0) -> list[Message]:
    """All messages of a queue, in order."""
    queue = broker.store.queues.find(topic, queue_id)
    found = []
    for offset in range(queue.min_offset, queue.next_offset) if queue else ():
        entry = queue.entry(offset) if queue else None
        assert entry is not None
        message = broker.store.reader.read_message(entry[0])
        assert message is not None
        assert message.queue_offset == offset
        found.append(message)
    return found


def bodies(broker: Broker, topic: str = "orders", queue_id: int = 0) -> list[bytes]:
    return [message.body for message in messages(broker, topic, queue_id)]
