"""The guard against leftover processes finds them, even detached ones, and nobody else's."""

import os
import subprocess
import time

from tests.leftovers import MARK, kill_all, leftovers, leftovers_after_grace


def test_a_process_whose_parent_has_gone_is_found_with_its_test_and_killed() -> None:
    mark = f"test-{os.getpid()}-{time.monotonic_ns()}"
    subprocess.run(["sh", "-c", "sleep 61 >/dev/null 2>&1 &"], env={**os.environ, MARK: mark}, check=True)

    found = leftovers(mark)
    assert [leftover.command for leftover in found] == ["sleep 61"]
    assert "test_a_process_whose_parent_has_gone" in found[0].started_by

    kill_all(found)
    assert leftovers_after_grace(mark) == []


def test_a_process_of_another_session_is_not_found() -> None:
    environment = {**os.environ, MARK: f"test-{os.getpid()}-a"}
    with subprocess.Popen(["sleep", "62"], env=environment) as process:
        assert leftovers(f"test-{os.getpid()}-b") == []
        process.kill()
