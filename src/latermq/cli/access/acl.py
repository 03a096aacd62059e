"""`latermq acl`: grants, revokes and lists what users may do, and tells whether a user may do something."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from latermq.cli.access.acl_import import import_files
from latermq.cli.access.entry_rows import COLUMNS, entry_rows
from latermq.cli.access.places import OwnData, Place, Where, change_everywhere, opened, require_user
from latermq.cli.access.refusals import refusals
from latermq.cli.completions import complete_user
from latermq.cli.event_loop import run
from latermq.cli.options import DEFAULT_NAMESRV, Json, Namesrv
from latermq.cli.output import print_json, print_line, print_note, print_rows
from latermq.errors import IllegalOperation, InvalidParameter, NoPermission

if TYPE_CHECKING:
    from latermq.access.policies import Acl, Entry

app = typer.Typer(help="Manage what users may do.", no_args_is_help=True)
app.command("import")(import_files)
app.command("refusals")(refusals)

User = Annotated[str, typer.Argument(metavar="USER", help="Name of the user.", autocompletion=complete_user)]
Resource = Annotated[
    str, typer.Argument(metavar="RESOURCE", help="Topic:orders, Group:eu-*, Topic:*, Cluster:* or * for everything.")
]
Actions = Annotated[
    list[str], typer.Argument(metavar="ACTION…", help="Pub, Sub, Create, Update, Delete, Get, List or All.")
]
IsDefault = Annotated[
    bool, typer.Option("--default", help="The default policy, which decides where no entry of the custom one matches.")
]
_VERBS = {
    "Pub": "publish to", "Sub": "consume", "Create": "create", "Update": "change", "Delete": "delete",
    "Get": "look at", "List": "list", "All": "do everything with",
}  # fmt: skip


@app.command("list")
def list_entries(
    resource: Annotated[str, typer.Option("--resource", metavar="TEXT", help="Only resources with this text.")] = "",
    namesrv: Namesrv = DEFAULT_NAMESRV,
    data: OwnData = None,
    json: Json = False,
) -> None:
    """List the entries of all users.

    Example: latermq acl list --resource Topic:orders
    """

    async def work() -> list[dict[str, Any]]:
        async with opened(Where(namesrv, data)) as places:
            names = {name for place in places for name in await place.acls()}
            return [
                row for name in sorted(names) for row in await entry_rows(places, name) if resource in row["resource"]
            ]

    _print_entries(run(work()), json, empty="no entries")


@app.command()
def show(user: User, namesrv: Namesrv = DEFAULT_NAMESRV, data: OwnData = None, json: Json = False) -> None:
    """Show the entries of a user.

    Example: latermq acl show alice
    """

    async def work() -> list[dict[str, Any]]:
        async with opened(Where(namesrv, data)) as places:
            await require_user(places, user)
            return await entry_rows(places, user)

    _print_entries(run(work()), json, empty=f"user {user} has no entries")


@app.command()
def grant(
    user: User,
    resource: Resource,
    actions: Actions,
    sources: Annotated[
        list[str] | None,
        typer.Option(
            "--from", metavar="ADDRESS", help="Address or network of the client, e.g. 10.0.0.0/8; repeatable."
        ),
    ] = None,
    deny: Annotated[bool, typer.Option("--deny", help="Refuse these actions.")] = False,
    default: IsDefault = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace the entry of this resource.")] = False,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    data: OwnData = None,
) -> None:
    """Allow a user to do something, or refuse it. Actions are added to the entry that the resource has.

    Example: latermq acl grant alice Topic:orders Pub Sub --from 10.0.0.0/8
    """
    entry = _entry(resource, actions, sources, "Deny" if deny else "Allow")

    async def at(place: Place) -> None:
        present = None if replace else _present((await place.acls()).get(user), entry, is_default=default)
        await place.merge_acl(user, _acl(entry if present is None else _combined(present, entry, user), default))

    async def work() -> None:
        async with opened(Where(namesrv, data)) as places:
            await require_user(places, user)
            await change_everywhere(places, at)

    run(work())
    print_note(f"user {user}: {entry}")


@app.command()
def revoke(
    user: User,
    resource: Resource,
    actions: Annotated[
        list[str] | None, typer.Argument(metavar="[ACTION…]", help="Actions to remove from the entry; default: all.")
    ] = None,
    default: IsDefault = False,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    data: OwnData = None,
) -> None:
    """Remove the entry of a resource, or some of its actions.

    Example: latermq acl revoke alice Topic:orders Sub
    """
    removed = _entry(resource, actions or ["All"], None, "Allow")

    async def at(place: Place) -> None:
        present = _present((await place.acls()).get(user), removed, is_default=default)
        if present is None:
            raise IllegalOperation(
                f"user {user} has no entry for {removed.pattern} at {place.name}",
                hint=f"`latermq acl show {user}` shows the entries",
            )
        left = _without(present, removed)
        if left is None:
            await place.delete_entry(user, str(removed.pattern), is_default=default)
        else:
            await place.merge_acl(user, _acl(left, default))

    async def work() -> None:
        async with opened(Where(namesrv, data)) as places:
            await require_user(places, user)
            await change_everywhere(places, at)

    run(work())
    print_note(f"user {user}: {', '.join(removed.action_names)} on {removed.pattern} revoked")


@app.command("test")
def may(
    user: User,
    resource: Annotated[str, typer.Argument(metavar="RESOURCE", help="Topic:orders, Group:audit or Cluster:NAME.")],
    actions: Annotated[
        list[str], typer.Argument(metavar="ACTION…", help="Pub, Sub, Create, Update, Delete, Get or List.")
    ],
    source: Annotated[
        str, typer.Option("--from", metavar="ADDRESS", help="Address of the client; default: any address.")
    ] = "",
    namesrv: Namesrv = DEFAULT_NAMESRV,
    data: OwnData = None,
    json: Json = False,
) -> None:
    """Tell whether a user may do something, and which entry decides. Exits with 1 if it may not.

    Example: latermq acl test alice Topic:orders Pub --from 10.0.0.7
    """
    from latermq.cli.access.permission_test import Question, answers

    questions = [Question(user, resource, action, source) for action in _words(actions)]

    async def work() -> list[dict[str, Any]]:
        async with opened(Where(namesrv, data)) as places:
            return [row for question in questions for row in await answers(question, places)]

    rows = run(work())
    for row in rows:
        if json:
            print_json(row)
        else:
            print_line(_sentence(row))
    if not source and not json and any(row["has_sources"] for row in rows):
        print_note("entries for certain addresses were left out; name one with --from")
    if not all(row["allowed"] for row in rows):
        raise typer.Exit(1)


def _sentence(row: dict[str, Any]) -> str:
    place = f" at {row['broker']}" if row["broker"] else ""
    source = f" from {row['from']}" if row["from"] else ""
    verdict = "yes" if row["allowed"] else "no"
    return f"may {row['user']} {_VERBS[row['action']]} {row['resource']}{source}{place}? {verdict}, {row['reason']}"


def _words(actions: list[str]) -> list[str]:
    """The actions, given as arguments of their own or with commas."""
    from latermq.access.resources import action_name, parse_action

    words = [word.strip() for action in actions for word in action.split(",") if word.strip()]
    try:
        return [action_name(parse_action(word)) for word in words]
    except NoPermission:
        raise InvalidParameter(
            f"{' '.join(words)} are not valid actions", hint="Use Pub, Sub, Create, Update, Delete, Get, List or All"
        ) from None


def _entry(resource: str, actions: list[str], sources: list[str] | None, decision: str) -> "Entry":
    from latermq.access.policies import parse_entry

    words = _words(actions)
    addresses = [word.strip() for source in sources or () for word in source.split(",") if word.strip()]
    try:
        return parse_entry(resource, words, addresses, decision)
    except NoPermission as error:
        hint = "Write resources as Topic:orders, Group:eu-*, Topic:*, Cluster:* or *, and addresses as 10.0.0.0/8"
        raise InvalidParameter(f"the entry is not valid: {error.message}", hint=hint) from None


def _acl(entry: "Entry", is_default: bool) -> "Acl":
    from latermq.access.policies import Acl

    return Acl(default=[entry]) if is_default else Acl([entry])


def _present(acl: "Acl | None", entry: "Entry", *, is_default: bool) -> "Entry | None":
    """The entry of the same resource."""
    if acl is None:
        return None
    entries: Sequence[Entry] = acl.default if is_default else acl.custom
    return next((one for one in entries if one.pattern == entry.pattern), None)


def _combined(present: "Entry", added: "Entry", user: str) -> "Entry":
    if (present.is_allow, present.sources) != (added.is_allow, added.sources):
        raise IllegalOperation(
            f"user {user} has another entry for this resource: {present}",
            hint="A resource has one entry per policy; --replace replaces it",
        )
    if present.actions is None or added.actions is None:
        return present._replace(actions=None)
    return present._replace(actions=present.actions | added.actions)


def _without(present: "Entry", removed: "Entry") -> "Entry | None":
    """The entry without some actions; None if none is left."""
    from latermq.access.resources import Action

    if removed.actions is None:
        return None
    left = (frozenset(Action) if present.actions is None else present.actions) - removed.actions
    return present._replace(actions=left) if left else None


def _print_entries(rows: list[dict[str, Any]], as_json: bool, *, empty: str) -> None:
    columns = {"user": "user", **COLUMNS}
    if any("broker" in row for row in rows):
        columns["broker"] = "broker"
    print_rows(rows, columns, as_json=as_json, empty=empty)
