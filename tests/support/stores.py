"""Small stores for tests: segments of a few pages, a simulated clock, a disk in memory or in a folder."""

from collections.abc import Callable
from pathlib import Path

from latermq.clock import Clock, SimulatedClock
from latermq.config import Size, StoreConfig
from latermq.message.ids import pack_host
from latermq.message.properties import encode_properties
from latermq.store.files.disk import Disk, FileDisk
from latermq.store.files.memory_disk import MemoryDisk
from latermq.store.log_writer import Appended
from latermq.store.message_store import MessageStore

HOST = pack_host("127.0.0.1", 10911)
SMALL = StoreConfig(
    segment=Size(64 * 1024),
    reserve_step=Size(16 * 1024),
    queue_file_entries=64,
    index_slots=97,
    index_entries=500,
)
MakeDisk = Callable[[], Disk]


def disk_makers(folder: Path) -> dict[str, MakeDisk]:
    """For each kind of disk, a function that opens it, also after its store was closed."""
    memory = MemoryDisk()
    return {"memory": lambda: memory, "files": lambda: FileDisk(folder)}


def open_store(disk: Disk, config: StoreConfig = SMALL, clock: Clock | None = None) -> MessageStore:
    return MessageStore(disk, config, clock or SimulatedClock(), store_host=HOST, new_store_id="a" * 32)


def append(
    store: MessageStore, body: bytes, *, topic: str = "orders", queue_id: int = 0, tag: str = "", key: str = ""
) -> Appended:
    """Append one message. Its unique key is derived from its body."""
    properties = {"UNIQ_KEY": body[:32].hex(), **({"TAGS": tag} if tag else {}), **({"KEYS": key} if key else {})}
    encoded = encode_properties(properties).encode()
    return Appended(*store.writer.append(topic, queue_id, body, encoded, 1_700_000_000_000, HOST))


def bodies(store: MessageStore, topic: str = "orders", queue_id: int = 0) -> list[bytes]:
    """Every body of a queue, read through the queue as a consumer would."""
    queue = store.queues.find(topic, queue_id)
    if queue is None:
        return []
    found = []
    for offset in range(queue.min_offset, queue.next_offset):
        entry = queue.entry(offset)
        assert entry is not None
        message = store.reader.read_message(entry[0])
        assert message is not None, f"queue entry {offset} points to no record"
        assert message.queue_offset == offset
        assert (message.topic, message.queue_id, message.size_bytes) == (topic, queue_id, entry[1])
        found.append(message.body)
    return found
