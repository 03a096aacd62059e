"""Rows that show the entries of policies."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from latermq.access.policies import Acl
    from latermq.cli.access.places import Place

COLUMNS = {
    "entry": "entry",
    "decision": "decision",
    "actions": "actions",
    "resource": "resource",
    "from": "from",
    "policy": "policy",
}


async def entry_rows(places: "Sequence[Place]", name: str) -> list[dict[str, Any]]:
    """The entries of a user. Those of brokers that differ from the first are shown with the name of the broker."""
    acls = {place.name: (await place.acls()).get(name) for place in places}
    rows: list[dict[str, Any]] = []
    first = next(iter(acls.values()))
    for place, acl in acls.items():
        if acl is not None and (acl is first or acl != first):
            extra = {} if all(other == first for other in acls.values()) else {"broker": place}
            rows += [{"user": name, **row, **extra} for row in rows_of(acl)]
    return rows


def rows_of(acl: "Acl") -> list[dict[str, Any]]:
    """A row for each entry, with the number that decisions name."""
    return [
        {
            "entry": number,
            "decision": "Allow" if entry.is_allow else "Deny",
            "actions": entry.action_names,
            "resource": str(entry.pattern),
            "from": entry.source_texts or ["everywhere"],
            "policy": "custom" if number <= len(acl.custom) else "default",
        }
        for number, entry in enumerate((*acl.custom, *acl.default), 1)
    ]
