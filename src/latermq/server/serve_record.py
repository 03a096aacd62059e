"""What a running `latermq serve` writes into its data directory: its parts, where they listen, and how they are.

The lock on `serve.lock` says whether it still runs: the kernel releases it, however the process ends.
"""

import contextlib
import fcntl
import os
from pathlib import Path

import msgspec

from latermq.errors import StoreError

LOCK_FILE, RECORD_FILE = "serve.lock", "serve.json"
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
STARTING, READY, RESTARTING = "starting", "ready", "restarting"


class PartRecord(msgspec.Struct):
    """One part. `address` is its last one; `reason` says why it ended the last time."""

    name: str
    state: str = STARTING
    address: str = ""
    pid: int = 0
    since_ms: int = 0  # of the state
    restarts: int = 0
    reason: str = ""
    is_optional: bool = False


class ServeRecord(msgspec.Struct):
    """A server and its parts."""

    pid: int
    version: str
    started_ms: int
    parts: list[PartRecord] = []


class ServeLock:
    """Ensures that one `serve` runs on a data directory, and keeps its record there."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._fd: int | None = None
        self._is_writable = True

    def acquire(self) -> bool:
        """Try to lock. Returns whether it worked; raises StoreError if the file cannot be opened."""
        if self._fd is None:
            self._fd = _open(self._data)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def write(self, record: ServeRecord) -> str:
        """Replace the record. Returns why it could not be written, the first time: a full disk stops no part."""
        temporary = self._data / f"{RECORD_FILE}.tmp"
        try:
            with os.fdopen(os.open(temporary, _NEW_FILE, 0o600), "wb") as file:
                file.write(msgspec.json.encode(record))
            temporary.replace(self._data / RECORD_FILE)
        except OSError as error:
            was_writable, self._is_writable = self._is_writable, False
            return (error.strerror or str(error)) if was_writable else ""
        self._is_writable = True
        return ""

    def release(self) -> None:
        """Remove the record and unlock."""
        if self._fd is not None:
            with contextlib.suppress(OSError):
                (self._data / RECORD_FILE).unlink()
            os.close(self._fd)
            self._fd = None


def read_record(data: Path) -> ServeRecord | None:
    """Return the record of the server that runs on a data directory, or None if none runs there."""
    try:
        fd = os.open(data / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(
            f"cannot open {data / LOCK_FILE}: {error.strerror}", hint="Run it as the server's user"
        ) from None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        pass
    else:
        return None
    finally:
        os.close(fd)
    try:
        return msgspec.json.decode((data / RECORD_FILE).read_bytes(), type=ServeRecord)
    except FileNotFoundError:  # it has just started, or is about to end
        return ServeRecord(0, "", 0)
    except (OSError, msgspec.DecodeError) as error:
        raise StoreError(f"cannot read {data / RECORD_FILE}: {error}", hint="Run it as the server's user") from None


def holder_of(data: Path) -> str:
    """Describe the server that runs on a data directory, for an error message."""
    with contextlib.suppress(StoreError):
        record = read_record(data)
        if record is not None and record.pid:
            return f"another latermq serve (pid {record.pid})"
    return "another process"


def _open(data: Path) -> int:
    try:
        return os.open(data / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(
            f"cannot open {data / LOCK_FILE}: {error.strerror}", hint="Choose a writable directory with --data"
        ) from None
