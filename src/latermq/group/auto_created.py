"""Names that clients auto-create: the limit per host and hour, and the names that are still unused."""

from latermq.clock import Clock
from latermq.errors import NoPermission
from latermq.message.ids import IPV4_HOST_BYTES

WINDOW_S = 3_600.0
_FORGET_EVERY_S = 60.0
_IPV4_ADDRESS_BYTES = 4
_IPV6_NETWORK_BYTES = 8  # a host can use every address of its /64 network


class AutoCreated:
    """The auto-created names of one kind: topics or groups.

    The limit applies per host. Connections and client ids are free for an untrusted client, so a limit per connection
    or client would not hold. An unused name counts as long as it exists. Otherwise a host could fill the table by
    waiting between its attempts.
    """

    def __init__(self, what: str, clock: Clock, limit: int) -> None:
        self._what = what
        self._clock = clock
        self._limit = limit
        self._created: dict[bytes, dict[str, float]] = {}  # host → name → when
        # Name → when a client that may use it was last seen, the oldest first.
        self._unused: dict[str, float] = {}
        self._forgotten_s = clock.monotonic_s()
        self.changed = False  # whether the set of unused names changed since it was saved

    def check(self, host: bytes) -> None:
        """Raise NoPermission if this host has reached its limit. An empty host is the broker itself or an operator."""
        created = self._created.get(_network(host))
        if not host or created is None or len(created) < self._limit:
            return
        self._forget_old(created)
        if len(created) >= self._limit:
            raise NoPermission(
                f"clients on this host have auto-created {len(created)} {self._what} within an hour, or left them "
                "unused; broker.max_auto_created allows no more",
                hint="Create them with mqadmin or latermq, or raise broker.max_auto_created",
            )

    def add(self, host: bytes, name: str, *, unused: bool) -> None:
        """Record a created name. An unused name is removed later unless `use` is called in time."""
        now_s = self._clock.monotonic_s()
        if host:
            self._created.setdefault(_network(host), {})[name] = now_s
        if unused:
            self._unused[name] = now_s
            self.changed = True

    def use(self, name: str) -> bool:
        """Stop tracking a name as unused, because it is in use or removed. Return whether it was unused before."""
        if self._unused.pop(name, None) is None:
            return False
        self.changed = True
        return True

    def note_client(self, name: str) -> None:
        """Record that a client that may use an unused name is connected."""
        if self._unused.pop(name, None) is not None:
            self._unused[name] = self._clock.monotonic_s()

    def idle(self, longer_than_s: float, limit: int) -> list[str]:
        """Return up to `limit` unused names without a client for longer than `longer_than_s`, the oldest first."""
        before_s = self._clock.monotonic_s() - longer_than_s
        found: list[str] = []
        for name, since_s in self._unused.items():
            if since_s > before_s or len(found) == limit:
                break
            found.append(name)
        return found

    def forget_old(self) -> None:
        """Remove entries that no longer count, so that the table only holds the last hour and unused names."""
        now_s = self._clock.monotonic_s()
        if now_s - self._forgotten_s < _FORGET_EVERY_S:
            return
        self._forgotten_s = now_s
        for host, created in list(self._created.items()):
            self._forget_old(created)
            if not created:
                del self._created[host]

    def _forget_old(self, created: dict[str, float]) -> None:
        before_s = self._clock.monotonic_s() - WINDOW_S
        for name in [name for name, created_s in created.items() if created_s <= before_s and name not in self._unused]:
            del created[name]

    @property
    def unused(self) -> list[str]:
        """The names that no client has used yet."""
        return list(self._unused)

    def statistics(self) -> dict[str, int]:
        """Return the number of unused names."""
        return {f"unused_{self._what}": len(self._unused)}

    @property
    def max_per_host(self) -> int:
        """The highest number of counted names of any host."""
        return max(map(len, self._created.values()), default=0)


def _network(host: bytes) -> bytes:
    return host[: _IPV4_ADDRESS_BYTES if len(host) == IPV4_HOST_BYTES else _IPV6_NETWORK_BYTES]
