"""`latermq cancel`: cancels timers before they are delivered."""

from typing import TYPE_CHECKING, Annotated

import typer

from latermq.cli.completions import complete_topic
from latermq.cli.event_loop import run
from latermq.cli.options import (
    DEFAULT_NAMESRV,
    Json,
    Namesrv,
    TimerHandle,
    TimerKey,
    TimerUniqueKey,
    parse_timer_name,
)
from latermq.cli.views.timer_rows import print_outcomes

if TYPE_CHECKING:
    from latermq.client import Outcome


def cancel(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic of the timers.", autocompletion=complete_topic)],
    key: TimerKey = None,
    unique_key: TimerUniqueKey = None,
    handle: TimerHandle = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: Json = False,
) -> None:
    """Cancel timers and print the result for each. Exits with 1 if nothing was cancelled.

    Example: latermq cancel orders --key 4711
    """
    name = parse_timer_name(key, unique_key, handle)

    async def change() -> "list[Outcome]":
        from latermq.client import Admin

        async with Admin(namesrv) as admin:
            return await admin.cancel_timer(topic, **name)

    print_outcomes(run(change()), "cancelled", not_found=f"topic {topic} has no timer with key {key}", as_json=json)
