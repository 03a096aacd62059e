"""`latermq consume`: messages of a topic as a member of a group gets them."""

from typing import Annotated

import typer

from latermq.cli.event_loop import run
from latermq.cli.options import DEFAULT_NAMESRV, Json, Namesrv, Raw, parse_duration_s, parse_moment_ms


def consume(
    topic: Annotated[str, typer.Argument(help="The topic.")],
    group: Annotated[str, typer.Option("--group", metavar="G", help="The consumer group; it remembers how far it is.")],
    count: Annotated[
        int | None, typer.Option("--count", metavar="N", min=1, help="Stop after N messages; exit 1 if fewer came.")
    ] = None,
    timeout: Annotated[
        str | None,
        typer.Option("--timeout", metavar="T", help="Stop when nothing came for this long, as in 10s; else never."),
    ] = None,
    start: Annotated[
        str,
        typer.Option(
            "--from", metavar="WHERE", help="Where a new group starts: first, last, or a time as 2027-01-01T00:00:00."
        ),
    ] = "first",
    tags: Annotated[
        str | None, typer.Option("--filter", metavar="EXPR", help="Only these tags, as in 'created || paid'.")
    ] = None,
    sql: Annotated[
        str | None,
        typer.Option("--sql", metavar="EXPR", help="Only what this fits, as in \"region = 'eu' AND amount > 100\"."),
    ] = None,
    broadcast: Annotated[
        bool, typer.Option("--broadcast", help="Get all messages, not only this member's share of the group's.")
    ] = False,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: Json = False,
    raw: Raw = False,
) -> None:
    """Print the messages of a topic as they come, until Ctrl-C, --count or --timeout.

    What was printed counts as consumed: the same group goes on after it the next time.

    Example: latermq consume orders --group audit --from first --timeout 10s
    """
    if tags is not None and sql is not None:
        raise typer.BadParameter("--filter and --sql cannot go together")
    timeout_s = None if timeout is None else parse_duration_s(timeout)
    consume_from = start if start in ("first", "last") else parse_moment_ms(start)

    from latermq.cli.commands.message_printer import Consuming
    from latermq.client import Sql

    consuming = Consuming(topic, group, count=count, timeout_s=timeout_s, as_json=json, raw=raw)
    expression = Sql(sql) if sql is not None else tags or "*"
    run(consuming.run(namesrv, expression, consume_from, broadcast=broadcast))
