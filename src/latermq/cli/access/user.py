"""`latermq user`: lists, creates, changes and deletes users, and rotates their secrets."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from latermq.cli.access.entry_rows import COLUMNS as ENTRY_COLUMNS
from latermq.cli.access.entry_rows import entry_rows
from latermq.cli.access.places import (
    OwnData,
    Place,
    Where,
    change_everywhere,
    known_user,
    may_have_changed,
    opened,
    require_user,
    secret_of,
)
from latermq.cli.access.secrets_input import NewSecret, NewSecretFile, Save
from latermq.cli.access.user_sync import sync
from latermq.cli.completions import complete_user
from latermq.cli.event_loop import run
from latermq.cli.options import DEFAULT_NAMESRV, Json, Namesrv, UsageError
from latermq.cli.output import print_fields, print_json, print_line, print_note, print_rows
from latermq.errors import IllegalOperation, LaterMQError

if TYPE_CHECKING:
    from latermq.access.changes import KnownUser, UserChange

app = typer.Typer(help="Manage users and their secrets.", no_args_is_help=True)
app.command("sync")(sync)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the user.", autocompletion=complete_user)]
Change = Callable[[Place], Awaitable[None]]


@app.command("list")
def list_users(namesrv: Namesrv = DEFAULT_NAMESRV, data: OwnData = None, json: Json = False) -> None:
    """List users.

    Example: latermq user list
    """

    async def work() -> list[dict[str, Any]]:
        async with opened(Where(namesrv, data)) as places:
            return await _user_rows(places)

    rows = run(work())
    columns = {"user": "user", "type": "type", "status": "status", "secrets": "valid secrets", "entries": "entries"}
    if any(row["missing_at"] for row in rows):
        columns["missing_at"] = "missing at"
    print_rows(rows, columns, as_json=json, empty="no users")


@app.command()
def show(name: Name, namesrv: Namesrv = DEFAULT_NAMESRV, data: OwnData = None, json: Json = False) -> None:
    """Show a user and the entries of its policies.

    Example: latermq user show alice
    """

    async def work() -> tuple[dict[str, Any], list[dict[str, Any]]]:
        async with opened(Where(namesrv, data)) as places:
            rows = [row for row in await _user_rows(places) if row["user"] == name]
            if not rows:
                await known_user(places[0], name)
            return rows[0], await entry_rows(places, name)

    row, entries = run(work())
    print_fields(row if json else {key: value for key, value in row.items() if value != []}, as_json=json)
    print_rows(entries, ENTRY_COLUMNS, as_json=json, empty=f"user {name} has no entries")


@app.command()
def create(
    name: Name,
    new_secret_file: NewSecretFile = None,
    save: Save = None,
    is_super: Annotated[bool, typer.Option("--super", help="The user may do everything.")] = False,
    disabled: Annotated[bool, typer.Option("--disabled", help="The user may do nothing until it is enabled.")] = False,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    data: OwnData = None,
    json: Json = False,
) -> None:
    """Create a user at every broker.

    A secret is generated and printed, this one time, or written to a file.

    Example: latermq user create alice --save alice.secret
    """
    from latermq.access.changes import UserChange

    secret = NewSecret(new_secret_file, save)
    change = UserChange(secret=secret.text, is_super=is_super, is_enabled=not disabled)

    async def at(place: Place) -> None:
        user = (await place.users()).get(name)
        if user is None:
            await place.create_user(name, change)
        elif (user.secret, user.is_super, user.is_enabled) != (secret.text, is_super, not disabled):
            raise IllegalOperation(
                f"{place.name} already has a user {name}", hint=f"Change its secret with `latermq user rotate {name}`"
            )

    _change_with_secret(Where(namesrv, data), at, name, secret, as_json=json, creates=True)
    print_note(f"user {name} created; it may do {'everything' if is_super else 'nothing yet: `latermq acl grant`'}")


@app.command()
def rotate(
    name: Name,
    new_secret_file: NewSecretFile = None,
    save: Save = None,
    finish: Annotated[bool, typer.Option("--finish", help="End the previous secret; the new one stays.")] = False,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    data: OwnData = None,
    json: Json = False,
) -> None:
    """Give a user a new secret. The previous one stays valid until `user rotate NAME --finish`.

    A secret is generated and printed, this one time, or written to a file.

    Example: latermq user rotate alice --save alice-2.secret
    """
    from latermq.access.changes import UserChange

    if finish:
        if new_secret_file is not None or save is not None:
            raise UsageError("--finish takes no new secret")
        _update(name, UserChange(drops_previous=True), Where(namesrv, data), "its previous secret is no longer valid")
        return
    secret = NewSecret(new_secret_file, save)

    async def at(place: Place) -> None:
        user = await known_user(place, name)
        if user.has_previous and secret_of(user, place) != secret.text:
            raise IllegalOperation(
                f"user {name} has two valid secrets at {place.name}",
                hint=f"End the older one first: latermq user rotate {name} --finish",
            )
        await place.update_user(name, UserChange(secret=secret.text, keeps_previous=True))

    _change_with_secret(Where(namesrv, data), at, name, secret, as_json=json)
    print_note(
        f"user {name} has two valid secrets; when all clients use the new one: latermq user rotate {name} --finish"
    )


@app.command()
def enable(name: Name, namesrv: Namesrv = DEFAULT_NAMESRV, data: OwnData = None) -> None:
    """Enable a user.

    Example: latermq user enable alice
    """
    from latermq.access.changes import UserChange

    _update(name, UserChange(is_enabled=True), Where(namesrv, data), "enabled")


@app.command()
def disable(name: Name, namesrv: Namesrv = DEFAULT_NAMESRV, data: OwnData = None) -> None:
    """Disable a user: all its requests are refused, also on open connections.

    Example: latermq user disable alice
    """
    from latermq.access.changes import UserChange

    _update(name, UserChange(is_enabled=False), Where(namesrv, data), "disabled", ends_super=True)


@app.command()
def delete(name: Name, namesrv: Namesrv = DEFAULT_NAMESRV, data: OwnData = None) -> None:
    """Delete a user and the entries of its policies.

    Example: latermq user delete alice
    """

    async def work() -> None:
        async with opened(Where(namesrv, data)) as places:
            users = [await place.users() for place in places]
            if not any(name in known for known in users):
                await known_user(places[0], name)
            _check_another_super(name, places, users)
            await change_everywhere(places, lambda place: place.delete_user(name))

    run(work())
    print_note(f"user {name} deleted")


def _change_with_secret(
    where: Where, at: Change, name: str, secret: NewSecret, *, as_json: bool, creates: bool = False
) -> None:
    """Make a change at all brokers, and print a generated secret, also if only some of them have the change."""

    async def work() -> LaterMQError | None:
        changed: list[str] = []

        async def noted(place: Place) -> None:
            try:
                await at(place)
            except LaterMQError as error:
                if may_have_changed(error):  # then the secret must not be lost
                    changed.append(place.name)
                raise
            changed.append(place.name)

        try:
            async with opened(where, creates=creates) as places:
                await change_everywhere(places, noted)
        except LaterMQError as error:
            if not changed:
                secret.discard()
                raise
            if secret.is_generated:
                error.hint += ", with this secret in a file: --new-secret-file FILE"
            return error
        return None

    failure = run(work())
    if as_json:
        print_json({"user": name, "secret": secret.text} if secret.is_printed else {"user": name})
    elif secret.is_printed:
        print_line(secret.text)
    if failure is not None:
        raise failure


def _update(name: str, change: "UserChange", where: Where, what: str, *, ends_super: bool = False) -> None:
    async def work() -> None:
        async with opened(where) as places:
            users = [await place.users() for place in places]
            await require_user(places, name)
            if ends_super:
                _check_another_super(name, places, users)
            await change_everywhere(places, lambda place: place.update_user(name, change))

    run(work())
    print_note(f"user {name}: {what}")


def _check_another_super(name: str, places: Sequence[Place], users: "Sequence[dict[str, KnownUser]]") -> None:
    for place, known in zip(places, users, strict=True):
        left = [user for user in known.values() if user.is_super and user.is_enabled and user.name != name]
        if not left and name in known and known[name].is_super and known[name].is_enabled:
            raise IllegalOperation(
                f"user {name} is the only enabled super user at {place.name}",
                hint="Enable another one first, or create one: latermq user create NAME --super",
            )


async def _user_rows(places: Sequence[Place]) -> list[dict[str, Any]]:
    """One row per user, as the first broker that knows it tells it, and the brokers that do not know it."""
    users = {place.name: await place.users() for place in places}
    acls = {place.name: await place.acls() for place in places}
    first: dict[str, tuple[str, KnownUser]] = {}
    for place, known in users.items():
        for user in known.values():
            first.setdefault(user.name, (place, user))
    return [
        {
            "user": name,
            "type": "super" if user.is_super else "normal",
            "status": "enabled" if user.is_enabled else "disabled",
            "secrets": 2 if user.has_previous else 1,
            "entries": len(acls[place].get(name, ())),
            "missing_at": [place for place, known in users.items() if name not in known],
        }
        for name, (place, user) in sorted(first.items())
    ]
