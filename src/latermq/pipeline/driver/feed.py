"""One broker's feed: keeps its ingest stream running and builds its windows."""

import logging
import threading
import time
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from latermq.client.session.failures import ConnectionLost
from latermq.config import Config
from latermq.errors import ConfigError, CorruptStore, IllegalOperation, InvalidParameter, LaterMQError
from latermq.model.pipeline_state import PipelineState
from latermq.pipeline.driver.failure_log import FailureLog, error_name
from latermq.pipeline.driver.ingest import Ingest, IngestSettings
from latermq.pipeline.driver.link import BrokerLink
from latermq.pipeline.driver.store_ids import StoreIds
from latermq.pipeline.timeline.root import Root
from latermq.pipeline.timeline.table_sync import TableSync
from latermq.pipeline.windows.spark_build import build_ready_windows

_log = logging.getLogger("latermq.pipeline")

MAX_ROUND_S = 5.0
_PATIENCE_S = 2.0  # the next round retries
_STREAM_STOP_S = 5.0


@dataclass(frozen=True)
class FeedSettings:
    """The part of the configuration that concerns one broker's feed."""

    ingest: IngestSettings
    builds_windows: bool  # otherwise the broker does
    local_rows: int  # windows with at most so many rows are built without Spark
    round_s: float  # interval between two checks for work

    @classmethod
    def from_config(cls, config: Config) -> "FeedSettings":
        pipeline = config.pipeline
        ingest = IngestSettings(
            every_ms=int(pipeline.ingest_every),
            import_precision_ms=int(config.timer.import_precision),
            secret_file=pipeline.secret_file,
        )
        round_s = min(pipeline.ingest_every / 2000, MAX_ROUND_S)
        # A cluster has more cores and memory than the driver, and its executors write in parallel.
        is_auto = pipeline.roll_on == "auto" and pipeline.master.startswith("local")
        return cls(ingest, pipeline.roll_on != "local", pipeline.roll_spark_rows if is_auto else -1, round_s)


class _StoppedError(Exception):
    """The driver is stopping while a feed is working."""


