"""Places for a timeline in tests: a folder, or a bucket of a real S3 server."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.s3.s3_server import s3_server, variables


@contextmanager
def timeline_at(place: str, folder: Path) -> Iterator[str]:
    """The path or URI of a timeline in a "folder" or a "bucket". Processes that are started meanwhile can reach it."""
    if place == "folder":
        yield str(folder / "data" / "pipeline")
        return
    with s3_server(folder / "s3") as bucket, variables(bucket.environment()):
        yield bucket.uri
