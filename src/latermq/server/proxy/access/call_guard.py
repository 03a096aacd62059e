"""The access check of every gRPC call: who signed it, and whether that user may do what it asks for.

The signature covers only the time that the client sends with it. It is checked for each pair of time and signature that
a connection has not just used. What its user may do is remembered per connection and resource, as at brokers, until any
user or policy changes.
"""

from collections.abc import Iterable

from latermq.access.resources import Access
from latermq.access.signatures import is_grpc_signed, is_recent, parse_grpc_credential
from latermq.access.users import INNER_USER, AccessState, User, decide
from latermq.audit.audit_log import AuditLog
from latermq.audit.records import Result
from latermq.clock import Clock
from latermq.errors import NoPermission, ServiceUnavailable
from latermq.server.access.audit import RequestAudit
from latermq.server.access.refusals import Refusals
from latermq.server.access.users import (
    MAX_FAILURES,
    MAX_VERDICTS,
    NotAuthenticated,
    Users,
    Verdicts,
    find_user,
    permitted,
)
from latermq.server.http2.calls import Call

AUTHORIZATION = b"authorization"
DATE_TIME = b"x-mq-date-time"

Signed = tuple[bytes | None, bytes | None]  # the two headers


class CallVerdicts(Verdicts):
    """The verdicts of a connection, and the headers that were verified last."""

    __slots__ = ("signed",)

    def __init__(self, user: User, state: AccessState, signed: Signed) -> None:
        super().__init__(user, state)
        self.signed = signed


class CallGuard:
    """Checks calls against the users of the cluster."""

    def __init__(
        self,
        users: Users,
        inner: User,
        cluster: str,
        clock: Clock,
        *,
        is_enforced: bool,
        max_age_ms: int = 0,
        audit: AuditLog | None = None,
    ) -> None:
        """Without `is_enforced` refusals are only logged. `max_age_ms` 0: the time of a signature may be any."""
        self._users = users
        self._inner = inner
        self._cluster = cluster
        self._clock = clock
        self._is_enforced = is_enforced
        self._max_age_ms = max_age_ms
        self._audit = RequestAudit(audit, cluster)
        self._refusals = Refusals(clock, self._audit, "call")
        # The call that was authenticated last: it is usually authorized next, and reading its headers takes 2 µs.
        self._latest: tuple[Call, CallVerdicts] | None = None

    def authenticate(self, call: Call) -> None:
        """Check the signature of a call, before its message is decoded. Raises NoPermission."""
        if not self._is_enforced:
            return  # `authorize` logs
        try:
            self._authenticate(call)
        except (NoPermission, ServiceUnavailable) as error:
            self._refuse(call, error)

    def authorize(self, call: Call, accesses: Iterable[Access]) -> None:
        """Check what a call touches. Raises NoPermission."""
        try:
            self._authorize(call, accesses)
        except (NoPermission, ServiceUnavailable) as error:
            self._refuse(call, error)

    def permits_still(self, call: Call, accesses: Iterable[Access]) -> bool:
        """Whether a call that was permitted would be permitted now. Its signature may have become old."""
        if not self._is_enforced:
            return True
        try:
            user = self._user(call, call.metadata, checks_age=False)
            source = call.connection.peer[0]
            state = self._users.state
            return all(decide(user, state.acl(user.name), one, self._cluster, source).is_allowed for one in accesses)
        except (NoPermission, ServiceUnavailable):
            return False

    def statistics(self) -> dict[str, int]:
        """Refusals since the start, and addresses with failed attempts."""
        return self._refusals.statistics()

    def _authenticate(self, call: Call) -> CallVerdicts:
        metadata = call.metadata
        signed = metadata.get(AUTHORIZATION), metadata.get(DATE_TIME)
        connection, state = call.connection, self._users.state
        verdicts = connection.verdicts
        if isinstance(verdicts, CallVerdicts) and verdicts.state is state and verdicts.signed == signed:
            self._latest = call, verdicts
            return verdicts
        user = self._user(call, metadata, checks_age=True)
        if isinstance(verdicts, CallVerdicts) and verdicts.state is state and verdicts.user is user:
            verdicts.signed = signed
        else:
            connection.verdicts = verdicts = CallVerdicts(user, state, signed)
        self._latest = call, verdicts
        return verdicts

    def _authorize(self, call: Call, accesses: Iterable[Access]) -> None:
        latest = self._latest
        if latest is not None and latest[0] is call and latest[1].state is self._users.state:
            verdicts = latest[1]
        else:
            verdicts = self._authenticate(call)
        counted = []
        for access in accesses:
            tally = verdicts.permitted.get(access)
            if tally is None:
                user, acl, source = verdicts.user, verdicts.state.acl(verdicts.user.name), call.connection.peer[0]
                decision = permitted(user, acl, access, self._cluster, source)
                if len(verdicts.permitted) >= MAX_VERDICTS:
                    verdicts.permitted.clear()
                tally = verdicts.permitted[access] = self._audit.tally(user, acl, source, (access, decision))
            counted.append(tally)
        for tally in counted:
            tally.add(1)

    def _user(self, call: Call, metadata: dict[bytes, bytes], *, checks_age: bool) -> User:
        """Return the user that signed a call, or whose certificate was verified in the handshake.

        The remarks are those of Apache's proxy.
        """
        header = metadata.get(AUTHORIZATION, b"").decode(errors="replace")
        credential = parse_grpc_credential(header)
        if credential is None:
            if header:
                raise NotAuthenticated("authentication header is incorrect.")
            name = call.connection.certificate_user
            return find_user(self._users, self._inner, name if name != INNER_USER else "")  # who signs
        date_time = metadata.get(DATE_TIME, b"").decode(errors="replace")
        if not date_time:
            raise NotAuthenticated("datetime is null.")
        user = find_user(self._users, self._inner, credential.user)
        if not is_grpc_signed(user.secrets, date_time, credential.signature):
            raise NotAuthenticated("check signature failed.")
        if checks_age and self._max_age_ms and not is_recent(date_time, self._clock.now_ms(), self._max_age_ms):
            raise NotAuthenticated("the time in x-mq-date-time is too old, or in the future.")
        return user

    def _refuse(self, call: Call, error: NoPermission | ServiceUnavailable) -> None:
        """Count a refusal and raise it; or only log it."""
        name, peer = call.path.rpartition(b"/")[2].decode(errors="replace"), call.connection.peer
        result: Result = "refused" if self._is_enforced else "would be refused"
        self._refusals.note(name, peer, error, result, {}, is_administrative=False)
        if not self._is_enforced:
            self._refusals.log_only(name, call.connection.peer_name, error)
            return
        if isinstance(error, NotAuthenticated):
            connection = call.connection
            connection.failed_attempts += 1
            error.pause_s = self._refusals.failed_attempt(connection.peer[0])
            if connection.failed_attempts == MAX_FAILURES:
                connection.loop.call_later(error.pause_s, connection.leave)
        else:
            self._refusals.unauthorized(error)
        raise error
