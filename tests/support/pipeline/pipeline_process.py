"""A real `latermq pipeline` process for tests, with its output."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from tests.interop.waiting import wait_until
from tests.support.serving import ANY_CONNECT_PORT, NO_METRICS, children_of, is_alive

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 60.0
_LOG_TAIL_BYTES = 12_000


class PipelineProcess:
    """One driver process."""

    def __init__(self, process: subprocess.Popen[bytes], printed: IO[bytes]) -> None:
        self._process = process
        self._printed = printed

    @property
    def pid(self) -> int:
        return self._process.pid

    def printed(self) -> str:
        """Its output so far: the ready line and the log."""
        size = os.fstat(self._printed.fileno()).st_size
        return os.pread(self._printed.fileno(), size, 0).decode(errors="replace")

    def wait_for(self, text: str, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until it has printed this text. Fails if it exits before."""
        wait_until(lambda: text in self.printed() or not self.is_running(), timeout_s, f"{text!r} of the driver")
        assert text in self.printed(), f"the driver ended with {self._process.returncode}:\n{self.printed()}"

    def wait_for_exit(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        return self._process.wait(timeout_s)

    def is_running(self) -> bool:
        return self._process.poll() is None

    def jvm_pid(self) -> int:
        """The pid of the process that runs Spark."""
        return wait_until(lambda: next(iter(children_of(self.pid)), None), START_TIMEOUT_S, "the JVM")

    def kill(self) -> None:
        """Kill it with `kill -9`, and wait until Spark's processes have noticed and exited."""
        children = children_of(self.pid)
        self._process.kill()
        self._process.wait(STOP_TIMEOUT_S)
        wait_until(lambda: not any(map(is_alive, children)), STOP_TIMEOUT_S, "the exit of the JVM")

    def stop(self) -> None:
        """Send SIGTERM, and check that it exits cleanly."""
        children = children_of(self.pid)
        self._process.send_signal(signal.SIGTERM)
        code = self.wait_for_exit()
        assert code == 0, f"the driver exited with {code}:\n{self.printed()[-_LOG_TAIL_BYTES:]}"
        assert not any(map(is_alive, children))


@contextlib.contextmanager
def pipeline_process(
    namesrv: str,
    timeline: Path | str,
    *options: str,
    environment: Mapping[str, str] | None = None,
    full_jit: bool = False,
) -> Iterator[PipelineProcess]:
    """Run `latermq pipeline`. At the end of the block it is stopped, or killed if the block failed.

    Its JVM uses only the fast compiler unless `full_jit` is set, because most tests are too short for the other one.
    """
    command = [sys.executable, "-m", "latermq", "pipeline", "--namesrv", namesrv, "--timeline", str(timeline), *options]
    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryFile() as printed:
        # The files of a killed Spark are removed with this folder.
        java = f"-Djava.io.tmpdir={scratch}" + ("" if full_jit else " -XX:TieredStopAtLevel=1")
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            env={
                **os.environ,
                "SPARK_LOCAL_DIRS": scratch,
                "JDK_JAVA_OPTIONS": java,
                **NO_METRICS,
                **ANY_CONNECT_PORT,
                **(environment or {}),
            },
        )
        driver = PipelineProcess(process, printed)
        try:
            yield driver
            if driver.is_running():
                driver.stop()
        except BaseException as error:
            error.add_note(f"the driver printed:\n{driver.printed()[-_LOG_TAIL_BYTES:]}")
            raise
        finally:
            if driver.is_running():
                driver.kill()