class BrokerFeed:
    """The work for one broker, in its own thread, so that an unreachable broker does not delay the others."""

    def __init__(
        self,
        spark: SparkSession,
        root: Root,
        namesrv: str,
        broker: str,
        settings: FeedSettings,
        stop: threading.Event,
        *,
        table_sync: TableSync,
        store_ids: StoreIds,
    ) -> None:
        self._spark = spark
        self._root = root
        self._namesrv = namesrv
        self.broker = broker
        self._settings = settings
        self._stop = stop
        self._table_sync = table_sync
        self._store_ids = store_ids
        self._ingest: Ingest | None = None
        self._query: StreamingQuery | None = None
        self._link: BrokerLink | None = None
        self._failure_log = FailureLog(f"feed of {broker}")
        self.failure: LaterMQError | None = None  # neither this feed nor a new one can recover from it
        self.state: PipelineState | None = None  # the broker's latest report
        self.windows_built = 0
        # A daemon thread: a call to Spark that never returns must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name=f"latermq-feed-{broker}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread to end after the stop event is set. Returns whether it ended."""
        self._thread.join(max(0.0, timeout_s))
        return not self._thread.is_alive()

    def _run(self) -> None:
        pause_s = 0.0
        while not self._stop.wait(pause_s):
            try:
                self._step()
            except _StoppedError:
                break
            except Exception as error:
                if self._stop.is_set():
                    break  # Spark is shutting down
                self.failure = self._fatal_error(error)
                if self.failure is not None:
                    break
                self._disconnect()
                pause_s = self._failure_log.record_failure(error)
            else:
                self._failure_log.record_success()
                pause_s = self._settings.round_s
        self._end_stream()
        self._disconnect()

    def _step(self) -> None:
        if self._query is None:
            self._begin()
        assert self._query is not None
        if not self._query.isActive:
            error = self._query.exception()
            self._query = None
            raise error or ConnectionLost(f"the ingest stream of {self.broker} has stopped")
        self._check_ownership()
        assert self.state is not None
        if self._settings.builds_windows:
            build_ready_windows(
                self._spark,
                self._root,
                self.state,
                self._report_window,
                local_rows=self._settings.local_rows,
                fence=self._check_ownership,
                on_built=self._count_window,
            )

    def _check_ownership(self) -> None:
        """Fetch the broker's state. Check that this driver still owns it, and that no other broker has its store."""
        assert self._link is not None
        assert self._ingest is not None
        assert self._ingest.epoch is not None
        self.state = self._link.state()
        if self.state.epoch > self._ingest.epoch:
            raise _replaced_error(self.broker)
        try:
            if self.state.timeline != self._ingest.timeline:
                raise CorruptStore(
                    f"broker {self.broker} was restarted with another pipeline.timeline, {self.state.timeline}",
                    hint="The driver checks whether that is its own folder, and resumes if it is",
                )
            self._store_ids.check(self._ingest.address, self.state)
        except CorruptStore:
            self._end_stream()  # otherwise the stream would continue by itself
            raise

    def status(self) -> dict[str, Any]:
        """The broker's last report, and the error that stalls this feed. Any thread may call this."""
        state, ingest = self.state, self._ingest
        epoch = ingest.epoch if ingest is not None else None
        found: dict[str, Any] = {"broker": self.broker, "epoch": epoch, "error": self._failure_log.last_reason}
        found["windows_built"] = self.windows_built
        if state is not None:
            found |= {
                "store_id": state.store_id,
                "ingested": state.ingest_offset,
                "lag_entries": max(0, state.flushed_entry - state.ingest_offset),
                "lag_ms": state.lag_ms,
                "windows_waiting": sum(not window.attempt for window in state.windows),
            }
        return found

    def is_confirmed(self) -> bool:
        """Whether the broker confirms this driver. Raises if another driver has replaced it.

        Any thread may call this.
        """
        ingest = self._ingest
        if ingest is None or ingest.epoch is None:
            return False
        try:
            with BrokerLink(ingest.address, patience_s=_PATIENCE_S) as link:
                epoch = link.state().epoch
        except LaterMQError:  # it is unreachable, and may come back with another driver
            return False
        if epoch > ingest.epoch:
            raise _replaced_error(self.broker)
        return True

    def _begin(self) -> None:
        self._disconnect()
        self._ingest = Ingest(
            self._spark,
            self._root,
            self._namesrv,
            self.broker,
            self._settings.ingest,
            table_sync=self._table_sync,
            store_ids=self._store_ids,
        )
        self._link = self._ingest.open_link(patience_s=_PATIENCE_S)
        self._query = self._ingest.start()

    def _count_window(self) -> None:
        self.windows_built += 1

    def _report_window(self, number: int, attempt: str) -> None:
        assert self._link is not None
        assert self._ingest is not None
        assert self._ingest.epoch is not None
        try:
            self._link.window_ready(number, attempt, self._ingest.epoch)
        except LaterMQError as error:
            if error.code != InvalidParameter.code:
                raise
            _log.debug("window %d of %s is already finished", number, self.broker)
        if self._stop.is_set():
            raise _StoppedError

    def _fatal_error(self, error: Exception) -> LaterMQError | None:
        """The error to end the driver with, if any: unusable settings, or another driver has replaced this one."""
        if isinstance(error, ConfigError):
            return error
        if error_name(error) == IllegalOperation.__name__ and self._is_replaced():
            return _replaced_error(self.broker)
        return None

    def _is_replaced(self) -> bool:
        epoch = self._ingest.epoch if self._ingest is not None else None
        try:
            return epoch is not None and self._link is not None and self._link.state().epoch > epoch
        except LaterMQError:
            return False  # the next begin shows whether the broker refuses

    def _disconnect(self) -> None:
        if self._query is not None:
            return  # the stream is still running; only a separate request failed
        if self._ingest is not None:
            self._ingest.close()
        if self._link is not None:
            self._link.close()
        self._ingest = self._link = None

    def _end_stream(self) -> None:
        query, self._query = self._query, None
        if query is None:
            return
        try:
            # Stop between two batches. An interrupted batch is only repeated, but Spark logs it as a page of Java.
            give_up_s = time.monotonic() + _STREAM_STOP_S
            while query.status["isTriggerActive"] and time.monotonic() < give_up_s:
                time.sleep(0.05)
            query.stop()
        except Exception as error:
            _log.debug("the ingest stream of %s did not stop: %s", self.broker, error)


def _replaced_error(broker: str) -> IllegalOperation:
    return IllegalOperation(
        f"another driver has taken over broker {broker}",
        hint="One pipeline serves all brokers of a name server: stop one of the two",
    )
