"""Who sends a request, and what that person or program may do."""

from collections.abc import Iterable, Mapping
from enum import IntEnum
from http import HTTPStatus
from typing import NamedTuple, Protocol

from starlette.types import Scope

from latermq.access.resources import Access
from latermq.http.problems import HttpError

_SCOPE_KEY = "latermq.identity"


class Role(IntEnum):
    """What a user may do. Each role includes the ones before it."""

    VIEWER = 1  # reads
    OPERATOR = 2  # schedules, cancels and moves timers, sends messages, resets groups
    ADMIN = 3  # changes what everybody depends on: settings, topics, users

    @property
    def title(self) -> str:
        """The role as people read it."""
        return self.name.lower()


class Rights(Protocol):
    """What a user of the cluster may do, by the policies of this moment."""

    @property
    def user(self) -> str:
        """The name of the user, empty for the holder of the token."""
        ...

    @property
    def source(self) -> str:
        """The address of the user."""
        ...

    def may(self, accesses: Iterable[Access]) -> bool:
        """Whether all of this is permitted."""
        ...

    def check(self, request: str, accesses: Iterable[Access], details: Mapping[str, str], *, is_change: bool) -> None:
        """Note a request in the audit log. Raises NoPermission."""
        ...

    def permit(self, access: Access) -> None:
        """Check what turns out only while a request is handled. Raises NoPermission."""
        ...

    def failed(self, request: str, reason: str, details: Mapping[str, str]) -> None:
        """Note that a permitted change was not carried out."""
        ...

    @property
    def is_current(self) -> bool:
        """Whether the user has not changed since it was authenticated."""
        ...


class Identity(NamedTuple):
    """A user whose credentials were accepted."""

    name: str
    role: Role
    session: str = ""  # the id of the browser's session; empty for tokens and open access
    version: str = ""  # of the user, to which a session is bound; empty for tokens and open access
    rights: Rights | None = None  # None: the role decides alone


NOBODY = Identity("", Role.VIEWER)  # on paths that are open to all
EVERYBODY = Identity("", Role.ADMIN)  # of a console without users


def set_identity(scope: Scope, identity: Identity) -> None:
    """Note who sends a request."""
    scope[_SCOPE_KEY] = identity


def identity_of(scope: Scope) -> Identity:
    """Return who sends a request. A request that no guard has seen has no rights."""
    identity = scope.get(_SCOPE_KEY, NOBODY)
    assert isinstance(identity, Identity)
    return identity


def default_role(method: str) -> Role:
    """Return the role that a request needs if its row does not say."""
    return Role.VIEWER if method in ("GET", "HEAD") else Role.OPERATOR


def check_role(identity: Identity, needed: Role) -> None:
    """Refuse what a user may not do."""
    if identity.role < needed:
        raise HttpError(
            HTTPStatus.FORBIDDEN,
            f"this needs the role {needed.title}, and {identity.name or 'this user'} has {identity.role.title}",
            hint="Ask an administrator",
        )
