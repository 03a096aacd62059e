"""Options and the Spark session shared by the commands that query or change timers in bulk."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from latermq.cli.options import given_settings
from latermq.cli.output import print_note
from latermq.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from latermq.config import PipelineConfig
    from latermq.pipeline.remote.running_driver import RunningDriver

Timeline = Annotated[
    str | None,
    typer.Option("--timeline", metavar="URI", help="Timeline directory; default: the one that the brokers report."),
]
Master = Annotated[
    str | None,
    typer.Option("--master", metavar="URL", help="Spark master: local[1], spark://HOST:PORT, yarn or k8s://…"),
]
Job = Annotated[
    str | None,
    typer.Option("--job", metavar="NAME", help="Name of the job; repeating a job does nothing twice."),
]
Partial = Annotated[bool, typer.Option("--partial", help="Continue without unavailable brokers, and report them.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done without doing it.")]


def print_absent(absent: Sequence[str]) -> None:
    """Report the stores that a result does not include."""
    if absent:
        print_note(f"not included, because unavailable: {', '.join(absent)}")


def absent_field(absent: Sequence[str]) -> dict[str, list[str]]:
    """The same for the JSON output: a field `absent`, unless the result is complete."""
    return {"absent": list(absent)} if absent else {}


def pipeline_config(
    config: Path | None, settings: list[str] | None, *, timeline: str | None, master: str | None
) -> "PipelineConfig":
    """The pipeline's settings. The dedicated options override all other sources."""
    from latermq.config import load_config

    own = given_settings({"pipeline.timeline": timeline, "pipeline.master": master})
    return load_config(config, settings=[*(settings or ()), *own]).pipeline


def timeline_of(config: "PipelineConfig", namesrv: str) -> str:
    """The timeline's folder: as set, else the one that the brokers report. A path is absolute, for other processes."""
    from latermq.pipeline.driver.reported_timeline import reported_timeline

    folder = config.timeline or reported_timeline(namesrv)
    return folder if "://" in folder else str(Path(folder).absolute())


@contextmanager
def spark_session(
    config: "PipelineConfig",
    timeline: str,
    *,
    master: str | None,
    check: "Callable[[RunningDriver], object]" = lambda driver: None,
    starts_fast: bool = False,
) -> "Iterator[SparkSession]":
    """A Spark session for one command: of the running driver, else of a new Spark, which ends with the command.

    `check` is called with the driver before a session is opened, which takes seconds. With `master` a new Spark is
    started there, whether a driver runs or not. An existing session of this process is reused and stays open.
    """
    from latermq.cli.pipeline.job_progress import show_progress

    if has_session():
        from latermq.pipeline.spark.session import open_session

        yield open_session(config)
        return
    driver = None
    if master is None:
        from latermq.pipeline.remote.running_driver import find_driver

        driver, reason = find_driver(config, timeline)
        if driver is None:
            print_note(f"{reason}; starting Spark for this command, which takes some seconds")
    if driver is not None:
        from latermq.pipeline.remote.running_driver import close_connect_session

        check(driver)
        spark = driver.open_session()
        try:
            with show_progress(spark):
                yield spark
        finally:
            close_connect_session(spark)
        return
    with _new_spark(config, starts_fast=starts_fast) as spark, show_progress(spark):
        yield spark


def has_session() -> bool:
    """Whether this process has a Spark session already. Spark tells only of the current thread of its JVM."""
    spark, sql = sys.modules.get("pyspark"), sys.modules.get("pyspark.sql")  # importing them takes half a second
    if spark is None or sql is None:
        return False
    return spark.SparkContext._active_spark_context is not None or sql.SparkSession.getActiveSession() is not None


@contextmanager
def _new_spark(config: "PipelineConfig", *, starts_fast: bool) -> "Iterator[SparkSession]":
    from latermq.pipeline.spark.requirements import check_requirements

    try:
        check_requirements()
    except ConfigError as error:
        if "Java" in error.message:
            error.hint = "Install Java (apt-get install openjdk-17-jre-headless) or set JAVA_HOME"
        elif "not installed" in error.message:
            error.hint = f"Install them: {sys.executable} -m pip install 'latermq[pipeline]'"
        raise
    from latermq.pipeline.spark.jvm_output import JvmOutput
    from latermq.pipeline.spark.session import close_session, open_session

    spark = open_session(config, output=JvmOutput(), starts_fast=starts_fast)
    try:
        yield spark
    finally:
        close_session(spark)
