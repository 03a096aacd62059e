"""The users of the cluster: a copy of a broker's, whom a secret belongs to, and what that user may do."""

import asyncio
import contextlib
import hashlib
import hmac
from collections.abc import Awaitable, Callable, Iterable, Mapping

import msgspec

from latermq.access.policies import Acl, Decision, parse_address
from latermq.access.resources import CREATE, DELETE, PUB, UPDATE, Access, Kind, action_name
from latermq.access.users import AccessState, User, decide, refusal
from latermq.audit.audit_log import AuditLog
from latermq.audit.records import SUPER_USER, AuditedAccess, CountKey, Result
from latermq.client.access.copied_access import CopiedAccess
from latermq.client.session.connection import Connections
from latermq.clock import Clock
from latermq.config import Config
from latermq.errors import LaterMQError, NoPermission, ServiceUnavailable
from latermq.http.security.roles import Identity, Role
from latermq.tls.client import own_tls

TOKEN_USER = User(name="http.token", secret="", is_super=True)  # the client that sends the token
PART = "http console"  # its first word names the files of the audit log
_FIRST_ADDRESSES_EVERY_S = 0.2  # while no broker is known
_ADDRESSES_EVERY_S = 5.0
_CHANGES = frozenset((PUB, CREATE, UPDATE, DELETE))
_ADMINISTRATIVE = _CHANGES - {PUB}
_VERSION_BYTES = 16

Checked = tuple[Access, Decision]


class ClusterUsers:
    """The copy. Call `start` and `close` once each."""

    def __init__(self, config: Config, clock: Clock, masters: Callable[[], Awaitable[Mapping[str, str]]]) -> None:
        """`masters` returns the addresses of the brokers by their names. Raises ConfigError."""
        self._access = access = CopiedAccess(config, None, PART, clock)
        self.cluster = config.broker.cluster
        self._masters = masters
        self._addresses: list[str] = []
        self._connections = Connections(
            on_request=lambda connection, command: None, tls=own_tls(config.tls), credentials=access.credentials
        )
        self._copy = access.open(self._connections, lambda: self._addresses)
        self._task: asyncio.Task[None] | None = None

    @property
    def state(self) -> AccessState:
        """The users and policies of this moment."""
        return self._copy.state

    @property
    def session_secret(self) -> str:
        """What all consoles of the cluster share."""
        return self._access.inner.secret

    @property
    def audit(self) -> AuditLog | None:
        return self._access.audit

    def start(self) -> None:
        self._task = asyncio.create_task(self._follow_brokers())
        self._access.start()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._access.close()
        await self._connections.close()

    def statistics(self) -> dict[str, int]:
        return self._access.statistics()

    def verified(self, name: str, secret: str, source: str) -> Identity | None:
        """Return whose secret this is. The time it takes does not tell whether there is a user of this name."""
        user = self._find(name)
        # An unknown user is compared too, with bytes that are not valid UTF-8 and so cannot be sent.
        known = [_digest(one.encode()) for one in user.secrets] if user is not None else [_digest(b"\xff")]
        sent = _digest(secret.encode(errors="surrogateescape"))
        is_right = sum(hmac.compare_digest(one, sent) for one in known) > 0  # all are compared
        return self._identity(user, source) if user is not None and user.is_enabled and is_right else None

    def resumed(self, session: Identity, source: str) -> Identity | None:
        """Return the user of a session, unless the user has changed since it was opened."""
        user = self._find(session.name)
        if user is None or not user.is_enabled or not hmac.compare_digest(self.version(user), session.version):
            return None
        return self._identity(user, source)._replace(session=session.session)

    def version(self, user: User) -> str:
        """What changes with any change of a user, and tells nothing about its secret."""
        content = msgspec.json.encode((user.name, user.secrets, user.is_super, user.is_enabled))
        return hmac.digest(self.session_secret.encode(), b"user " + content, "sha256")[:_VERSION_BYTES].hex()

    def holder_of_token(self, identity: Identity, source: str) -> Identity:
        """Return the identity with rights to everything, so that its changes are in the audit log too."""
        return identity._replace(rights=UserRights(self, TOKEN_USER, "", source))

    def authorize(self, name: str, source: str, accesses: Iterable[Access]) -> None:
        """Check what a user has begun earlier, and what continues without the user. Raises NoPermission."""
        user = self._find(name)
        if user is None or not user.is_enabled:
            raise NoPermission(f"User:{name} is disabled or deleted", hint="Begin the job as another user")
        rights = UserRights(self, user, self.version(user), source)
        for access in accesses:
            rights.permit(access)

    def count_refused(self, source: str, reason: str) -> None:
        """Count a request without a user. Its name could be any, and is left out."""
        if self.audit is not None:
            self.audit.count(CountKey("", source, "sign in", "", "refused", reason=reason))

    def _identity(self, user: User, source: str) -> Identity:
        version = self.version(user)
        rights = UserRights(self, user, version, source)
        return Identity(user.name, role_of(user, self.state.acl(user.name)), "", version, rights)

    def _find(self, name: str) -> User | None:
        user = self.state.users.get(name)
        if user is None and self._copy.trouble:
            raise ServiceUnavailable(
                f"the users are not known yet: {self._copy.trouble}",
                hint="Wait until a broker is connected, and try again",
            )
        return user

    async def _follow_brokers(self) -> None:
        while True:
            with contextlib.suppress(LaterMQError, OSError):  # the last addresses stay in use
                self._addresses = list((await self._masters()).values())
            await asyncio.sleep(_ADDRESSES_EVERY_S if self._addresses else _FIRST_ADDRESSES_EVERY_S)


