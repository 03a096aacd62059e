"""Who sends a request, and what that person or program may do."""

from enum import IntEnum
from http import HTTPStatus
from typing import NamedTuple, Protocol

from starlette.types import Scope

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


class Identity(NamedTuple):
    """A user whose credentials were accepted."""

    name: str
    role: Role
    session: str = ""  # the id of the browser's session; empty for tokens and open access


class Users(Protocol):
    """Those who may use the console."""

    def identify(self, secret: str) -> Identity | None:
        """Return whose secret this is, or None."""
        ...


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
