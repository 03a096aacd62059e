"""Sessions that were ended by signing out, in memory and in a file, so that a restart does not make them valid again.

A sign-out is in the file before it is answered. Without the file, or if it is missing or damaged, a start does not know
what was ended before, so it ends all sessions that were opened before.

The file has a line `latermq-sign-outs 1 TIME`, then a line `SESSION TIME` for each sign-out, appended. Times are those
when sessions expire, in milliseconds since 1970. Sessions that expire before that in the first line have ended, too.
"""

import asyncio
import os
from collections import OrderedDict
from http import HTTPStatus
from pathlib import Path

import structlog

from latermq.clock import Clock
from latermq.errors import ConfigError
from latermq.http.problems import HttpError

MAX_ENDED = 10_000  # above it, sessions that were opened before the earliest of them end too
MAX_LINES = 2 * MAX_ENDED  # then the file is written again
_MAGIC = "latermq-sign-outs 1"
_MAX_BYTES = 16 << 20
_log = structlog.get_logger(__name__)


class SignOuts:
    """Remembers sign-outs until the sessions would have expired."""

    def __init__(self, path: str, timeout_ms: int, clock: Clock) -> None:
        """`path` is empty to keep them in memory only. Sessions expire `timeout_ms` after they were opened."""
        self._path = Path(path) if path else None
        self._clock = clock
        self._ended_before_ms = 0  # sessions that expire before this time are ended
        self._ended: OrderedDict[str, int] = OrderedDict()  # when each expires
        self._lines = 0  # in the file
        self._needs_rewrite = False
        self._writing = asyncio.Lock()
        self._load(clock.now_ms() + timeout_ms)

    def __len__(self) -> int:
        return len(self._ended)

    def is_ended(self, session_id: str, expires_ms: int) -> bool:
        """Whether a session was ended by signing out."""
        return expires_ms < self._ended_before_ms or session_id in self._ended

    async def add(self, session_id: str, expires_ms: int) -> None:
        """Refuse a session from now on. Returns when that is saved."""
        self._note(session_id, expires_ms)
        if self._path is None:
            return
        async with self._writing:
            try:
                await self._save(self._path, session_id, expires_ms)
            except OSError as error:
                self._needs_rewrite = True  # part of a line may be in the file
                _log.error("a sign-out is not saved", file=str(self._path), reason=error.strerror)
                raise HttpError(
                    HTTPStatus.SERVICE_UNAVAILABLE,
                    f"the session has ended, but that cannot be saved: {error.strerror}",
                    hint="It may be valid again if the console restarts now. Check the disk of http.sign_outs_file",
                ) from None

    async def _save(self, path: Path, session_id: str, expires_ms: int) -> None:
        if self._needs_rewrite or self._lines >= MAX_LINES:
            # The next sign-outs may be part of this already. Their lines are then written again.
            data, self._lines = self._content(), len(self._ended)
            await asyncio.to_thread(_replace, path, data)
            self._needs_rewrite = False
        else:
            await asyncio.to_thread(_append, path, f"{session_id} {expires_ms}\n".encode())
            self._lines += 1

    def _note(self, session_id: str, expires_ms: int) -> None:
        self._ended[session_id] = expires_ms
        now_ms = self._clock.now_ms()
        while self._ended:
            first, first_expires_ms = next(iter(self._ended.items()))
            if first_expires_ms > now_ms and len(self._ended) <= MAX_ENDED:
                break
            # If the clock is set back, these sessions remain ended.
            self._ended_before_ms = max(self._ended_before_ms, first_expires_ms + 1)
            del self._ended[first]

    def _load(self, all_before_ms: int) -> None:
        """Read the file. If that is not possible, all sessions that were opened so far end."""
        if self._path is None:
            self._ended_before_ms = all_before_ms
            return
        try:
            if self._path.stat().st_size > _MAX_BYTES:
                raise ValueError("it is too large")
            self._decode(self._path.read_text("ascii"))
        except FileNotFoundError:
            self._ended_before_ms = all_before_ms
        except (OSError, ValueError) as error:
            self._ended.clear()
            self._ended_before_ms = all_before_ms
            _log.warning("sign-outs are unreadable, so all sessions end", file=str(self._path), reason=str(error))
        try:
            _replace(self._path, self._content())
        except OSError as error:
            raise ConfigError(
                f"cannot write {self._path}: {error.strerror}",
                hint="Check http.sign_outs_file, or leave it out: then sessions end when the console does",
            ) from None
        self._lines = len(self._ended)

    def _decode(self, text: str) -> None:
        first, *lines = text.split("\n")[:-1]  # the last line is empty, or its sign-out was not answered
        magic, _, time = first.rpartition(" ")
        if magic != _MAGIC:
            raise ValueError("its first line is wrong")
        self._ended_before_ms = int(time)
        for line in lines:
            session_id, _, expires_ms = line.partition(" ")
            self._note(session_id, int(expires_ms))

    def _content(self) -> bytes:
        lines = [f"{_MAGIC} {self._ended_before_ms}", *(f"{key} {time}" for key, time in self._ended.items()), ""]
        return "\n".join(lines).encode()


def _append(path: Path, line: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        if os.write(descriptor, line) != len(line):
            raise OSError(0, "the disk is full")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _replace(path: Path, data: bytes) -> None:
    new = path.with_name(path.name + ".new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(descriptor)
    new.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
