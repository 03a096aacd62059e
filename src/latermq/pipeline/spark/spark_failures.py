"""The cause of a failed Spark job in one sentence, extracted from a page with two stack traces."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from latermq.client.session.failures import AccessRefused
from latermq.errors import CorruptStore, StoreError
from latermq.pipeline.spark.own_session import check_delta

# If a worker raises an error of this package, Spark's own error text contains it, with its hint.
_OURS = re.compile(r"\blatermq(?:\.\w+)+\.([A-Z]\w+): (.+)$", re.MULTILINE)
_ERROR_CLASS = re.compile(r"\[[A-Z][A-Z0-9_.]+\] [^\n]+")
# Python errors raised in calls from Spark, and Java errors thrown in calls from Python, nested in each other.
_RAISED = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)*(\S.*)")
_THROWN = re.compile(r"An error occurred while calling \S+\n: (.+)")
_DISK_FULL = "No space left on device"
_DAMAGED = (
    "FAILED_READ_FILE",
    "CANNOT_READ_FILE_FOOTER",
    "is not a Parquet file",
    "DELTA_TRUNCATED_TRANSACTION_LOG",
    "DELTA_STATE_RECOVER_ERROR",
    "DELTA_LOG_FILE_NOT_FOUND",
)


@contextmanager
def spark_errors(what: str) -> Iterator[None]:
    """Turn the errors of Spark jobs into errors of this package."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:  # for a failed task Spark passes on the Java exception
        text = str(error)
        check_delta(error)
        if ours := _OURS.search(text):
            if ours[1] == AccessRefused.__name__:
                raise AccessRefused(f"{what} failed: {ours[2]}") from error
            kind = CorruptStore if ours[1] == "CorruptStore" else StoreError
            raise kind(f"{what} failed: {ours[2]}", hint="The job is retried") from error
        if _DISK_FULL in text:
            raise StoreError(f"disk full: {what}", hint="Free disk space; the job is retried") from error
        if any(sign in text for sign in _DAMAGED):
            raise CorruptStore(
                f"{what} failed, the timeline is damaged: {first_line(error)}",
                hint="Restore it from a backup; near timers are unaffected",
            ) from error
        raise StoreError(f"{what} failed: {first_line(error)}", hint="The job is retried") from error


def first_line(error: Exception) -> str:
    """The most informative line of a Spark error: the one with its error class, else that of the innermost cause."""
    text = str(error)
    if found := _ERROR_CLASS.search(text):
        return found[0][:400]
    causes: list[str] = _THROWN.findall(text) or _RAISED.findall(text) or [text.partition("\n")[0]]
    return causes[-1][:400]
