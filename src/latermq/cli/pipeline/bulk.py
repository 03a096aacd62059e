"""`latermq pipeline cancel` and `move`: change all timers that match an SQL predicate, near and far."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from latermq.cli.options import (
    DEFAULT_NAMESRV,
    ConfigFile,
    Json,
    Namesrv,
    Settings,
    parse_duration_ms,
    parse_moment_ms,
)
from latermq.cli.output import counted, print_json, print_note, print_rows, progress
from latermq.cli.pipeline.sql import as_plain
from latermq.cli.pipeline.timeline_options import (
    DryRun,
    Job,
    Master,
    Partial,
    Timeline,
    absent_field,
    pipeline_config,
    print_absent,
    spark_session,
    timeline_of,
)
from latermq.pipeline.query.sql_text import check_sql_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from latermq.config import PipelineConfig
    from latermq.pipeline.bulk.bulk import BulkResult, Preview

Where = Annotated[
    str | None,
    typer.Option("--where", metavar="SQL", help="Predicate over the columns of `pending`, e.g. \"topic = 'a'\"."),
]


def cancel(
    where: Where = None,
    job: Job = None,
    dry_run: DryRun = False,
    partial: Partial = False,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    timeline: Timeline = None,
    master: Master = None,
    config: ConfigFile = None,
    settings: Settings = None,
    json: Json = False,
) -> None:
    """Cancel all timers that match a predicate. --job NAME without --where resumes an interrupted job.

    Example: latermq pipeline cancel --where "topic = 'orders' AND due < '2027-01-01'" --dry-run
    """
    effective = pipeline_config(config, settings, timeline=timeline, master=master)
    _run("cancel", effective, where, job, namesrv, master=master, dry_run=dry_run, partial=partial, as_json=json)


def move(
    where: Where = None,
    by: Annotated[
        str | None,
        typer.Option("--by", metavar="D", help="Move each timer by this, e.g. 1h, or --by=-30m for earlier."),
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="New due time of all, e.g. 2027-01-01T00:00:00+08:00.")
    ] = None,
    job: Job = None,
    dry_run: DryRun = False,
    partial: Partial = False,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    timeline: Timeline = None,
    master: Master = None,
    config: ConfigFile = None,
    settings: Settings = None,
    json: Json = False,
) -> None:
    """Move all timers that match a predicate. --job NAME without --where resumes an interrupted job.

    Example: latermq pipeline move --where "topic = 'orders'" --by 1h --job outage-of-june
    """
    if where is not None and not dry_run and (by is None) == (to is None):
        raise typer.BadParameter("specify one of --by and --to")
    effective = pipeline_config(config, settings, timeline=timeline, master=master)
    by_ms = None if by is None else _signed_ms(by)
    to_ms = None if to is None else parse_moment_ms(to)
    _run(
        "move",
        effective,
        where,
        job,
        namesrv,
        master=master,
        dry_run=dry_run,
        partial=partial,
        as_json=json,
        by_ms=by_ms,
        to_ms=to_ms,
    )


def _signed_ms(text: str) -> int:
    return -parse_duration_ms(text[1:]) if text.startswith("-") else parse_duration_ms(text)


def _run(
    verb: str,
    config: "PipelineConfig",
    where: str | None,
    job: str | None,
    namesrv: str,
    *,
    master: str | None,
    dry_run: bool,
    partial: bool,
    as_json: bool,
    by_ms: int | None = None,
    to_ms: int | None = None,
) -> None:
    if where is None and (job is None or dry_run):
        raise typer.BadParameter("specify --where" + ("" if dry_run else ", or --job to resume a job"))
    if where is not None and not where.strip():
        raise typer.BadParameter("the predicate is empty; TRUE selects all timers")
    if where is not None:
        check_sql_text(where)
    folder = timeline_of(config, namesrv)
    if where is None:
        assert job is not None
        _print_result(_run_plan(verb, job, folder, namesrv), as_json=as_json)
        return
    predicate = where
    with spark_session(config, folder, master=master, check=lambda driver: driver.check_expression(predicate)) as spark:
        from latermq.pipeline.bulk.bulk import BulkAction, make_plan, new_job, preview
        from latermq.pipeline.bulk.bulk_job import find_root

        if dry_run:
            shown = preview(spark, where, folder, namesrv, allow_partial=partial)
            _show(shown, verb, as_json=as_json)
            return
        action = BulkAction("cancel", where) if verb == "cancel" else BulkAction("move", where, by_ms, to_ms)
        name = job or new_job(action)
        make_plan(spark, action, find_root(folder), namesrv, name, allow_partial=partial)
        _print_result(_run_plan(verb, name, folder, namesrv, spark), as_json=as_json)


def _run_plan(verb: str, job: str, folder: str, namesrv: str, spark: "SparkSession | None" = None) -> "BulkResult":
    from latermq.pipeline.bulk.bulk import find_job, resume
    from latermq.pipeline.bulk.bulk_job import find_root

    found = find_job(find_root(folder), job)
    if found is not None and found.order.action != verb:
        raise typer.BadParameter(f"job {job} is a {found.order.action}, not a {verb}")
    print_note(f"job {job}; if it is interrupted, resume it with `latermq pipeline {verb} --job {job}`")
    with progress(verb, found.rows if found is not None else None, prints_rows=False) as advance:
        return resume(
            job,
            folder,
            namesrv,
            spark=spark,
            on_planned=lambda _rows, done: advance(done),
            on_done=advance,
        )


def _print_result(result: "BulkResult", *, as_json: bool) -> None:
    from latermq.model.timers import Verdict
    from latermq.pipeline.bulk.plan_runner import REFUSED

    rows = [{"verdict": verdict, "names": count} for verdict, count in result.verdicts.most_common()]
    if as_json:
        values = {"job": result.job, "names": result.rows, "done_before": result.done_before, **result.verdicts}
        print_json(values | absent_field(result.absent))
    else:
        print_rows(rows, {"verdict": "verdict", "names": "names"}, as_json=False, empty="no matching timers")
        if result.done_before:
            print_note(f"{result.done_before} of them were done by an earlier run")
    print_absent(result.absent)
    if result.verdicts[Verdict.REPLACED]:
        print_note(
            f"{result.verdicts[Verdict.REPLACED]} names have newer timers since the plan; they were left unchanged"
        )
    if result.verdicts[REFUSED]:
        print_note(f"{result.verdicts[REFUSED]} were refused; the table bulk/{result.job}/results has the reasons")
        raise typer.Exit(1)


def _show(found: "Preview", verb: str, *, as_json: bool) -> None:
    by_hour: list[dict[str, Any]] = [as_plain(row) for row in found.by_hour]
    sample: list[dict[str, Any]] = [as_plain(row) for row in found.sample]
    if as_json:
        print_json({"timers": found.rows, "by_hour": by_hour, "sample": sample} | absent_field(found.absent))
        return
    columns_by_hour = {"hour": "hour", "topic": "topic", "timers": "timers"}
    print_rows(by_hour, columns_by_hour, as_json=False, empty="no matching timers")
    columns = ("due", "topic", "keys", "tags", "unique_key", "body_bytes")
    if sample:
        print_rows(sample, {name: name.replace("_", " ") for name in columns}, as_json=False, empty="")
    print_note(f"dry run: {verb} would affect {counted(found.rows, 'timer')}")
    print_absent(found.absent)
