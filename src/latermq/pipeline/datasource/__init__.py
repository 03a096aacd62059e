"""The data source `latermq`: topics, and the timer topic, as tables and streams of Spark."""

from pyspark.sql import SparkSession

from latermq.pipeline.datasource.source import LaterMQSource

__all__ = ["LaterMQSource", "register"]


def register(spark: SparkSession) -> None:
    """Make `format("latermq")` known to a session."""
    # Without it Spark refuses every source that looks at filters.
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(LaterMQSource)
