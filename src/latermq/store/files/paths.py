"""Paths inside a Disk: names joined by `/`. No path leads out of the disk's directory."""

from latermq.errors import StoreError
from latermq.message.names import is_file_name

_SHOWN_CHARS = 80


def check_inside(path: str) -> str:
    """Return the path. Raises StoreError if a part of it is not a file name, such as `..`: no caller intends that."""
    if path and not all(map(is_file_name, path.split("/"))):
        raise StoreError(
            f"{path[:_SHOWN_CHARS]!r} is not a path inside the data directory",
            hint="Nothing was changed: a part of it is not a file name",
        )
    return path
