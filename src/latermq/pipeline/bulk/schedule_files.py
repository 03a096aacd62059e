"""Files and tables as rows to schedule: columns renamed or computed, and cast to the types of timers."""

from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, DataType, MapType, StructType

from latermq.errors import ConfigError
from latermq.pipeline.bulk.row_frames import COLUMNS, check_column_names
from latermq.pipeline.query.read_only_sql import check_expression
from latermq.pipeline.query.sql import run_user_sql

FORMATS = ("parquet", "csv", "json", "delta", "table")
_ENDINGS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}


def format_of(source: str) -> str:
    """The format of a source by its name. A folder with a Delta log is a Delta table.

    Any other name is that of a table.
    """
    path = Path(source)
    if "://" not in source and path.is_dir():
        return "delta" if (path / "_delta_log").is_dir() else "parquet"
    found = _ENDINGS.get(path.suffix.lower())
    if found is None and ("://" in source or path.exists()):
        raise ConfigError(f"the format of {source} is unknown", hint=f"Set --format to one of {', '.join(FORMATS)}")
    return found or "table"


def read_source(spark: SparkSession, source: str, format_: str | None = None) -> DataFrame:
    """The rows of a file, a folder or a table."""
    kind = format_ or format_of(source)
    if kind not in FORMATS:
        raise ConfigError(f"{kind} is not a supported format", hint=f"Use one of {', '.join(FORMATS)}")
    if kind == "table":
        return run_user_sql(lambda: spark.table(source))
    if "://" not in source and not Path(source).exists():
        raise ConfigError(f"there is no file {source}", hint="Check the path")
    # Escape a quote by doubling it. This is the usual convention, but not Spark's default.
    reader = spark.read.options(header=True, escape='"', multiLine=True) if kind == "csv" else spark.read
    # Spark resolves a path without a scheme in its default file system, which may not be the local one.
    path = source if "://" in source else Path(source).absolute().as_uri()
    return run_user_sql(lambda: reader.format(kind).load(path))


def timer_rows(source: DataFrame, columns: Mapping[str, str]) -> DataFrame:
    """The columns of timers from any source. `columns` gives SQL for some of them; the rest is found by name.

    Values that are not valid numbers, times or maps become NULL, and the row is then refused.
    """
    check_column_names(columns)
    named = {name: F.col(name) for name in COLUMNS if name in source.columns}
    for text in columns.values():
        check_expression(source.sparkSession, text)
    named |= {name: F.expr(text) for name, text in columns.items()}
    if not named:
        raise ConfigError(
            f"no column matches: the source has {', '.join(source.columns[:20])}",
            hint=f"Map columns, for example --column key=order_id. A timer has {', '.join(COLUMNS)}",
        )
    chosen = run_user_sql(lambda: source.select(*(column.alias(name) for name, column in named.items())))
    return chosen.select(*(_cast(name, chosen.schema[name].dataType).alias(name) for name in chosen.columns))


def _cast(name: str, type_: DataType) -> Column:
    column = F.col(name)
    if name in ("due_ms", "delay_ms"):
        return column.try_cast("bigint")
    if name == "due":
        return column.try_cast("timestamp")
    if name == "properties":
        return _properties(column, type_)
    if name == "body" and isinstance(type_, BinaryType):
        return column
    if name == "body" and isinstance(type_, StructType | MapType):
        return F.to_json(column)
    return column.cast("string")


def _properties(column: Column, type_: DataType) -> Column:
    if isinstance(type_, MapType):
        return column.cast("map<string,string>")
    text = F.to_json(column) if isinstance(type_, StructType) else column.cast("string")
    # Text that is not a JSON object must not pass as empty properties. It becomes a property without a name, which is
    # refused.
    unreadable = F.when(F.trim(text) != "", F.create_map(F.lit(""), text))
    return F.coalesce(F.from_json(text, "map<string,string>"), unreadable)
