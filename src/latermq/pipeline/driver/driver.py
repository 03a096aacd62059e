"""The driver process: finds brokers, runs a feed for each, compacts periodically, and stops on a signal."""

import contextlib
import dataclasses
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from latermq.config import Config
from latermq.errors import ConfigError, LaterMQError, ServiceUnavailable, StoreError
from latermq.pipeline.driver.brokers import masters
from latermq.pipeline.driver.driver_service import ServeMetrics, serve_driver, without_metrics
from latermq.pipeline.driver.failure_log import FailureLog
from latermq.pipeline.driver.feed import BrokerFeed, FeedSettings
from latermq.pipeline.driver.store_ids import StoreIds
from latermq.pipeline.spark.commit_probe import probe_commits
from latermq.pipeline.spark.jvm_output import JvmOutput
from latermq.pipeline.spark.pools import COMPACT_POOL, use_pool
from latermq.pipeline.spark.session import close_session, open_session
from latermq.pipeline.timeline.compact import compact
from latermq.pipeline.timeline.data_files import data_files
from latermq.pipeline.timeline.local_timeline import LocalTimeline, open_local_timeline
from latermq.pipeline.timeline.migration import migrate
from latermq.pipeline.timeline.root import Root, file_errors, open_root
from latermq.pipeline.timeline.store_probe import probe_files
from latermq.pipeline.timeline.table_sync import TableSyncs
from latermq.pipeline.timeline.torn_commits import remove_torn_commits
from latermq.pipeline_secret import secret_path
from latermq.redaction import redacted
from latermq.visible_text import visible

_log = logging.getLogger("latermq.pipeline")

LOOKUP_EVERY_S = 5.0  # how often to look for new brokers
_WATCH_EVERY_S = 0.5
_URGENT_EVERY_S = 60.0  # how often unplaced takers and new files are counted
_JOIN_S = 10.0
_EXIT_S = 5.0
_CLOSE_S = 20.0  # after this the JVM is killed
# A failure reaches us as an exception and is logged in one line. These loggers would add a page of Java stack trace,
# for example at every broker restart. Clients of Spark Connect get their errors themselves.
_NOISY_LOGGERS = (
    "org.apache.spark.sql.connect",
    "org.apache.spark.sql.execution.streaming",
    "org.apache.spark.sql.execution.datasources",
    "org.apache.spark.sql.execution.python",
    "org.apache.spark.sql.delta",
    "org.apache.spark.api.python",
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.util.Utils",
)


