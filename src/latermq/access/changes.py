"""What administrators do with users and ACLs: checks and new states. The remarks are those of Apache's broker."""

from collections.abc import Callable
from typing import NamedTuple

from latermq.access.policies import Acl
from latermq.access.resources import parse_pattern
from latermq.access.users import AccessState, User, check_secret, check_user_name
from latermq.errors import InvalidParameter, LaterMQError, NoPermission

SUBJECT_PREFIX = "User:"


class Limits(NamedTuple):
    """Bounds on users and on the entries of one user."""

    max_users: int
    max_entries: int


class UserChange(NamedTuple):
    """New values of a user. None: unchanged, or the default for a new user."""

    secret: str | None = None
    is_super: bool | None = None
    is_enabled: bool | None = None
    keeps_previous: bool = False  # the replaced secret stays valid
    drops_previous: bool = False  # only the latest secret stays valid

    def __repr__(self) -> str:
        return f"UserChange(is_super={self.is_super}, is_enabled={self.is_enabled})"  # without the secret


class KnownUser(NamedTuple):
    """A user as administrators see it."""

    name: str
    is_super: bool
    is_enabled: bool
    has_previous: bool  # two secrets are valid
    secret: str | None  # None: not shown to whom asked

    def __repr__(self) -> str:
        return f"KnownUser({self.name!r})"  # without the secret


class Editor:
    """Derives a changed state from the current one. Errors leave it unchanged."""

    def __init__(self, limits: Limits, new_revision: Callable[[], str]) -> None:
        self._limits = limits
        self._new_revision = new_revision

    def create_user(self, state: AccessState, name: str, change: UserChange, *, by_super: bool) -> AccessState:
        """Add a user."""
        check_user_name(_given(name))
        secret = check_secret(change.secret or "")
        if name in state.users:
            raise NoPermission("The user is existed")
        if change.is_super and not by_super:
            raise LaterMQError("The super user can only be create by super user")
        if len(state.users) >= self._limits.max_users:
            raise NoPermission(f"There are {len(state.users)} users already", hint="Raise access.max_users")
        user = User(name=name, secret=secret, is_super=bool(change.is_super), is_enabled=change.is_enabled is not False)
        return state.with_user(user, self._new_revision())

    def update_user(self, state: AccessState, name: str, change: UserChange, *, by_super: bool) -> AccessState:
        """Change a user."""
        user = state.users.get(_given(name))
        if user is None:
            raise NoPermission("The user is not exist")
        if (user.is_super or change.is_super) and not by_super:
            raise LaterMQError("The super user can only be update by super user")
        if change.is_super is False or change.is_enabled is False:
            _check_another_super(state, user)
        secret, previous = user.secret, user.previous_secret
        if change.secret:
            if not change.keeps_previous:
                previous = ""
            elif change.secret != secret:  # a repeated request keeps what the first one replaced
                previous = secret
            secret = check_secret(change.secret)
        if change.drops_previous:
            previous = ""
        changed = User(
            name=name,
            secret=secret,
            previous_secret=previous,
            is_super=user.is_super if change.is_super is None else change.is_super,
            is_enabled=user.is_enabled if change.is_enabled is None else change.is_enabled,
        )
        return state.with_user(changed, self._new_revision())

    def delete_user(self, state: AccessState, name: str, *, by_super: bool) -> AccessState:
        """Remove a user and its ACL. One that does not exist is no error."""
        user = state.users.get(_not_blank(name))
        if user is None:
            return state
        if user.is_super and not by_super:
            raise LaterMQError("The super user can only be update by super user")
        _check_another_super(state, user)
        return state.without_user(name, self._new_revision())

    def merge_acl(self, state: AccessState, subject: str, acl: Acl, *, by_super: bool) -> AccessState:
        """Add entries to the ACL of a user. An entry replaces that of the same resource."""
        name = self._checked_subject(state, subject, f"The subject of {subject} is not exist.", by_super=by_super)
        if not len(acl):
            raise NoPermission("The policies is empty.")
        merged = state.acl(name).merged(acl)
        if len(merged) > self._limits.max_entries:
            raise NoPermission(
                f"The ACL of {subject} would have {len(merged)} entries",
                hint=f"The limit is {self._limits.max_entries} (access.max_entries)",
            )
        return state.with_acl(name, merged, self._new_revision())

    def delete_acl(
        self, state: AccessState, subject: str, resource: str, *, is_default: bool, by_super: bool
    ) -> AccessState:
        """Remove the entries of a resource, or the whole ACL if no resource is given."""
        name = self._checked_subject(state, subject, "The subject is not exist.", by_super=by_super)
        acl = state.acl(name).without(parse_pattern(resource), is_default=is_default) if resource else Acl()
        return state.with_acl(name, acl, self._new_revision())

    def _checked_subject(self, state: AccessState, subject: str, unknown: str, *, by_super: bool) -> str:
        name = subject_name(subject)
        user = state.users.get(name)
        if user is None:
            raise NoPermission(unknown)
        if user.is_super and not by_super:
            raise LaterMQError("The super user can only be update by super user")
        return name


def subject_name(subject: str) -> str:
    """The name of the user in `User:alice`, the only kind of subject."""
    if not subject.startswith(SUBJECT_PREFIX) or len(subject) == len(SUBJECT_PREFIX):
        raise NoPermission("The subject is not exist.")
    return subject.removeprefix(SUBJECT_PREFIX)


def _check_another_super(state: AccessState, user: User) -> None:
    """Keep a super user that may sign in. Users of an earlier version may have none that is enabled; then keep one."""
    if not user.is_super:
        return
    others = [other for other in state.users.values() if other.is_super and other.name != user.name]
    if not others:
        raise NoPermission(f"User:{user.name} is the only super user", hint="Create another one first")
    if user.is_enabled and not any(other.is_enabled for other in others):
        raise NoPermission(
            f"User:{user.name} is the only enabled super user", hint="Enable another one first, or create one"
        )


def _given(name: str) -> str:
    if not name:
        raise InvalidParameter("The username is blank")
    return _not_blank(name)


def _not_blank(name: str) -> str:
    if not name.strip():
        raise NoPermission("username can not be blank")
    return name
