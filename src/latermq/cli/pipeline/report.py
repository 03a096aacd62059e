"""`latermq pipeline report`: writes forecast, lateness and reconciliation as tables and as an HTML page."""

from typing import Annotated

import msgspec
import typer

from latermq.cli.options import DEFAULT_NAMESRV, ConfigFile, Json, Namesrv, Settings, parse_moment_ms
from latermq.cli.output import counted, print_fields, print_note
from latermq.cli.pipeline.timeline_options import (
    Master,
    Partial,
    Timeline,
    absent_field,
    pipeline_config,
    print_absent,
    spark_session,
    timeline_of,
)
from latermq.redaction import redacted


def report(
    start: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="Start of the period; default: a day before --until.")
    ] = None,
    end: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="End of the period; default: a minute ago.")
    ] = None,
    out: Annotated[
        str | None, typer.Option("--out", metavar="DIR", help="Directory for report.html; default: next to the tables.")
    ] = None,
    partial: Partial = False,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    timeline: Timeline = None,
    master: Master = None,
    config: ConfigFile = None,
    settings: Settings = None,
    json: Json = False,
) -> None:
    """Report due timers, lateness, and the fate of every timer. Exits with 1 if one is missing, early or duplicated.

    Example: latermq pipeline report --from 2027-01-01T00:00:00 --until 2027-01-02T00:00:00 --out /var/www/timers
    """
    from_ms = None if start is None else parse_moment_ms(start)
    until_ms = None if end is None else parse_moment_ms(end)
    effective = pipeline_config(config, settings, timeline=timeline, master=master)
    folder = timeline_of(effective, namesrv)
    with spark_session(effective, folder, master=master) as spark:
        from latermq.pipeline.report.report import make_report

        made = make_report(spark, folder, namesrv, from_ms=from_ms, until_ms=until_ms, out=out, allow_partial=partial)
    fates = ("delivered", "dead letter", "cancelled", "moved", "not kept", "missing")
    counts = {fate.replace(" ", "_"): made.count(fate) for fate in fates}
    # In text, `latermq pipeline status` and the page show it better.
    health = {"brokers": [msgspec.to_builtins(one) for one in made.brokers]} if json else {}
    print_fields(
        {
            "waiting": made.waiting,
            "scheduled": made.scheduled,
            **counts,
            "early": made.early,
            "delivered_twice": made.doubled,
            "page": made.page,
            "tables": redacted(made.folder),
            **absent_field(made.absent),
            **health,
        },
        as_json=json,
    )
    print_absent(made.absent)
    for row in made.worst[:1]:
        print_note(f"busiest second: {row['second']:%Y-%m-%d %H:%M:%S} UTC with {counted(row['timers'], 'timer')}")
    if not made.is_clean:
        print_note("some timers were missing, early or duplicated; the page lists them")
        raise typer.Exit(1)
