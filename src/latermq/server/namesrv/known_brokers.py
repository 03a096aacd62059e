"""Names of brokers that are temporarily offline, so that the name server does not report their topics as unknown."""

from dataclasses import dataclass

import msgspec

from latermq.clock import Clock
from latermq.errors import StoreError
from latermq.protocol.remoting.frames import UNREADABLE
from latermq.server.namesrv.background_files import BackgroundFile, RunWork, at_once
from latermq.store.files.disk import Disk
from latermq.store.files.set_aside import Parsed, Trouble, UnparsableFileError, load_file

FILE = "brokers.json"


class _File(msgspec.Struct):
    brokers: list[str] = msgspec.field(default_factory=list)


@dataclass(slots=True)
class Offline:
    """A broker that may come back. It still counts towards the limits, with as many topics as it had."""

    since_s: float
    host: str = ""  # that it registered from; unknown after a restart
    topics: int = 0


class KnownBrokers:
    """Names of registered brokers. With a disk they survive a restart.

    A broker that is offline for longer than `timeout_s` is forgotten.
    """

    def __init__(self, clock: Clock, timeout_s: float, disk: Disk | None = None, run_work: RunWork = at_once) -> None:
        self._clock = clock
        self._timeout_s = timeout_s
        self._online: set[str] = set()
        self._saved: list[str] = []
        self.trouble: Trouble | None = None  # set if the file could not be parsed; brokers register again anyway
        if disk is not None:
            self._saved, self.trouble = load_file(disk, FILE, _parse, lambda names: {}, list)
        self._file = BackgroundFile(disk, FILE, self._content, run_work) if disk is not None else None
        self._offline = {name: Offline(clock.monotonic_s()) for name in self._saved}

    def add(self, name: str) -> None:
        """Record that a broker of this name has registered."""
        self._offline.pop(name, None)
        if name not in self._online:
            self._online.add(name)
            self._save()

    def disconnect(self, name: str, host: str = "", topics: int = 0) -> None:
        """Record that no process of this name is left. The broker may only be restarting."""
        self._online.discard(name)
        self._offline[name] = Offline(self._clock.monotonic_s(), host, topics)

    def offline(self) -> dict[str, Offline]:
        """The brokers that left within the last `timeout_s` and have not come back."""
        expired_s = self._clock.monotonic_s() - self._timeout_s
        expired = [name for name, broker in self._offline.items() if broker.since_s < expired_s]
        for name in expired:
            del self._offline[name]
        if expired:
            self._save()
        return self._offline

    def finish(self) -> None:
        """Write unsaved names to disk at exit."""
        if self._file is not None:
            self._file.finish()

    def _names(self) -> list[str]:
        return sorted(self._online | self._offline.keys())

    def _content(self) -> bytes:
        return msgspec.json.encode(_File(self._names()))

    def _save(self) -> None:
        if self._file is not None and self._names() != self._saved:
            self._saved = self._names()
            self._file.change(self._on_saved)

    def _on_saved(self, error: StoreError | None) -> None:
        if error is not None:
            self._saved = []  # routes matter more than this file, so no request fails; the next change retries


def _parse(data: bytes) -> Parsed[list[str]]:
    try:
        return Parsed(msgspec.json.decode(data, type=_File).brokers)
    except UNREADABLE as error:
        raise UnparsableFileError(str(error)) from None
