"""What the access check writes to the audit log: administrative requests one by one, all others as counts."""

from collections.abc import Iterable, Mapping

from latermq.access.policies import Acl, Decision
from latermq.access.resources import CREATE, DELETE, PUB, SUB, UPDATE, Access, Actions, Kind, action_name
from latermq.access.users import INNER_USER, User
from latermq.audit.audit_log import AuditLog
from latermq.audit.counters import Counters, Tally
from latermq.audit.records import SUPER_USER, AuditedAccess, CountKey, Result
from latermq.protocol.remoting.codes import Request
from latermq.server.remoting.endpoints import Endpoint

_CHANGES = frozenset((CREATE, UPDATE, DELETE))
_DATA = frozenset((PUB, SUB))
_ABOUT_USERS = frozenset(range(Request.AUTH_CREATE_USER, Request.AUTH_LIST_ACL + 1))
_NOT_COUNTED = Counters(1, lambda _: None).tally(CountKey("", "", "", "", "allowed"))

Checked = tuple[Access, Decision]


class RequestAudit:
    """Describes requests and decisions to the audit log of the process."""

    def __init__(self, log: AuditLog | None, cluster: str) -> None:
        """Without a log, nothing is written."""
        self._log = log
        self._cluster = cluster

    def tally(self, user: User, acl: Acl, source: str, checked: Checked) -> Tally:
        """A counter for requests that a connection may make without another check."""
        if self._log is None:
            return _NOT_COUNTED
        return self._log.tally(self._key(user.name, source, self._audited(user, acl, checked), "allowed"))

    def allowed(
        self, request: str, user: User, acl: Acl, peer: tuple[str, int], checked: Iterable[Checked],
        details: Mapping[str, str],
    ) -> None:  # fmt: skip
        """Note an administrative request."""
        if self._log is not None:
            access = [self._audited(user, acl, one) for one in checked]
            self._note(request, user.name, peer, access, "allowed", "", details)

    def refused(
        self, request: str, user: User | None, acl: Acl, peer: tuple[str, int], checked: Checked | None,
        reason: str, details: Mapping[str, str], result: Result = "refused", *, is_administrative: bool = False,
    ) -> None:  # fmt: skip
        """Note a refusal. Those of untrusted clients are counted, as they could fill the log of administrators."""
        if self._log is None:
            return
        if user is None:
            self._log.count(CountKey("", peer[0], request, "", result, reason=reason))
            return
        access = [] if checked is None else [self._audited(user, acl, checked)]
        if access and is_administrative:
            self._note(request, user.name, peer, access, result, reason, details)
            return
        first = access[0] if access else AuditedAccess(request, "")
        self._log.count(self._key(user.name, peer[0], first, result, reason))

    def unserved(self, peer: tuple[str, int], reason: str) -> None:
        """Count an unsigned request of an unknown code, which may be any number and is left out."""
        if self._log is not None:
            self._log.count(CountKey("", peer[0], "unknown request", "", "refused", reason=reason))

    def failed(self, request: str, user: User, peer: tuple[str, int], reason: str, details: Mapping[str, str]) -> None:
        """Note that a permitted administrative request was not carried out."""
        if self._log is not None:
            self._note(request, user.name, peer, [], "failed", reason, details)

    def _note(
        self, request: str, user: str, peer: tuple[str, int], access: list[AuditedAccess], result: Result,
        reason: str, details: Mapping[str, str],
    ) -> None:  # fmt: skip
        assert self._log is not None
        host, port = peer
        self._log.note(
            user=user,
            source=f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
            request=request,
            access=access,
            result=result,
            reason=reason,
            details=details,
        )

    def _audited(self, user: User, acl: Acl, checked: Checked) -> AuditedAccess:
        access, decision = checked
        name = self._cluster if access.kind is Kind.CLUSTER else access.name
        by = SUPER_USER if user.is_super else "" if decision.entry is None else str(acl.entry(decision.entry))
        resource = f"{access.kind.value.capitalize()}:{name}"
        return AuditedAccess(_action_text(access.actions), resource, decision.entry, by)

    @staticmethod
    def _key(user: str, source: str, access: AuditedAccess, result: Result, reason: str = "") -> CountKey:
        return CountKey(user, source, access.action, access.resource, result, access.entry, access.by, reason)


def is_administrative(endpoint: Endpoint, user: User) -> bool:
    """Whether a request has a line of its own: it changes something, or is about users.

    LaterMQ's own processes register brokers and commit progress all the time, so only what an operator may have caused
    counts for them.
    """
    if endpoint.change is not None or endpoint.code in _ABOUT_USERS:
        return True
    if user.name == INNER_USER:
        return False
    return any(_CHANGES.intersection(rule.actions) and _DATA.isdisjoint(rule.actions) for rule in endpoint.access)


def _action_text(actions: Actions) -> str:
    return "|".join(map(action_name, actions))
