"""Who may use the console: users of the cluster, and clients with `http.token`. Failed attempts are slowed down."""

import asyncio
import hashlib
import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable
from http import HTTPStatus

from latermq.access.failed_attempts import FailedAttempts
from latermq.addresses import network_of
from latermq.clock import Clock
from latermq.http.problems import HttpError
from latermq.http.security.cluster_users import ClusterUsers
from latermq.http.security.roles import Identity
from latermq.http.security.token import SharedToken

MAX_WAITING = 20  # failed attempts of one address whose answers wait; further attempts are refused at once
MAX_PROVEN = 10_000  # credentials that were right before; above it the ones that were used least recently are forgotten
_KEY_BYTES = 16


class SignIn:
    """Checks credentials."""

    def __init__(self, token: str, users: ClusterUsers | None, clock: Clock) -> None:
        self._token = SharedToken(token) if token else None
        self._users = users
        self._clock = clock
        self._failed = FailedAttempts()
        self._waiting: Counter[str] = Counter()
        self.refused = Counter({"wrong": 0, "too_many": 0})
        # Programs that know their secret are served while others at their address, such as a proxy's, guess.
        self._proven: OrderedDict[bytes, None] = OrderedDict()
        self._key = secrets.token_bytes(_KEY_BYTES)

    @property
    def is_needed(self) -> bool:
        """Whether a request needs credentials at all."""
        return self.has_token or self.has_users

    @property
    def has_token(self) -> bool:
        return self._token is not None

    @property
    def has_users(self) -> bool:
        return self._users is not None

    @property
    def failing_addresses(self) -> int:
        """Addresses with failed attempts that are not forgotten yet."""
        return len(self._failed)

    async def by_token(self, token: str, source: str) -> Identity | None:
        """Return who knows the token, or None if it is another one."""

        def check() -> Identity | None:
            found = self._token.identify(token) if self._token is not None else None
            return self._with_rights(found, source)

        return await self._checked(check, source, self._digest("", token))

    async def by_secret(self, name: str, secret: str, source: str) -> Identity | None:
        """Return the user, or None if the name or the secret is wrong, or the user is disabled."""
        users = self._users
        if users is None:
            return None
        return await self._checked(lambda: users.verified(name, secret, source), source, self._digest(name, secret))

    def resumed(self, session: Identity | None, source: str) -> Identity | None:
        """Return whose session this is, or None if it is no longer valid."""
        if session is None or not session.version:
            return self._with_rights(session, source) if self._token is not None else None
        return self._users.resumed(session, source) if self._users is not None else None

    def _with_rights(self, identity: Identity | None, source: str) -> Identity | None:
        if identity is None or self._users is None:
            return identity
        return self._users.holder_of_token(identity, source)

    def _digest(self, name: str, secret: str) -> bytes:
        content = f"{name}\0{secret}".encode(errors="surrogateescape")
        return hashlib.blake2b(content, key=self._key, digest_size=_KEY_BYTES).digest()

    async def _checked(self, check: Callable[[], Identity | None], source: str, digest: bytes) -> Identity | None:
        address = network_of(source) if source else ""
        if self._waiting[address] >= MAX_WAITING and digest not in self._proven:
            self.refused["too_many"] += 1
            raise HttpError(
                HTTPStatus.TOO_MANY_REQUESTS,
                "too many attempts to sign in from this address have failed",
                hint="Wait some seconds, and check the user and the secret",
            )
        found = check()
        if found is not None:
            self._proven[digest] = None
            self._proven.move_to_end(digest)
            if len(self._proven) > MAX_PROVEN:
                self._proven.popitem(last=False)
            return found
        self._proven.pop(digest, None)
        self.refused["wrong"] += 1
        if self._users is not None:
            self._users.count_refused(source, "the user or the secret is wrong")
        pause_s = self._failed.note(source, self._clock.monotonic_s())
        self._waiting[address] += 1
        try:
            await asyncio.sleep(pause_s)
        finally:
            self._waiting[address] -= 1
            if not self._waiting[address]:
                del self._waiting[address]
        return None
