"""Far timers: the timeline that Spark maintains, the jobs that fill it, and the data source `latermq`."""

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "cancel", "connect", "make_report", "move", "open_session", "pending", "preview", "read_timeline", "register",
    "resume", "schedule", "session_settings", "with_bodies",
]  # fmt: skip

# The public functions for Spark users, imported on first use. Their modules load Spark, and a build without Spark must
# not wait for that.
_JOBS = {
    "cancel": "bulk.bulk",
    "connect": "remote.notebook",
    "make_report": "report.report",
    "move": "bulk.bulk",
    "open_session": "spark.session",
    "pending": "query.pending_timers",
    "preview": "bulk.bulk",
    "read_timeline": "query.pending_timers",
    "resume": "bulk.bulk",
    "schedule": "bulk.bulk_schedule",
    "session_settings": "spark.own_session",
    "with_bodies": "query.bodies",
}


def __getattr__(name: str) -> Any:
    if name not in _JOBS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_JOBS[name]}"), name)


def register(spark: "SparkSession") -> None:
    """Register `format("latermq")` with a session."""
    from latermq.pipeline.source import register as register_source

    register_source(spark)


def _register_with_active_session() -> None:
    """Register with a notebook's session on import.

    Builds without Spark import this module too and must not load Spark.
    """
    loaded = sys.modules.get("pyspark.sql")
    if loaded is not None and hasattr(loaded, "SparkSession"):  # pyspark itself may still be importing
        session = loaded.SparkSession.getActiveSession()
        if session is not None:
            register(session)


# Spark reads this when it starts. Its workers must use the Python that has this package, not the first on the PATH.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
_register_with_active_session()
