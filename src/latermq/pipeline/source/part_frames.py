"""Parts of queues as one DataFrame: many queues of many topics, pulled by the executors in one job.

A frame of the data source covers one topic, and Spark starts three processes to plan each frame. That is too slow for a
report.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from latermq.pipeline.remote.running_driver import PARALLELISM_SETTING, is_connect_session, published
from latermq.pipeline.source.options import SourceOptions
from latermq.pipeline.source.ranges import QueuePart
from latermq.pipeline.source.reader import read_part
from latermq.pipeline.source.records import COLUMN_TYPES

TASKS_PER_CORE = 4


class TopicPart(NamedTuple):
    """A part of a queue, and the options to read its records with."""

    options: SourceOptions
    part: QueuePart


def read_parts(
    spark: SparkSession, parts: Sequence[TopicPart], columns: Sequence[str], due_ms: tuple[int, int] | None = None
) -> DataFrame:
    """The records of these parts. With `due_ms`, only those with a due time in [low, high)."""
    schema = from_arrow_schema(pa.schema([(name, COLUMN_TYPES[name]) for name in columns]))
    if not parts:
        return spark.createDataFrame([], schema)
    chosen = list(parts)

    def pull(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from read_part(chosen[number].part, columns, chosen[number].options, due_ms)

    tasks = min(len(chosen), TASKS_PER_CORE * parallelism(spark))
    return spark.range(0, len(chosen), 1, tasks).mapInArrow(pull, schema)


def parallelism(spark: SparkSession) -> int:
    """The number of cores that Spark has for tasks."""
    if is_connect_session(spark):
        return int(published(spark, PARALLELISM_SETTING) or 1)
    return spark.sparkContext.defaultParallelism
