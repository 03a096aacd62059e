"""Failures of the driver's recurring work: each is logged once and retried with growing pauses."""

import logging
import re

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from latermq.errors import LaterMQError
from latermq.pipeline.spark.spark_failures import first_line
from latermq.retry import Backoff

_log = logging.getLogger("latermq.pipeline")

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
# If one of Spark's Python workers raises an error of this package, Spark's own error text contains it.
_OURS = re.compile(r"^latermq\.[\w.]+\.(\w+): (.+)$", re.MULTILINE)


class FailureLog:
    """One kind of work, and the last error that it failed with."""

    def __init__(self, name: str) -> None:
        """`name` is the subject of the log lines."""
        self._name = name
        self.last_reason = ""  # empty while the work succeeds
        self._backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)

    def record_failure(self, error: Exception) -> float:
        """Log the error unless it was the last one logged, and return the pause before the next try."""
        reason = one_line(error)
        if reason != self.last_reason:
            self.last_reason = reason
            _log.warning("%s stalled: %s", self._name, reason)
            if not isinstance(error, LaterMQError | PySparkException | Py4JError):
                _log.warning("unexpected error", exc_info=error)
        return self._backoff.next_pause()

    def record_success(self) -> None:
        """Record that the work succeeds again."""
        if self.last_reason:
            _log.info("%s resumed", self._name)
        self.last_reason = ""
        self._backoff.reset()


def one_line(error: Exception) -> str:
    """The text of an error in one line, even if Spark reports it as a page."""
    if isinstance(error, LaterMQError):
        return error.remark
    ours = _OURS.findall(str(error))
    return str(ours[-1][1]) if ours else first_line(error) or type(error).__name__


def error_name(error: Exception) -> str:
    """The class name of an error, or of this package's error if Spark has wrapped one."""
    ours = _OURS.findall(str(error)) if isinstance(error, PySparkException | Py4JError) else []
    return str(ours[-1][0]) if ours else type(error).__name__
