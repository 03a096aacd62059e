"""`latermq pending`: lists or counts pending timers, or shows their density over time."""

from typing import TYPE_CHECKING, Annotated

import typer

from latermq.cli.completions import complete_topic
from latermq.cli.event_loop import run
from latermq.cli.options import DEFAULT_NAMESRV, Json, Namesrv, Raw, UsageError, parse_moment_ms
from latermq.cli.output import counted, print_fields, print_json, print_note, print_rows
from latermq.cli.views.message_rows import moment
from latermq.cli.views.timer_rows import density_rows, density_spans, pending_row

if TYPE_CHECKING:
    from latermq.client import Density, PendingTimer


def pending(
    topic: Annotated[
        str | None, typer.Argument(metavar="TOPIC", help="Only timers of this topic.", autocompletion=complete_topic)
    ] = None,
    key: Annotated[str | None, typer.Option("--key", metavar="K", help="Only timers with this key.")] = None,
    start: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="Only timers due at or after TIME.")
    ] = None,
    end: Annotated[str | None, typer.Option("--until", metavar="TIME", help="Only timers due before TIME.")] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="List at most N timers.")] = 100,
    count: Annotated[bool, typer.Option("--count", help="Print only the number of timers.")] = False,
    density: Annotated[
        bool, typer.Option("--density", help="Show how many timers of all topics are due in the next 48 hours.")
    ] = False,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: Json = False,
    raw: Raw = False,
) -> None:
    """List pending timers, the next due first.

    Example: latermq pending orders --until 2027-01-01T00:00:00
    """
    if density:
        if count or any(option is not None for option in (topic, key, start, end)):
            raise UsageError("--density covers all timers and can only be combined with --json")
        _print_density(namesrv, as_json=json)
        return
    if key is not None and topic is None:
        raise UsageError("--key requires TOPIC")
    from_ms = 0 if start is None else parse_moment_ms(start)
    until_ms = 0 if end is None else parse_moment_ms(end)

    async def count_timers() -> int:
        from latermq.client import Admin

        async with Admin(namesrv) as admin:
            return await admin.count_timers(topic or "", key=key or "", from_ms=from_ms, until_ms=until_ms)

    async def list_timers() -> "tuple[list[PendingTimer], int]":
        from latermq.client import Admin

        async with Admin(namesrv) as admin:
            # Request one more than is shown, to know whether there are more.
            found = await admin.pending_timers(
                topic or "", key=key or "", from_ms=from_ms, until_ms=until_ms, limit=limit + 1
            )
            # Lists lack the timers on the timeline. Only counts that filter by nothing but the topic include them.
            is_complete = len(found) <= limit and not (key or from_ms or until_ms)
            return found, await admin.count_timers(topic or "") - len(found) if is_complete else 0

    if count:
        print_fields({"timers": run(count_timers())}, as_json=json)
    else:
        print_timers(*run(list_timers()), limit, as_json=json, raw=raw)


def print_timers(found: "list[PendingTimer]", far: int, limit: int, *, as_json: bool, raw: bool = False) -> None:
    """Print the first `limit` timers, and a note if there are more, or if `far` others are on the timeline."""
    columns = {
        "due": "due",
        "topic": "topic",
        "queue_id": "queue",
        "tag": "tag",
        "keys": "keys",
        "message_id": "message id",
        "body_bytes": "bytes",
        "body": "body",
    }
    empty = "no pending timers" if far <= 0 else "no pending timers in the broker itself"
    print_rows([pending_row(timer) for timer in found[:limit]], columns, as_json=as_json, empty=empty, raw=raw)
    if len(found) > limit:
        print_note(f"list truncated to {counted(limit, 'timer')}; use --limit N, --from TIME or --count to see more")
    elif far > 0:
        print_note(
            f'{counted(far, "more timer")} on the timeline; latermq pipeline sql "SELECT * FROM pending" lists them all'
        )


def _print_density(namesrv: str, *, as_json: bool) -> None:
    async def fetch() -> "Density":
        from latermq.client import Admin

        async with Admin(namesrv) as admin:
            return await admin.timer_density()

    found = run(fetch())
    if as_json:
        for start_ms, span_ms, timers in density_spans(found):
            print_json({"start_ms": start_ms, "span_ms": span_ms, "timers": timers})
        return
    columns = {"from": "from", "span": "for", "timers": "timers", "busiest": "busiest second", "load": ""}
    rows = density_rows(found)
    print_rows(rows, columns, as_json=False, empty=f"no timers due within 48 hours of {moment(found.start_ms)}")
    if rows:
        due = counted(sum(row["timers"] for row in rows), "timer")
        print_note(f"{due} due within 48 hours of {moment(found.start_ms)}")
