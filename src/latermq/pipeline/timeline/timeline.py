"""The timeline: one Delta table with every far timer, every cancel and every move of all brokers."""

from delta.tables import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

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
    ]
)
# Nothing that delta-rs could not read: the broker rolls without Spark when it must.
PROPERTIES = {
    SCHEMA_VERSION_PROPERTY: SCHEMA_VERSION,
    "delta.dataSkippingStatsColumns": "due_ms,timer_id",
    "delta.enableDeletionVectors": "false",
    "delta.columnMapping.mode": "none",
    "delta.enableTypeWidening": "false",
    "delta.checkpointPolicy": "classic",
    # A checkpoint takes two seconds; without one a reader opens some more small files.
    "delta.checkpointInterval": "50",
}


def ingest_app(store_id: str) -> str:
    """Under which name a store's batches are counted in the table's transactions."""
    return f"latermq-ingest-{store_id}"


def create_timeline(spark: SparkSession, root: Root) -> None:
    """Make the table unless it is there; one of another schema version is refused."""
    if open_local_timeline(root, "") is not None:
        return
    builder = DeltaTable.createIfNotExists(spark).location(root.timeline).addColumns(SCHEMA).clusterBy("due_ms")
    for name, value in PROPERTIES.items():
        builder = builder.property(name, value)
    try:
        builder.execute()
    except PySparkException as error:
        raise StoreError(
            f"the timeline {root.timeline} cannot be made: {first_line(error)}",
            hint="Check pipeline.timeline and who may write there",
        ) from error


def ingested_entry(root: Root, store_id: str) -> int:
    """The entries of a store below it are in the table."""
    timeline = open_local_timeline(root, store_id)
    return timeline.ingested if timeline is not None else 0


def append(rows: DataFrame, root: Root, store_id: str, start: int, end: int, first_entry: int) -> bool:
    """Append the rows of a store's entries [start, end) exactly once, however often this is called; whether it wrote.

    The table counts entries, not batches of some stream, so it does not matter who tries again, or from where.
    `first_entry` is the first one that the broker still has: what came before it needs no timeline.
    """
    ingested = ingested_entry(root, store_id)
    if end <= ingested:
        return False
    if start > max(ingested, first_entry):
        raise CorruptStore(
            f"the timeline {root.timeline} ends at entry {ingested} of store {store_id}, the batch begins at {start}",
            hint="Was an older copy of the table put back? What it lacks must not be passed over",
        )
    if start < ingested:
        rows = rows.where(F.col("entry_offset") >= ingested)
    writer = rows.select(*SCHEMA.names).write.format("delta").mode("append")
    writer.option("txnAppId", ingest_app(store_id)).option("txnVersion", end).save(root.timeline)
    return True
