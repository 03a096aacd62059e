"""What tests need beyond the environment: tools of other languages, and time for the long runs."""

import os
import shutil

import pytest

IN_CI = os.environ.get("CI") == "true"
LONG = os.environ.get("LATERMQ_LONG") == "1"


def need_tool(name: str, why: str) -> str:
    """Return the path of a command. Without it the test is skipped, but in CI, which installs all of them, it fails."""
    path = shutil.which(name)
    if path is not None:
        return path
    reason = f"{name} is not installed: {why}"
    if IN_CI:
        pytest.fail(reason)
    pytest.skip(reason)
