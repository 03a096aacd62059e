"""Far timers: the timeline that Spark keeps, the jobs that fill it, and the data source `latermq`."""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["cancel", "make_report", "move", "open_session", "pending", "read_timeline", "register", "schedule"]

# What Spark's users call. Their modules load Spark, which those who roll without it must not wait for.
_JOBS = {
    "cancel": "bulk.bulk",
    "make_report": "report.report",
    "move": "bulk.bulk",
    "open_session": "spark.session",
    "pending": "query.pending_timers",
    "read_timeline": "query.pending_timers",
    "schedule": "bulk.bulk_schedule",
}


def __getattr__(name: str) -> Any:
    if name not in _JOBS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_JOBS[name]}"), name)


def register(spark: "SparkSession") -> None:
    """Make `format("latermq")` known to a session."""
    from latermq.pipeline.source import register as register_source

    register_source(spark)


def _register_with_active_session() -> None:
    """Importing is enough in a notebook. What rolls without Spark imports this too, and must not load Spark for it."""
    loaded = sys.modules.get("pyspark.sql")
    if loaded is not None and hasattr(loaded, "SparkSession"):  # it may be half-way through its own import
        session = loaded.SparkSession.getActiveSession()
        if session is not None:
            register(session)


_register_with_active_session()
