"""Settings for a Spark session of your own, and the error of a session without them."""

from latermq.errors import ConfigError
from latermq.pipeline.spark.jars import delta_jars

_NO_DELTA = "Failed to find the data source: delta"
_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"


def session_settings() -> dict[str, str]:
    """Settings that a session needs before it starts: Delta Lake's jars, for the timeline, and filters for topics.

    Spark's own catalog is kept, so that CREATE TABLE … USING latermq works too.
    """
    return {
        "spark.jars": ",".join(map(str, delta_jars())),
        "spark.sql.extensions": _EXTENSION,
        "spark.sql.python.filterPushdown.enabled": "true",
    }


def check_delta(error: BaseException) -> None:
    """Raise an error that says what to do, if Spark found no Delta Lake."""
    if _NO_DELTA in str(error):
        raise ConfigError(
            "this Spark session has no Delta Lake, which the timeline needs. A running session cannot load it",
            hint="Start it with SparkSession.builder.config(map=latermq.pipeline.session_settings()).getOrCreate(), or "
            "with latermq.pipeline.open_session(); stop the running one first",
        ) from error
