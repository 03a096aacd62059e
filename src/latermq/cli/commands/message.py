"""`latermq message`: shows stored messages by id, by key or by topic, without consuming them."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from latermq.cli.event_loop import run
from latermq.cli.options import DEFAULT_NAMESRV, Json, Namesrv, Raw, parse_moment_ms
from latermq.cli.output import counted, print_fields, print_json, print_line, print_note, print_rows
from latermq.cli.views.message_rows import message_line, message_row, moment, readable_row
from latermq.errors import QueryNotFound

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from latermq.client import Message, MessageQueue, PullConsumer, UnreadableBody

app = typer.Typer(help="Show stored messages without consuming them.", no_args_is_help=True)

_READER = "CLI_MESSAGE_PRINT"  # a pull must name a group, even if it uses no offsets of it
_PULL_MESSAGES = 256


@app.command()
def show(
    message_id: Annotated[
        str, typer.Argument(metavar="ID", help="Message id or offset message id, as printed by `send`.")
    ],
    topic: Annotated[
        str | None,
        typer.Option("--topic", metavar="T", help="Topic of the message; not needed for an offset message id."),
    ] = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: Json = False,
    raw: Raw = False,
) -> None:
    """Show all fields of a message. Example: latermq message show 7F0000010F2A0000 --topic orders"""

    async def work() -> "list[Message]":
        from latermq.client import Admin

        async with Admin(namesrv) as admin:
            if topic is None:
                return [await admin.view_message(message_id)]
            return await admin.query_by_unique_key(topic, message_id)

    found = run(work())
    if not found:
        raise QueryNotFound(f"topic {topic} has no message {message_id}", hint="It may be older than store.retention")
    for message in found:
        print_fields(message_row(message) if json else readable_row(message), as_json=json, raw=raw)


@app.command()
def query(
    topic: Annotated[str, typer.Argument(help="Topic to search.")],
    key: Annotated[str, typer.Option("--key", metavar="KEY", help="Key of the messages.")],
    limit: Annotated[int, typer.Option("--max", metavar="N", min=1, help="Show at most N messages.")] = 32,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: Json = False,
    raw: Raw = False,
) -> None:
    """Find messages by key. Example: latermq message query orders --key 4711"""

    async def work() -> "list[Message]":
        from latermq.client import Admin

        async with Admin(namesrv) as admin:
            return await admin.query_by_key(topic, key, max_messages=limit, on_unreadable=_pass_over)

    rows: list[dict[str, Any]] = [
        {**message_row(message), "stored": moment(message.store_timestamp_ms)} for message in run(work())
    ]
    if not rows:
        raise QueryNotFound(f"topic {topic} has no message with key {key}", hint="Keys are case-sensitive")
    columns = {
        "message_id": "message id",
        "queue_id": "queue",
        "queue_offset": "offset",
        "tag": "tag",
        "keys": "keys",
        "stored": "stored",
        "body": "body",
    }
    print_rows(rows, columns, as_json=json, empty="", raw=raw)


def _pass_over(error: "UnreadableBody") -> None:
    print_note(f"skipped: {error.remark}")


@app.command("print")
def print_messages(
    topic: Annotated[str, typer.Argument(help="Topic to print.")],
    queue: Annotated[int | None, typer.Option("--queue", metavar="N", min=0, help="Print only this queue.")] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Print only messages stored at or after TIME.")
    ] = None,
    count: Annotated[int | None, typer.Option("--count", metavar="N", min=1, help="Print at most N messages.")] = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: Json = False,
    raw: Raw = False,
) -> None:
    """Print the stored messages of a topic, queue by queue. Example: latermq message print orders --count 10"""
    since_ms = None if since is None else parse_moment_ms(since)

    async def work() -> int:
        from latermq.client import PullConsumer

        printed = 0
        async with PullConsumer(namesrv, group=_READER) as consumer:
            queues = [found for found in sorted(await consumer.queues(topic)) if queue in (None, found.queueId)]
            for each in queues:
                async for message in stored(consumer, each, since_ms):
                    if printed == count:
                        return printed
                    print_json(message_row(message)) if json else print_line(message_line(message), raw=raw)
                    printed += 1
        return printed

    printed = run(work())
    if not json:
        print_note(counted(printed, "message"))


async def stored(consumer: "PullConsumer", queue: "MessageQueue", since_ms: int | None) -> "AsyncIterator[Message]":
    """The messages of a queue, up to its current end."""
    from latermq.client import UnreadableBody

    end = await consumer.max_offset(queue)
    at = await (consumer.min_offset(queue) if since_ms is None else consumer.search_offset(queue, since_ms))
    while at < end:
        try:
            result = await consumer.pull(queue, at, _PULL_MESSAGES)
        except UnreadableBody as error:
            _pass_over(error)
            at = error.offset + 1
            continue
        for message in result.messages:
            if message.queue_offset < end:
                yield message
        if result.next_offset <= at:
            return
        at = result.next_offset
