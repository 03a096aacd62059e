"""Where users are kept: at each broker of a cluster, or in the data directory of a broker."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, Protocol

import typer

from latermq.errors import LaterMQError, NoPermission

if TYPE_CHECKING:
    from latermq.access.changes import KnownUser, UserChange
    from latermq.access.policies import Acl

OwnData = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIR",
        help="Work on the broker with this data directory, as its owner, without a user; it may be stopped.",
    ),
]


class NoSuchUser(LaterMQError):
    """There is no user of this name."""


class Place(Protocol):
    """The users that one broker keeps."""

    name: str

    async def users(self) -> "dict[str, KnownUser]": ...

    async def acls(self) -> "dict[str, Acl]": ...

    async def create_user(self, name: str, change: "UserChange") -> None: ...

    async def update_user(self, name: str, change: "UserChange") -> None: ...

    async def delete_user(self, name: str) -> None: ...

    async def merge_acl(self, name: str, acl: "Acl") -> None: ...

    async def delete_entry(self, name: str, resource: str, *, is_default: bool) -> None: ...


class Where(NamedTuple):
    """The options that select the brokers of a command."""

    namesrv: str
    data: Path | None = None


@contextlib.asynccontextmanager
async def opened(where: Where, *, creates: bool = False) -> AsyncIterator[Sequence[Place]]:
    """The users of all brokers of a cluster, or of the broker with a data directory, which may be created."""
    if where.data is not None:
        from latermq.cli.access.own_directory import opened_directory

        async with opened_directory(where.data, where.namesrv, creates=creates) as places:
            yield places
        return

    from latermq.client.users import UserAdmin

    async with UserAdmin(where.namesrv) as admin:
        yield await admin.everywhere()


async def change_everywhere(places: Sequence[Place], change: Callable[[Place], Awaitable[None]]) -> None:
    """Make a change at all brokers, one after the other. After a failure, it can be repeated."""
    done: list[str] = []
    for place in places:
        try:
            await change(place)
        except LaterMQError as error:
            if done:
                error.hint = f"Changed at {', '.join(done)}, but not at {place.name}; repeat the command to reach all"
            raise
        done.append(place.name)


def may_have_changed(error: LaterMQError) -> bool:
    """Whether a broker may have made a change before this error: its answer was lost."""
    from latermq.client.session.failures import ConnectFailed, ConnectionLost, RequestTimedOut

    return isinstance(error, (ConnectionLost, RequestTimedOut)) and not isinstance(error, ConnectFailed)


async def require_user(places: Sequence[Place], name: str) -> None:
    """Raise NoSuchUser unless all brokers know a user."""
    for place in places:
        await known_user(place, name)


async def known_user(place: Place, name: str) -> "KnownUser":
    """A user of one broker. Raises NoSuchUser."""
    users = await place.users()
    if name not in users:
        raise NoSuchUser(f"{place.name} has no user {name}", hint="`latermq user list` lists the users")
    return users[name]


def secret_of(user: "KnownUser", place: Place) -> str:
    """The secret of a user. Raises NoPermission if it is not shown."""
    if user.secret is None:
        raise NoPermission(f"{place.name} shows secrets to super users only", hint="Run the command as a super user")
    return user.secret
