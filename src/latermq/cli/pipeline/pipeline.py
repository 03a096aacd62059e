"""`latermq pipeline`: runs the Spark driver, which keeps far timers, and groups the commands for the timeline."""

import os
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from latermq.cli.options import ConfigFile, ParentPid, Settings, given_settings
from latermq.cli.pipeline import bulk, report, schedule, sql, status, windows
from latermq.cli.pipeline.timeline_options import Master
from latermq.cli.servers.part import run_part


class _RunByDefault(TyperGroup):
    """Runs the subcommand `run` if none is given, with the options that follow."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] != "--help"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_RunByDefault,
    help="Run the Spark driver for far timers (the default), or query and change timers in bulk.",
)


@app.command()
def run(
    namesrv: Annotated[
        str | None,
        typer.Option(
            "--namesrv",
            metavar="HOST:PORT",
            envvar="NAMESRV_ADDR",
            help="Name servers of the brokers to serve; separate several with ';'.",
        ),
    ] = None,
    master: Master = None,
    timeline: Annotated[
        str | None,
        typer.Option("--timeline", metavar="URI", help="Timeline directory; must be the same as the brokers'."),
    ] = None,
    nice: Annotated[
        int, typer.Option("--nice", metavar="N", min=0, max=19, help="Niceness of the process, as in nice(1).")
    ] = 0,
    config: ConfigFile = None,
    settings: Settings = None,
    parent_pid: ParentPid = None,
) -> None:
    """Run the Spark driver. It ingests far timers of all brokers, builds their windows and compacts the timeline.

    Prints one line that starts with "latermq ready" once Spark runs. SIGTERM and Ctrl-C stop it. Exits with 0 after a
    stop, with 1 if it fails later, and with 2 if it cannot start.

    Example: latermq pipeline --namesrv 10.0.0.5:9876 --master spark://10.0.0.9:7077 --timeline s3a://timers/timeline
    """
    from latermq.config import load_config

    own = given_settings({"server.namesrv": namesrv, "pipeline.master": master, "pipeline.timeline": timeline})
    effective = load_config(config, settings=[*(settings or ()), *own])
    if nice:
        os.nice(nice)

    def driver(ready: Callable[[str], None]) -> int:
        from latermq.pipeline.spark.requirements import check_requirements

        check_requirements()

        from latermq.config import DEFAULT_PIPELINE_METRICS_PORT
        from latermq.pipeline.driver.driver import run_pipeline
        from latermq.server.metrics_thread import serving_metrics

        host, port = effective.server.host, effective.metrics.pipeline_port
        return run_pipeline(
            effective,
            ready,
            lambda metrics: serving_metrics(
                metrics, effective, "metrics.pipeline_port", host, port, DEFAULT_PIPELINE_METRICS_PORT
            ),
        )

    raise typer.Exit(run_part("pipeline", effective, parent_pid, driver))


app.command("sql")(sql.sql)
app.command("schedule")(schedule.schedule)
app.command("cancel")(bulk.cancel)
app.command("move")(bulk.move)
app.command("report")(report.report)
app.command("windows")(windows.windows)
app.command("status")(status.status)
