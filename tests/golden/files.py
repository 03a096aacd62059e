"""The golden data: files that Apache RocketMQ's own classes wrote, and what went into them (tests/golden/README.md)."""

import json
from functools import cache
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parent / "data"


def golden_bytes(name: str) -> bytes:
    """One golden file as it is."""
    return (DATA / name).read_bytes()


@cache
def golden_json(name: str) -> Any:
    """What is known of a golden file; shared between tests, so not to be changed."""
    return json.loads(golden_bytes(name))


def golden_log(store: str) -> bytes:
    """The commit log of a golden store, its segments joined: an offset in the log is an index here."""
    return b"".join(path.read_bytes() for path in sorted((DATA / store / "commitlog").iterdir()))
