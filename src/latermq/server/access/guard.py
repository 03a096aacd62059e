"""The access check of every remoting request: who signed it, and whether that user may do what it asks for.

A verdict is kept per connection, user and resource. While it is valid, further requests of this connection that name
this user and touch only resources with a verdict are served without a check of their signatures, which takes longer
than a send. A change of any user or policy ends all verdicts. Requests that administer are always checked in full.
"""

from collections.abc import Iterable
from typing import Any, Protocol

import msgspec
import structlog

from latermq.access.resources import PUB, SUB, Access, Kind
from latermq.access.signatures import ACCESS_KEY, SIGNATURE, is_signed, signed_content
from latermq.access.users import INNER_USER, AccessState, User, decide, refusal
from latermq.clock import Clock
from latermq.errors import LaterMQError, NoPermission
from latermq.protocol.remoting.frames import UNREADABLE, Command, DecodedRequest
from latermq.server.access.failed_attempts import FailedAttempts
from latermq.server.remoting.connection import CloseReason, Connection
from latermq.server.remoting.endpoints import Endpoint

MAX_VERDICTS = 1_024  # per connection; above it they are forgotten, and made again
MAX_FAILURES = 20  # unauthenticated requests of one connection; then it is closed
LOG_EVERY_S = 60.0
MAX_LOGGED = 1_000
_log = structlog.get_logger(__name__)


class NotAuthenticated(NoPermission):
    """The user of a request is not known, or its signature is wrong."""


class Users(Protocol):
    """Where the users are."""

    @property
    def state(self) -> AccessState:
        """The current users. Raises ServiceUnavailable while they are not known."""
        ...


class _Named(msgspec.Struct, gc=False):
    AccessKey: str | None = None


_decode_named = msgspec.json.Decoder(_Named).decode


def user_name_of(command: Command) -> str:
    """The user that a request names, not yet authenticated."""
    if isinstance(command, DecodedRequest):
        return command.json_fields.AccessKey  # type: ignore[attr-defined, no-any-return]
    if command.binary_fields is not None:
        return command.binary_fields.get(ACCESS_KEY, "")
    try:
        return _decode_named(command.json_fields).AccessKey or ""
    except UNREADABLE:  # reported with the header, if the signature of what can be read is right
        return command.signed_texts().get(ACCESS_KEY, "")


class Verdicts:
    """What one connection may do as one user, as far as it was checked."""

    __slots__ = ("permitted", "state", "user")

    def __init__(self, user: User, state: AccessState) -> None:
        self.user = user
        self.state = state
        self.permitted: set[Access] = set()


