"""The access check of every remoting request: who signed it, and whether that user may do what it asks for.

A verdict is kept per connection, user and resource. While it is valid, further requests of this connection that name
this user and touch only resources with a verdict are served without a check of their signatures, which takes longer
than a send. A change of any user or policy ends all verdicts. Requests that administer are always checked in full.
"""

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from latermq.access.policies import Acl, Decision
from latermq.access.resources import UPDATE, Access, Kind
from latermq.access.signatures import (
    ACCESS_KEY,
    BOUND,
    SIGNATURE,
    bound_content,
    is_signed,
    may_be_bound,
    signed_content,
)
from latermq.access.users import INNER_USER, AccessState, User
from latermq.addresses import is_loopback
from latermq.audit.audit_log import AuditLog
from latermq.audit.counters import Tally
from latermq.audit.records import Result
from latermq.clock import Clock
from latermq.errors import LaterMQError, NoPermission, ServiceUnavailable
from latermq.protocol.remoting.frames import UNREADABLE, Command, DecodedRequest
from latermq.server.access.audit import Checked, RequestAudit, is_administrative
from latermq.server.access.refusals import Refusals, reason_of
from latermq.server.access.users import (
    MAX_FAILURES,
    MAX_VERDICTS,
    GivenUsers,
    NotAuthenticated,
    NotPermitted,
    Users,
    Verdicts,
    find_user,
    is_kept,
    permitted,
)
from latermq.server.remoting.connection import CloseReason, Connection
from latermq.server.remoting.endpoints import Endpoint

_TLS_HINT = "Connect with TLS (-Dtls.enable=true, --tls), or from the server's machine, or set access.admin_plaintext"


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