class UserRights:
    """What one user may do from one address."""

    def __init__(self, users: ClusterUsers, user: User, version: str, source: str) -> None:
        """`version` is empty for the holder of the token."""
        self._users = users
        self._user = user
        self._version = version
        self._source = source
        self._is_bounded = True  # whether the request is one that programs make all the time

    @property
    def user(self) -> str:
        return self._user.name if self._version else ""

    @property
    def source(self) -> str:
        return self._source

    @property
    def is_current(self) -> bool:
        user = self._users.state.users.get(self._user.name)
        return not self._version or (user is not None and self._users.version(user) == self._version)

    def may(self, accesses: Iterable[Access]) -> bool:
        return all(self._decide(one).is_allowed for one in accesses)

    def check(self, request: str, accesses: Iterable[Access], details: Mapping[str, str], *, is_change: bool) -> None:
        checked = [(one, self._decide(one)) for one in accesses]
        refused = next((one for one in checked if not one[1].is_allowed), None)
        self._is_bounded = all(_ADMINISTRATIVE.isdisjoint(access.actions) for access, _ in checked)
        if refused is None:
            if is_change:
                self._note(request, checked, "allowed", "", details)
            elif checked:
                self._count(checked[0], "allowed", "")
            return
        error = self._refusal(*refused)
        if is_change:
            self._note(request, [refused], "refused", error.message, details)
        else:
            self._count(refused, "refused", error.message)
        raise error

    def permit(self, access: Access) -> None:
        checked = access, self._decide(access)
        error = None if checked[1].is_allowed else self._refusal(*checked)
        self._count(checked, "refused" if error else "allowed", error.message if error else "")
        if error is not None:
            raise error

    def failed(self, request: str, reason: str, details: Mapping[str, str]) -> None:
        self._note(request, [], "failed", reason, details)

    @property
    def _acl(self) -> Acl:
        return self._users.state.acl(self._user.name)

    def _decide(self, access: Access) -> Decision:
        if not self.is_current:
            return Decision(is_allowed=False)
        decision = decide(self._user, self._acl, access, self._users.cluster, self._source)
        if decision.is_allowed and not self._user.is_super and access.kind is not Kind.CLUSTER and not access.name:
            return _exception(self._acl, access, self._source) or decision
        return decision

    def _refusal(self, access: Access, decision: Decision) -> NoPermission:
        text = refusal(self._user, access, self._users.cluster, self._source, decision).message
        if decision.entry is not None:
            text = f"{text} (entry {decision.entry}: {self._acl.entry(decision.entry)})"
        needed = "|".join(map(action_name, access.actions))
        return NoPermission(text, hint=f"It needs {needed} on {self._resource(access)}; ask an administrator")

    def _resource(self, access: Access) -> str:
        name = self._users.cluster if access.kind is Kind.CLUSTER else access.name or "*"
        return f"{access.kind.value.capitalize()}:{name}"

    def _audited(self, access: Access, decision: Decision) -> AuditedAccess:
        entry = decision.entry
        by = SUPER_USER if self._user.is_super else "" if entry is None else str(self._acl.entry(entry))
        return AuditedAccess("|".join(map(action_name, access.actions)), self._resource(access), entry, by)

    def _note(
        self, request: str, checked: Iterable[Checked], result: Result, reason: str, details: Mapping[str, str]
    ) -> None:
        if self._users.audit is not None:
            self._users.audit.note(
                user=self._user.name,
                source=self._source,
                request=request,
                access=[self._audited(*one) for one in checked],
                result=result,
                reason=reason,
                details=details,
                is_bounded=self._is_bounded,
            )

    def _count(self, checked: Checked, result: Result, reason: str) -> None:
        if self._users.audit is not None:
            one = self._audited(*checked)
            self._users.audit.count(
                CountKey(self._user.name, self._source, one.action, one.resource, result, one.entry, one.by, reason)
            )


def _exception(acl: Acl, access: Access, source: str) -> Decision | None:
    """Return the decision of an entry that denies some of the resources that another entry allows all of."""
    address = parse_address(source)
    for number, entry in enumerate((*acl.custom, *acl.default), 1):
        if not entry.is_allow and entry.pattern.kind is access.kind and entry.matches(access.actions, address):
            return Decision(is_allowed=False, entry=number)
    return None


def role_of(user: User, acl: Acl) -> Role:
    """Return what pages offer a user before it is known for which topic or group: the policies decide in the end."""
    if user.is_super:
        return Role.ADMIN
    allowed = [entry for entry in (*acl.custom, *acl.default) if entry.is_allow]
    is_operator = any(entry.actions is None or not _CHANGES.isdisjoint(entry.actions) for entry in allowed)
    return Role.OPERATOR if is_operator else Role.VIEWER


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()  # equal lengths: a comparison takes the same time whatever is sent
