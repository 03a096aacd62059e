"""The pipeline's root folder, local or at a URI, and the meaning of its failures."""

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyarrow import fs

from latermq.errors import ConfigError, LaterMQError, StoreError
from latermq.message.names import is_file_name
from latermq.pipeline.timeline import s3
from latermq.pipeline.timeline.durable import sync_file, sync_folders

_DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
REPORT_NAME = "%Y%m%dT%H%M%SZ"  # of a folder below `reports/`: when the report was made


@dataclass(frozen=True)
class Root:
    """A folder that holds the timeline, its windows and its archive."""

    uri: str
    files: fs.FileSystem
    path: str

    @property
    def is_local(self) -> bool:
        return isinstance(self.files, fs.LocalFileSystem)

    @property
    def is_s3(self) -> bool:
        return is_on_s3(self.uri)

    @property
    def delta_options(self) -> dict[str, str] | None:
        """The options with which delta-rs opens the tables. They hold no credentials."""
        return s3.delta_options() if self.is_s3 else None

    @property
    def timeline(self) -> str:
        """The address of the Delta table, in the form that Spark and delta-rs accept."""
        return f"{self.uri}/timeline"

    @property
    def archive(self) -> str:
        """The address of the archive, a Delta table of the rows that compaction removed from the timeline."""
        return f"{self.uri}/archive"

    def at(self, *parts: str) -> str:
        """A path below the root for `files`. Parts come from brokers and file names, and must not lead outside it."""
        below = "/".join(parts)
        if not all(map(is_file_name, below.split("/"))):
            raise StoreError(
                f"{below[:80]!r} is not a valid path below {self.uri}", hint="Check the names of stores and files there"
            )
        return f"{self.path}/{below}"


def is_on_s3(uri: str) -> bool:
    """Whether a timeline is in a bucket of S3, or of a server that is compatible with it."""
    return uri.partition("://")[0] in s3.SCHEMES and "://" in uri


def open_root(uri: str) -> Root:
    """The folder at a local path, or at a URI that Arrow supports. It need not exist yet."""
    if "://" not in uri:
        path = str(Path(uri).absolute())
        return Root(path, fs.LocalFileSystem(), path)
    scheme, _, rest = uri.rstrip("/").partition("://")
    if is_on_s3(uri):
        s3.check_uri(uri)
    try:
        if is_on_s3(uri):
            # Spark knows S3 only by the name of Hadoop's client.
            return Root(f"s3a://{rest}", s3.open_s3(rest.partition("/")[0]), rest)
        files, path = fs.FileSystem.from_uri(f"{scheme}://{rest}")
    except (pa.ArrowException, OSError, ImportError) as error:
        raise ConfigError(
            f"the timeline {uri} cannot be opened: {_first_line(error)}",
            hint="Set pipeline.timeline to a folder that is writable from this machine",
        ) from error
    path = path.rstrip("/")
    # Spark and delta-rs decode escapes in file:// URIs differently. A plain path is unambiguous.
    return Root(path if isinstance(files, fs.LocalFileSystem) else f"{scheme}://{rest}", files, path)


@contextmanager
def file_errors(what: str) -> Iterator[None]:
    """Turn a failed file operation into an error that names its subject and a remedy."""
    try:
        yield
    except LaterMQError:
        raise
    except OSError as error:
        # Arrow's I/O errors are OSErrors too. Some carry the error number only in their text.
        if error.errno in _DISK_FULL or os.strerror(errno.ENOSPC) in str(error):
            raise StoreError(f"disk full: {what}", hint="Free disk space; the operation is retried") from error
        raise StoreError(f"{what}: {_first_line(error)}", hint="Check pipeline.timeline and its permissions") from error


def write_file(root: Root, path: str, data: bytes) -> None:
    """Write a file atomically and durably."""
    folder = path.rpartition("/")[0]
    with file_errors(path):
        root.files.create_dir(folder)
        if not root.is_local:
            with root.files.open_output_stream(path) as stream:
                stream.write(data)
            return
        draft = Path(f"{path}.{secrets.token_hex(4)}.draft")
        draft.write_bytes(data)
        sync_file(draft)
        draft.replace(path)
        sync_folders(folder, root.path)


def read_file(root: Root, path: str) -> bytes | None:
    """The contents of a small file; None if it does not exist."""
    with file_errors(path):
        if root.files.get_file_info(path).type == fs.FileType.NotFound:
            return None
        with root.files.open_input_stream(path) as stream:
            return bytes(stream.read())


def list_files(root: Root, folder: str) -> list[str]:
    """The names of the files in a folder below the root, without drafts."""
    with file_errors(root.at(folder)):
        found = root.files.get_file_info(fs.FileSelector(root.at(folder), allow_not_found=True))
    return [info.base_name for info in found if info.type == fs.FileType.File and not info.base_name.endswith(".draft")]


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
