"""What clients auto-create: so much per host and hour, and what of it nobody has used yet."""

from latermq.clock import Clock
from latermq.errors import NoPermission
from latermq.message.ids import IPV4_HOST_BYTES

WINDOW_S = 3_600.0
_FORGET_EVERY_S = 60.0
_IPV4_ADDRESS_BYTES = 4
_IPV6_NETWORK_BYTES = 8  # who has one address there has all that begin alike


class AutoCreated:
    """Names of one kind, topics or groups, that clients auto-created.

    Hosts are counted, not connections or client ids: those cost a stranger nothing. What nobody uses counts for as long
    as it is there, else a host that waits between its attempts could fill the table.
    """

    def __init__(self, what: str, clock: Clock, limit: int) -> None:
        self._what = what
        self._clock = clock
        self._limit = limit
        self._made: dict[bytes, dict[str, float]] = {}  # host → name → when
        # Since when nobody has been seen with it; the longest ago first.
        self._unused: dict[str, float] = {}
        self._forgotten_s = clock.monotonic_s()
        self.changed = False  # which names are unused, since that was saved

    def check(self, host: bytes) -> None:
        """Refuse one more from this host; an empty one is the broker itself or an operator."""
        made = self._made.get(_network(host))
        if not host or made is None or len(made) < self._limit:
            return
        self._forget_old(made)
        if len(made) >= self._limit:
            raise NoPermission(
                f"clients on this host have auto-created {len(made)} {self._what} within an hour or not used them, "
                f"as many as broker.max_auto_created allows",
                hint="Create them with mqadmin or latermq, or raise broker.max_auto_created",
            )

    def add(self, host: bytes, name: str, *, unused: bool) -> None:
        """A name was made; an unused one goes away again unless `use` is called in time."""
        now_s = self._clock.monotonic_s()
        if host:
            self._made.setdefault(_network(host), {})[name] = now_s
        if unused:
            self._unused[name] = now_s
            self.changed = True

    def use(self, name: str) -> bool:
        """It stays from now on, or is gone by itself; whether it was unused before."""
        if self._unused.pop(name, None) is None:
            return False
        self.changed = True
        return True

    def see(self, name: str) -> None:
        """Somebody is there who may use it."""
        if self._unused.pop(name, None) is not None:
            self._unused[name] = self._clock.monotonic_s()

    def idle(self, longer_than_s: float, limit: int) -> list[str]:
        """Unused names that nobody has been seen with for so long, at most so many, the oldest first."""
        before_s = self._clock.monotonic_s() - longer_than_s
        found: list[str] = []
        for name, since_s in self._unused.items():
            if since_s > before_s or len(found) == limit:
                break
            found.append(name)
        return found

    def forget_old(self) -> None:
        """Drop what no longer counts, so that the table stays as small as the last hour."""
        now_s = self._clock.monotonic_s()
        if now_s - self._forgotten_s < _FORGET_EVERY_S:
            return
        self._forgotten_s = now_s
        for host, made in list(self._made.items()):
            self._forget_old(made)
            if not made:
                del self._made[host]

    def _forget_old(self, made: dict[str, float]) -> None:
        before_s = self._clock.monotonic_s() - WINDOW_S
        for name in [name for name, made_s in made.items() if made_s <= before_s and name not in self._unused]:
            del made[name]

    @property
    def unused(self) -> list[str]:
        """The names that nobody has used yet."""
        return list(self._unused)

    def statistics(self) -> dict[str, int]:
        """How many nobody has used yet."""
        return {f"unused_{self._what}": len(self._unused)}

    @property
    def most(self) -> int:
        """How many count for the host that has most."""
        return max(map(len, self._made.values()), default=0)


def _network(host: bytes) -> bytes:
    return host[: _IPV4_ADDRESS_BYTES if len(host) == IPV4_HOST_BYTES else _IPV6_NETWORK_BYTES]
