"""`latermq pending`: timers that wait; list them, count them, or show how dense they lie."""

from typing import TYPE_CHECKING, Annotated

import typer

from latermq.cli.event_loop import run
from latermq.cli.options import DEFAULT_NAMESRV, Json, Namesrv, Raw, parse_moment_ms
from latermq.cli.output import print_fields, print_json, print_note, print_rows
from latermq.cli.views.message_rows import moment
from latermq.cli.views.timer_rows import density_rows, density_spans, pending_row

if TYPE_CHECKING:
    from latermq.client import Density, PendingTimer


def pending(
    topic: Annotated[str | None, typer.Argument(metavar="[TOPIC]", help="Only timers for this topic.")] = None,
    key: Annotated[str | None, typer.Option("--key", metavar="K", help="Only those with this key.")] = None,
    start: Annotated[str | None, typer.Option("--from", metavar="TIME", help="Only those due from then on.")] = None,
    end: Annotated[str | None, typer.Option("--until", metavar="TIME", help="Only those due before then.")] = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, help="List at most N, the next due first.")
    ] = 100,
    count: Annotated[bool, typer.Option("--count", help="Tell only how many there are.")] = False,
    density: Annotated[
        bool, typer.Option("--density", help="Tell how many of all topics are due when, in the next 48 hours.")
    ] = False,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: Json = False,
    raw: Raw = False,
) -> None:
    """List the timers that wait, the next due first. Example: latermq pending orders --until 2027-01-01T00:00:00"""
    if density:
        if count or any(option is not None for option in (topic, key, start, end)):
            raise typer.BadParameter("--density is about all timers and goes with --json alone")
        _tell_density(namesrv, as_json=json)
        return
    if key is not None and topic is None:
        raise typer.BadParameter("--key needs a TOPIC: keys belong to topics")
    from_ms = 0 if start is None else parse_moment_ms(start)
    until_ms = 0 if end is None else parse_moment_ms(end)

    async def counted() -> int:
        from latermq.client import Admin

        async with Admin(namesrv) as admin:
            return await admin.count_timers(topic or "", key=key or "", from_ms=from_ms, until_ms=until_ms)

    async def listed() -> "tuple[list[PendingTimer], int]":
        from latermq.client import Admin

        async with Admin(namesrv) as admin:
            # One more than is shown tells whether there are more.
            found = await admin.pending_timers(
                topic or "", key=key or "", from_ms=from_ms, until_ms=until_ms, limit=limit + 1
            )
            # Counts by topic alone know Spark's timers too, which no list has.
            is_whole = len(found) <= limit and not (key or from_ms or until_ms)
            return found, await admin.count_timers(topic or "") - len(found) if is_whole else 0

    if count:
        print_fields({"timers": run(counted())}, as_json=json)
    else:
        print_timers(*run(listed()), limit, as_json=json, raw=raw)


def print_timers(found: "list[PendingTimer]", far: int, limit: int, *, as_json: bool, raw: bool = False) -> None:
    """Print the first `limit` timers; a note where more were found, or where `far` others wait on the timeline."""
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
    empty = "no timers wait" if far <= 0 else "no timers wait in the broker itself"
    print_rows([pending_row(timer) for timer in found[:limit]], columns, as_json=as_json, empty=empty, raw=raw)
    if len(found) > limit:
        print_note(f"there are more than {limit}; --limit N lists more, --from a later time goes on, --count counts")
    elif far > 0:
        print_note(f'{far} more wait on the timeline; latermq pipeline sql "SELECT * FROM pending" shows all')


def _tell_density(namesrv: str, *, as_json: bool) -> None:
    async def work() -> "Density":
        from latermq.client import Admin

        async with Admin(namesrv) as admin:
            return await admin.timer_density()

    found = run(work())
    if as_json:
        for start_ms, span_ms, timers in density_spans(found):
            print_json({"start_ms": start_ms, "span_ms": span_ms, "timers": timers})
        return
    columns = {"from": "from", "span": "for", "timers": "timers", "busiest": "busiest second", "load": ""}
    rows = density_rows(found)
    print_rows(rows, columns, as_json=False, empty=f"nothing is due within 48 hours of {moment(found.start_ms)}")
    if rows:
        print_note(f"{sum(row['timers'] for row in rows)} timers are due within 48 hours of {moment(found.start_ms)}")
