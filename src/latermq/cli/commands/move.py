"""`latermq move`: gives timers a new due time."""

from typing import TYPE_CHECKING, Annotated

import typer

from latermq.cli.completions import complete_topic
from latermq.cli.event_loop import run
from latermq.cli.options import (
    DEFAULT_NAMESRV,
    At,
    Delay,
    Json,
    Namesrv,
    TimerHandle,
    TimerKey,
    TimerUniqueKey,
    UsageError,
    parse_duration_ms,
    parse_moment_ms,
    parse_timer_name,
)
from latermq.cli.views.timer_rows import print_outcomes

if TYPE_CHECKING:
    from latermq.client import Outcome


def move(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic of the timers.", autocompletion=complete_topic)],
    key: TimerKey = None,
    unique_key: TimerUniqueKey = None,
    handle: TimerHandle = None,
    delay: Delay = None,
    at: At = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: Json = False,
) -> None:
    """Give timers a new due time and print the result for each. Exits with 1 if nothing was moved.

    Example: latermq move orders --key 4711 --delay 2h
    """
    name = parse_timer_name(key, unique_key, handle)
    if (delay is None) == (at is None):
        raise UsageError("specify one of --delay and --at")
    delay_ms = None if delay is None else parse_duration_ms(delay)
    due_ms = None if at is None else parse_moment_ms(at)

    async def change() -> "list[Outcome]":
        from latermq.client import Admin

        async with Admin(namesrv) as admin:
            return await admin.move_timer(topic, **name, due_ms=due_ms, delay_ms=delay_ms)

    print_outcomes(run(change()), "moved", not_found=f"topic {topic} has no timer with key {key}", as_json=json)
