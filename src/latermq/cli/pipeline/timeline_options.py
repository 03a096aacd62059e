"""Options and the Spark session shared by the commands that query or change timers in bulk."""

import sys
from collections.abc import Iterator, Sequence
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

Timeline = Annotated[
    str | None,
    typer.Option("--timeline", metavar="URI", help="Timeline directory: the brokers' pipeline.timeline."),
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


@contextmanager
def spark_session(config: "PipelineConfig") -> "Iterator[SparkSession]":
    """A Spark session for one command. An existing session is reused and stays open."""
    from latermq.pipeline.spark.requirements import check_requirements

    try:
        check_requirements()
    except ConfigError as error:
        if "Java" in error.message:
            error.hint = "Install Java (apt-get install openjdk-17-jre-headless) or set JAVA_HOME"
        elif "not installed" in error.message:
            error.hint = f"Install them: {sys.executable} -m pip install 'latermq[pipeline]'"
        raise
    from pyspark.sql import SparkSession

    from latermq.pipeline.spark.session import close_session, open_session

    running = SparkSession.getActiveSession()
    spark = open_session(config)
    try:
        yield spark
    finally:
        if running is None:
            close_session(spark)
