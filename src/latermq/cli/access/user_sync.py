"""`latermq user sync`: gives the users of one broker to the others, for example to a new one."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from latermq.cli.access.places import Place, Where, opened, secret_of
from latermq.cli.event_loop import run
from latermq.cli.options import DEFAULT_NAMESRV, Json, Namesrv
from latermq.cli.output import print_rows
from latermq.errors import LaterMQError

if TYPE_CHECKING:
    from latermq.access.changes import KnownUser
    from latermq.access.policies import Acl, Entry

_COLUMNS = {"broker": "broker", "user": "user", "change": "change"}


class NoSuchBroker(LaterMQError):
    """There is no broker of this name."""


def sync(
    broker: Annotated[str, typer.Argument(metavar="BROKER", help="Name of the broker with the right users.")],
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: Json = False,
) -> None:
    """Give the users and entries of one broker to all other brokers of the cluster.

    Users that only the others have are left alone. Needs a super user, because others do not see secrets.

    Example: latermq user sync broker-a
    """

    async def work() -> list[dict[str, Any]]:
        async with opened(Where(namesrv)) as places:
            named = {place.name: place for place in places}
            source = named.get(broker)
            if source is None:
                raise NoSuchBroker(f"there is no broker {broker}", hint=f"The brokers are {', '.join(named)}")
            return [row for place in places if place is not source for row in await _copy(source, place)]

    print_rows(run(work()), _COLUMNS, as_json=json, empty=f"all brokers have the users of {broker}")


async def _copy(source: Place, target: Place) -> Sequence[dict[str, Any]]:
    """Make the users of the target those of the source, and return a row for each change."""
    from latermq.access.policies import NO_ACL

    users, present = await source.users(), await target.users()
    acls, present_acls = await source.acls(), await target.acls()
    rows: list[dict[str, Any]] = []

    def note(user: str, change: str) -> None:
        rows.append({"broker": target.name, "user": user, "change": change})

    # Brokers keep an enabled super user, so those of the source come first.
    for name, user in sorted(users.items(), key=lambda one: not (one[1].is_super and one[1].is_enabled)):
        if change := await _copy_user(user, present.get(name), source, target):
            note(name, change)
        wanted, has = acls.get(name, NO_ACL), present_acls.get(name, NO_ACL)
        if _entries(wanted) != _entries(has):
            await _copy_entries(name, wanted, has, target)
            note(name, "entries replaced")
    for name in sorted(present.keys() - users.keys()):
        note(name, f"left alone: {source.name} does not have it")
    return rows


async def _copy_user(user: "KnownUser", present: "KnownUser | None", source: Place, target: Place) -> str:
    """Create or change a user. Returns what was done."""
    from latermq.access.changes import UserChange

    change = UserChange(secret=secret_of(user, source), is_super=user.is_super, is_enabled=user.is_enabled)
    if present is None:
        await target.create_user(user.name, change)
        return "created"
    same_secret = secret_of(present, target) == user.secret
    if same_secret and (present.is_super, present.is_enabled) == (user.is_super, user.is_enabled):
        return ""
    # A secret that stays would end the previous one of a rotation.
    await target.update_user(user.name, change._replace(secret=None) if same_secret else change)
    return "changed"


def _entries(acl: "Acl") -> "tuple[frozenset[Entry], frozenset[Entry]]":
    """What decides, without the order."""
    return frozenset(acl.custom), frozenset(acl.default)


async def _copy_entries(name: str, wanted: "Acl", present: "Acl", target: Place) -> None:
    for is_default, kept, entries in ((False, wanted.custom, present.custom), (True, wanted.default, present.default)):
        patterns = {entry.pattern for entry in kept}
        for entry in entries:
            if entry.pattern not in patterns:
                await target.delete_entry(name, str(entry.pattern), is_default=is_default)
    if len(wanted):
        await target.merge_acl(name, wanted)
