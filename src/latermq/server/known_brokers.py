"""Which brokers a name server knows though they are away, so that it does not call their topics unknown."""

from dataclasses import dataclass

import msgspec

from latermq.clock import Clock
from latermq.errors import StoreError
from latermq.server.late_files import Doing, LateFile, at_once
from latermq.store.disk import Disk

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
        self._file = LateFile(disk, FILE, self._content, doing) if disk is not None else None
        self._saved = _read(self._file.written) if self._file is not None else []
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


def _read(data: bytes) -> list[str]:
    """The names in the file; none where it does not parse, since brokers tell them again."""
    try:
        return msgspec.json.decode(data or b"{}", type=_File).brokers
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []
