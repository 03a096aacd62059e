"""A session of the running driver for notebooks and programs, with the format `latermq` and the views of timers."""

from pyspark.sql import SparkSession

from latermq.config import load_config
from latermq.errors import ServiceUnavailable
from latermq.pipeline.bulk.bulk_job import find_namesrv, find_root
from latermq.pipeline.query.bad_query import TIMELINE
from latermq.pipeline.query.pending_timers import pending, read_timeline
from latermq.pipeline.remote.running_driver import find_driver
from latermq.pipeline.source import register
from latermq.pipeline.timeline.local_timeline import open_local_timeline


def connect(root: str | None = None, namesrv: str | None = None, *, allow_partial: bool = False) -> SparkSession:
    """Open a session of the driver that runs on this machine.

    It knows `format("latermq")`, and the views `pending` and `timeline` as they are now. The driver is found like the
    commands find it: by the timeline's folder, which the brokers report. An unreachable broker is an error. With
    `allow_partial` a warning names it, and its timers are left out.
    """
    folder, servers = find_root(root, namesrv), find_namesrv(namesrv)
    driver, reason = find_driver(load_config().pipeline, folder.uri)
    if driver is None:
        raise ServiceUnavailable(
            f"there is no driver to connect to: {reason}",
            hint="Start one with `latermq serve` or `latermq pipeline run`, or use latermq.pipeline.open_session()",
        )
    spark = driver.open_session()
    register(spark)
    pending(spark, folder, servers, allow_partial=allow_partial)
    if open_local_timeline(folder, "") is not None:
        read_timeline(spark, folder).createOrReplaceTempView(TIMELINE)
    return spark
