"""Users and their policies: one immutable state, which a change replaces as a whole."""

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from latermq.access.policies import NO_ACL, Acl, Decision
from latermq.access.resources import Access, Kind
from latermq.errors import NoPermission

MAX_USER_CHARS = 128
MAX_SECRET_CHARS = 256
INNER_USER = "latermq-inner"  # the user that LaterMQ's own processes sign as; it is in no file of users


class User(msgspec.Struct, frozen=True, kw_only=True):
    """One user. While its secret is rotated, the previous one is valid too."""

    name: str
    secret: str
    previous_secret: str = ""
    is_super: bool = False  # may do everything
    is_enabled: bool = True

    @property
    def secrets(self) -> tuple[str, ...]:
        return (self.secret, self.previous_secret) if self.previous_secret else (self.secret,)

    def __repr__(self) -> str:
        return f"User({self.name!r})"  # without the secrets


def check_user_name(name: str) -> str:
    """Return a name that a new user may have."""
    if len(name) > MAX_USER_CHARS or not name.isprintable() or name != name.strip() or ":" in name or "/" in name:
        raise NoPermission(
            f"The username must have at most {MAX_USER_CHARS} characters, none of them a colon, a slash or a control "
            "character."
        )
    if name == INNER_USER:
        raise NoPermission(f"The username {INNER_USER} is reserved.")
    return name


def check_secret(secret: str) -> str:
    """Return a secret that a user may have."""
    if not secret.strip():
        raise NoPermission("password can not be blank")
    if len(secret) > MAX_SECRET_CHARS or not secret.isprintable():
        raise NoPermission(f"The password must have at most {MAX_SECRET_CHARS} characters, and no control character.")
    return secret


class AccessState:
    """All users and ACLs. Verdicts are bound to the state from which they were derived."""

    __slots__ = ("acls", "revision", "users")

    def __init__(self, users: Mapping[str, User], acls: Mapping[str, Acl], revision: str) -> None:
        """`revision` is random, so that a state that was lost in a crash is never taken for another one."""
        self.users = MappingProxyType(dict(users))
        self.acls = MappingProxyType(dict(acls))
        self.revision = revision

    def acl(self, name: str) -> Acl:
        """The ACL of a user; one without entries if there is none."""
        return self.acls.get(name, NO_ACL)

    @property
    def entries(self) -> int:
        """The number of entries of all users."""
        return sum(map(len, self.acls.values()))

    def with_user(self, user: User, revision: str) -> "AccessState":
        """The state after a user was added or replaced."""
        return AccessState({**self.users, user.name: user}, self.acls, revision)

    def without_user(self, name: str, revision: str) -> "AccessState":
        """The state after a user was removed together with its ACL."""
        users, acls = dict(self.users), dict(self.acls)
        users.pop(name, None)
        acls.pop(name, None)
        return AccessState(users, acls, revision)

    def with_acl(self, name: str, acl: Acl, revision: str) -> "AccessState":
        """The state after the ACL of a user was replaced. One without entries is removed."""
        acls = {**self.acls, name: acl}
        if not len(acl):
            del acls[name]
        return AccessState(self.users, acls, revision)


NO_USERS = AccessState({}, {}, "")


def decide(user: User, acl: Acl, access: Access, cluster: str, source: str) -> Decision:
    """Whether a user may access a resource. `cluster` is the name of the cluster that the server belongs to."""
    if user.is_super:
        return Decision(is_allowed=True)
    name = cluster if access.kind is Kind.CLUSTER else access.name
    return acl.decide(access.kind, name, access.actions, source)


def refusal(user: User, access: Access, cluster: str, source: str, decision: Decision) -> NoPermission:
    """The error for an access that is not permitted, with the remark of Apache's broker."""
    name = cluster if access.kind is Kind.CLUSTER else access.name
    reason = "no matched policies" if decision.entry is None else "the decision is deny"
    return NoPermission(
        f"User:{user.name} has no permission to access {access.kind.value.capitalize()}:{name} from {source}, {reason}."
    )