class AccessGuard:
    """Checks requests against the users of a server."""

    def __init__(
        self,
        users: Users,
        inner: User,
        cluster: str,
        clock: Clock,
        *,
        is_enforced: bool,
        always_enforced: Iterable[int] = (),
    ) -> None:
        """`inner` is the user of LaterMQ's own processes. Without `is_enforced` refusals are only logged."""
        self._users = users
        self._inner = inner
        self._cluster = cluster
        self._clock = clock
        self._is_enforced = is_enforced
        self._always_enforced = frozenset(always_enforced)
        self._failed_attempts = FailedAttempts()
        self._logged: dict[str, float] = {}
        self._unauthenticated = 0
        self._unauthorized = 0

    def authenticate(self, connection: Connection, endpoint: Endpoint, command: Command) -> User | None:
        """Check the signature, unless the connection has verdicts that may cover the request."""
        if not (self._is_enforced or endpoint.code in self._always_enforced):
            return None  # `check` logs
        verdicts = connection.verdicts
        if (
            isinstance(verdicts, Verdicts)
            and verdicts.state is self._users.state
            and endpoint.access
            and endpoint.code not in self._always_enforced
            and user_name_of(command) == verdicts.user.name
        ):
            return None
        return self._verified(command)

    def check(
        self, connection: Connection, endpoint: Endpoint, command: Command, content: Any, user: object | None
    ) -> None:
        """Check what the decoded request touches."""
        assert user is None or isinstance(user, User)
        if self._is_enforced or endpoint.code in self._always_enforced:
            self._check(connection, endpoint, command, content, user)
            return
        try:
            self._check(connection, endpoint, command, content, user)
        except NoPermission as error:
            self._log_only(connection, endpoint, command, error)

    def authorize(self, connection: Connection, endpoint: Endpoint, command: Command, content: Any) -> None:
        """Check a request of a lane."""
        self.check(connection, endpoint, command, content, None)

    def refused(self, connection: Connection, error: LaterMQError) -> None:
        """Count a refusal, and slow down a connection that fails to authenticate."""
        if not isinstance(error, NotAuthenticated):
            self._unauthorized += isinstance(error, NoPermission)
            return
        self._unauthenticated += 1
        connection.failed_attempts += 1
        pause_s = self._failed_attempts.note(connection.peer[0], self._clock.monotonic_s())
        if connection.failed_attempts >= MAX_FAILURES:
            connection.close_soon(CloseReason.UNAUTHENTICATED)
        else:
            connection.slow_down(pause_s)

    def user_of(self, command: Command) -> User:
        """The user of a request that was checked."""
        name = user_name_of(command)
        return self._inner if name == INNER_USER else self._users.state.users[name]

    def statistics(self) -> dict[str, int]:
        """Refusals since the start, and addresses with failed attempts."""
        return {
            "unauthenticated_requests": self._unauthenticated,
            "unauthorized_requests": self._unauthorized,
            "failing_addresses": len(self._failed_attempts),
        }

    def _check(
        self, connection: Connection, endpoint: Endpoint, command: Command, content: Any, user: User | None
    ) -> None:
        state = self._users.state
        verdicts = connection.verdicts
        if (
            not isinstance(verdicts, Verdicts)
            or verdicts.state is not state
            or verdicts.user.name != (user_name_of(command) if user is None else user.name)
        ):
            verdicts = None
        checked: list[Access] = []
        is_covered = False
        for access in endpoint.accesses(command, content):
            if verdicts is not None and access in verdicts.permitted:
                is_covered = True
                continue
            if user is None:
                user = self._verified(command)
            decision = decide(user, state.acl(user.name), access, self._cluster, connection.peer[0])
            if not decision.is_allowed:
                raise refusal(user, access, self._cluster, connection.peer[0], decision)
            checked.append(access)
        if user is None and not is_covered:
            user = self._verified(command)  # of a request that touches nothing
        kept = [access for access in checked if _is_kept(access)]
        if kept and user is not None:
            if verdicts is None:
                connection.verdicts = verdicts = Verdicts(user, state)
            elif len(verdicts.permitted) + len(kept) > MAX_VERDICTS:
                verdicts.permitted.clear()
            verdicts.permitted.update(kept[:MAX_VERDICTS])

    def _verified(self, command: Command) -> User:
        """Return the user that signed a request. The remarks are those of Apache's broker."""
        name = user_name_of(command)
        if not name.strip():
            raise NotAuthenticated("username cannot be null.")
        user = self._inner if name == INNER_USER else self._users.state.users.get(name)
        if user is None:
            raise NotAuthenticated(f"User:{name} is not found.")
        if not user.is_enabled:
            raise NotAuthenticated(f"User:{name} is disabled.")
        fields = command.signed_texts()
        content = signed_content(fields, command.body, command.version)
        # The name must be the one that was signed: a header could have two.
        if fields.get(ACCESS_KEY) != name or not is_signed(user.secrets, content, fields.get(SIGNATURE, "")):
            raise NotAuthenticated("check signature failed.")
        return user

    def _log_only(self, connection: Connection, endpoint: Endpoint, command: Command, error: NoPermission) -> None:
        self._unauthorized += 1
        now_s = self._clock.monotonic_s()
        key = f"{endpoint.code} {error.message}"
        if now_s - self._logged.get(key, float("-inf")) < LOG_EVERY_S:
            return
        if len(self._logged) >= MAX_LOGGED:
            self._logged.clear()
        self._logged[key] = now_s
        _log.warning(
            "request would be rejected", peer=connection.peer_name, request=endpoint.code.name, reason=error.message
        )


def _is_kept(access: Access) -> bool:
    """Whether a verdict about this access is kept: only those of messages and their consumers."""
    return access.kind in (Kind.TOPIC, Kind.GROUP) and (PUB in access.actions or SUB in access.actions)
