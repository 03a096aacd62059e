"""What Spark's JVM prints: its greeting is dropped, and the rest goes where the caller wants it.

Before Spark reads its settings, it prints about ten lines that say nothing to a user, such as the log level that it is
going to replace.
"""

import os
import re
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import IO, Any

from pyspark import SparkConf
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway

from latermq.errors import ConfigError

_GREETING = re.compile(
    r"^WARNING: Using incubator modules|^NOTE: Picked up JDK_JAVA_OPTIONS|^Picked up (_JAVA|JAVA_TOOL|JDK_JAVA)_OPTIONS"
    r"|^Using Spark's default log4j profile|^Setting (default|Spark) log level|^To adjust logging level"
    r"|^Warning: Ignoring non-Spark config property|^Using properties file:|^Parsed arguments:"
    r"|^\d\d/\d\d/\d\d \d\d:\d\d:\d\d (INFO|WARN) "
)
_FRAME = re.compile(r"(\s|\\t)*(at \S+\(.*\)|\.\.\. \d+ (more|common frames omitted))$")  # some JVMs escape the tab
_UNKNOWN_HOST = "UnknownHostException"
_NO_HOST_NAME = "Let this machine resolve its own host name, for example in /etc/hosts, or set SPARK_LOCAL_IP"
_OUT_OF_MEMORY = "java.lang.OutOfMemoryError"
_LAST_LINES_S = 2.0  # children of the JVM may keep its output open
_KEPT_LINES = 20
_MAX_LINE_BYTES = 4096


class JvmOutput:
    """The output of one JVM, read by a thread as long as the JVM runs."""

    def __init__(self, show: Callable[[str], None] = lambda line: None) -> None:
        """`show` receives each line that is not part of the greeting."""
        self._show = show
        self.last_lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._is_out_of_memory = False
        self._reader: threading.Thread | None = None

    def launch_jvm(self, settings: Mapping[str, str]) -> Any:
        """Start a JVM with these settings, and return PySpark's connection to it."""
        conf = SparkConf(loadDefaults=False)
        conf.setAll(list(settings.items()))
        readable, writable = os.pipe()
        try:
            stream = os.fdopen(readable, "rb")
            self._reader = threading.Thread(target=self._read, args=[stream], name="latermq-jvm-output", daemon=True)
            self._reader.start()
            return launch_gateway(conf, {"stdout": writable, "stderr": writable})  # type: ignore[no-untyped-call]
        except PySparkRuntimeError:
            reason = self.last_message() or "it printed nothing"
            hint = _NO_HOST_NAME if _UNKNOWN_HOST in reason else "Check Java and SPARK_CONF_DIR"
            raise ConfigError(f"Spark's JVM cannot start: {reason}", hint=hint) from None
        finally:
            os.close(writable)  # the JVM has its own copy

    def last_message(self) -> str:
        """What the JVM printed last, without the frames of a stack trace. Empty if it printed nothing."""
        lines = (line for line in reversed(self.last_lines) if not _FRAME.match(line))
        return next(lines, "").removeprefix("Caused by: ")

    def tells_of_lack_of_memory(self) -> bool:
        """Whether the JVM, which has exited, has printed that it ran out of memory."""
        if self._reader is not None:
            self._reader.join(_LAST_LINES_S)
        return self._is_out_of_memory

    def _read(self, stream: IO[bytes]) -> None:
        with stream:
            while data := stream.readline(_MAX_LINE_BYTES):
                line = data.decode(errors="replace").rstrip()
                if line and not _GREETING.match(line):
                    self.last_lines.append(line)
                    self._is_out_of_memory |= _OUT_OF_MEMORY in line
                    self._show(line)
