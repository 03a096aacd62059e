"""`latermq pipeline schedule`: schedules each row of a file or table as a timer, exactly once."""

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from latermq.cli.options import DEFAULT_NAMESRV, ConfigFile, Json, Namesrv, Settings, parse_pairs
from latermq.cli.output import print_fields, print_note, progress
from latermq.cli.pipeline.timeline_options import (
    DryRun,
    Job,
    Master,
    Timeline,
    pipeline_config,
    spark_session,
    timeline_of,
)
from latermq.pipeline.query.sql_text import check_sql_text

if TYPE_CHECKING:
    from latermq.pipeline.bulk.spool import Scheduled
    from latermq.pipeline.remote.running_driver import RunningDriver


def schedule(
    source: Annotated[str, typer.Argument(metavar="FILE", help="Parquet, CSV or JSON file, directory, or table.")],
    job: Job = None,
    topic: Annotated[str, typer.Option("--topic", metavar="T", help="Topic for rows without a column `topic`.")] = "",
    columns: Annotated[
        list[str] | None,
        typer.Option(
            "--column",
            metavar="NAME=SQL",
            help="Define topic, body, due_ms, delay_ms, due, key, tag or properties by an expression; repeatable.",
        ),
    ] = None,
    format_: Annotated[
        str | None,
        typer.Option("--format", metavar="F", help="parquet, csv, json, delta or table; default: by file name."),
    ] = None,
    dry_run: DryRun = False,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    timeline: Timeline = None,
    master: Master = None,
    config: ConfigFile = None,
    settings: Settings = None,
    json: Json = False,
) -> None:
    """Schedule each row as a timer. Repeating a --job never schedules a row twice. Any invalid row aborts the job.

    Example: latermq pipeline schedule orders.parquet --job reminders --topic orders --column key=id --column due=pay_by
    """
    if job is None:
        raise typer.BadParameter("specify --job NAME; repeating a job never schedules a row twice")
    mapping = parse_pairs(columns)
    _check_names(job, mapping)
    effective = pipeline_config(config, settings, timeline=timeline, master=master)

    def check(driver: "RunningDriver") -> None:
        for text in mapping.values():
            driver.check_expression(text)

    with spark_session(effective, timeline_of(effective, namesrv), master=master, check=check) as spark:
        from latermq.pipeline.bulk.bulk_schedule import schedule as schedule_rows
        from latermq.pipeline.bulk.schedule_files import read_source, timer_rows

        rows = timer_rows(read_source(spark, source, format_), mapping)
        began_s = time.monotonic()
        bar = _Bar()
        with bar:
            done = schedule_rows(
                rows,
                effective.timeline or None,
                namesrv,
                job=job,
                topic=topic,
                on_checked=bar.begin,
                on_sent=bar.advance,
                dry_run=dry_run,
            )
    if dry_run:
        print_fields({"rows": bar.rows, "scheduled": 0, "repeated": done.repeated}, as_json=json)
        print_note(f"dry run: all {bar.rows} rows are valid")
        _note_repeated(done)
        return
    took_s = time.monotonic() - began_s
    counts = {"rows": bar.rows, "scheduled": done.scheduled, "known": done.known, "repeated": done.repeated}
    print_fields(counts, as_json=json)
    _note_repeated(done)
    if bar.rows and not done.scheduled:
        print_note(f"nothing to do: job {job} has already scheduled all of these rows")
        return
    print_note(f"job {job}: {bar.rows} rows in {took_s:.2f} s ({bar.rows / took_s:,.0f} per second)")


def _check_names(job: str, columns: Mapping[str, str]) -> None:
    """Refuse wrong names before anything is started."""
    from latermq.pipeline.bulk.bulk_job import check_job
    from latermq.pipeline.bulk.row_frames import check_column_names

    check_job(job)
    check_column_names(columns)
    for text in columns.values():
        check_sql_text(text)


def _note_repeated(done: "Scheduled") -> None:
    from latermq.pipeline.bulk.bulk_schedule import repeated_note

    if done.repeated:
        print_note(repeated_note(done))


class _Bar:
    """A progress bar that starts once the number of rows is known."""

    def __init__(self) -> None:
        self.rows = 0
        self._stack = ExitStack()
        self._advance: Callable[[int], None] = lambda _count: None

    def __enter__(self) -> "_Bar":
        return self

    def __exit__(self, *failure: object) -> None:
        self._stack.close()

    def begin(self, rows: int) -> None:
        self.rows = rows
        self._advance = self._stack.enter_context(progress("scheduling", rows, prints_rows=False))

    def advance(self, count: int) -> None:
        self._advance(count)
