"""`latermq pipeline sql`: queries all pending timers, and the timeline in its current or an earlier state."""

import datetime
import decimal
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from latermq.cli.options import DEFAULT_NAMESRV, ConfigFile, Json, Namesrv, Settings, parse_moment_ms
from latermq.cli.output import print_note, print_rows
from latermq.cli.pipeline.timeline_options import (
    Master,
    Partial,
    Timeline,
    has_session,
    pipeline_config,
    print_absent,
    spark_session,
    timeline_of,
)
from latermq.pipeline.query.bad_query import TABLES
from latermq.pipeline.query.sql_text import check_query_text

if TYPE_CHECKING:
    from latermq.config import PipelineConfig
    from latermq.pipeline.remote.running_driver import RunningDriver, SqlAnswer
    from latermq.pipeline.remote.sql_exchange import SqlRequest


def sql(
    query: Annotated[str, typer.Argument(metavar="SELECT", help="Query over the tables `pending` and `timeline`.")],
    version: Annotated[
        int | None, typer.Option("--version", metavar="N", min=0, help="Read this version of the table `timeline`.")
    ] = None,
    as_of: Annotated[
        str | None, typer.Option("--as-of", metavar="TIME", help="Read the table `timeline` as of TIME.")
    ] = None,
    partial: Partial = False,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="Print at most N rows.")] = 1000,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    timeline: Timeline = None,
    master: Master = None,
    config: ConfigFile = None,
    settings: Settings = None,
    json: Json = False,
) -> None:
    """Query timers with SQL.

    The table `pending` has all pending timers of all brokers, near and far. The table `timeline` has the far timers
    that Spark keeps.

    Example: latermq pipeline sql "SELECT topic, count(*) FROM pending GROUP BY topic"
    """
    if version is not None and as_of is not None:
        raise typer.BadParameter("--version and --as-of are mutually exclusive")
    moment = None if as_of is None else _delta_moment(as_of)
    effective = pipeline_config(config, settings, timeline=timeline, master=master)
    check_query_text(query, TABLES)
    folder = timeline_of(effective, namesrv)

    from latermq.pipeline.remote.sql_exchange import SqlRequest

    request = SqlRequest(query, folder, namesrv, limit + 1, version, moment, partial)
    answer = _answer_of_driver(effective, request) if master is None and not has_session() else None
    if answer is None:
        answer = _answer_of_session(effective, request, master)
    rows = [dict(zip(answer.columns, map(as_plain, row), strict=True)) for row in answer.rows]
    print_rows(rows[:limit], {name: name for name in answer.columns}, as_json=json, empty="no rows")
    if len(rows) > limit:
        print_note(f"there are more than {limit} rows; use --limit N to print more")
    print_absent(answer.absent)


def _answer_of_driver(config: "PipelineConfig", request: "SqlRequest") -> "SqlAnswer | None":
    """The answer of the running driver, which needs no Spark here. None if there is no driver, or for too many rows."""
    from latermq.cli.pipeline.job_progress import progress_line
    from latermq.pipeline.remote.running_driver import DriverUnreachable, look_up_driver
    from latermq.pipeline.remote.sql_exchange import MAX_ROWS

    driver, _ = look_up_driver(config, request.timeline)
    if driver is None or request.limit > MAX_ROWS:
        return None
    try:
        with progress_line() as show:
            return driver.run_sql(request, show)
    except DriverUnreachable:  # reported when a session is opened
        return None


def _answer_of_session(config: "PipelineConfig", request: "SqlRequest", master: str | None) -> "SqlAnswer":
    """The answer of a session: of this process, of the driver for more rows than it answers, or of a new Spark."""
    from latermq.pipeline.remote.running_driver import SqlAnswer

    def check(driver: "RunningDriver") -> None:
        driver.check_query(request.query, TABLES)

    with spark_session(config, request.timeline, master=master, check=check, starts_fast=True) as spark:
        from latermq.pipeline.query.sql import run_query
        from latermq.pipeline.spark.spark_failures import spark_errors

        found, absent = run_query(
            spark,
            request.query,
            request.timeline,
            request.namesrv,
            version=request.version,
            timestamp=request.timestamp,
            allow_partial=request.allow_partial,
        )
        with spark_errors("the query"):
            rows = [list(row) for row in found.limit(request.limit).collect()]
        return SqlAnswer(found.columns, rows, list(absent))


def as_plain(value: Any) -> Any:
    """A Spark value converted to a type that JSON supports."""
    if isinstance(value, datetime.datetime):
        return value.astimezone().isoformat(timespec="milliseconds")
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, bytes | bytearray):
        return bytes(value).hex()
    if isinstance(value, decimal.Decimal):
        return float(value)
    if isinstance(value, Mapping):
        return {str(key): as_plain(entry) for key, entry in value.items()}
    if hasattr(value, "asDict"):
        return as_plain(value.asDict())
    if isinstance(value, list | tuple):
        return [as_plain(entry) for entry in value]
    return value


def _delta_moment(text: str) -> str:
    moment = datetime.datetime.fromtimestamp(parse_moment_ms(text) / 1000, datetime.UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S.%f")
