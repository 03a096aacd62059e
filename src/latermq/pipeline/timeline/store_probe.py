"""What an object store must offer to brokers and drivers, tried with Arrow before anything depends on it."""

import secrets
from contextlib import suppress

from pyarrow import fs

from latermq.errors import ConfigError
from latermq.pipeline.timeline.root import Root, file_errors, read_file, write_file

PROBES = "probes"


def probe_files(root: Root) -> None:
    """Check through Arrow that a file can be read, listed, replaced and deleted, each as soon as it is written.

    A local or mounted file system is not probed.
    """
    if root.is_local:
        return
    name = secrets.token_hex(8)
    path = root.at(PROBES, name)
    try:
        for text in (b"first", b"second"):
            write_file(root, path, text)
            require(read_file(root, path) == text, root, "read a file right after it is written (read-after-write)")
        with file_errors(f"listing {root.uri}"):
            listed = root.files.get_file_info(fs.FileSelector(root.at(PROBES)))
        found = name in {info.base_name for info in listed}
        require(found, root, "list a file right after it is written (list-after-write)")
    finally:
        delete_probe(root, path)
    require(read_file(root, path) is None, root, "delete a file")


def require(holds: bool, root: Root, ability: str) -> None:
    """Refuse a store that lacks an ability."""
    if not holds:
        raise ConfigError(
            f"the store of {root.uri} cannot {ability}",
            hint="Use AWS S3 or a server that offers this; docs/pipeline.md lists what a store needs",
        )


def delete_probe(root: Root, path: str) -> None:
    """Remove the file of a probe, if possible."""
    with suppress(OSError):  # the check that matters has already failed or passed
        root.files.delete_file(path)
