"""Answers whether a user may do something, with the decision of the broker's own code."""

import ipaddress
from collections.abc import Sequence
from typing import Any, NamedTuple

from latermq.access.changes import KnownUser
from latermq.access.policies import NO_ACL, Acl, Decision
from latermq.access.resources import Access, Kind, Match, parse_action, parse_pattern
from latermq.access.users import User, decide
from latermq.cli.access.places import Place, known_user
from latermq.errors import InvalidParameter, NoPermission
from latermq.server.remoting.access import topic_access


class Question(NamedTuple):
    """May this user do this, as a client at this address?"""

    user: str
    resource: str
    action: str
    source: str  # empty: at any address

    def access(self) -> Access:
        """What a request would touch."""
        try:
            pattern = parse_pattern(self.resource)
        except NoPermission:
            pattern = None
        if pattern is None or pattern.kind is None or pattern.match is not Match.LITERAL:
            raise InvalidParameter(
                f"{self.resource} is not the name of a resource", hint="Use for example Topic:orders or Group:audit"
            )
        action = parse_action(self.action)
        if action is None:
            raise InvalidParameter("All is not one action", hint="Test Pub, Sub, Create, Update, Delete, Get or List")
        if pattern.kind is not Kind.TOPIC:
            return Access(pattern.kind, pattern.name, (action,))
        access = topic_access(pattern.name, (action,))
        if access.kind is Kind.CLUSTER:
            raise InvalidParameter(
                f"{pattern.name} holds messages of all topics, so it takes a right to the cluster",
                hint="Test Get on Cluster:NAME instead; `latermq topic route TOPIC` shows the name of the cluster",
            )
        return access

    def check_source(self) -> None:
        """Raise InvalidParameter if the address is none."""
        try:
            ipaddress.ip_address(self.source or "127.0.0.1")
        except ValueError:
            raise InvalidParameter(f"{self.source} is not an address", hint="Use for example 10.0.0.7") from None


async def answers(question: Question, places: Sequence[Place]) -> list[dict[str, Any]]:
    """One row if all brokers answer the same, otherwise one per broker."""
    question.check_source()
    access = question.access()
    rows = []
    for place in places:
        user = await known_user(place, question.user)
        acl = (await place.acls()).get(question.user, NO_ACL)
        rows.append({"broker": place.name, **_answer(question, access, user, acl)})
    without_place = [{**row, "broker": ""} for row in rows]
    return without_place[:1] if all(row == without_place[0] for row in without_place) else rows


def _answer(question: Question, access: Access, user: KnownUser, acl: Acl) -> dict[str, Any]:
    checked = User(name=user.name, secret="", is_super=user.is_super)
    decision = decide(checked, acl, access, access.name, question.source)
    if not user.is_enabled:
        decision = Decision(is_allowed=False)
    by = None if decision.entry is None else str(acl.entry(decision.entry))
    if not user.is_enabled:
        reason = "the user is disabled"
    elif user.is_super:
        reason = "as a super user"
    elif decision.entry is None:
        reason = "no entry allows it"
    else:
        reason = f"by entry {decision.entry}: {by}"
    return {
        "user": user.name,
        "action": question.action,
        "resource": question.resource,
        "from": question.source or None,
        "allowed": decision.is_allowed,
        "entry": decision.entry,
        "by": by,
        "reason": reason,
        "has_sources": any(entry.sources for entry in (*acl.custom, *acl.default)),
    }
