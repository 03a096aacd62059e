"""What a failed Spark job says, in a sentence: a job's error is a page of two stack traces."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from latermq.errors import CorruptStore, StoreError

# Errors of this package that a worker raised come back inside the text of Spark's own.
_OURS = re.compile(r"^latermq\.errors\.(\w+): (.+)$", re.MULTILINE)
_ERROR_CLASS = re.compile(r"\[[A-Z][A-Z0-9_.]+\] [^\n]+")
_NO_ROOM = "No space left on device"
_DAMAGED = (
    "FAILED_READ_FILE",
    "CANNOT_READ_FILE_FOOTER",
    "is not a Parquet file",
    "DELTA_TRUNCATED_TRANSACTION_LOG",
    "DELTA_STATE_RECOVER_ERROR",
    "DELTA_LOG_FILE_NOT_FOUND",
)


@contextmanager
def told_by_spark(what: str) -> Iterator[None]:
    """Turn the errors of Spark's jobs into this package's own."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:  # of a failed task Spark hands on what Java threw
        text = str(error)
        if ours := _OURS.search(text):
            kind = CorruptStore if ours[1] == "CorruptStore" else StoreError
            raise kind(f"{what} failed: {ours[2]}", hint="It is tried again") from error
        if _NO_ROOM in text:
            raise StoreError(f"no room left for {what}", hint="Free space; it is tried again") from error
        if any(sign in text for sign in _DAMAGED):
            raise CorruptStore(
                f"{what} failed, the timeline is damaged: {first_line(error)}",
                hint="Restore it from a copy; near timers are unaffected",
            ) from error
        raise StoreError(f"{what} failed: {first_line(error)}", hint="It is tried again") from error


def first_line(error: Exception) -> str:
    """What an error of Spark's says before its page of Java: the line with its error class, if it has one."""
    text = str(error)
    found = _ERROR_CLASS.search(text)
    return (found[0] if found else text.partition("\n")[0])[:400]