def claimed_user(connection: Connection, command: Command) -> str:
    """The user that a request names, or else the one whose certificate its connection has presented."""
    name = user_name_of(command)
    if name or connection.certificate_user == INNER_USER:  # which signs
        return name
    return connection.certificate_user


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
        admin_plaintext: bool = False,
        always_enforced: Iterable[int] = (),
        audit: AuditLog | None = None,
    ) -> None:
        """`inner` is the user of LaterMQ's own processes. Without `is_enforced` refusals are only logged.

        Without `admin_plaintext`, administrative requests from other machines need TLS.
        """
        self._users = users
        self._inner = inner
        self._cluster = cluster
        self._is_enforced = is_enforced
        self._admin_plaintext = admin_plaintext
        self._always_enforced = frozenset(always_enforced)
        self._audit = RequestAudit(audit, cluster)
        self._last_counted: list[Tally] = []
        self._refusals = Refusals(clock, self._audit, "request")

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
            and claimed_user(connection, command) == verdicts.user.name
        ):
            return None
        return self._verified(connection, command)

    def identify(self, connection: Connection, command: Command) -> None:
        """Check the signature of a request that is not served at all. Without one, that is all the client learns."""
        if not self._is_enforced:
            return
        try:
            self._verified(connection, command)
        except NotAuthenticated as error:
            self._audit.unserved(connection.peer, reason_of(error))
            self._slow_down(connection)
            raise

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
        except (NoPermission, ServiceUnavailable) as error:
            self._refusals.log_only(endpoint.code.name, connection.peer_name, error)
            self._audit_refusal(connection, endpoint, command, content, error, "would be refused")

    def authorize(self, connection: Connection, endpoint: Endpoint, command: Command, content: Any) -> None:
        """Check a request of a lane."""
        self._last_counted = []
        self.check(connection, endpoint, command, content, None)

    def repeated(self, requests: int) -> None:
        """Count requests that are like the last one of a lane."""
        if requests:
            for tally in self._last_counted:
                tally.add(requests)

    def refused(
        self, connection: Connection, endpoint: Endpoint, command: Command, content: Any, error: LaterMQError
    ) -> None:
        """Count a refusal, and slow down a connection that fails to authenticate."""
        self._audit_refusal(connection, endpoint, command, content, error, "refused")
        if isinstance(error, NotAuthenticated):
            self._slow_down(connection)
        else:
            self._refusals.unauthorized(error)

    def _slow_down(self, connection: Connection) -> None:
        connection.failed_attempts += 1
        pause_s = self._refusals.failed_attempt(connection.peer[0])
        if connection.failed_attempts >= MAX_FAILURES:
            connection.close_soon(CloseReason.UNAUTHENTICATED)
        else:
            connection.slow_down(pause_s)

    def failed(
        self, connection: Connection, endpoint: Endpoint, command: Command, content: Any, error: LaterMQError
    ) -> None:
        """Note that an administrative request was permitted, but not carried out."""
        self.on_failure(connection, endpoint, command, content)(error)

    def on_failure(
        self, connection: Connection, endpoint: Endpoint, command: Command, content: Any
    ) -> Callable[[LaterMQError], None]:
        """How to note the same of a request that fails later, when its fields are released."""
        name, peer = claimed_user(connection, command), connection.peer
        user = self._inner if name == INNER_USER else self._users.state.users.get(name)
        if user is None or not is_administrative(endpoint, user):
            return lambda _: None
        audit, details = self._audit, _details(endpoint, command, content)
        return lambda error: audit.failed(endpoint.code.name, user, peer, error.remark, details)

    def _audit_refusal(
        self, connection: Connection, endpoint: Endpoint, command: Command, content: Any, error: LaterMQError,
        result: Result,
    ) -> None:  # fmt: skip
        is_administrator = isinstance(error, NotPermitted) and is_administrative(endpoint, error.user)
        details = _details(endpoint, command, content)
        self._refusals.note(
            endpoint.code.name, connection.peer, error, result, details, is_administrative=is_administrator
        )

    def check_in(self, state: AccessState, connection: Connection, command: Command, access: Access) -> User:
        """Check a request again in a state that is not in effect yet, and return its user there."""
        user = self._verified(connection, command, GivenUsers(state))
        permitted(user, state.acl(user.name), access, self._cluster, connection.peer[0])
        return user

    def user_of(self, connection: Connection, command: Command) -> User:
        """The user of a request that was checked."""
        name = claimed_user(connection, command)
        return self._inner if name == INNER_USER else self._users.state.users[name]

    def statistics(self) -> dict[str, int]:
        """Refusals since the start, and addresses with failed attempts."""
        return self._refusals.statistics()

    def _check(
        self, connection: Connection, endpoint: Endpoint, command: Command, content: Any, user: User | None
    ) -> None:
        state = self._users.state
        verdicts = connection.verdicts
        if (
            not isinstance(verdicts, Verdicts)
            or verdicts.state is not state
            or verdicts.user.name != (claimed_user(connection, command) if user is None else user.name)
        ):
            verdicts = None
        checked: list[Checked] = []
        counted: list[Tally] = []
        for access in endpoint.accesses(command, content):
            if verdicts is not None:
                tally = verdicts.permitted.get(access)
                if tally is not None:
                    counted.append(tally)
                    continue
            if user is None:
                user = self._verified(connection, command)
            checked.append((access, permitted(user, state.acl(user.name), access, self._cluster, connection.peer[0])))
        if user is None and not counted:
            user = self._verified(connection, command)  # of a request that touches nothing
        if user is not None and (checked or not counted):
            counted += self._note(connection, endpoint, command, content, user, state.acl(user.name), checked, verdicts)
        for tally in counted:
            tally.add(1)
        self._last_counted = counted

    def _note(
        self, connection: Connection, endpoint: Endpoint, command: Command, content: Any, user: User, acl: Acl,
        checked: list[Checked], verdicts: Verdicts | None,
    ) -> list[Tally]:  # fmt: skip
        """Keep the verdicts of a request that was checked, and return the counters that it belongs to."""
        if is_administrative(endpoint, user):
            self._check_secrecy(connection, user, acl, checked)
            self._audit.allowed(
                endpoint.code.name, user, acl, connection.peer, checked, _details(endpoint, command, content)
            )
            return []
        tallies = [
            (access, self._audit.tally(user, acl, connection.peer[0], (access, made))) for access, made in checked
        ]
        kept = {access: tally for access, tally in tallies if is_kept(access)}
        if kept:
            if verdicts is None:
                connection.verdicts = verdicts = Verdicts(user, self._users.state)
            elif len(verdicts.permitted) + len(kept) > MAX_VERDICTS:
                verdicts.permitted.clear()
            verdicts.permitted.update(itertools.islice(kept.items(), MAX_VERDICTS))
        return [tally for _, tally in tallies]

    def _check_secrecy(self, connection: Connection, user: User, acl: Acl, checked: list[Checked]) -> None:
        """Refuse administration over a network that others may read: they could repeat a signed request."""
        if self._admin_plaintext or connection.is_encrypted or is_loopback(connection.peer[0]):
            return
        access = checked[0] if checked else (Access(Kind.CLUSTER, "", (UPDATE,)), Decision(is_allowed=True))
        raise NotPermitted("administrative requests from other machines need TLS", user, acl, access, hint=_TLS_HINT)

    def _verified(self, connection: Connection, command: Command, users: Users | None = None) -> User:
        """Return the user that signed a request, or whose certificate was verified in the handshake.

        The remarks are those of Apache's broker.
        """
        user = find_user(users or self._users, self._inner, claimed_user(connection, command))
        if not user_name_of(command):
            return user  # of the certificate
        fields = command.signed_texts()
        signature = fields.get(SIGNATURE, "")
        is_bound = signature.startswith(BOUND)
        if is_bound:
            content = bound_content(command.code, fields, command.body)
        else:
            content = signed_content(fields, command.body, command.version)
        # The name must be the one that was signed: a header could have two.
        if fields.get(ACCESS_KEY) != user.name or not is_signed(user.secrets, content, signature.removeprefix(BOUND)):
            raise NotAuthenticated("check signature failed.")
        if not is_bound and (user is self._inner or may_be_bound(content)):
            raise NotAuthenticated("the signature could be of another request.")
        return user


def _details(endpoint: Endpoint, command: Command, content: Any) -> dict[str, str]:
    """What the log shows of an administrative request."""
    change = endpoint.change
    return {} if change is None or content is None else change.details(command, content)