class Driver:
    """All work on one timeline. `run` belongs to one thread; each feed and the compaction have their own threads."""

    def __init__(
        self, spark: SparkSession, root: Root, namesrv: str, config: Config, stop: threading.Event, output: JvmOutput
    ) -> None:
        self._spark = spark
        self._output = output
        self._root = root
        self._namesrv = namesrv
        self._config = config
        self._stop = stop
        self._feed_settings = FeedSettings.from_config(config)
        self._table_syncs = TableSyncs(root)
        self._store_ids = StoreIds()
        self.feeds: dict[str, BrokerFeed] = {}
        self.compactions = 0
        self.last_compaction: dict[str, Any] | None = None
        self._since_ms = time.time_ns() // 1_000_000
        self._lookup_log = FailureLog("broker lookup")
        self._compactor = threading.Thread(target=self._compact_periodically, name="latermq-compact", daemon=True)

    def run(self) -> None:
        """Work until the stop event is set. Raises any error that the driver cannot recover from."""
        self._compactor.start()
        lookup_at_s = 0.0
        try:
            while True:
                if time.monotonic() >= lookup_at_s:
                    lookup_at_s = time.monotonic() + self._find_brokers()
                if self._stop.wait(_WATCH_EVERY_S):
                    return
                self._watch()
        finally:
            self._stop.set()
            self._join_feeds()

    def status(self) -> dict[str, Any]:
        """What the driver knows about itself and its brokers. Any thread may call this."""
        return {
            "since_ms": self._since_ms,
            "compactions": self.compactions,
            "last_compaction": self.last_compaction,
            "brokers": [feed.status() for feed in list(self.feeds.values())],
        }

    def _find_brokers(self) -> float:
        """Start feeds for new brokers, and return the seconds until the next look."""
        try:
            found = masters(self._namesrv)
        except ConfigError:
            raise
        except LaterMQError as error:
            return self._lookup_log.record_failure(error)
        self._lookup_log.record_success()
        self._store_ids.add_addresses(found.values())
        for name in found:
            if name not in self.feeds:
                _log.info("broker %s found at %s", name, found[name])
                self.feeds[name] = BrokerFeed(
                    self._spark,
                    self._root,
                    self._namesrv,
                    name,
                    self._feed_settings,
                    self._stop,
                    table_sync=self._table_syncs.timeline,
                    store_ids=self._store_ids,
                )
                self.feeds[name].start()
        return LOOKUP_EVERY_S

    def _watch(self) -> None:
        """Raise any failure that must end the driver."""
        for feed in self.feeds.values():
            if feed.failure is not None:
                raise feed.failure
        if has_exited(self._spark):
            raise self._end_of_spark()

    def _end_of_spark(self) -> StoreError:
        """Why Spark is gone, as far as it can be seen."""
        if self._output.tells_of_lack_of_memory():
            return StoreError(
                "Spark ran out of memory and has exited",
                hint="Raise pipeline.driver_memory, or use --master for what needs more",
            )
        process = getattr(self._spark.sparkContext._gateway, "proc", None)
        if process is not None and _exit_status(process) == -signal.SIGKILL:
            return StoreError(
                "Spark has exited: it was killed",
                hint="If the system did it for lack of memory (see dmesg), lower pipeline.driver_memory or free memory",
            )
        return StoreError("Spark has exited", hint="See its output above for the reason, then restart the pipeline")

    def _compact_periodically(self) -> None:
        every_s = self._config.pipeline.compact_every / 1000
        failure_log = FailureLog("compaction")
        use_pool(self._spark, COMPACT_POOL)
        pause_s = every_s
        while self._wait_for_compaction(pause_s):
            states = [feed.state for feed in list(self.feeds.values()) if feed.state is not None]
            try:
                keep_ms = int(self._config.pipeline.keep)
                done = compact(
                    self._spark,
                    self._root,
                    states,
                    keep_ms=keep_ms,
                    archive_keep_ms=int(self._config.pipeline.archive_keep),
                    fence=self._check_ownership,
                    table_syncs=self._table_syncs,
                )
            except Exception as error:
                if self._stop.is_set():
                    return
                pause_s = max(failure_log.record_failure(error), min(every_s, 60.0))
            else:
                failure_log.record_success()
                self.compactions += 1
                self.last_compaction = {"ended_ms": time.time_ns() // 1_000_000, **dataclasses.asdict(done)}
                pause_s = every_s

    def _wait_for_compaction(self, pause_s: float) -> bool:
        """Wait for the next compaction, less long if there is much to do. False if the driver stops."""
        end_s = time.monotonic() + pause_s
        while (left_s := end_s - time.monotonic()) > 0:
            if self._stop.wait(min(left_s, _URGENT_EVERY_S)):
                return False
            with contextlib.suppress(LaterMQError):  # the table cannot be read now, which ingest reports
                timeline = open_local_timeline(self._root, "")
                if timeline and self._is_urgent(timeline):
                    return True
        return not self._stop.is_set()

    def _is_urgent(self, timeline: LocalTimeline) -> bool:
        new_bytes = sum(file.size_bytes for file in data_files(timeline.table) if not file.is_sorted)
        limits = self._config.pipeline
        return new_bytes > limits.compact_new or timeline.unplaced_takers() > limits.compact_unplaced

    def _check_ownership(self) -> None:
        """Raise unless this driver still owns the timeline.

        No broker may have another driver, and one must confirm this one.
        """
        confirmed = [feed.broker for feed in list(self.feeds.values()) if feed.is_confirmed()]
        if not confirmed:
            raise ServiceUnavailable("no broker confirms this driver", hint="The driver retries")

    def _join_feeds(self) -> None:
        give_up_s = time.monotonic() + _JOIN_S
        for feed in self.feeds.values():
            if not feed.join(give_up_s - time.monotonic()):
                _log.warning("the feed of %s did not stop in time", feed.broker)


def run_pipeline(config: Config, ready: Callable[[str], None], serve_metrics: ServeMetrics = without_metrics) -> int:
    """Run the driver until SIGTERM or SIGINT, and return the exit code."""
    if not config.server.namesrv:
        raise ConfigError("no name server is set", hint="Set --namesrv HOST:PORT to the brokers' name server")
    if not config.pipeline.timeline:
        raise ConfigError(
            "no timeline is set", hint="Set --timeline or pipeline.timeline to the folder that the brokers use"
        )
    for handler in logging.getLogger().handlers:
        handler.addFilter(_is_relevant)
    root = open_root(config.pipeline.timeline)
    secret_path(config.pipeline.secret_file, root.uri)  # checks the setting only: the feeds wait for a missing file
    check_folder(root)
    # The default of the option `namesrv` in sessions of Spark Connect, whose sources run in Python workers of the JVM.
    os.environ["NAMESRV_ADDR"] = config.server.namesrv
    output = JvmOutput(_print_line)
    spark = open_session(config.pipeline, output=output)
    stop = threading.Event()
    # Not earlier: Spark installs its own handler, and until now there is no work to lose.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    _silence_loggers(spark)
    try:
        probe_commits(spark, root)
        migrate(spark, root)
        driver = Driver(spark, root, config.server.namesrv, config, stop, output)
        with serve_driver(driver, spark, config, root.uri, serve_metrics):
            ready(f"pipeline {config.pipeline.master}")
            driver.run()
    finally:
        _log.info("stopping")
        _close(spark)
    return 0


def _print_line(line: str) -> None:
    """Pass on what the JVM prints, such as the reason of its end."""
    sys.stderr.write(f"{visible(redacted(line))}\n")


def _is_relevant(record: logging.LogRecord) -> bool:
    """Whether to log a record. Py4J logs every connection that opens or closes, also through the root logger.

    An error that Py4J logs with a stack trace is also raised, and the caller reports it in one sentence.
    """
    return "py4j" not in record.pathname or (record.levelno >= logging.WARNING and not record.exc_info)


def check_folder(root: Root) -> None:
    """Report or repair problems of the folder before Spark spends seconds on its start."""
    with file_errors(f"the timeline {root.uri}"):
        root.files.create_dir(root.path, recursive=True)
    probe_files(root)
    for address in (root.timeline, root.archive):
        remove_torn_commits(root, address)
    open_local_timeline(root, "")


def has_exited(spark: SparkSession) -> bool:
    """Whether Spark is gone: its JVM was killed, or it stopped itself, for example when a cluster's master is lost."""
    gateway = spark.sparkContext._gateway
    process = getattr(gateway, "proc", None)  # None if Spark started this process rather than the reverse
    if process is not None and process.poll() is not None:
        return True
    try:
        return bool(spark.sparkContext._jsc.sc().isStopped())
    except Py4JError:  # it died during the call
        return True


def _exit_status(process: "subprocess.Popen[bytes]") -> int | None:
    """The status of a JVM that no longer answers. A killed one closes its sockets before it can be waited for."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return process.wait(_EXIT_S)
    return None


def _silence_loggers(spark: SparkSession) -> None:
    log4j = spark.sparkContext._gateway.jvm.org.apache.logging.log4j  # type: ignore[union-attr]
    for name in _NOISY_LOGGERS:
        log4j.core.config.Configurator.setLevel(name, log4j.Level.OFF)


def _close(spark: SparkSession) -> None:
    """Stop Spark, and kill it if that takes too long. Interrupted work is repeated later."""
    process = getattr(spark.sparkContext._gateway, "proc", None)
    if process is not None and process.poll() is not None:
        return
    watchdog = threading.Timer(_CLOSE_S, process.kill if process is not None else lambda: os._exit(1))
    watchdog.daemon = True
    watchdog.start()
    try:
        spark.sparkContext.setLogLevel("OFF")  # interrupted jobs lose nothing, so their errors are noise
        spark.sparkContext.cancelAllJobs()
        close_session(spark)
    except Exception as error:
        _log.warning("stopping Spark failed: %s", error)
    finally:
        watchdog.cancel()
