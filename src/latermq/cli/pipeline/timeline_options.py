"""What the commands that ask or change many timers have in common: where the timeline is, and a Spark session."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from latermq.cli.output import print_note
from latermq.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from latermq.config import PipelineConfig

Timeline = Annotated[
    str | None,
    typer.Option("--timeline", metavar="URI", help="The folder with the timeline: the brokers' pipeline.timeline."),
]
Master = Annotated[
    str | None,
    typer.Option("--master", metavar="URL", help="Where Spark runs: local[1], spark://HOST:PORT, yarn or k8s://…"),
]
Job = Annotated[
    str | None,
    typer.Option("--job", metavar="NAME", help="Names the job: run again under it, nothing is done twice."),
]
Partial = Annotated[
    bool, typer.Option("--partial", help="Go on without brokers that are away; say whose timers are left out.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.")]


def tell_absent(absent: Sequence[str]) -> None:
    """Say what an answer lacks."""
    if absent:
        print_note(f"without what is in {', '.join(absent)}: not there")


def pipeline_config(
    config: Path | None, settings: list[str] | None, *, timeline: str | None, master: str | None
) -> "PipelineConfig":
    """The pipeline's settings; an option of its own goes above everything else."""
    from latermq.config import load_config

    options = {"pipeline.timeline": timeline, "pipeline.master": master}
    given = [f"{key}={value}" for key, value in options.items() if value is not None]
    return load_config(config, settings=[*(settings or ()), *given]).pipeline


@contextmanager
def spark_session(config: "PipelineConfig") -> "Iterator[SparkSession]":
    """Spark for one command; a session that is there already is used and left alone."""
    from latermq.pipeline.spark.requirements import check_requirements

    try:
        check_requirements()
    except ConfigError as error:
        if "java" in error.message:
            error.hint = "Install one and try again: apt-get install openjdk-17-jre-headless, or set JAVA_HOME"
        elif "not installed" in error.message:
            error.hint = f"Install them and try again: {sys.executable} -m pip install 'latermq[pipeline]'"
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
