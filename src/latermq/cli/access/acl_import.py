"""`latermq acl import`: makes the users and entries that RocketMQ's files contain."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from latermq.cli.access.places import OwnData, Place, Where, change_everywhere, opened
from latermq.cli.event_loop import run
from latermq.cli.options import DEFAULT_NAMESRV, Json, Namesrv
from latermq.cli.output import counted, print_note, print_rows

if TYPE_CHECKING:
    from latermq.access.imports import Imported, ImportedUser

_COLUMNS = {"action": "action", "user": "user", "what": "what"}


def import_files(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH",
            help="plain_acl.yml or the folder conf of RocketMQ 4.x, or the folder config of a 5.x broker's store.",
        ),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be made.")] = False,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    data: OwnData = None,
    json: Json = False,
) -> None:
    """Import users and permissions of Apache RocketMQ.

    Lists every user and entry, and everything that has no counterpart and is left out. Users that exist with another
    secret or type are left alone. Repeating an import changes nothing.

    Example: latermq acl import /opt/rocketmq/conf --dry-run
    """
    from latermq.cli.access.import_files import read_files

    imported = read_files(path)

    async def work() -> set[str]:
        async with opened(Where(namesrv, data), creates=not dry_run) as places:
            taken = await _taken(imported, places)
            if not dry_run:
                for user in imported.users:
                    if user.name not in taken:
                        await change_everywhere(places, functools.partial(_make, user))
            return taken

    taken = run(work())
    print_rows(_rows(imported, taken), _COLUMNS, as_json=json, empty="there are no users")
    made = [user for user in imported.users if user.name not in taken]
    entries = counted(sum(len(user.acl) for user in made), "entry").replace("entrys", "entries")
    left_out = len(imported.left_out) + len(taken)
    verb = "would be imported" if dry_run else "imported"
    print_note(f"{counted(len(made), 'user')} and {entries} {verb}; {left_out} left out")


async def _taken(imported: "Imported", places: Sequence[Place]) -> set[str]:
    """The names of users that exist, and are others."""
    taken = set()
    for place in places:
        known = await place.users()
        for user in imported.users:
            present = known.get(user.name)
            if present is not None and (present.secret, present.is_super) != (user.secret, user.is_super):
                taken.add(user.name)
    return taken


async def _make(user: "ImportedUser", place: Place) -> None:
    from latermq.access.changes import UserChange

    if user.name not in await place.users():
        change = UserChange(secret=user.secret, is_super=user.is_super, is_enabled=user.is_enabled)
        await place.create_user(user.name, change)
    if len(user.acl):
        await place.merge_acl(user.name, user.acl)


def _rows(imported: "Imported", taken: set[str]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for user in imported.users:
        if user.name in taken:
            what = "a user of this name exists, with another secret or type"
            rows.append({"action": "left out", "user": user.name, "what": what})
            continue
        kind = "super user" if user.is_super else "user"
        rows.append({"action": "create", "user": user.name, "what": kind if user.is_enabled else f"disabled {kind}"})
        rows += [{"action": "grant", "user": user.name, "what": str(entry)} for entry in user.acl.custom]
        rows += [{"action": "grant", "user": user.name, "what": f"{entry} (default)"} for entry in user.acl.default]
    rows += [{"action": "left out", "user": None, "what": f"{one.what}: {one.why}"} for one in imported.left_out]
    return rows
