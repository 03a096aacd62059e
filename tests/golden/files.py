"""The golden data: files that Apache RocketMQ's own classes wrote, and what went into them (tests/golden/README.md)."""

import json
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parent / "data"


def golden_bytes(name: str) -> bytes:
    """One golden file as it is."""
    return (DATA / name).read_bytes()


def unpack(archive: Path, folder: Path) -> None:
    """Unpack an archive of this project. Python 3.11.2, which Debian 12 has, knows no filters yet."""
    with tarfile.open(archive) as files:
        if hasattr(tarfile, "data_filter"):
            files.extractall(folder, filter="data")
        else:
            files.extractall(folder)


@cache
def golden_json(name: str) -> Any:
    """What is known of a golden file; shared between tests, so not to be changed."""
    return json.loads(golden_bytes(name))


def golden_log(store: str) -> bytes:
    """The commit log of a golden store, its segments joined: an offset in the log is an index here."""
    return b"".join(path.read_bytes() for path in sorted((DATA / store / "commitlog").iterdir()))
