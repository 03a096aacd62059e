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
    pipeline_config,
    print_absent,
    spark_session,
    timeline_of,
)
from latermq.pipeline.query.bad_query import TABLES
from latermq.pipeline.query.sql_text import check_query_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from latermq.pipeline.remote.running_driver import RunningDriver


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

    def check(driver: "RunningDriver") -> None:
        driver.check_query(query, TABLES)

    with spark_session(effective, folder, master=master, check=check) as spark:
        from latermq.pipeline.query.sql import run_query

        found, absent = run_query(
            spark, query, folder, namesrv, version=version, timestamp=moment, allow_partial=partial
        )
        print_frame(found, limit, as_json=json)
    print_absent(absent)


def print_frame(found: "DataFrame", limit: int, *, as_json: bool) -> None:
    """Print the first rows of a frame, and a note if there are more."""
    from latermq.pipeline.spark.spark_failures import spark_errors

    with spark_errors("the query"):
        rows = [as_plain(row.asDict()) for row in found.limit(limit + 1).collect()]
    print_rows(rows[:limit], {name: name for name in found.columns}, as_json=as_json, empty="no rows")
    if len(rows) > limit:
        print_note(f"there are more than {limit} rows; use --limit N to print more")


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
