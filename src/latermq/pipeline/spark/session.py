"""The pipeline's Spark session: settings for one small machine, and only a few of them for a cluster."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from latermq.client.session.credentials import SECRET_FILE, USER
from latermq.config import PipelineConfig
from latermq.errors import ConfigError
from latermq.pipeline.spark.jars import delta_jars
from latermq.pipeline.spark.jvm_output import JvmOutput
from latermq.pipeline.spark.requirements import check_java
from latermq.pipeline.spark.s3_jars import LOG_STORE_CLASS, s3_jars
from latermq.pipeline.spark.spark_failures import first_line
from latermq.pipeline.timeline.root import is_on_s3
from latermq.pipeline.timeline.s3 import executor_variables, hadoop_settings
from latermq.tls.client import VARIABLES as TLS_VARIABLES

APPLICATION = "latermq-pipeline"
STOP_TIMEOUT_S = 10.0

_DELTA_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # With the default cube size, OPTIMIZE rewrites the whole table after each append: 45 s for 10 M rows instead of 3.5
    # s.
    "spark.databricks.delta.optimize.clustering.mergeStrategy.minCubeSize.threshold": str(512 << 20),
    "spark.databricks.delta.optimize.clustering.targetCubeSize": str(768 << 20),
}
# Columns with almost no repeated values. Building dictionaries for them costs a fifth of an ingest, and bytes in the
# first part of each file.
_UNIQUE_COLUMNS = ("record", "unique_key", "keys", "entry_offset", "timer_id", "due_ms", "due")
_COMMON_SETTINGS = {
    **{f"spark.hadoop.parquet.enable.dictionary#{column}": "false" for column in _UNIQUE_COLUMNS},
    # A row takes a quarter less than with Snappy, at about the same cost.
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.hadoop.parquet.compression.codec.zstd.level": "1",
    # The default has no statistics in Parquet files, and 12 bytes.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.session.timeZone": "UTC",
    # Ingest, rolls and compaction run at the same time (pools.py).
    "spark.scheduler.mode": "FAIR",
    # Otherwise ${env:NAME} in a query would read the environment, which may hold credentials.
    "spark.sql.variable.substitute": "false",
    # The parts of a window are a union of single partitions, which Spark would otherwise merge into one.
    "spark.sql.unionOutputPartitioning": "false",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    # How often an idle stream checks for new data. The default is a hundred times per second.
    "spark.sql.streaming.pollingDelay": "500ms",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
# A commit of a few rows takes 0.5 s with these settings, and 2.5 s with the defaults of 200 and 50 partitions.
_LOCAL_SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC",
    "spark.broadcast.compress": "false",
    "spark.shuffle.compress": "false",
    # Queries here are small and planned once per batch, so adaptive execution costs more than it saves.
    "spark.sql.adaptive.enabled": "false",
    # Up to this many files are looked up without a job. Queries name theirs (MAX_NAMED_FILES in pending_timers.py).
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "256",
}
# Without the optimizing compiler, whose work pays off only after minutes.
_FAST_START = "-XX:TieredStopAtLevel=1"

_S3_SETTINGS = {
    # Without it two drivers can overwrite each other's commits.
    "spark.delta.logStore.s3a.impl": LOG_STORE_CLASS,
    "spark.hadoop.fs.s3a.create.conditional.enabled": "true",
    # The default input stream is in another library, for which these files are too small.
    "spark.hadoop.fs.s3a.input.stream.type": "classic",
    # S3 that fails for longer than this is reported, and the driver retries. By default S3A retries for minutes in
    # silence.
    "spark.hadoop.fs.s3a.attempts.maximum": "3",
    "spark.hadoop.fs.s3a.retry.limit": "4",
    "spark.hadoop.fs.s3a.retry.interval": "250ms",
    "spark.hadoop.fs.s3a.connection.establish.timeout": "5s",
    "spark.hadoop.fs.s3a.connection.timeout": "30s",
}


def is_local(master: str) -> bool:
    """Whether Spark runs inside the driver's own process."""
    return master.startswith("local")


def session_settings(config: PipelineConfig) -> dict[str, str]:
    """All settings of the session. On a cluster, the sizes in its spark-defaults.conf are left alone."""
    on_s3 = is_on_s3(config.timeline)
    settings = {
        **_DELTA_SETTINGS,
        **_COMMON_SETTINGS,
        **(_S3_SETTINGS if on_s3 else {}),
        **({f"spark.hadoop.{name}": value for name, value in hadoop_settings().items()} if on_s3 else {}),
        **({f"spark.executorEnv.{name}": value for name, value in executor_variables().items()} if on_s3 else {}),
        "spark.driver.memory": f"{max(1, config.driver_memory >> 20)}m",
        "spark.jars": ",".join(map(str, [*delta_jars(), *(s3_jars() if on_s3 else [])])),
        # Spark creates this folder at every start and never uses it. By default it is in the working directory, which
        # may not be writable.
        "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / f"latermq-warehouse-{os.getuid()}"),
    }
    # Executors connect to brokers as the driver does.
    # Not the secret itself, as these settings are on the command line of the JVM.
    variables = (*TLS_VARIABLES, USER, SECRET_FILE)
    settings |= {f"spark.executorEnv.{name}": os.environ[name] for name in variables if name in os.environ}
    if is_local(config.master):
        settings |= _LOCAL_SETTINGS
    return settings


def open_session(
    config: PipelineConfig | None = None, *, output: JvmOutput | None = None, starts_fast: bool = False
) -> SparkSession:
    """Start Spark or join this process's running session, and register the data source `latermq`.

    Without a configuration Spark runs inside this process, with the defaults of `pipeline.*`. With `output`, what a new
    JVM prints goes there instead of to the terminal. `starts_fast` is for a session that ends after one question.
    """
    from latermq.pipeline.source import register

    config = config or PipelineConfig()
    check_java()
    # The workers must use the Python that has this package.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = session_settings(config)
    if starts_fast and is_local(config.master):
        settings["spark.driver.extraJavaOptions"] += f" {_FAST_START}"
    if output is not None and SparkContext._gateway is None:
        launched = {"spark.master": config.master, "spark.app.name": APPLICATION, **settings}
        SparkContext._ensure_initialized(gateway=output.launch_jvm(launched))
    builder = SparkSession.builder.master(config.master).appName(APPLICATION)
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        spark = builder.getOrCreate()
    except (Py4JJavaError, PySparkException) as error:
        raise ConfigError(
            f"Spark cannot start: {first_line(error)}",
            hint="Check pipeline.master, pipeline.driver_memory and the spark-defaults.conf in SPARK_CONF_DIR",
        ) from error
    register(spark)
    return spark


def close_session(spark: SparkSession) -> None:
    """Stop Spark and its JVM, which would otherwise run until this process ends."""
    gateway = spark.sparkContext._gateway
    spark.stop()
    if gateway is None:
        return
    gateway.shutdown()
    jvm = gateway.proc
    if jvm.stdin is not None:
        jvm.stdin.close()  # the JVM exits when its stdin closes
    try:
        jvm.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        jvm.kill()
        jvm.wait()
    # A session opened later then starts a new JVM.
    SparkContext._gateway = None
    SparkContext._jvm = None
