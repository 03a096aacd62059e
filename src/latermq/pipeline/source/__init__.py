"""The data source `latermq`: topics, and the timer topic, as tables and streams of Spark."""

from pyspark.sql import SparkSession

from latermq.pipeline.source.source import LaterMQSource

__all__ = ["LaterMQSource", "register"]


# What Spark sets for the Python of a stream when it starts one, in a map that all streams of a source share and that is
# not made for it: two that start together each add these, the map counts them twice, and from then on no task of any
# stream can be read ("java.io.OptionalDataException"). What is there already is only set anew.
_SET_BY_STREAMS = ("SPARK_LOCAL_DIRS", "SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE", "SPARK_PYTHON_RUNTIME")


def register(spark: SparkSession) -> None:
    """Make `format("latermq")` known to a session."""
    # Without it Spark refuses every source that looks at filters.
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    environment = spark.sparkContext.environment  # of which the source gets a copy
    placeholders = {name: "" for name in _SET_BY_STREAMS if name not in environment}
    environment.update(placeholders)
    try:
        spark.dataSource.register(LaterMQSource)
    finally:
        for name in placeholders:
            del environment[name]
