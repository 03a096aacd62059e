"""Bodies of pending timers: far ones from their records in the timeline, near ones from the logs of their brokers."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from latermq.arrays import Ints
from latermq.errors import ConfigError
from latermq.message.names import TIMER_TOPIC
from latermq.pipeline.bulk.bulk_job import find_namesrv
from latermq.pipeline.bulk.plan_runner import addresses_by_store
from latermq.pipeline.driver.link import BrokerLink, QueueRange
from latermq.pipeline.source.records import RecordBlock

_NEEDED = ("store_id", "entry_offset", "record")
# Entries between two wanted ones that are pulled with them, because a request costs more than so many records.
MAX_GAP = 64


def with_bodies(rows: DataFrame, namesrv: str | None = None) -> DataFrame:
    """Rows of `pending` with the columns `body` and `body_text` in place of `record`.

    Filter first: the bodies of near timers are pulled from the brokers, by Spark's tasks. The body of a timer that was
    delivered meanwhile, and whose record has left the log, is NULL.
    """
    missing = [name for name in _NEEDED if name not in rows.columns]
    if missing:
        raise ConfigError(f"the frame has no column {', '.join(missing)}", hint="Pass rows of latermq.pipeline.pending")
    addresses = addresses_by_store(find_namesrv(namesrv))
    kept = [field for field in rows.schema.fields if field.name != "record"]
    schema = StructType([*kept, StructField("body", BinaryType()), StructField("body_text", StringType())])

    def add(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield add_bodies(batch, addresses)

    return rows.mapInArrow(add, schema)


def add_bodies(batch: pa.RecordBatch, addresses: Mapping[str, str]) -> pa.RecordBatch:
    """The same rows, with bodies in place of records."""
    bodies: list[bytes | None] = [None] * len(batch)
    texts: list[str | None] = [None] * len(batch)
    records = batch.column("record")
    far = np.flatnonzero(records.is_valid().to_numpy(zero_copy_only=False))
    if len(far):
        block = RecordBlock(records.take(pa.array(far)).to_pylist(), is_timer_topic=True)
        _set(bodies, texts, far.tolist(), block, None)
    near = np.flatnonzero(records.is_null().to_numpy(zero_copy_only=False))
    stores = np.array(batch.column("store_id").to_pylist(), object)
    entries = batch.column("entry_offset").to_numpy()
    for store_id in sorted(set(stores[near].tolist()) & addresses.keys()):
        rows = near[stores[near] == store_id]
        rows = rows[np.argsort(entries[rows], kind="stable")]
        with BrokerLink(addresses[store_id]) as link:
            for block in _blocks(link, entries[rows]):
                found = np.searchsorted(block.queue_offsets, entries[rows])
                is_in = (found < len(block)) & (block.queue_offsets[np.minimum(found, len(block) - 1)] == entries[rows])
                _set(bodies, texts, rows[is_in].tolist(), block, found[is_in])
    kept = [name for name in batch.schema.names if name != "record"]
    columns = [*(batch.column(name) for name in kept), pa.array(bodies, pa.binary()), pa.array(texts, pa.string())]
    return pa.RecordBatch.from_arrays(columns, names=[*kept, "body", "body_text"])


def _set(
    bodies: list[bytes | None],
    texts: list[str | None],
    rows: Sequence[int],
    block: RecordBlock,
    chosen: Ints | None,
) -> None:
    read = block.batch(("body", "body_text"), chosen)
    columns = (read.column(0).to_pylist(), read.column(1).to_pylist())
    for row, body, text in zip(rows, *columns, strict=True):
        bodies[row], texts[row] = body, text


def _blocks(link: BrokerLink, entries: Ints) -> Iterator[RecordBlock]:
    """The records of these entries, which are sorted, and some between them, in pieces."""
    first, flushed = link.bounds(TIMER_TOPIC, 0)
    inside = np.unique(entries[(entries >= first) & (entries < flushed)])
    starts = [0, *(np.flatnonzero(np.diff(inside) > MAX_GAP) + 1).tolist(), len(inside)]
    for start, end in pairwise(starts):
        if start < end:
            range_ = QueueRange(TIMER_TOPIC, 0, int(inside[start]), int(inside[end - 1]) + 1)
            for piece in link.pull_all(range_):
                yield RecordBlock([piece], is_timer_topic=True)
