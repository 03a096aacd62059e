"""The data source `latermq`: topics, and the timer topic, as Spark tables and streams."""

import sys

from pyspark.errors import PySparkAttributeError
from pyspark.sql import SparkSession

from latermq.pipeline.source.options import CATALOG_SETTING, CATALOG_VARIABLE
from latermq.pipeline.source.source import LaterMQSource

__all__ = ["LaterMQSource", "register"]


# Variables that Spark sets for a stream's Python when the stream starts. It puts them into a map that all streams of a
# source share and that is not thread-safe. If two streams start together, both add them, the map counts them twice, and
# from then on no task of any stream can be deserialized ("java.io.OptionalDataException"). If the keys exist already,
# Spark only overwrites their values.
_SET_BY_STREAMS = ("SPARK_LOCAL_DIRS", "SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE", "SPARK_PYTHON_RUNTIME")


def register(spark: SparkSession) -> None:
    """Register `format("latermq")` with a session, which becomes the active one."""
    # Without this setting Spark refuses every source that accepts filters.
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    # Spark refuses a name that the active session knows, whichever session registers it. This makes it the active one.
    spark.createDataFrame([], "none int")
    _use_this_python(spark)
    environment = _environment_of(spark)  # the source gets a copy
    placeholders = {name: "" for name in _SET_BY_STREAMS if name not in environment}
    environment.update(placeholders)
    environment[CATALOG_VARIABLE] = spark.conf.get(CATALOG_SETTING, "") or ""
    try:
        spark.dataSource.register(LaterMQSource)
    finally:
        for name in (*placeholders, CATALOG_VARIABLE):
            del environment[name]


def _use_this_python(spark: SparkSession) -> None:
    """Let the source run in the Python that has this package, also in a local session that was started before."""
    try:
        context = spark.sparkContext
    except PySparkAttributeError:
        return
    if str(context.master).startswith("local") and context.pythonExec == "python3":
        context.pythonExec = sys.executable


def _environment_of(spark: SparkSession) -> dict[str, str]:
    """The variables of Python's workers. With Spark Connect the server has them, not this session."""
    try:
        return spark.sparkContext.environment
    except PySparkAttributeError:
        return {}
