"""The guard against leftover processes finds them, even detached ones, and nobody else's."""

import os
import subprocess
import time

from tests.interop.waiting import wait_until
from tests.support.leftovers import MARK, kill_all, leftovers, leftovers_after_grace


def test_a_process_whose_parent_has_gone_is_found_with_its_test_and_killed() -> None:
    mark = f"test-{os.getpid()}-{time.monotonic_ns()}"
    subprocess.run(["sh", "-c", "sleep 61 >/dev/null 2>&1 &"], env={**os.environ, MARK: mark}, check=True)

    # For a moment the shell's child is still a shell: it has forked, but not become `sleep` yet.
    wait_until(
        lambda: [leftover.command for leftover in leftovers(mark)] == ["sleep 61"], 10, "the process to be found"
    )
    found = leftovers(mark)
    assert "test_a_process_whose_parent_has_gone" in found[0].started_by

    kill_all(found)
    assert leftovers_after_grace(mark) == []


def test_a_process_of_another_session_is_not_found() -> None:
    environment = {**os.environ, MARK: f"test-{os.getpid()}-a"}
    with subprocess.Popen(["sleep", "62"], env=environment) as process:
        assert leftovers(f"test-{os.getpid()}-b") == []
        process.kill()
