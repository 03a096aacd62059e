"""`latermq send`: sends one message or many, immediately or delayed."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from latermq.cli.completions import complete_topic
from latermq.cli.event_loop import run
from latermq.cli.options import (
    DEFAULT_NAMESRV,
    At,
    Delay,
    Json,
    Namesrv,
    UsageError,
    parse_duration_ms,
    parse_moment_ms,
    parse_pairs,
)


def send(
    topic: Annotated[
        str,
        typer.Argument(
            metavar="TOPIC",
            help="Topic to send to; auto-created if the broker allows it.",
            autocompletion=complete_topic,
        ),
    ],
    body: Annotated[str | None, typer.Argument(metavar="BODY", help="Message body as text.")] = None,
    file: Annotated[
        str | None, typer.Option("--file", metavar="FILE", help="Read the body from a file; '-' for standard input.")
    ] = None,
    tag: Annotated[str, typer.Option("--tag", metavar="TAG", help="Tag that consumers can filter by.")] = "",
    keys: Annotated[
        list[str] | None, typer.Option("--key", metavar="KEY", help="Key to find the message by; repeatable.")
    ] = None,
    properties: Annotated[
        list[str] | None, typer.Option("--property", metavar="K=V", help="User property; repeatable.")
    ] = None,
    delay: Delay = None,
    at: At = None,
    level: Annotated[int | None, typer.Option("--level", metavar="N", min=1, help="Delay level of the broker.")] = None,
    count: Annotated[int, typer.Option("--count", metavar="N", min=1, help="Send the same message N times.")] = 1,
    rate: Annotated[
        float | None, typer.Option("--rate", metavar="R", min=0.001, help="Send at most R messages per second.")
    ] = None,
    batch: Annotated[int, typer.Option("--batch", metavar="N", min=1, help="Send N messages per request.")] = 1,
    oneway: Annotated[bool, typer.Option("--oneway", help="Do not request a reply from the broker.")] = False,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: Json = False,
) -> None:
    """Send a message and print where it was stored. --delay, --at or --level delays its delivery.

    Example: latermq send orders '{"order": 4711}' --tag created --key 4711 --delay 15m
    """
    if oneway and batch > 1:
        raise UsageError("--oneway and --batch are mutually exclusive")
    if sum(option is not None for option in (delay, at, level)) > 1:
        raise UsageError("--delay, --at and --level are mutually exclusive")
    content, user_properties = _read_body(body, file), parse_pairs(properties)
    delay_ms = 0 if delay is None else parse_duration_ms(delay)
    deliver_at_ms = 0 if at is None else parse_moment_ms(at)

    from latermq.cli.commands.bulk_sender import BulkSender
    from latermq.client import OutgoingMessage

    message = OutgoingMessage(
        topic,
        content,
        tag,
        tuple(keys or ()),
        user_properties,
        delay_ms=delay_ms,
        deliver_at_ms=deliver_at_ms,
        delay_level=level or 0,
    )
    run(BulkSender(message, count=count, batch=batch, oneway=oneway, rate=rate, as_json=json).run(namesrv))


def _read_body(body: str | None, file: str | None) -> bytes:
    if (body is None) == (file is None):
        raise UsageError("pass the body either as an argument or with --file")
    if body is not None:
        return body.encode()
    assert file is not None
    try:
        return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise typer.BadParameter(f"cannot read {file}: {error.strerror}") from None
