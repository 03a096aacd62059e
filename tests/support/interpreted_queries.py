"""Spark queries without code generation, which takes most of the time for a few rows."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTINGS = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}


@contextmanager
def interpreted(spark: "SparkSession") -> Iterator[None]:
    """Let Spark interpret its plans inside the block."""
    for name, value in _SETTINGS.items():
        spark.conf.set(name, value)
    yield
    for name in _SETTINGS:
        spark.conf.unset(name)
