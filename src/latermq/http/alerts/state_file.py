"""The file that keeps alerts, unsent messages and known brokers over restarts of the console."""

import asyncio
import os
from pathlib import Path

import msgspec
import structlog

from latermq.http.alerts.alert import Alert

_MAX_BYTES = 64 << 20
_log = structlog.get_logger(__name__)


class KeptState(msgspec.Struct):
    """What a console knows about alerts and cannot ask again."""

    firing: list[Alert] = []
    unsent: dict[str, list[Alert]] = {}
    brokers: list[str] = []


class StateFile:
    """Reads once, and writes the newest state on a thread. A path that is empty keeps nothing."""

    def __init__(self, path: str) -> None:
        self._path = Path(path) if path else None
        self._newest: bytes | None = None
        self._writing: asyncio.Task[None] | None = None

    def read(self) -> KeptState:
        """Return the kept state; an empty one if there is none, or it is damaged."""
        if self._path is None:
            return KeptState()
        try:
            if self._path.stat().st_size > _MAX_BYTES:
                raise ValueError("it is too large")
            return msgspec.json.decode(self._path.read_bytes(), type=KeptState)
        except FileNotFoundError:
            return KeptState()
        except (OSError, ValueError) as error:
            _log.warning(
                "the state of alerts is unreadable, alerts that fire are sent again",
                file=str(self._path),
                reason=str(error),
            )
            return KeptState()

    def write(self, state: KeptState) -> None:
        """Replace the file soon. A state that is not written yet is replaced too."""
        if self._path is not None:
            self._newest = msgspec.json.encode(state)
            if self._writing is None or self._writing.done():
                self._writing = asyncio.create_task(self._write())

    async def close(self) -> None:
        """Wait until the newest state is written."""
        if self._writing is not None:
            await self._writing

    async def _write(self) -> None:
        assert self._path is not None
        while (data := self._newest) is not None:
            self._newest = None
            try:
                await asyncio.to_thread(_replace, self._path, data)
            except OSError as error:
                _log.warning("cannot save the state of alerts", file=str(self._path), reason=error.strerror)


def _replace(path: Path, data: bytes) -> None:
    new = path.with_name(path.name + ".new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(descriptor)
    new.replace(path)
