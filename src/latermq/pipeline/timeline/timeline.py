"""The timeline: one Delta table with every timer of all brokers, and with the takers that end timers."""

from delta.tables import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

from latermq.errors import CorruptStore, StoreError
from latermq.pipeline.spark.spark_failures import first_line
from latermq.pipeline.timeline.local_timeline import SCHEMA_VERSION, SCHEMA_VERSION_PROPERTY, open_local_timeline
from latermq.pipeline.timeline.root import Root

SCHEMA = StructType(
    [
        StructField("store_id", StringType()),
        StructField("entry_offset", LongType()),
        StructField("timer_id", LongType()),
        StructField("kind", StringType()),
        StructField("due_ms", LongType()),
        StructField("topic", StringType()),
        StructField("unique_key", StringType()),
        StructField("keys", StringType()),
        StructField("tags", StringType()),
        StructField("record", BinaryType()),
        StructField("taker", IntegerType()),  # not a boolean, of which Delta keeps no statistics
        StructField("due", TimestampType()),  # the same as due_ms, so that conditions on it skip files
    ]
)
CLUSTERED_BY = ("store_id", "due_ms")
# Only features that delta-rs can read, because the broker builds windows without Spark when it must.
PROPERTIES = {
    SCHEMA_VERSION_PROPERTY: SCHEMA_VERSION,
    "delta.dataSkippingStatsColumns": "store_id,due_ms,due,taker,topic,entry_offset,timer_id",
    "delta.enableDeletionVectors": "false",
    "delta.columnMapping.mode": "none",
    "delta.enableTypeWidening": "false",
    "delta.checkpointPolicy": "classic",
    # A checkpoint takes two seconds. Without one a reader only opens a few more small files.
    "delta.checkpointInterval": "50",
    # Ingest commits every half minute. Compaction keeps files for as long.
    "delta.logRetentionDuration": "interval 7 days",
}
ARCHIVE_SCHEMA = StructType([field for field in SCHEMA if field.name != "record"])
ARCHIVE_PROPERTIES = {
    "delta.dataSkippingStatsColumns": "store_id,due_ms,timer_id",
    "delta.enableDeletionVectors": "false",
    "delta.checkpointPolicy": "classic",
}


def ingest_app(store_id: str) -> str:
    """The application id that counts a store's batches in the table's transactions."""
    return f"latermq-ingest-{store_id}"


def create_timeline(spark: SparkSession, root: Root) -> None:
    """Create the table unless it exists. A table with another schema version is refused."""
    known = open_local_timeline(root, "")
    if known is not None:
        if known.layout == 1:  # replaced by an old one since this driver started
            raise StoreError(f"the timeline {root.timeline} has schema version 1", hint="Restart the pipeline")
        return
    builder = DeltaTable.createIfNotExists(spark).location(root.timeline).addColumns(SCHEMA).clusterBy(*CLUSTERED_BY)
    for name, value in PROPERTIES.items():
        builder = builder.property(name, value)
    try:
        builder.execute()
    except PySparkException as error:
        if open_local_timeline(root, "") is not None:
            return  # the feed of another broker, or another driver, has created it at the same moment
        raise StoreError(
            f"the timeline {root.timeline} cannot be created: {first_line(error)}",
            hint="Check pipeline.timeline and its permissions",
        ) from error


def ingested_entry(root: Root, store_id: str) -> int:
    """The table holds all entries of a store below this one."""
    timeline = open_local_timeline(root, store_id)
    return timeline.ingested if timeline is not None else 0


def append(rows: DataFrame, root: Root, store_id: str, start: int, end: int, first_entry: int) -> bool:
    """Append the rows of a store's entries [start, end) exactly once, even if called again. Returns whether it wrote.

    The table counts entries, not the batches of a stream, so any driver can retry from any point. `first_entry` is the
    first entry that the broker still holds. Earlier entries no longer need the timeline.
    """
    ingested = ingested_entry(root, store_id)
    if end <= ingested:
        return False
    if start > max(ingested, first_entry):
        raise CorruptStore(
            f"the timeline {root.timeline} ends at entry {ingested} of store {store_id}; the batch begins at {start}",
            hint="Check whether the table was restored from an old backup; the driver does not skip missing entries",
        )
    if start < ingested:
        rows = rows.where(F.col("entry_offset") >= ingested)
    writer = rows.select(*SCHEMA.names).write.format("delta").mode("append")
    writer.option("txnAppId", ingest_app(store_id)).option("txnVersion", end).save(root.timeline)
    return True
