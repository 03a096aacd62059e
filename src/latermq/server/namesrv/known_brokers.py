"""Which brokers a name server knows though they are away, so that it does not call their topics unknown."""

from dataclasses import dataclass

import msgspec

from latermq.clock import Clock
from latermq.errors import StoreError
from latermq.protocol.remoting.frames import UNREADABLE
from latermq.server.namesrv.late_files import Doing, LateFile, at_once
from latermq.store.files.disk import Disk
from latermq.store.files.set_aside import NotUnderstoodError, Parsed, Trouble, load_file

FILE = "brokers.json"


class _File(msgspec.Struct):
    brokers: list[str] = msgspec.field(default_factory=list)


@dataclass(slots=True)
class Away:
    """A broker that may come back: its place is kept for it, and room for as many topics as it had."""

    since_s: float
    host: str = ""  # where it registered from; not known after a restart
    topics: int = 0


class KnownBrokers:
    """Names of brokers that registered, remembered over a restart where there is a disk.

    One that is away for longer than `timeout_s` is forgotten: then it is taken for gone.
    """

    def __init__(self, clock: Clock, timeout_s: float, disk: Disk | None = None, doing: Doing = at_once) -> None:
        self._clock = clock
        self._timeout_s = timeout_s
        self._here: set[str] = set()
        self._saved: list[str] = []
        self.trouble: Trouble | None = None  # with the file, if it was not understood; brokers tell their names again
        if disk is not None:
            self._saved, self.trouble = load_file(disk, FILE, _parse, lambda names: {}, list)
        self._file = LateFile(disk, FILE, self._content, doing) if disk is not None else None
        self._away = {name: Away(clock.monotonic_s()) for name in self._saved}

    def came(self, name: str) -> None:
        """A broker of this name has registered."""
        self._away.pop(name, None)
        if name not in self._here:
            self._here.add(name)
            self._save()

    def went(self, name: str, host: str = "", topics: int = 0) -> None:
        """No process of this name is left. It may only be restarting."""
        self._here.discard(name)
        self._away[name] = Away(self._clock.monotonic_s(), host, topics)

    def away(self) -> dict[str, Away]:
        """The brokers that were here a short while ago and have not come back."""
        forgotten_s = self._clock.monotonic_s() - self._timeout_s
        gone = [name for name, away in self._away.items() if away.since_s < forgotten_s]
        for name in gone:
            del self._away[name]
        if gone:
            self._save()
        return self._away

    def finish(self) -> None:
        """Keep what is not kept yet, at the end of the process."""
        if self._file is not None:
            self._file.finish()

    def _names(self) -> list[str]:
        return sorted(self._here | self._away.keys())

    def _content(self) -> bytes:
        return msgspec.json.encode(_File(self._names()))

    def _save(self) -> None:
        if self._file is not None and self._names() != self._saved:
            self._saved = self._names()
            self._file.change(self._told)

    def _told(self, error: StoreError | None) -> None:
        if error is not None:
            self._saved = []  # routes matter more than what a restart would remember; the next change tries again


def _parse(data: bytes) -> Parsed[list[str]]:
    try:
        return Parsed(msgspec.json.decode(data, type=_File).brokers)
    except UNREADABLE as error:
        raise NotUnderstoodError(str(error)) from None
