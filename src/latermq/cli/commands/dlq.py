"""`latermq dlq`: lists, shows and resends dead letters."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from latermq.cli.completions import complete_group
from latermq.cli.event_loop import run
from latermq.cli.options import DEFAULT_NAMESRV, Json, Namesrv, Raw, UsageError, parse_moment_ms
from latermq.cli.output import print_fields, print_rows
from latermq.cli.views.message_rows import readable_row

if TYPE_CHECKING:
    from latermq.client import Message

app = typer.Typer(help="List, show and resend dead letters.", no_args_is_help=True)

Group = Annotated[
    str,
    typer.Argument(
        metavar="GROUP",
        help="Consumer group, or rmq_sys_timer_dlq for undeliverable timers.",
        autocompletion=complete_group,
    ),
]
From = Annotated[str | None, typer.Option("--from", metavar="TIME", help="Only dead letters stored at or after TIME.")]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Only dead letters stored before TIME.")]
Key = Annotated[str | None, typer.Option("--key", metavar="KEY", help="Only dead letters with this key.")]


@app.command("list")
def list_dead_letters(
    group: Annotated[
        str | None,
        typer.Argument(
            metavar="GROUP",
            help="Consumer group; without it, print the count of each group.",
            autocompletion=complete_group,
        ),
    ] = None,
    key: Key = None,
    start: From = None,
    end: Until = None,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="List at most N messages.")] = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: Json = False,
    raw: Raw = False,
) -> None:
    """List the dead letters of a group, or count those of each.

    Example: latermq dlq list billing
    """
    if group is None:
        _list_groups(namesrv, as_json=json)
        return
    from_ms, until_ms = _time_ms(start), _time_ms(end)

    async def find() -> list[dict[str, Any]]:
        from latermq.cli.commands.dead_letters import (
            Selection,
            dead_letter_row,
            dead_letters,
            readable_dead_letter_row,
        )
        from latermq.cli.commands.message_reader import READER_GROUP
        from latermq.client import Admin, PullConsumer
        from latermq.client.dead_letters import topic_of

        selection = Selection(key=key, from_ms=from_ms, until_ms=until_ms)
        rows: list[dict[str, Any]] = []
        async with Admin(namesrv) as admin, PullConsumer(namesrv, group=READER_GROUP) as consumer:
            async for message in dead_letters(admin, consumer, topic_of(group), selection, lambda _count: None):
                rows.append(dead_letter_row(message) if json else readable_dead_letter_row(message))
                if len(rows) == limit:
                    break
        return rows

    columns = {
        "message_id": "message id",
        "stored": "stored",
        "original_topic": "topic",
        "keys": "keys",
        "failures": "failures",
        "reason": "reason",
        "body": "body",
    }
    is_filtered = any(option is not None for option in (key, start, end))
    empty = "no matching dead letters" if is_filtered else f"{group} has no dead letters"
    print_rows(run(find()), columns, as_json=json, empty=empty, raw=raw)


@app.command()
def show(
    group: Group,
    message_id: Annotated[str, typer.Argument(metavar="ID", help="Message id or offset message id.")],
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: Json = False,
    raw: Raw = False,
) -> None:
    """Show a dead letter with its properties and reason.

    Example: latermq dlq show billing 7F0000010F2A0000
    """

    async def find() -> "Message":
        from latermq.client import Admin
        from latermq.client.dead_letters import find_dead_letter, topic_of

        async with Admin(namesrv) as admin:
            return await find_dead_letter(admin, topic_of(group), message_id)

    message = run(find())
    from latermq.cli.commands.dead_letters import dead_letter_row
    from latermq.client.dead_letters import original_topic, reason_of

    if json:
        print_fields(dead_letter_row(message), as_json=True)
    else:
        origin = {"original_topic": original_topic(message), "reason": reason_of(message)}
        print_fields({**origin, **readable_row(message)}, as_json=False, raw=raw)


@app.command()
def resend(
    group: Group,
    ids: Annotated[
        list[str] | None, typer.Option("--id", metavar="ID", help="Resend the message with this id; repeatable.")
    ] = None,
    key: Key = None,
    start: From = None,
    end: Until = None,
    resend_all: Annotated[bool, typer.Option("--all", help="Resend all dead letters of the group.")] = False,
    after: Annotated[
        str | None,
        typer.Option("--after", metavar="ID", help="Continue after this offset message id, the last one resent."),
    ] = None,
    topic: Annotated[
        str | None, typer.Option("--topic", metavar="T", help="Send to this topic instead of the original one.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be sent without sending it.")] = False,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: Json = False,
) -> None:
    """Resend dead letters to their original topics. The dead letters are kept.

    Example: latermq dlq resend billing --from 2027-01-01T00:00:00 --until 2027-01-02T00:00:00 --dry-run
    """
    filters = [key, start, end, after, resend_all or None]
    if bool(ids) == any(option is not None for option in filters):
        raise UsageError("select messages with --id, or with --key, --from, --until, --after or --all")
    from_ms, until_ms = _time_ms(start), _time_ms(end)

    from latermq.cli.commands.dead_letters import Selection
    from latermq.cli.commands.resender import Resender

    selection = Selection(tuple(ids or ()), key, from_ms, until_ms, after)
    run(Resender(group, selection, topic=topic, dry_run=dry_run, as_json=json).run(namesrv))


def _list_groups(namesrv: str, *, as_json: bool) -> None:
    async def count() -> list[dict[str, Any]]:
        from latermq.cli.commands.dead_letters import dead_letter_counts
        from latermq.client import Admin

        async with Admin(namesrv) as admin:
            return await dead_letter_counts(admin)

    columns = {"group": "group", "messages": "messages", "last_stored": "last stored"}
    print_rows(run(count()), columns, as_json=as_json, empty="no dead letters")


def _time_ms(text: str | None) -> int | None:
    return None if text is None else parse_moment_ms(text)
