"""Spark Connect in the driver's JVM: a gRPC server on loopback that accepts only clients with the driver's token."""

import logging
import socket
from collections.abc import Mapping
from contextlib import closing

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from latermq.pipeline.remote.driver_address import HOST

_log = logging.getLogger("latermq.pipeline")

_TOKEN = "spark.connect.authenticate.token"
_SETTINGS = {
    "spark.connect.grpc.binding.address": HOST,
    "spark.connect.progress.reportInterval": "500ms",  # the default of 2 s is longer than most queries
}


def start_connect(spark: SparkSession, port: int, token: str, published: Mapping[str, str]) -> int:
    """Start the server, and return its port; 0 if it cannot start, which must not end the driver.

    It is started here and not as a Spark plugin, because a plugin would read the token from a command line or from the
    environment, and would end Spark if its port is in use. `published` are settings that every later session can read.
    """
    if port and not _is_free(port):
        _log.warning("port %d is in use; Spark Connect uses another one", port)
        port = 0
    try:
        context = spark.sparkContext._jsc.sc()
        conf = context.conf()
        for name, value in {**published, **_SETTINGS, "spark.connect.grpc.binding.port": str(port)}.items():
            conf.set(name, value)
        service = spark.sparkContext._jvm.org.apache.spark.sql.connect.service  # type: ignore[union-attr]
        conf.set(_TOKEN, token)
        try:
            service.SparkConnectService.start(context)
        finally:
            conf.remove(_TOKEN)  # the server keeps its own copy, and sessions and executors must not read it
        return int(getattr(getattr(service, "SparkConnectService$"), "MODULE$").localPort())
    except Py4JError as error:
        _log.warning("Spark Connect cannot start: %s", str(error).partition("\n")[0])
        return 0


def _is_free(port: int) -> bool:
    with closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
