"""Where the bytes of a far timer go: what is written for it at each stage of its life, by field, column and file.

The code that writes them runs alone, without sockets and without Spark. Spark's own file, the one that ingest appends,
is written here by Arrow with Spark's settings. Not included: the transaction log of the timeline and the manifests of
windows, which take less than a byte per timer, and cuts.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from latermq.arrays import Ints
from latermq.handover.window import Window
from latermq.message.ids import pack_host
from latermq.message.names import TIMER_TOPIC
from latermq.message.properties import KEYS, UNIQUE_KEY, decode_properties
from latermq.message.record import layout
from latermq.message.timer_code import TIMER
from latermq.pipeline.bulk.row_frames import Target, requests_of
from latermq.pipeline.source.records import RecordBlock
from latermq.pipeline.timeline.rewrite_plan import DEFAULT_LIMITS
from latermq.pipeline.timeline.root import Root, open_root
from latermq.pipeline.timeline.sorted_files import FILE_SCHEMA, Rewrite, rewrite
from latermq.pipeline.windows.attempt_writer import write_attempt
from latermq.pipeline.windows.attempts import SCHEMA
from latermq.protocol.remoting.rows import decode_rows
from latermq.store.files.disk import FileDisk
from latermq.store.index.key_index import ENTRY_BYTES
from latermq.store.queues.consume_queue import ENTRY_BYTES as QUEUE_ENTRY_BYTES
from latermq.timer.delivery.block_builder import build
from latermq.timer.far.far_names import SWEEP_ROWS, FarNames, Waiting
from tests.bench.load import Figures
from tests.bench.roll import AgingBroker, written_bytes

TOPIC = "bench-far"
_HOST = pack_host("127.0.0.1", 40_000)
_DAY_MS = 86_400_000
_STORE = "a" * 32
_NAMES_AT_ONCE = 1_000  # the batch size of the broker
# Columns for which Spark builds no dictionaries (session.py).
_UNIQUE = {"record", "unique_key", "keys", "entry_offset", "timer_id", "due_ms", "due"}
_CHECKSUM_BLOCK, _CHECKSUM_HEAD = 512, 8  # of the files that Hadoop writes next to those of Spark


def measure_far_bytes(folder: Path, count: int, body_bytes: int) -> Iterator[tuple[str, Figures]]:
    """The bytes per timer of each stage. Bodies are random, so they do not compress."""
    aging = AgingBroker(folder / "store", "wheel")
    try:
        records, sizes = _schedule(aging, count, body_bytes)
    finally:
        aging.broker.close()
    yield "scheduled", _logged(records, sizes, body_bytes)
    root = open_root(str(folder))
    Path(root.timeline).mkdir()
    rows = _timeline_rows(records)
    yield "appended to the timeline", _appended(Path(root.timeline) / "appended.parquet", rows)
    [done] = rewrite(root, Rewrite(["appended.parquet"], False, DEFAULT_LIMITS))
    yield "compacted", _columns(Path(root.timeline) / done.path, count)
    yield "in a window", _windowed(root, rows)
    yield "its name, and its deletion", {"RocksDB": _names(folder / "names", records, sizes)}
    dues = rows.column("due_ms").to_numpy()
    delivered = build(0, np.arange(count), records, sizes, dues, aging.broker.stamp).block
    assert delivered is not None
    yield "delivered", _logged(bytes(delivered.data), delivered.sizes, body_bytes)


def _schedule(aging: AgingBroker, count: int, body_bytes: int) -> tuple[bytes, Ints]:
    """Schedule rows as a bulk job does. Return the records of the log and their sizes."""
    random, now_ms = np.random.default_rng(1), aging.clock.now_ms()
    columns = {
        "topic": [TOPIC] * count,
        "key": [f"part-1-{number}" for number in range(count)],
        "due_ms": now_ms + _DAY_MS + random.integers(0, 39 * _DAY_MS, count),
        "body": [random.bytes(body_bytes) for _ in range(count)],
    }
    target = Target("part-1", ("broker-a",), now_ms=now_ms)
    for request in requests_of(pa.RecordBatch.from_pydict(columns), target):
        aging.broker.row_schedule.schedule(decode_rows(request.body), _HOST)
    aging.broker.store.flush()
    queue = aging.broker.store.queues.ensure(TIMER_TOPIC, 0)
    assert queue.next_offset == count
    log = aging.broker.store.log
    raw = log.read(0, log.end)
    assert len(raw) == log.end  # all of it in one segment
    return raw, RecordBlock([raw], is_timer_topic=True).sizes


def _logged(records: bytes, sizes: Ints, body_bytes: int) -> Figures:
    """The mean record by its fields, and its entries in queues and key index."""
    found: Counter[str] = Counter()
    at = 0
    for size in sizes.tolist():
        parts = layout(records, at, len(records))
        assert parts is not None
        text = records[at + parts.properties_at : at + size].decode()
        properties = decode_properties(text)
        for name, value in properties.items():
            found[f"log: {name}"] += len(name) + len(value) + 2
        found["log: topic"] += parts.topic_bytes
        found["log: body"] += body_bytes
        found["log: other fields"] += size - parts.topic_bytes - body_bytes
        found["log: other fields"] -= sum(len(name) + len(value) + 2 for name, value in properties.items())
        found["consume queue"] += QUEUE_ENTRY_BYTES
        found["key index"] += ENTRY_BYTES * len({properties[UNIQUE_KEY], *properties[KEYS].split()})
        at += size
    return {name: size / len(sizes) for name, size in found.items()}


def _timeline_rows(records: bytes) -> pa.Table:
    """The rows that ingest makes of these records."""
    block = RecordBlock([records], is_timer_topic=True)
    names = ("queue_offset", "timer_id", "kind", "due_ms", "topic", "unique_key", "keys", "tags", "record")
    rows = pa.Table.from_batches([block.batch(names)]).rename_columns(["entry_offset", *names[1:]])
    rows = rows.append_column("store_id", pa.array([_STORE] * len(rows)))
    rows = rows.append_column("taker", pa.array(np.zeros(len(rows), np.int32)))
    due = pc.multiply(rows.column("due_ms"), 1_000).cast(FILE_SCHEMA.field("due").type)
    return rows.append_column("due", due).select(FILE_SCHEMA.names).cast(FILE_SCHEMA)


def _appended(path: Path, rows: pa.Table) -> Figures:
    with_dictionary = [name for name in rows.column_names if name not in _UNIQUE]
    pq.write_table(
        rows, path, compression="zstd", compression_level=1, use_dictionary=with_dictionary, write_page_index=True
    )
    checksums = _CHECKSUM_HEAD + 4 * -(-path.stat().st_size // _CHECKSUM_BLOCK)
    return {**_columns(path, len(rows)), "checksum file": checksums / len(rows)}


def _windowed(root: Root, rows: pa.Table) -> Figures:
    dues = rows.column("due_ms").to_numpy()
    window = Window(_STORE, 1, len(rows), int(dues.min()), int(dues.max()) + 1)
    ordered = rows.select(SCHEMA.names).sort_by([("due_ms", "ascending"), ("timer_id", "ascending")])
    batches = ordered.cast(SCHEMA).combine_chunks().to_batches()
    write_attempt(root, window, batches, made_by="local", table_version=0, ingest_offset=len(rows), now_ms=1)
    [path] = Path(root.at("windows")).glob("*/*/*/*.parquet")
    return _columns(path, len(rows))


def _names(folder: Path, records: bytes, sizes: Ints) -> float:
    """What RocksDB writes for the names of the timers, until they are deleted when the timers are delivered."""
    names = FarNames(FileDisk(folder))
    count, ends = len(sizes), np.cumsum(sizes)
    before = written_bytes()
    for first in range(0, count, _NAMES_AT_ONCE):
        waiting = []
        for entry in range(first, min(count, first + _NAMES_AT_ONCE)):
            start, end = int(ends[entry] - sizes[entry]), int(ends[entry])
            parts = layout(records, start, end)
            assert parts is not None
            waiting.append(Waiting(entry, TIMER, _DAY_MS + entry, True, records[start + parts.properties_at : end]))
        names.adopt(waiting, first + len(waiting), retention_ms=_DAY_MS)
    names.save()
    for _ in range(3 * count // SWEEP_ROWS + 1):
        names.sweep(_DAY_MS + count, _DAY_MS)
    names.close()
    return (written_bytes() - before) / count


def _columns(path: Path, count: int) -> Figures:
    """The bytes per timer of each column of a Parquet file, and of what is around the columns."""
    metadata = pq.ParquetFile(path).metadata
    sizes: Counter[str] = Counter()
    for group in range(metadata.num_row_groups):
        for number in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(number)
            sizes[f"column {chunk.path_in_schema}"] += chunk.total_compressed_size
    sizes["footer and page index"] = path.stat().st_size - sizes.total()
    return {name: size / count for name, size in sizes.items()}
