"""Small files that the broker reads from the pipeline's folder: the claim at start, and the note of a driver."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from latermq.errors import Busy, LaterMQError, StoreError
from latermq.handover.driver_note import decode_note, note_path
from latermq.server.windows.daemon_threads import DaemonThreads

MAX_SMALL_BYTES = 64 << 10
OnToken = Callable[[str | LaterMQError], None]


def read_small_file(root_uri: str, path: str) -> bytes | None:
    """The bytes of a file below the root, or None if it does not exist. May block for long if the folder hangs."""
    if "://" not in root_uri:  # local paths need no file-system libraries, which are slow to import
        try:
            with (Path(root_uri) / path).open("rb") as file:
                return file.read(MAX_SMALL_BYTES)  # a longer file is cut before its checksum, and then rejected
        except FileNotFoundError:
            return None
    from latermq.pipeline.timeline.root import open_root, read_file

    root = open_root(root_uri)
    return read_file(root, root.at(path))


def list_names(root_uri: str, folder: str) -> list[str]:
    """The names of the files in a folder below the root, without drafts. May block for long, too."""
    if "://" not in root_uri:
        try:
            names = [entry.name for entry in (Path(root_uri) / folder).iterdir() if entry.is_file()]
        except FileNotFoundError:
            return []
        return [name for name in names if not name.endswith(".draft")]
    from latermq.pipeline.timeline.root import list_files, open_root

    return list_files(open_root(root_uri), folder)


def _probe(root_uri: str) -> None:
    """Refuse an object store that lacks what the broker needs to build and read windows there."""
    if "://" in root_uri:
        from latermq.pipeline.timeline.root import open_root
        from latermq.pipeline.timeline.store_probe import probe_files

        probe_files(open_root(root_uri))


class DriverTokens:
    """Reads the token that a driver left, off the loop. Only one read runs at a time, since the folder may hang."""

    def __init__(self, root_uri: str, store_id: str) -> None:
        self.root_uri = root_uri
        self._store_id = store_id
        self._reader = DaemonThreads(1, "latermq-note")
        self._reading: asyncio.Future[str] | None = None

    def read(self, on_token: OnToken) -> None:
        """Read the token. `on_token` runs on the loop with the token, an empty string if there is none, or an error."""
        if self._reading is not None and not self._reading.done():
            raise Busy("the pipeline's folder is being read", hint="The driver retries the request")

        def done(reading: asyncio.Future[str]) -> None:
            if reading.cancelled():
                return
            error = reading.exception()
            if error is None:
                on_token(reading.result())
            elif isinstance(error, LaterMQError):
                on_token(error)
            else:  # any error of the file-system library
                on_token(
                    StoreError(
                        f"this broker cannot read its pipeline.timeline {self.root_uri}: {error}",
                        hint="The broker reads windows from it: check it, and install latermq[pipeline] for a URI",
                    )
                )

        self._reading = asyncio.wrap_future(self._reader.submit(self._read))
        self._reading.add_done_callback(done)

    def _read(self) -> str:
        _probe(self.root_uri)
        path = note_path(self._store_id)
        data = read_small_file(self.root_uri, path)
        return "" if data is None else decode_note(data, path).token
