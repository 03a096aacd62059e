"""SQL queries of commands, run in the driver's own process: clients need neither Spark nor a session of it.

Each query has a session of its own, a thread, and a group of Spark jobs, which is cancelled when its client leaves.
"""

import contextlib
import datetime
import decimal
import itertools
import logging
import threading
from collections.abc import Generator
from typing import Any

import msgspec
from py4j.protocol import Py4JError
from pyspark.sql import Row, SparkSession

from latermq.errors import Busy, InvalidParameter, LaterMQError, StoreError
from latermq.pipeline.query.bad_query import TABLES
from latermq.pipeline.query.sql import run_query
from latermq.pipeline.remote.sql_exchange import (
    MAX_ROWS,
    End,
    Progress,
    ResultRow,
    SqlRequest,
    encode_frame,
    failure,
)
from latermq.pipeline.spark.pools import QUERY_POOL, use_pool
from latermq.pipeline.spark.spark_failures import spark_errors

MAX_QUERIES = 4  # at the same time: they share the driver's cores, and its memory for their results
_PROGRESS_EVERY_S = 0.5
_GROUP = "latermq-sql"

_log = logging.getLogger("latermq.pipeline")


class SqlService:
    """Runs a limited number of queries at a time, in sessions that are kept for later queries."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._idle: list[SparkSession] = []
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self.running = 0

    def statistics(self) -> dict[str, int]:
        return {"sql_queries": self.running, "max_sql_queries": MAX_QUERIES}

    def answer(self, body: bytes) -> Generator[bytes]:
        """The frames of the answer to a request. Closing the generator cancels the query."""
        try:
            query = self._start(_decode(body))
        except LaterMQError as error:
            yield encode_frame(failure(error))
            return
        try:
            yield from self._frames(query)
        finally:
            query.cancel()
            self._end()

    def _frames(self, query: "_Query") -> Generator[bytes]:
        while not query.finished.wait(_PROGRESS_EVERY_S):
            yield encode_frame(query.progress())
            yield b""
        if query.failure is not None:
            yield encode_frame(failure(query.failure))
            return
        for row in query.rows:
            yield encode_frame(ResultRow([portable(value) for value in row]))
        yield encode_frame(End(query.columns, list(query.absent)))

    def run(self, request: SqlRequest) -> None:
        """Run a query, and drop its rows."""
        query = self._start(request)
        query.join()
        self._end()
        if query.failure is not None:
            raise query.failure

    def _start(self, request: SqlRequest) -> "_Query":
        with self._lock:
            if self.running >= MAX_QUERIES:
                raise Busy(f"the driver runs {MAX_QUERIES} queries already", hint="Try again when one of them is done")
            self.running += 1
            session = self._idle.pop() if self._idle else None
        try:
            query = _Query(self, session or self._spark.newSession(), request, f"{_GROUP}-{next(self._numbers)}")
            query.start()
        except BaseException:
            self._end()
            raise
        return query

    def _end(self) -> None:
        """Note that a query has ended, and that its rows are not held any more: a client may read them slowly."""
        with self._lock:
            self.running -= 1

    def take_back(self, session: SparkSession) -> None:
        """Keep the session of a query for later ones."""
        with self._lock:
            self._idle.append(session)


class _Query(threading.Thread):
    """One query. When `finished` is set, it has either failed or has its rows."""

    def __init__(self, service: SqlService, session: SparkSession, request: SqlRequest, group: str) -> None:
        super().__init__(name=group, daemon=True)  # a driver that ends does not wait for its queries
        self._service = service
        self._session = session
        self._request = request
        self._group = group
        self._is_cancelled = False
        self.finished = threading.Event()
        self.failure: LaterMQError | None = None
        self.rows: list[Row] = []
        self.columns: list[str] = []
        self.absent: tuple[str, ...] = ()

    def run(self) -> None:
        try:
            self._run()
        except LaterMQError as error:
            self.failure = error
        except (Py4JError, OSError):  # no connection to the JVM, whose end the driver reports
            self.failure = StoreError("the driver's Spark has exited", hint="See the driver's log")
        except Exception:
            _log.warning("an SQL query failed", exc_info=True)
            self.failure = StoreError("the driver failed", hint="See the driver's log")
        finally:
            self._service.take_back(self._session)
            self.finished.set()

    def _run(self) -> None:
        use_pool(self._session, QUERY_POOL)
        self._session.sparkContext.setJobGroup(self._group, "latermq pipeline sql")
        try:
            self._collect(self._request)
        finally:
            with contextlib.suppress(Py4JError, OSError):  # the query has failed for the same reason
                for view in TABLES:
                    self._session.catalog.dropTempView(view)

    def _collect(self, request: SqlRequest) -> None:
        found, self.absent = run_query(
            self._session,
            request.query,
            request.timeline,
            request.namesrv,
            version=request.version,
            timestamp=request.timestamp,
            allow_partial=request.allow_partial,
        )
        self.columns = found.columns
        if not self._is_cancelled:
            with spark_errors("the query"):
                self.rows = found.limit(request.limit).collect()

    def progress(self) -> Progress:
        """The tasks of the query's current jobs."""
        tracker = self._session.sparkContext.statusTracker()
        done = total = running = 0
        for job in tracker.getJobIdsForGroup(self._group):
            info = tracker.getJobInfo(job)
            if info is None or info.status != "RUNNING":
                continue
            for number in info.stageIds:
                stage = tracker.getStageInfo(number)
                if stage is not None:
                    done, total = done + stage.numCompletedTasks, total + stage.numTasks
                    running += stage.numActiveTasks
        return Progress(done, total, running)

    def cancel(self) -> None:
        """Wait until the query has ended. Every job that it starts until then is cancelled."""
        self._is_cancelled = True
        while not self.finished.is_set():
            try:
                self._session.sparkContext.cancelJobGroup(self._group)
            except Py4JError:  # Spark is gone, and the query with it
                return
            self.finished.wait(_PROGRESS_EVERY_S)


def _decode(body: bytes) -> SqlRequest:
    try:
        request = msgspec.json.decode(body, type=SqlRequest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidParameter(f"not a valid request: {error}") from None
    if not 0 < request.limit <= MAX_ROWS:
        raise InvalidParameter(f"the limit must be 1–{MAX_ROWS}, not {request.limit}")
    return request


def portable(value: Any) -> Any:
    """A Spark value in types that MessagePack has. It has no decimals, dates and local times."""
    if isinstance(value, datetime.datetime):
        try:
            return value.astimezone(datetime.UTC)
        except (OverflowError, ValueError):  # not within the years 1–9999 there
            return value.isoformat()
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return float(value)
    if isinstance(value, Row):
        return {name: portable(entry) for name, entry in value.asDict().items()}
    if isinstance(value, dict):
        return {str(key): portable(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [portable(entry) for entry in value]
    return value
