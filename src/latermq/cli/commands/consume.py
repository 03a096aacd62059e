"""`latermq consume`: prints the messages of a topic as a member of a consumer group."""

from typing import Annotated

import typer

from latermq.cli.completions import complete_group, complete_topic
from latermq.cli.event_loop import run
from latermq.cli.options import DEFAULT_NAMESRV, Json, Namesrv, Raw, UsageError, parse_duration_s, parse_moment_ms


def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to consume.", autocompletion=complete_topic)],
    group: Annotated[
        str,
        typer.Option(
            "--group", metavar="G", help="Consumer group; its offsets are stored.", autocompletion=complete_group
        ),
    ],
    count: Annotated[
        int | None,
        typer.Option("--count", metavar="N", min=1, help="Stop after N messages; exit with 1 if fewer arrive."),
    ] = None,
    timeout: Annotated[
        str | None,
        typer.Option("--timeout", metavar="T", help="Stop if no message arrives for this long, e.g. 10s."),
    ] = None,
    start: Annotated[
        str,
        typer.Option(
            "--from", metavar="WHERE", help="Where a new group starts: first, last, or a time (2027-01-01T00:00:00)."
        ),
    ] = "first",
    tags: Annotated[
        str | None, typer.Option("--filter", metavar="EXPR", help="Only messages with these tags: 'created || paid'.")
    ] = None,
    sql: Annotated[
        str | None,
        typer.Option("--sql", metavar="EXPR", help="Only messages that match: \"region = 'eu' AND amount > 100\"."),
    ] = None,
    broadcast: Annotated[
        bool, typer.Option("--broadcast", help="Receive all messages, not only this member's share.")
    ] = False,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: Json = False,
    raw: Raw = False,
) -> None:
    """Print the messages of a topic as they arrive.

    Stops at Ctrl-C, --count or --timeout. Printed messages count as consumed: the group continues after them next
    time.

    Example: latermq consume orders --group audit --from first --timeout 10s
    """
    if tags is not None and sql is not None:
        raise UsageError("--filter and --sql are mutually exclusive")
    timeout_s = None if timeout is None else parse_duration_s(timeout)
    consume_from = start if start in ("first", "last") else parse_moment_ms(start)

    from latermq.cli.commands.message_printer import MessagePrinter
    from latermq.client import Sql

    printer = MessagePrinter(topic, group, count=count, timeout_s=timeout_s, as_json=json, raw=raw)
    expression = Sql(sql) if sql is not None else tags or "*"
    run(printer.run(namesrv, expression, consume_from, broadcast=broadcast))
