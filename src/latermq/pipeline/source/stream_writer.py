"""`df.writeStream.format("latermq")`: each row of a batch becomes one timer, however often Spark repeats the batch."""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from latermq.errors import ConfigError, StoreError
from latermq.pipeline.bulk.bulk_schedule import Order, remove_spool, send_spooled, spool_partition
from latermq.pipeline.bulk.stream_job import StreamProgress, check_query, finish_batch, read_progress
from latermq.pipeline.source.plain_errors import plain_errors
from latermq.pipeline.source.writer import SpooledFiles, parse_order
from latermq.pipeline.timeline.root import open_root

# Spark sets these for the tasks of a batch. A query keeps its identity in its checkpoint.
BATCH_PROPERTY, QUERY_PROPERTY = "streaming.sql.batchId", "sql.streaming.queryId"


@dataclass
class SpooledBatch(SpooledFiles):
    """A task's message to the driver: the rows that it spooled, and the query that they belong to."""

    query: str


class StreamTimerWriter(DataSourceStreamArrowWriter):
    """Tasks check and spool the rows of a batch. The driver schedules them, and then records the batch as finished.

    Spark makes a new writer for each batch, and another one to commit it.
    """

    def __init__(self, order: Order, progress: StreamProgress | None) -> None:
        self._order = order
        self._progress = progress

    @plain_errors()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> SpooledBatch:
        context = TaskContext.get()
        batch = context.getLocalProperty(BATCH_PROPERTY) if context is not None else None
        query = context.getLocalProperty(QUERY_PROPERTY) if context is not None else None
        if context is None or batch is None or query is None:
            raise StoreError("Spark does not name the batch of this task", hint="Use a trigger with micro-batches")
        check_query(self._progress, query, self._order.job)
        if self._progress is not None and self._progress.covers(query, int(batch)):
            for _ in iterator:  # Spark waits until a task has taken all its rows
                pass
            return SpooledBatch([], query)
        order = self._order.of_batch(int(batch))
        return SpooledBatch(spool_partition(order, iterator, context.partitionId()), query)

    @plain_errors()
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        spooled = [message for message in messages if isinstance(message, SpooledBatch)]
        if not spooled:
            return
        query, root, job = spooled[0].query, open_root(self._order.root_uri), self._order.job
        check_query(self._progress, query, job)
        if self._progress is None or not self._progress.covers(query, batchId):
            send_spooled(self._order.of_batch(batchId), [file for message in spooled for file in message.files])
            finish_batch(root, job, query, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        remove_spool(self._order.of_batch(batchId))


def make_stream_writer(options: dict[str, str], schema: StructType, overwrite: bool) -> StreamTimerWriter:
    """The writer of a stream. Errors that do not depend on rows are raised here."""
    if overwrite:
        raise ConfigError("timers cannot be overwritten", hint='Use outputMode("append") or outputMode("update")')
    order = parse_order(options, schema)
    return StreamTimerWriter(order, read_progress(open_root(order.root_uri), order.job))
