"""The options of the data source, parsed and checked once. docs/pipeline.md documents them for users."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass

from latermq.errors import ConfigError
from latermq.message.names import TIMER_TOPIC
from latermq.message.slots import SLOT_MS
from latermq.pipeline.driver.link import PULL_BYTES

EARLIEST, LATEST = "earliest", "latest"
DEFAULT_NAMESRV = "127.0.0.1:9876"

# Broker name → queue id → offset, where reading starts or ends.
Offsets = dict[str, dict[int, int]]

READ_OPTIONS = (
    "namesrv", "topic", "broker", "columns", "startingOffsets", "endingOffsets", "maxRowsPerTrigger",
    "minRowsPerTrigger", "maxTriggerDelayMs", "maxRowsPerPartition", "maxBytesPerPull",
    "failOnDataLoss", "importPrecisionMs", "epoch", "timeline",
)  # fmt: skip
WRITE_OPTIONS = ("job", "root", "timeZone")
# A table has one list of options, for reading and for writing.
OPTION_NAMES = (*READ_OPTIONS, *WRITE_OPTIONS)
# Options that Spark passes to every source, or that programs set for every source. They have no effect here.
SPARK_OPTIONS = (
    "path", "checkpointLocation", "queryName", "mergeSchema", "overwriteSchema", "recursiveFileLookup",
    "pathGlobFilter", "maxRecordsPerFile", "partitionOverwriteMode", "numPartitions",
)  # fmt: skip
# Spark passes the OPTIONS of a table of its catalog with and without this prefix, mixed with the table's properties.
_OF_TABLE = "option."
_TABLE_HINT = (
    "Spark ignores the options of a table created with columns: leave out the columns, or create a temporary view"
)
_KNOWN = {name.lower() for name in (*OPTION_NAMES, *SPARK_OPTIONS)}


# The session's catalog, which Spark does not tell a Python source. `register` passes it in a variable of the worker.
CATALOG_SETTING = "spark.sql.catalog.spark_catalog"
CATALOG_VARIABLE = "LATERMQ_SESSION_CATALOG"


@dataclass(frozen=True)
class SourceOptions:
    """What to read, its start and end offsets, and the size of the portions."""

    topic: str
    namesrv: str = DEFAULT_NAMESRV
    broker: str = ""
    columns: tuple[str, ...] = ()
    starting_offsets: str | Offsets = EARLIEST
    ending_offsets: str | Offsets = LATEST
    max_rows_per_trigger: int = 0  # 0: no limit
    min_rows_per_trigger: int = 0
    max_trigger_delay_ms: int = 60_000  # after this delay a smaller batch is read
    max_rows_per_partition: int = 200_000
    max_bytes_per_pull: int = PULL_BYTES
    fail_on_data_loss: bool = True
    import_precision_ms: int = SLOT_MS
    epoch: int | None = None
    timeline: bool = False

    @property
    def is_timer_topic(self) -> bool:
        return self.topic == TIMER_TOPIC


def is_catalog_table(given: Mapping[str, str]) -> bool:
    """Whether these are the options and properties of CREATE TABLE."""
    return "provider" in {name.lower() for name in given}


def check_catalog() -> None:
    """Refuse a table in a catalog that could not read it: any but Spark's own needs a source that is a Java class."""
    catalog = os.environ.get(CATALOG_VARIABLE, "")
    if catalog not in ("", "builtin"):
        raise ConfigError(
            f"a table USING latermq works only in Spark's own catalog, and {CATALOG_SETTING} is {catalog}",
            hint="Use CREATE TEMPORARY VIEW with the same options, or a session with Spark's own catalog: "
            f'tables = spark.newSession(); tables.conf.set("{CATALOG_SETTING}", "builtin"); '
            "latermq.pipeline.register(tables)",
        )


def checked_options(given: Mapping[str, str]) -> dict[str, str]:
    """The options by lower-case name. Refuses unknown ones, since a misspelled option must not pass unnoticed.

    The properties of a catalog table are not options, and its path is a folder of Spark's warehouse.
    """
    options = {name.lower(): value for name, value in given.items()}
    if is_catalog_table(options):
        options = {name.removeprefix(_OF_TABLE): one for name, one in options.items() if name.startswith(_OF_TABLE)}
    unknown = options.keys() - _KNOWN
    if unknown:
        raise ConfigError(f"unknown option: {', '.join(sorted(unknown))}", hint=f"Options: {', '.join(OPTION_NAMES)}")
    return options


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """Parse the options as Spark passes them: names in any case, values as strings."""
    options = checked_options(given)
    topic = options.get("topic") or options.get("path")
    if not topic:
        raise ConfigError("no topic is set", hint=f'Add .option("topic", "orders"). {_TABLE_HINT}')
    parsed = SourceOptions(
        topic=topic,
        namesrv=options.get("namesrv") or os.environ.get("NAMESRV_ADDR") or DEFAULT_NAMESRV,
        broker=options.get("broker", ""),
        columns=tuple(part.strip() for part in options.get("columns", "").split(",") if part.strip()),
        starting_offsets=_offsets("startingOffsets", options.get("startingoffsets", EARLIEST)),
        ending_offsets=_offsets("endingOffsets", options.get("endingoffsets", LATEST)),
        max_rows_per_trigger=_number(options, "maxRowsPerTrigger", 0, at_least=1),
        min_rows_per_trigger=_number(options, "minRowsPerTrigger", 0, at_least=0),
        max_trigger_delay_ms=_number(options, "maxTriggerDelayMs", 60_000, at_least=0),
        max_rows_per_partition=_number(options, "maxRowsPerPartition", 200_000, at_least=1),
        max_bytes_per_pull=_number(options, "maxBytesPerPull", PULL_BYTES, at_least=1),
        fail_on_data_loss=_truth(options, "failOnDataLoss", True),
        import_precision_ms=_number(options, "importPrecisionMs", SLOT_MS, at_least=0),
        epoch=_number(options, "epoch", 0, at_least=0) if "epoch" in options else None,
        timeline=_truth(options, "timeline", False),
    )
    if parsed.timeline and not parsed.is_timer_topic:
        raise ConfigError(f"the option timeline is only for topic {TIMER_TOPIC}", hint="Leave it out")
    if parsed.ending_offsets == EARLIEST:
        raise ConfigError("endingOffsets must be latest or JSON")
    return parsed


def _number(options: Mapping[str, str], name: str, default: int, *, at_least: int) -> int:
    text = options.get(name.lower())
    if text is None:
        return default
    if not (text.isascii() and text.isdigit()) or int(text) < at_least:
        raise ConfigError(f"option {name} is {text!r}", hint=f"It must be an integer of at least {at_least}")
    return int(text)


def _truth(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name.lower(), str(default)).lower()
    if text not in ("true", "false"):
        raise ConfigError(f"option {name} is {text!r}", hint="It must be true or false")
    return text == "true"


def _offsets(name: str, text: str) -> str | Offsets:
    if text.lower() in (EARLIEST, LATEST):
        return text.lower()
    try:
        return {
            str(broker): {int(queue): int(offset) for queue, offset in queues.items()}
            for broker, queues in json.loads(text).items()
        }
    except (ValueError, TypeError, AttributeError):
        raise ConfigError(
            f"option {name} is {text[:80]!r}",
            hint='It must be earliest, latest or JSON with broker, queue and offset: {"broker-a": {"0": 1200}}',
        ) from None
