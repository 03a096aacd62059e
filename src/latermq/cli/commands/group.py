"""`latermq group`: lists, creates, deletes and shows consumer groups, and resets their offsets."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from latermq.cli.completions import complete_group
from latermq.cli.event_loop import run
from latermq.cli.options import DEFAULT_NAMESRV, Json, Namesrv, parse_moment_ms
from latermq.cli.output import print_note, print_rows
from latermq.cli.views.message_rows import moment
from latermq.errors import ConsumerOffline, GroupNotFound, InvalidParameter

if TYPE_CHECKING:
    from latermq.client import Admin

app = typer.Typer(help="Manage consumer groups and their offsets.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="GROUP", help="Consumer group.", autocompletion=complete_group)]
Topic = Annotated[str, typer.Option("--topic", metavar="T", help="Topic to reset.")]


@app.command("list")
def list_groups(
    include_all: Annotated[bool, typer.Option("--all", help="Include system groups.")] = False,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: Json = False,
) -> None:
    """List consumer groups.

    Example: latermq group list
    """

    async def work() -> list[dict[str, Any]]:
        from latermq.client import Admin
        from latermq.group.subscriptions import BUILT_IN_GROUPS

        async with Admin(namesrv) as admin:
            return [
                {
                    "group": group.name,
                    "members": await _member_count(admin, group.name),
                    "enabled": group.can_consume,
                    "ordered": group.is_ordered,
                    "max_retries": group.max_retries,
                    "retry_levels": group.attributes.get("retry.levels"),
                }
                for group in await admin.groups()
                if include_all or group.name not in BUILT_IN_GROUPS
            ]

    columns = {
        "group": "group",
        "members": "members",
        "enabled": "enabled",
        "ordered": "ordered",
        "max_retries": "retries",
        "retry_levels": "back-off",
    }
    print_rows(run(work()), columns, as_json=json, empty="no groups; --all includes system groups")


@app.command()
def create(
    group: Name,
    retries: Annotated[
        int, typer.Option("--retries", metavar="N", min=0, help="Retries before a message becomes a dead letter.")
    ] = 16,
    ordered: Annotated[bool, typer.Option("--ordered", help="Members consume in order.")] = False,
    disabled: Annotated[bool, typer.Option("--disabled", help="Do not allow the group to consume.")] = False,
    retry_levels: Annotated[
        str | None,
        typer.Option(
            "--retry-levels",
            metavar="N,N,…",
            help="Delay before each retry, as delay levels (1,2,5) or times (500ms,30s,2h); the last one applies to "
            "all further retries. 'default' means 3,4,5,…",
        ),
    ] = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
) -> None:
    """Create or change a group.

    Example: latermq group create audit --retries 3
    """
    levels = None if retry_levels is None else _parse_backoff(retry_levels)

    async def work() -> None:
        from latermq.client import Admin

        async with Admin(namesrv) as admin:
            await admin.create_group(
                group,
                retry_max_times=retries,
                orderly=ordered,
                consume_enabled=not disabled,
                retry_levels=levels,
            )

    run(work())
    print_note(f"group {group} configured")


@app.command()
def delete(
    group: Name,
    keep_offsets: Annotated[bool, typer.Option("--keep-offsets", help="Keep the group's offsets.")] = False,
    namesrv: Namesrv = DEFAULT_NAMESRV,
) -> None:
    """Delete a group and its offsets.

    Example: latermq group delete audit
    """

    async def work() -> None:
        from latermq.client import Admin

        async with Admin(namesrv) as admin:
            await _require_group(admin, group)
            await admin.delete_group(group, remove_offsets=not keep_offsets)

    run(work())
    print_note(f"group {group} deleted")


@app.command()
def show(
    group: Name,
    topic: Annotated[str | None, typer.Option("--topic", metavar="T", help="Show only this topic.")] = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: Json = False,
) -> None:
    """Show a group's connected members and its offset in each queue.

    Example: latermq group show audit
    """

    async def work() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        from latermq.client import Admin

        async with Admin(namesrv) as admin:
            await _require_group(admin, group)
            return await _member_rows(admin, group), await _queue_rows(admin, group, topic)

    members, queues = run(work())
    member_columns = {"client_id": "member", "address": "address", "language": "language"}
    print_rows(members, member_columns, as_json=json, empty=f"group {group} has no connected members")
    queue_columns = {
        "topic": "topic",
        "broker": "broker",
        "queue_id": "queue",
        "offset": "group offset",
        "max_offset": "next offset",
        "lag": "lag",
        "last_consumed": "last consumed",
    }
    if any(row["in_flight"] for row in queues):
        queue_columns["in_flight"] = "in flight"
    print_rows(queues, queue_columns, as_json=json, empty=f"group {group} has no offsets yet")


@app.command()
def reset(
    group: Name,
    topic: Topic,
    to: Annotated[
        str, typer.Option("--to", metavar="WHERE", help="first, last, or a time (2027-01-01T00:00:00+08:00).")
    ],
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: Json = False,
) -> None:
    """Reset a group's offsets.

    Example: latermq group reset audit --topic orders --to first
    """
    target = to if to in ("first", "last") else parse_moment_ms(to)

    async def work() -> list[dict[str, Any]]:
        from latermq.client import Admin

        async with Admin(namesrv) as admin:
            return [
                {"topic": queue.topic, "broker": queue.brokerName, "queue_id": queue.queueId, "offset": offset}
                for queue, offset in (await admin.reset_offsets(group, topic, target)).items()
            ]

    columns = {"topic": "topic", "broker": "broker", "queue_id": "queue", "offset": "new offset"}
    print_rows(run(work()), columns, as_json=json, empty=f"topic {topic} has no queues")


def _parse_backoff(text: str) -> tuple[str, ...]:
    """The steps of the list, none for `default`."""
    from latermq.group.retry_backoff import parse_backoff

    if text == "default":
        return ()
    try:
        return parse_backoff(text)
    except InvalidParameter as error:
        raise typer.BadParameter(f"{error.message}. {error.hint}") from None


async def _require_group(admin: "Admin", group: str) -> None:
    if group not in {known.name for known in await admin.groups()}:
        raise GroupNotFound(f"group {group} does not exist", hint="`latermq group list` lists the groups")


async def _member_count(admin: "Admin", group: str) -> int:
    return len(await _member_rows(admin, group))


async def _member_rows(admin: "Admin", group: str) -> list[dict[str, Any]]:
    try:
        found = await admin.consumer_connections(group)
    except ConsumerOffline:
        return []
    return [
        {"kind": "member", "client_id": member.clientId, "address": member.clientAddr, "language": member.language}
        for member in found.connectionSet
    ]


async def _queue_rows(admin: "Admin", group: str, topic: str | None) -> list[dict[str, Any]]:
    return [
        {
            "kind": "queue",
            "topic": queue.topic,
            "broker": queue.brokerName,
            "queue_id": queue.queueId,
            "offset": offsets.consumerOffset,
            "max_offset": offsets.brokerOffset,
            "lag": offsets.brokerOffset - offsets.consumerOffset,
            "in_flight": max(0, offsets.pullOffset - offsets.consumerOffset),
            "last_consumed_ms": offsets.lastTimestamp,
            "last_consumed": moment(offsets.lastTimestamp),
        }
        for queue, offsets in (await admin.consume_stats(group, topic)).items()
    ]
