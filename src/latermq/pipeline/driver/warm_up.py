"""The first query of a Spark loads thousands of classes and compiles code for seconds. So a driver runs one itself.

It runs alongside ingest, in the pool of queries, and reads a small part of the timeline.
"""

import logging
import threading
import time

import pyarrow as pa

from latermq.errors import LaterMQError
from latermq.pipeline.driver.sql_service import SqlService
from latermq.pipeline.remote.sql_exchange import SqlRequest
from latermq.pipeline.timeline.local_timeline import open_local_timeline
from latermq.pipeline.timeline.root import open_root

# What most queries do: filter, group, sort and limit.
_QUERY = """
SELECT topic, date_trunc('day', due) AS day, count(*) AS timers, max(due) AS last FROM pending
WHERE due_ms = {due_ms} AND due >= timestamp_millis({due_ms}) GROUP BY 1, 2 ORDER BY 3 DESC, 1
"""

_log = logging.getLogger("latermq.pipeline")


def start_warm_up(queries: SqlService, timeline: str, namesrv: str) -> None:
    """Run the first query in the background."""
    threading.Thread(target=_warm_up, args=[queries, timeline, namesrv], name="latermq-warm-up", daemon=True).start()


def _warm_up(queries: SqlService, timeline: str, namesrv: str) -> None:
    began_s = time.monotonic()
    try:
        query = _QUERY.format(due_ms=_some_due_ms(timeline))
        queries.run(SqlRequest(query, timeline, namesrv, limit=1, allow_partial=True))
    except LaterMQError as error:  # no broker answers yet, for example. The first query is then slower
        _log.info("queries are not warmed up: %s", error.message)
    else:
        _log.info("queries are warmed up after %.1f s", time.monotonic() - began_s)


def _some_due_ms(timeline: str) -> int:
    """A due time in the smallest file of the timeline."""
    table = open_local_timeline(open_root(timeline), "")
    if table is None:
        return 0
    files = pa.table(table.table.get_add_actions(flatten=True))
    if not files.num_rows or "min.due_ms" not in files.schema.names:
        return 0
    return files.sort_by("size_bytes").column("min.due_ms")[0].as_py() or 0
