"""Spark's scheduler pools, one per kind of the driver's work, so that none of them waits until another is finished."""

from pyspark.sql import SparkSession

INGEST_POOL, ROLL_POOL, COMPACT_POOL, QUERY_POOL = "ingest", "roll", "compact", "query"


def use_pool(spark: SparkSession, pool: str) -> None:
    """Let the jobs of this thread share the cores fairly with those of other pools (spark.scheduler.mode)."""
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", pool)
