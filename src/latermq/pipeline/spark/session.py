"""The Spark session of the pipeline: settings for one small machine, and few of them for a cluster."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from latermq.config import PipelineConfig
from latermq.pipeline.spark.jars import delta_jars
from latermq.pipeline.spark.requirements import check_java

APPLICATION = "latermq-pipeline"
STOP_TIMEOUT_S = 10.0

_DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # With cubes of the default size OPTIMIZE rewrites the whole table after each append: 45 s for 10 M rows, not 3.5 s.
    "spark.databricks.delta.optimize.clustering.mergeStrategy.minCubeSize.threshold": str(512 << 20),
    "spark.databricks.delta.optimize.clustering.targetCubeSize": str(768 << 20),
}
# Columns in which hardly any value comes twice: to look for those that do costs a fifth of an ingest.
_UNLIKE = ("record", "unique_key", "entry_offset", "timer_id")
_EVERYWHERE = {
    **{f"spark.hadoop.parquet.enable.dictionary#{column}": "false" for column in _UNLIKE},
    "spark.sql.session.timeZone": "UTC",
    # ${env:NAME} in a query would be the environment's, with the credentials that it holds.
    "spark.sql.variable.substitute": "false",
    # The parts of a window are a union of single partitions, which Spark would else put into one again.
    "spark.sql.unionOutputPartitioning": "false",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    # How often a stream without news asks for them; by default a hundred times a second.
    "spark.sql.streaming.pollingDelay": "500ms",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
# A commit of a few rows takes 0.5 s with these and 2.5 s with the defaults of 200 and 50 partitions.
_ONE_MACHINE = {
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC",
    "spark.broadcast.compress": "false",
    "spark.shuffle.compress": "false",
    # Queries here are small and planned once a batch: what adapting saves is less than what it costs.
    "spark.sql.adaptive.enabled": "false",
}


def is_one_machine(master: str) -> bool:
    """Whether Spark runs inside the driver's own process."""
    return master.startswith("local")


def session_settings(config: PipelineConfig) -> dict[str, str]:
    """Every setting of the session. On a cluster what its own spark-defaults.conf says of sizes is left alone."""
    settings = {
        **_DELTA,
        **_EVERYWHERE,
        "spark.driver.memory": f"{max(1, config.driver_memory >> 20)}m",
        "spark.jars": ",".join(map(str, delta_jars())),
        # Made at every start and never used: by default in the working directory, which may be nobody's.
        "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / f"latermq-warehouse-{os.getuid()}"),
    }
    if is_one_machine(config.master):
        settings |= _ONE_MACHINE
    return settings


def open_session(config: PipelineConfig | None = None) -> SparkSession:
    """Start Spark, or join the session that runs in this process; the data source `latermq` is known to it.

    Without a configuration Spark runs inside this process, with the defaults of `pipeline.*`.
    """
    from latermq.pipeline.source import register

    config = config or PipelineConfig()
    check_java()
    # The workers' Python must be the one that has this package.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(config.master).appName(APPLICATION)
    for name, value in session_settings(config).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def close_session(spark: SparkSession) -> None:
    """Stop Spark and its JVM, which would else stay until this process ends."""
    gateway = spark.sparkContext._gateway
    spark.stop()
    if gateway is None:
        return
    gateway.shutdown()
    jvm = gateway.proc
    if jvm.stdin is not None:
        jvm.stdin.close()  # which is what it waits for
    try:
        jvm.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        jvm.kill()
        jvm.wait()
    # A session opened later starts a JVM of its own.
    SparkContext._gateway = None
    SparkContext._jvm = None
