"""`latermq move`: timers that shall be delivered at another time."""

from typing import TYPE_CHECKING, Annotated

import typer

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
    parse_duration_ms,
    parse_moment_ms,
    parse_timer_name,
)
from latermq.cli.views.timer_rows import tell_outcomes

if TYPE_CHECKING:
    from latermq.client import Outcome


def move(
    topic: Annotated[str, typer.Argument(help="The topic the timer was sent to.")],
    key: TimerKey = None,
    unique_key: TimerUniqueKey = None,
    handle: TimerHandle = None,
    delay: Delay = None,
    at: At = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: Json = False,
) -> None:
    """Give timers a new due time and print what became of each; exit 1 if nothing was moved.

    Example: latermq move orders --key 4711 --delay 2h
    """
    name = parse_timer_name(key, unique_key, handle)
    if (delay is None) == (at is None):
        raise typer.BadParameter("say when: --delay or --at, one of them")
    delay_ms = None if delay is None else parse_duration_ms(delay)
    due_ms = None if at is None else parse_moment_ms(at)

    async def work() -> "list[Outcome]":
        from latermq.client import Admin

        async with Admin(namesrv) as admin:
            return await admin.move_timer(topic, **name, due_ms=due_ms, delay_ms=delay_ms)

    tell_outcomes(run(work()), "moved", nothing_known=f"topic {topic} has no timer with key {key}", as_json=json)
