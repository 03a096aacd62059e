"""A running driver, as commands and notebooks use it: SQL and status over HTTP, sessions over Spark Connect."""

import http.client
import logging
import os
from collections.abc import Callable, Collection
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from latermq.config import PipelineConfig
from latermq.errors import LaterMQError, ServiceUnavailable, StoreError
from latermq.pipeline.query.bad_query import BadQuery
from latermq.pipeline.remote.driver_address import HOST, address_path, read_address
from latermq.pipeline.remote.sql_exchange import PATH as SQL_PATH
from latermq.pipeline.remote.sql_exchange import End, Failure, Progress, ResultRow, SqlRequest, read_frames

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONTROL_SETTING = "spark.latermq.control.port"
TIMELINE_SETTING = "spark.latermq.timeline"
NAMESRV_SETTING = "spark.latermq.namesrv"
PARALLELISM_SETTING = "spark.latermq.parallelism"
_TIMEOUT_S = 30.0  # the driver runs at a low priority, and may be building a window
_MAX_ANSWER_BYTES = 4 << 20
_RETRIES = 4  # pauses of 4 s together
_ERROR_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


class DriverUnreachable(ServiceUnavailable):
    """No driver answers at the address in the file: it has ended, or was replaced by another process."""


class SqlAnswer(NamedTuple):
    """The rows of a query, and the stores that they lack."""

    columns: list[str]
    rows: list[list[Any]]
    absent: list[str]


class RunningDriver:
    """The control endpoint of a driver on this machine."""

    def __init__(self, token: str, control_port: int, connect_port: int = 0) -> None:
        self._token = token
        self._control_port = control_port
        self.connect_port = connect_port

    def status(self) -> dict[str, Any]:
        """What the driver reports about itself and its brokers."""
        found: dict[str, Any] = self._call("GET", "/status")
        return found

    def check_query(self, query: str, tables: Collection[str]) -> set[str]:
        """Refuse anything but a query over these tables. Returns the tables that it names."""
        return set(self._call("POST", "/check-sql", {"query": query, "tables": sorted(tables)})["tables"])

    def check_expression(self, text: str) -> None:
        """Refuse an expression that does more than read its row."""
        self._call("POST", "/check-sql", {"expression": text})

    def open_session(self) -> "SparkSession":
        """A session in the driver's Spark."""
        return _open_session(self._token, self.connect_port)

    def run_sql(self, request: SqlRequest, show: Callable[[Progress], None] = lambda progress: None) -> SqlAnswer:
        """Run a query in the driver's process. It is cancelled if this call is interrupted, or its process ends."""
        with closing(self._connect()) as connection, self._send(connection, "POST", SQL_PATH, request) as answer:
            if answer.status != http.client.OK:
                raise _refusal(answer.status, _decoded(answer))
            rows = []
            try:
                for frame in read_frames(answer):
                    match frame:
                        case Progress():
                            show(frame)
                        case ResultRow(values):
                            rows.append(values)
                        case End(columns, absent):
                            return SqlAnswer(columns, rows, absent)
                        case Failure(message, hint, excerpt, True):
                            raise BadQuery(message, hint=hint, excerpt=excerpt)
                        case Failure(message, hint):
                            raise StoreError(message, hint=hint)
            except (OSError, EOFError, ValueError, http.client.HTTPException, msgspec.DecodeError):
                pass
        raise ServiceUnavailable("the driver ended during the query", hint="Try again")

    def _call(self, method: str, path: str, value: object = None) -> Any:
        with closing(self._connect()) as connection:
            answer = self._send(connection, method, path, value)
            status, found = answer.status, _decoded(answer)
        if status == http.client.OK:
            return found
        raise _refusal(status, found)

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(HOST, self._control_port, timeout=_TIMEOUT_S)

    def _send(
        self, connection: http.client.HTTPConnection, method: str, path: str, value: object
    ) -> http.client.HTTPResponse:
        """Send a request, and return the response with its headers."""
        body = b"" if value is None else msgspec.json.encode(value)
        try:
            connection.request(method, path, body, {"Authorization": f"Bearer {self._token}"})
            return connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise _unreachable(error) from None


