"""Requirements of tests beyond the environment: external tools, small disks, and time for long runs."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

IN_CI = os.environ.get("CI") == "true"
LONG = os.environ.get("LATERMQ_LONG") == "1"
# Where set-up installs what the system lacks.
TOOLS = Path(__file__).parents[2] / ".tools"
_OWN_TOOLS = f"{TOOLS / 'go' / 'bin'}:{TOOLS / 'bin'}"


def find_tool(name: str) -> str | None:
    """Return the path of a command, None if it is missing."""
    # What set-up has installed goes first: it does that only where the system's is missing or too old.
    return shutil.which(name, path=_OWN_TOOLS) or shutil.which(name)


def need_tool(name: str, why: str) -> str:
    """Return the path of a command. If it is missing, the test is skipped, or fails in CI, which installs all tools."""
    path = find_tool(name)
    if path is not None:
        return path
    reason = f"{name} is not installed: {why}"
    if IN_CI:
        pytest.fail(reason)
    pytest.skip(reason)


@contextlib.contextmanager
def small_tmpfs(folder: Path, size: str) -> Iterator[Path]:
    """Mount a tmpfs of this size at a folder. The test is skipped if it may not mount."""
    folder.mkdir(parents=True, exist_ok=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a small disk: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
