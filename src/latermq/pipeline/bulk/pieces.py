"""Numbered pieces of a job's work that Spark's executors do, and the session that may do them."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from latermq import errors
from latermq.access.users import INNER_USER
from latermq.client.session import failures
from latermq.client.session.credentials import credentials_from_environment
from latermq.errors import LaterMQError, StoreError
from latermq.pipeline.remote.running_driver import is_connect_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The columns of a failed piece. The schema of each kind of work ends with them.
ERROR = "error string, message string, hint string"


def executors_of(spark: "SparkSession | None") -> "SparkSession | None":
    """The session whose executors may change timers; None if this process has to do it.

    Executors of the running driver sign as the driver. For a program with a user of its own they would do what this
    user may not, and the audit log would name the driver.
    """
    if spark is None or not is_connect_session(spark):
        return spark
    own = credentials_from_environment()
    return spark if own is None or own.user == INNER_USER else None


def run_pieces(
    spark: "SparkSession",
    what: str,
    count: int,
    work: Callable[[int], list[dict[str, object]]],
    schema: str,
    tasks: int,
) -> list[Any]:
    """Let executors do numbered pieces of work, and return the rows that describe what they did: a few per piece.

    An error is returned as a row: Spark turns an exception of a task into a page of text.
    """
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    from latermq.pipeline.spark.spark_failures import spark_errors

    types = StructType.fromDDL(schema)
    assert isinstance(types, StructType)
    columns = to_arrow_schema(types)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                try:
                    rows = work(number)
                except LaterMQError as error:
                    rows = [{"error": type(error).__name__, "message": error.message, "hint": error.hint}]
                yield pa.RecordBatch.from_pylist(rows, columns)

    with spark_errors(what):
        found = spark.range(0, count, 1, max(1, tasks)).mapInArrow(run, schema).collect()
    for row in found:
        if row.error is not None:
            raise error_class(row.error)(row.message, hint=row.hint or "")
    return list(found)


def error_class(name: str) -> type[LaterMQError]:
    """The class of an error that another process has named."""
    found = getattr(errors, name, None) or getattr(failures, name, None)
    return found if isinstance(found, type) and issubclass(found, LaterMQError) else StoreError
