"""Names of topics, groups and users for shell completion, asked from the cluster that the command line is for."""

import os
import re
from collections.abc import Iterable

import typer

from latermq.cli.options import DEFAULT_NAMESRV

TIMEOUT_S = 1.0  # the user waits for it
MAX_NAMES = 500
# Shells insert names as they are, so one with a `|`, which brokers allow, could start a second command.
_IS_ONE_WORD = re.compile(r"[\w%-]+", re.ASCII).fullmatch
_HIDDEN_PREFIXES = ("%", "rmq_sys_")  # unless the user has begun to type one


def complete_topic(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of topics that begin with what was typed."""
    return _names(ctx, incomplete, "topics")


def complete_group(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of consumer groups that begin with what was typed."""
    return _names(ctx, incomplete, "groups")


def complete_user(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of users that begin with what was typed."""
    return _names(ctx, incomplete, "users")


def _names(ctx: typer.Context, incomplete: str, kind: str) -> list[str]:
    """Ask a name server or its brokers. Nothing is offered if they do not answer soon."""
    import asyncio

    from latermq.cli.access.own_user import use_tools_file
    from latermq.cli.event_loop import run
    from latermq.client import Admin
    from latermq.errors import LaterMQError

    namesrv = ctx.params.get("namesrv") or os.environ.get("NAMESRV_ADDR") or DEFAULT_NAMESRV

    async def ask() -> list[str]:
        if kind == "users":
            return await _user_names(namesrv)
        async with asyncio.timeout(TIMEOUT_S), Admin(namesrv, request_timeout_s=TIMEOUT_S) as admin:
            return await admin.topics() if kind == "topics" else [group.name for group in await admin.groups()]

    try:
        use_tools_file()
        return offered(run(ask()), incomplete)
    except (LaterMQError, OSError, ValueError):  # OSError is the base of TimeoutError; ValueError is a wrong address
        return []


async def _user_names(namesrv: str) -> list[str]:
    import asyncio

    from latermq.client.users import UserAdmin

    async with asyncio.timeout(TIMEOUT_S), UserAdmin(namesrv, request_timeout_s=TIMEOUT_S) as admin:
        return sorted({name for place in await admin.everywhere() for name in await place.users()})


def offered(names: Iterable[str], incomplete: str) -> list[str]:
    """The names to offer for what was typed."""
    shown = (name for name in names if name.startswith(incomplete) and _IS_ONE_WORD(name))
    return sorted(name for name in shown if incomplete or not name.startswith(_HIDDEN_PREFIXES))[:MAX_NAMES]
