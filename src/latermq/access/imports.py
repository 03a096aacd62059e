"""Users and entries from the files of RocketMQ: accounts of 4.x (plain_acl.yml), and the records of 5.x brokers.

What has no counterpart is listed with its reason, and never becomes a wider right than it was.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from latermq.access.policies import Acl, Entry, parse_entry
from latermq.access.users import check_secret, check_user_name
from latermq.errors import LaterMQError
from latermq.redaction import without_secrets

_PERMISSIONS = {
    "DENY": ("Deny", ["All"]),
    "PUB": ("Allow", ["Pub"]),
    "SUB": ("Allow", ["Sub"]),
    "PUB|SUB": ("Allow", ["Pub", "Sub"]),
    "SUB|PUB": ("Allow", ["Pub", "Sub"]),
}
_ACCOUNT_KEYS = {
    "accessKey", "secretKey", "whiteRemoteAddress", "admin", "defaultTopicPerm", "defaultGroupPerm", "topicPerms",
    "groupPerms",
}  # fmt: skip
_RETRY_PREFIX = "%RETRY%"
_TRUE = ("true", "yes", "on")  # in YAML 1.1
_NO_SIGNATURE = "requests from these addresses needed no signature; now every request needs one"


class ImportedUser(NamedTuple):
    """A user to be made, with the entries of its policies."""

    name: str
    secret: str
    is_super: bool
    is_enabled: bool
    acl: Acl

    def __repr__(self) -> str:
        return f"ImportedUser({self.name!r})"  # without the secret


class LeftOut(NamedTuple):
    """Something that has no counterpart."""

    what: str
    why: str


class Imported(NamedTuple):
    """What files contain."""

    users: list[ImportedUser]
    left_out: list[LeftOut]


class _Unusable(LaterMQError):
    """A value has no counterpart."""


def from_plain_acl(files: Mapping[str, Any]) -> Imported:
    """The accounts of 4.x, from the decoded YAML of files by their names. The first account of a name counts."""
    users: dict[str, ImportedUser] = {}
    left_out: list[LeftOut] = []
    for file, content in files.items():
        if not isinstance(content, dict):
            left_out.append(LeftOut(file, "it has no accounts"))
            continue
        for address in _texts(
            content.get("globalWhiteRemoteAddresses"), f"globalWhiteRemoteAddresses in {file}", left_out
        ):
            left_out.append(LeftOut(f"globalWhiteRemoteAddresses {address}", _NO_SIGNATURE))
        known = {"globalWhiteRemoteAddresses", "accounts", "dataVersion"}
        left_out += [LeftOut(f"{key} in {file}", "the key is not known") for key in content if key not in known]
        accounts = content.get("accounts")
        if not isinstance(accounts, list):
            left_out.append(
                LeftOut(f"accounts in {file}", "there are none" if accounts is None else "it is not a list")
            )
            continue
        for number, account in enumerate(accounts, 1):
            user = _account(account, f"account {number} in {file}", left_out)
            if user is not None and user.name in users:
                left_out.append(LeftOut(f"{user.name} in {file}", "an account of this name was there before"))
            elif user is not None:
                users[user.name] = user
    return Imported(list(users.values()), left_out)


def _account(account: Any, place: str, left_out: list[LeftOut]) -> ImportedUser | None:
    if not isinstance(account, dict):
        left_out.append(LeftOut(place, "it is not a map"))
        return None
    try:
        name = check_user_name(_text(account.get("accessKey")))
        secret = check_secret(_text(account.get("secretKey")))
    except LaterMQError as error:
        left_out.append(LeftOut(place, f"it cannot become a user: {error.message}"))
        return None
    left_out += [LeftOut(f"{name}: {key}", "the key is not known") for key in account if key not in _ACCOUNT_KEYS]
    for address in _texts(account.get("whiteRemoteAddress"), f"{name}: whiteRemoteAddress", left_out):
        left_out.append(LeftOut(f"{name}: whiteRemoteAddress {address}", _NO_SIGNATURE))
    custom = _custom_entries(account, name, left_out)
    default = [
        _entry(f"{kind}:*", permission, f"{name}: default{kind}Perm", left_out)
        for kind in ("Topic", "Group")
        for permission in _scalar(account.get(f"default{kind}Perm"), f"{name}: default{kind}Perm", left_out)
    ]
    is_super = any(text.lower() in _TRUE for text in _scalar(account.get("admin"), f"{name}: admin", left_out))
    return ImportedUser(name, secret, is_super, True, Acl(custom, default))


def _custom_entries(account: Mapping[Any, Any], name: str, left_out: list[LeftOut]) -> Iterable[Entry]:
    custom: dict[str, Entry] = {}
    for kind in ("Topic", "Group"):
        key = f"{kind.lower()}Perms"
        for text in _texts(account.get(key), f"{name}: {key}", left_out):
            resource, equals, permission = text.partition("=")
            resource = resource.strip()
            try:
                if not equals or "*" in resource or not resource:
                    raise _Unusable(f"{text!r} is not of the form name=PUB|SUB")
                # 4.x keeps the permission of a group under the name of its retry topic.
                group = resource.removeprefix(_RETRY_PREFIX)
                pattern = f"{kind}:{resource}" if group == resource else f"Group:{group}"
                entry = _entry(pattern, permission, f"{name}: {resource}", left_out)
            except LaterMQError as error:
                left_out.append(LeftOut(f"{name}: {text}", error.message))
                continue
            custom[str(entry.pattern)] = entry  # of several permissions for one name, the last counts
    return custom.values()


def _entry(resource: str, permission: str, what: str, left_out: list[LeftOut]) -> Entry:
    decision, actions = _PERMISSIONS.get(permission.strip(), ("", []))
    if not decision:
        left_out.append(LeftOut(f"{what}={permission.strip()}", "not a permission; refused, as in 4.x"))
        decision, actions = _PERMISSIONS["DENY"]
    return parse_entry(resource, actions, (), decision)


# The numbers that RocketMQ 5.x writes for its names.
_KINDS = {2: "Cluster", 3: "Namespace", 4: "Topic", 5: "Group"}
_ANY_KIND, _ANY_NAME, _LITERAL, _PREFIX = 1, 1, 2, 3
_ACTIONS = {1: "All", 3: "Pub", 4: "Sub", 5: "Create", 6: "Update", 7: "Delete", 8: "Get", 9: "List"}
_DECISIONS = {1: "Allow", 2: "Deny"}
_CUSTOM, _DEFAULT = 1, 2
_SUPER, _NORMAL = 1, 2
_ENABLED, _DISABLED = 1, 2


class _StoredUser(msgspec.Struct):
    username: str
    password: str
    userType: int = _NORMAL
    userStatus: int = _ENABLED

    def __repr__(self) -> str:
        return without_secrets(self, "password")


class _StoredResource(msgspec.Struct):
    resourceType: int
    resourcePattern: int
    resourceName: str | None = None


class _StoredEnvironment(msgspec.Struct):
    sourceIps: list[str] | None = None


class _StoredEntry(msgspec.Struct):
    resource: _StoredResource
    actions: list[int]
    decision: int
    environment: _StoredEnvironment | None = None


class _StoredPolicy(msgspec.Struct):
    policyType: int = _CUSTOM
    entries: list[_StoredEntry] | None = None


class _StoredAcl(msgspec.Struct):
    policies: list[_StoredPolicy] | None = None


def from_records(users: Iterable[tuple[bytes, bytes]], acls: Iterable[tuple[bytes, bytes]]) -> Imported:
    """The users and ACLs of a 5.x broker, from the keys and values of its two databases."""
    left_out: list[LeftOut] = []
    found: dict[str, Acl] = {}
    for key, value in acls:
        subject = key.decode("utf-8", "replace")
        kind, _, name = subject.partition(":")
        try:
            if kind != "User" or not name:
                raise _Unusable("the subject is not a user")
            found[name] = _stored_acl(name, msgspec.json.decode(value, type=_StoredAcl), left_out)
        except (msgspec.DecodeError, LaterMQError) as error:
            left_out.append(LeftOut(f"the entries of {subject}", _reason(error)))
    imported = [user for key, value in users if (user := _stored_user(key, value, found, left_out)) is not None]
    names = {user.name for user in imported}
    left_out += [LeftOut(f"the entries of User:{name}", "there is no such user") for name in found if name not in names]
    return Imported(imported, left_out)


def _stored_user(key: bytes, value: bytes, acls: Mapping[str, Acl], left_out: list[LeftOut]) -> ImportedUser | None:
    try:
        user = msgspec.json.decode(value, type=_StoredUser)
        if user.userType not in (_SUPER, _NORMAL) or user.userStatus not in (_ENABLED, _DISABLED):
            raise _Unusable(f"its type {user.userType} or its status {user.userStatus} is not known")
        name, secret = check_user_name(user.username), check_secret(user.password)
    except (msgspec.DecodeError, LaterMQError) as error:
        left_out.append(LeftOut(f"user {key.decode('utf-8', 'replace')}", _reason(error)))
        return None
    return ImportedUser(name, secret, user.userType == _SUPER, user.userStatus == _ENABLED, acls.get(name, Acl()))


def _stored_acl(name: str, stored: _StoredAcl, left_out: list[LeftOut]) -> Acl:
    entries: dict[int, list[Entry]] = {_CUSTOM: [], _DEFAULT: []}
    for policy in stored.policies or ():
        for number, one in enumerate(policy.entries or (), 1):
            try:
                if policy.policyType not in entries:
                    raise _Unusable(f"the type {policy.policyType} of its policy is not known")
                entries[policy.policyType].append(_stored_entry(one))
            except LaterMQError as error:
                left_out.append(LeftOut(f"{name}: entry {number} of policy {policy.policyType}", error.message))
    return Acl(entries[_CUSTOM], entries[_DEFAULT])


def _stored_entry(stored: _StoredEntry) -> Entry:
    actions = [_ACTIONS.get(action, "") for action in stored.actions]
    decision = _DECISIONS.get(stored.decision, "")
    if "" in actions or not decision:
        raise _Unusable(f"its actions {stored.actions} or its decision {stored.decision} are not known")
    sources = stored.environment.sourceIps if stored.environment is not None else None
    return parse_entry(_stored_resource(stored.resource), actions, sources or (), decision)


def _stored_resource(resource: _StoredResource) -> str:
    if resource.resourceType == _ANY_KIND and resource.resourcePattern == _ANY_NAME:
        return "*"
    kind, name = _KINDS.get(resource.resourceType), resource.resourceName or ""
    if kind is not None and resource.resourcePattern == _ANY_NAME:
        return f"{kind}:*"
    # An asterisk in a name would select more than this name.
    if kind is None or not name or "*" in name or resource.resourcePattern not in (_LITERAL, _PREFIX):
        raise _Unusable(f"its resource {name!r} of type {resource.resourceType} has no counterpart")
    return f"{kind}:{name}{'*' if resource.resourcePattern == _PREFIX else ''}"


def _texts(value: Any, what: str, left_out: list[LeftOut]) -> Iterator[str]:
    """The texts of a list in YAML. Anything else in it is listed, without its content: aliases may make that huge."""
    for number, one in enumerate(value if isinstance(value, list) else [value], 1):
        if isinstance(one, (list, dict)):
            left_out.append(LeftOut(f"{what}, number {number}", "it is not a text"))
        elif text := _text(one):
            yield text


def _scalar(value: Any, what: str, left_out: list[LeftOut]) -> Iterator[str]:
    """The only text, if there is one."""
    return _texts([value], what, left_out)


def _text(value: Any) -> str:
    """A scalar as text: some YAML loaders read `123456` as a number."""
    return "" if value is None or isinstance(value, (list, dict)) else str(value).strip()


def _reason(error: Exception) -> str:
    return error.message if isinstance(error, LaterMQError) else f"it cannot be read: {error}"
