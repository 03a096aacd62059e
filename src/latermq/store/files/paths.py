"""Paths inside a Disk: names joined by `/`, none of which leads out of its directory."""

from latermq.errors import StoreError
from latermq.message.names import is_file_name

_SHOWN_CHARS = 80


def check_inside(path: str) -> str:
    """The path, unless it leads out of the directory, or back in it: no caller means that, whatever its names hold."""
    if path and not all(map(is_file_name, path.split("/"))):
        raise StoreError(
            f"{path[:_SHOWN_CHARS]!r} is no path inside the data directory",
            hint="Nothing was touched: a name in it is no name of a file",
        )
    return path
