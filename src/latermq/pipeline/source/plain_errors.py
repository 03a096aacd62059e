"""Errors of the data source as Spark shows them: one sentence with its hint, without the traceback of a worker."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from latermq.errors import LaterMQError

# Spark reads it when it reports an exception of Python. It sets it only for all functions of a session.
_HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"


@contextmanager
def plain_errors() -> Iterator[None]:
    """Let Spark report an error of this package as a sentence. Other exceptions keep their traceback.

    A worker ends after an exception, so that this holds for no other function.
    """
    try:
        yield
    except LaterMQError:
        if _is_worker():
            os.environ[_HIDE_TRACEBACK] = "1"
        raise


def _is_worker() -> bool:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")
