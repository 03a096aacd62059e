"""The examples of docs/python-client.md, run as they stand but for the address."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.client_cluster import client_cluster

PAGE = Path(__file__).parents[2] / "docs" / "python-client.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with client_cluster(tmp_path_factory.mktemp("examples")) as address:
        yield address


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_runs(number: int, namesrv: str) -> None:
    source = EXAMPLES[number].replace("127.0.0.1:9876", namesrv)
    command = [sys.executable, "-W", "error", "-c", source]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_every_example_starts_at_the_default_address() -> None:
    assert EXAMPLES
    assert all("127.0.0.1:9876" in example for example in EXAMPLES)
