"""A notebook whose driver has ended: it fails within seconds, and its process exits."""

import subprocess
import sys
import time

from tests.interop.ports import free_port

SPARK_PATIENCE_S = 600.0
ASK = """
import sys
from latermq.pipeline.remote.running_driver import RunningDriver
RunningDriver("token", 0, int(sys.argv[1])).open_session().range(1).count()
"""


def test_a_program_whose_driver_has_ended_exits_within_seconds() -> None:
    started = time.monotonic()
    command = [sys.executable, "-c", ASK, str(free_port())]
    asked = subprocess.run(command, capture_output=True, text=True, timeout=SPARK_PATIENCE_S / 5, check=False)
    print(f"gave up after {time.monotonic() - started:.1f} s")
    assert asked.returncode == 1
    assert "UNAVAILABLE" in asked.stderr
