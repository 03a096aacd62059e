"""Requests about users and their policies (3001–3010), and the one by which other processes copy them (7040)."""

from msgspec import Struct, field

from latermq.access.changes import SUBJECT_PREFIX
from latermq.access.policies import Acl, Entry, parse_entry
from latermq.config_json.numbers import Int64
from latermq.redaction import without_secrets

CUSTOM, DEFAULT = "Custom", "Default"


class UserHeader(Struct, kw_only=True):
    """The header of requests about one user."""

    username: str = ""


class UserFilterHeader(Struct, kw_only=True):
    """AUTH_LIST_USER (3005)."""

    filter: str | None = None


class SubjectHeader(Struct, kw_only=True):
    """The header of requests about the ACL of one user: `User:alice`."""

    subject: str = ""


class DeleteAclHeader(Struct, kw_only=True):
    """AUTH_DELETE_ACL (3008)."""

    subject: str = ""
    policyType: str | None = None
    resource: str | None = None


class AclFilterHeader(Struct, kw_only=True):
    """AUTH_LIST_ACL (3010)."""

    subjectFilter: str | None = None
    resourceFilter: str | None = None


class AccessStateHeader(Struct, kw_only=True):
    """ACCESS_STATE (7040): the revision that the client has, a random text for the answer, and how long it may take."""

    revision: str = ""
    nonce: str
    waitMillis: Int64 = 0


class UserInfo(Struct, kw_only=True, omit_defaults=True):
    """One user. The last three fields are LaterMQ's own."""

    username: str | None = None
    password: str | None = None
    userType: str | None = None
    userStatus: str | None = None
    keepPrevious: bool = False  # the replaced password stays valid
    dropPrevious: bool = False  # only the latest password stays valid
    hasPrevious: bool = False  # in answers: two passwords are valid

    def __repr__(self) -> str:
        return without_secrets(self, "password")


class EntryInfo(Struct, kw_only=True, omit_defaults=True):
    """One entry of a policy."""

    resource: str | None = None
    actions: list[str] | None = None
    sourceIps: list[str] | None = None
    decision: str | None = None


class PolicyInfo(Struct, kw_only=True, omit_defaults=True):
    """The entries of one policy."""

    policyType: str | None = None
    entries: list[EntryInfo] | None = None


class AclInfo(Struct, kw_only=True):
    """The policies of one user."""

    subject: str | None = None
    policies: list[PolicyInfo] | None = field(default_factory=list)


def read_acl(info: AclInfo) -> Acl:
    """The entries of a body. Raises NoPermission for one that is not valid."""
    entries: dict[bool, list[Entry]] = {False: [], True: []}
    for policy in info.policies or ():
        entries[is_default_policy(policy.policyType)] += [
            parse_entry(one.resource or "", one.actions or (), one.sourceIps or (), one.decision or "")
            for one in policy.entries or ()
        ]
    return Acl(entries[False], entries[True])


def is_default_policy(policy_type: str | None) -> bool:
    """Whether a text names the default policy. Without a text, it is the custom one."""
    return (policy_type or CUSTOM).lower() == DEFAULT.lower()


def write_acl(name: str, acl: Acl, resource_filter: str = "") -> AclInfo:
    """The entries of a user whose resources contain a text."""
    policies = []
    for type_, entries in ((CUSTOM, acl.custom), (DEFAULT, acl.default)):
        infos = [_write_entry(entry) for entry in entries if resource_filter in str(entry.pattern)]
        if infos:
            policies.append(PolicyInfo(policyType=type_, entries=infos))
    return AclInfo(subject=SUBJECT_PREFIX + name, policies=policies)


def _write_entry(entry: Entry) -> EntryInfo:
    return EntryInfo(
        resource=str(entry.pattern),
        actions=entry.action_names,
        sourceIps=entry.source_texts or None,
        decision="Allow" if entry.is_allow else "Deny",
    )
