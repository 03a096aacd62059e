"""What the access checks of all servers have in common: where users are, refusals, and the verdicts of a connection."""

from typing import NamedTuple, Protocol

from latermq.access.policies import Acl, Decision
from latermq.access.resources import PUB, SUB, Access, Kind
from latermq.access.users import INNER_USER, AccessState, User, decide, refusal
from latermq.audit.counters import Tally
from latermq.errors import NoPermission, ServiceUnavailable
from latermq.server.access.audit import Checked

MAX_VERDICTS = 1_024  # per connection; above it they are forgotten, and made again
MAX_FAILURES = 20  # unauthenticated requests of one connection; then it is closed
NO_REFUSALS = {"unauthenticated_requests": 0, "unauthorized_requests": 0, "failing_addresses": 0}


class NotAuthenticated(NoPermission):
    """The user of a request is not known, or its signature is wrong."""

    pause_s = 0.0  # how long its answer should wait, where the connection cannot


class UnknownUser(NotAuthenticated):
    """There is no user of this name."""


class NotPermitted(NoPermission):
    """The user of a request has no right to something that it touches."""

    def __init__(self, message: str, user: User, acl: Acl, checked: Checked, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.user = user
        self.acl = acl
        self.checked = checked


class Users(Protocol):
    """Where the users are."""

    @property
    def state(self) -> AccessState:
        """The current users; none while they are not known."""
        ...

    @property
    def trouble(self) -> str:
        """Why the users are not known. Empty if they are."""
        ...


class GivenUsers(NamedTuple):
    """A state that is not in effect yet."""

    state: AccessState
    trouble: str = ""


class Verdicts:
    """What one connection may do as one user, as far as it was checked."""

    __slots__ = ("permitted", "state", "user")

    def __init__(self, user: User, state: AccessState) -> None:
        self.user = user
        self.state = state
        self.permitted: dict[Access, Tally] = {}


def find_user(users: Users, inner: User, name: str) -> User:
    """The user of this name, not authenticated yet. The remarks are those of Apache's broker."""
    if not name.strip():
        raise NotAuthenticated("username cannot be null.")
    user = inner if name == INNER_USER else users.state.users.get(name)
    if user is None:
        if users.trouble:
            raise ServiceUnavailable(
                f"the users are not known yet: {users.trouble}", hint="Wait until a broker is connected, and try again"
            )
        raise UnknownUser(f"User:{name} is not found.")
    if not user.is_enabled:
        raise NotAuthenticated(f"User:{name} is disabled.")
    return user


def permitted(user: User, acl: Acl, access: Access, cluster: str, source: str) -> Decision:
    """Return the decision that permits an access, or raise NotPermitted."""
    decision = decide(user, acl, access, cluster, source)
    if not decision.is_allowed:
        error = refusal(user, access, cluster, source, decision)
        raise NotPermitted(error.message, user, acl, (access, decision))
    return decision


def is_kept(access: Access) -> bool:
    """Whether a verdict about this access is kept: only those of messages and their consumers."""
    return access.kind in (Kind.TOPIC, Kind.GROUP) and (PUB in access.actions or SUB in access.actions)
