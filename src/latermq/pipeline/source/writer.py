"""`df.write.format("latermq")`: turns the rows of a DataFrame into timers, or none of them if one is invalid."""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from latermq.errors import ConfigError
from latermq.pipeline.bulk.bulk_job import check_job, find_namesrv
from latermq.pipeline.bulk.bulk_schedule import Order, make_order, remove_spool, send_spooled, spool_partition
from latermq.pipeline.bulk.job_root import find_job_root
from latermq.pipeline.bulk.row_frames import check_columns
from latermq.pipeline.bulk.spool import SpoolFile
from latermq.pipeline.source.options import checked_options
from latermq.pipeline.source.plain_errors import plain_errors


@dataclass
class SpooledFiles(WriterCommitMessage):
    """A task's message to the driver: the spool files that hold its rows."""

    files: list[SpoolFile]


class TimerWriter(DataSourceArrowWriter):
    """Tasks check and spool their rows. When all are done, the driver schedules them. Every step is repeatable."""

    def __init__(self, order: Order) -> None:
        self._order = order

    @plain_errors()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> SpooledFiles:
        context = TaskContext.get()
        return SpooledFiles(spool_partition(self._order, iterator, context.partitionId() if context is not None else 0))

    @plain_errors()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        send_spooled(
            self._order, [file for message in messages if isinstance(message, SpooledFiles) for file in message.files]
        )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        remove_spool(self._order)


def make_writer(options: dict[str, str], schema: StructType, overwrite: bool) -> TimerWriter:
    """The writer of one job. Errors that do not depend on rows are raised here."""
    if overwrite:
        raise ConfigError("timers cannot be overwritten", hint='Write with mode("append")')
    return TimerWriter(parse_order(options, schema))


def parse_order(options: dict[str, str], schema: StructType) -> Order:
    """The job that the options of a writer describe, for rows of this schema."""
    given = checked_options(options)
    topic = given.get("topic") or given.get("path") or ""
    check_columns({field.name: field.type for field in to_arrow_schema(schema, timezone="UTC")}, has_topic=bool(topic))
    servers, job = find_namesrv(given.get("namesrv")), check_job(given.get("job", ""))
    root = find_job_root(given.get("root"), servers, job)
    return make_order(root, servers, job, topic, given.get("timezone", ""))