def _decoded(answer: http.client.HTTPResponse) -> Any:
    try:
        return msgspec.json.decode(answer.read(_MAX_ANSWER_BYTES))
    except (OSError, http.client.HTTPException, msgspec.DecodeError) as error:
        raise _unreachable(error) from None


def _unreachable(error: Exception) -> DriverUnreachable:
    return DriverUnreachable(f"the driver does not answer: {error or type(error).__name__}")


def _refusal(status: int, found: Any) -> LaterMQError:
    """The error for an answer other than success."""
    if status == http.client.UNPROCESSABLE_ENTITY:
        return BadQuery(found["message"], hint=found["hint"], excerpt=found["excerpt"])
    if status == http.client.UNAUTHORIZED:
        return DriverUnreachable("the driver refuses the token in its file", hint="Restart the driver")
    return ServiceUnavailable(f"the driver answered {status}: {found.get('message')}", hint="See the driver's log")


class DriverLookup(NamedTuple):
    """A driver, or the reason why there is none to use."""

    driver: RunningDriver | None
    reason: str = ""


def look_up_driver(config: PipelineConfig, timeline: str) -> DriverLookup:
    """The driver that started last for a timeline on this machine, whether it still answers or not."""
    path = address_path(config, timeline)
    if path is None:
        return DriverLookup(None, "pipeline.connect_file is not set")
    try:
        address = read_address(path)
    except LaterMQError as error:
        return DriverLookup(None, error.message)
    if address is None:
        return DriverLookup(None, "no driver is running")
    return DriverLookup(RunningDriver(address.token, address.control_port, address.connect_port))


def find_driver(config: PipelineConfig, timeline: str) -> DriverLookup:
    """The driver of a timeline, if it runs on this machine, answers and offers Spark Connect."""
    driver, reason = look_up_driver(config, timeline)
    if driver is None:
        return DriverLookup(None, reason)
    try:
        driver.status()
    except LaterMQError as error:
        return DriverLookup(None, error.message)
    if not driver.connect_port:
        return DriverLookup(None, "the driver does not offer Spark Connect")
    return DriverLookup(driver)


def is_connect_session(spark: "SparkSession") -> bool:
    """Whether a session is a client of Spark Connect, without a JVM in its process."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def driver_of(spark: Any) -> RunningDriver:
    """The driver that a Connect session belongs to."""
    port = published(spark, CONTROL_SETTING)
    if not port:
        raise ServiceUnavailable(
            "this Spark Connect session does not belong to a LaterMQ driver, so SQL cannot be checked",
            hint="Open it with latermq.pipeline.connect(), or use a session without Spark Connect",
        )
    return RunningDriver(spark.client.token or "", int(port))


def published(spark: "SparkSession", setting: str) -> str:
    """A setting that the driver has published to its sessions; empty in other sessions."""
    return spark.conf.get(setting, "") or ""


def _open_session(token: str, port: int) -> "SparkSession":
    # gRPC's own log lines are about retries and belong to no user's terminal.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from pyspark.logger import PySparkLogger
    from pyspark.sql.connect.client import DefaultChannelBuilder
    from pyspark.sql.connect.client.retries import DefaultPolicy
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    # They print each error as a page of JSON, before it is raised.
    for name in _ERROR_LOGGERS:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)

    class _Loopback(DefaultChannelBuilder):
        """Spark sends tokens in plaintext only to `localhost`, which may resolve to a port of another user on ::1."""

        @property
        def endpoint(self) -> str:
            return f"{HOST}:{port}"

    # As `SparkSession.builder.remote` does: from now on `pyspark.sql.functions` builds expressions for Spark Connect.
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    channel = _Loopback(f"sc://localhost:{port}/;token={token}")
    session: Any = ConnectSession.builder.channelBuilder(channel).create()
    # A driver that has ended comes back at another port, so that Spark's patience of ten minutes would be for nothing:
    # a program would not even exit before, as it waits for the thread that releases what the driver held for it.
    session.client.set_retry_policies([DefaultPolicy(max_retries=_RETRIES)])
    return session  # type: ignore[no-any-return]


def close_connect_session(spark: "SparkSession") -> None:
    """Release a session of the driver, and let this process use Spark without Connect again."""
    try:
        spark.stop()
    finally:
        os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)
