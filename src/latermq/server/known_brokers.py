"""Which brokers a name server knows though they are away, so that it does not call their topics unknown."""

import msgspec

from latermq.clock import Clock
from latermq.errors import StoreError
from latermq.store.disk import Disk

FILE = "brokers.json"


class _File(msgspec.Struct):
    brokers: list[str] = msgspec.field(default_factory=list)


class KnownBrokers:
    """Names of brokers that registered, remembered over a restart where there is a disk.

    One that is away for longer than `timeout_s` is forgotten: then it is taken for gone.
    """

    def __init__(self, clock: Clock, timeout_s: float, disk: Disk | None = None) -> None:
        self._clock = clock
        self._timeout_s = timeout_s
        self._disk = disk
        self._here: set[str] = set()
        self._saved = _read(disk) if disk is not None else []
        self._away_since_s = dict.fromkeys(self._saved, clock.monotonic_s())

    def came(self, name: str) -> None:
        """A broker of this name has registered."""
        self._away_since_s.pop(name, None)
        if name not in self._here:
            self._here.add(name)
            self._save()

    def went(self, name: str) -> None:
        """No process of this name is left. It may only be restarting."""
        self._here.discard(name)
        self._away_since_s[name] = self._clock.monotonic_s()

    def away(self) -> list[str]:
        """The brokers that were here a short while ago and have not come back."""
        forgotten_s = self._clock.monotonic_s() - self._timeout_s
        gone = [name for name, since_s in self._away_since_s.items() if since_s < forgotten_s]
        for name in gone:
            del self._away_since_s[name]
        if gone:
            self._save()
        return sorted(self._away_since_s)

    def _save(self) -> None:
        names = sorted(self._here | self._away_since_s.keys())
        if self._disk is None or names == self._saved:
            return
        try:
            self._disk.replace(FILE, msgspec.json.encode(_File(names)))
        except StoreError:
            return  # routes matter more than what a restart would remember; the next change tries again
        self._saved = names


def _read(disk: Disk) -> list[str]:
    """The names in the file; none where it does not parse, since brokers tell them again."""
    try:
        return msgspec.json.decode(disk.read(FILE) or b"{}", type=_File).brokers
    except msgspec.DecodeError:
        return []
