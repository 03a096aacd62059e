"""`latermq message`: shows stored messages by id, by key or by topic, without consuming them."""

from typing import TYPE_CHECKING, Annotated

import typer

from latermq.cli.completions import complete_topic
from latermq.cli.event_loop import run
from latermq.cli.options import DEFAULT_NAMESRV, Json, Namesrv, Raw, parse_moment_ms
from latermq.cli.output import counted, print_fields, print_json, print_line, print_note, print_rows
from latermq.cli.views.message_rows import message_line, message_row, moment, readable_row
from latermq.errors import QueryNotFound

if TYPE_CHECKING:
    from latermq.client import Message

app = typer.Typer(help="Show stored messages without consuming them.", no_args_is_help=True)


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
    """Show all fields of a message.

    Example: latermq message show 7F0000010F2A0000 --topic orders
    """

    async def find() -> "list[Message]":
        from latermq.client import Admin
        from latermq.client.dead_letters import find_by_offset_id

        async with Admin(namesrv) as admin:
            if topic is None:
                return [await find_by_offset_id(admin, message_id)]
            return await admin.query_by_unique_key(topic, message_id)

    messages = run(find())
    if not messages:
        raise QueryNotFound(f"topic {topic} has no message {message_id}", hint="It may be older than store.retention")
    for message in messages:
        print_fields(message_row(message) if json else readable_row(message), as_json=json, raw=raw)


@app.command()
def query(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to search.", autocompletion=complete_topic)],
    key: Annotated[str, typer.Option("--key", metavar="KEY", help="Key of the messages.")],
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="Show at most N messages.")] = 32,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: Json = False,
    raw: Raw = False,
) -> None:
    """Find messages by key.

    Example: latermq message query orders --key 4711
    """

    async def find() -> "list[Message]":
        from latermq.cli.commands.message_reader import note_skipped
        from latermq.client import Admin

        async with Admin(namesrv) as admin:
            return await admin.query_by_key(topic, key, max_messages=limit, on_unreadable=note_skipped)

    messages = run(find())
    if not messages:
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
    print_rows([_query_row(message, as_json=json) for message in messages], columns, as_json=json, empty="", raw=raw)


def _query_row(message: "Message", *, as_json: bool) -> "dict[str, object]":
    if not as_json:
        return readable_row(message)
    return {**message_row(message), "stored": moment(message.store_timestamp_ms)}


@app.command("print")
def print_messages(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to print.", autocompletion=complete_topic)],
    queue: Annotated[int | None, typer.Option("--queue", metavar="N", min=0, help="Print only this queue.")] = None,
    start: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="Print only messages stored at or after TIME.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="Print at most N messages.")] = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: Json = False,
    raw: Raw = False,
) -> None:
    """Print the stored messages of a topic, queue by queue.

    Example: latermq message print orders --limit 10
    """
    from_ms = None if start is None else parse_moment_ms(start)

    async def print_queues() -> int:
        from latermq.cli.commands.message_reader import READER_GROUP, stored_messages
        from latermq.client import PullConsumer

        printed = 0
        async with PullConsumer(namesrv, group=READER_GROUP) as consumer:
            queues = [found for found in sorted(await consumer.queues(topic)) if queue in (None, found.queueId)]
            if not queues:
                hint = f"`latermq topic show {topic}` lists its queues"
                raise QueryNotFound(f"topic {topic} has no queue {queue}", hint=hint)
            for each in queues:
                async for message in stored_messages(consumer, each, from_ms):
                    if printed == limit:
                        return printed
                    print_json(message_row(message)) if json else print_line(message_line(message), raw=raw)
                    printed += 1
        return printed

    printed = run(print_queues())
    if not json:
        print_note(counted(printed, "message"))
