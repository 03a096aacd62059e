"""What a running driver offers to this machine: its control endpoint, Spark Connect, and the file that names both."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Protocol

import msgspec
from pyspark.sql import SparkSession

from latermq.config import Config
from latermq.errors import InvalidParameter, StoreError
from latermq.pipeline.driver.driver_metrics import DriverMetrics
from latermq.pipeline.driver.sql_service import SqlService
from latermq.pipeline.driver.warm_up import start_warm_up
from latermq.pipeline.query.read_only_sql import check_expression, check_query
from latermq.pipeline.remote.control_server import ControlServer
from latermq.pipeline.remote.driver_address import (
    DriverAddress,
    address_path,
    new_token,
    remove_address,
    write_address,
)
from latermq.pipeline.remote.running_driver import (
    CONTROL_SETTING,
    NAMESRV_SETTING,
    PARALLELISM_SETTING,
    TIMELINE_SETTING,
)
from latermq.pipeline.remote.spark_connect import start_connect
from latermq.pipeline.remote.sql_exchange import PATH as SQL_PATH
from latermq.redaction import redacted

_log = logging.getLogger("latermq.pipeline")


class ReportsStatus(Protocol):
    """A driver that can describe itself."""

    def status(self) -> dict[str, Any]: ...


# Serves the metrics while its block runs.
ServeMetrics = Callable[[DriverMetrics], AbstractContextManager[None]]


def without_metrics(metrics: DriverMetrics) -> AbstractContextManager[None]:
    return nullcontext()


class _SqlCheck(msgspec.Struct, forbid_unknown_fields=True):
    query: str | None = None
    tables: list[str] = []
    expression: str | None = None


@contextmanager
def serve_driver(
    driver: ReportsStatus, spark: SparkSession, config: Config, timeline: str, serve_metrics: ServeMetrics
) -> Iterator[None]:
    """Offer a driver to commands, notebooks and monitoring for the duration of the block.

    A failure leaves the driver running, except that of a metrics port that was configured.
    """
    token = new_token()
    connect_port = 0

    def status() -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "master": config.pipeline.master,
            "connect_port": connect_port,
            **control.statistics(),
            **queries.statistics(),
            **driver.status(),
        }

    queries = SqlService(spark)
    control = ControlServer(
        token,
        {("GET", "/status"): lambda _: status(), ("POST", "/check-sql"): sql_checker(spark)},
        {("POST", SQL_PATH): queries.answer},
    )
    control.start()
    path = address_path(config.pipeline, timeline)
    if path is None:
        _log.warning("commands cannot find this driver: pipeline.connect_file is not set")
    elif config.pipeline.connect:
        published = {
            CONTROL_SETTING: str(control.port),
            TIMELINE_SETTING: redacted(timeline),
            NAMESRV_SETTING: config.server.namesrv,
            PARALLELISM_SETTING: str(spark.sparkContext.defaultParallelism),
        }
        connect_port = start_connect(spark, config.pipeline.connect_port, token, published)
        if connect_port:
            _log.info("Spark Connect listens on sc://localhost:%d; its token is in %s", connect_port, path)
    address = DriverAddress(token, control.port, connect_port, os.getpid())
    try:
        if path is not None:
            _publish(path, address)
            start_warm_up(queries, timeline, config.server.namesrv)
        with serve_metrics(DriverMetrics(status)):
            yield
    finally:
        if path is not None:
            remove_address(path, address)
        control.close()


def _publish(path: Path, address: DriverAddress) -> None:
    try:
        write_address(path, address)
    except StoreError as error:
        _log.warning("commands cannot find this driver: %s", error.remark)


def sql_checker(spark: SparkSession) -> Callable[[bytes], object]:
    """The check of a user's SQL, for clients that have no parser. The parser of this session is the one that counts."""

    def check(body: bytes) -> object:
        try:
            asked = msgspec.json.decode(body, type=_SqlCheck)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidParameter(f"not a valid request: {error}") from None
        if asked.query is not None:
            return {"tables": sorted(check_query(spark, asked.query, asked.tables))}
        check_expression(spark, asked.expression or "")
        return {"tables": []}

    return check
