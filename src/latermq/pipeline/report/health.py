"""The health of the pipeline: its driver, the lag and windows of each broker, and the size of the timeline.

All of it is read without Spark. What a missing driver or an unreachable broker would have told is left out.
"""

from typing import Any

import msgspec
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from latermq.config import PipelineConfig
from latermq.errors import LaterMQError
from latermq.model.pipeline_state import PipelineState
from latermq.pipeline.driver.brokers import masters
from latermq.pipeline.driver.known_stores import known_stores
from latermq.pipeline.driver.link import BrokerLink
from latermq.pipeline.remote.running_driver import look_up_driver
from latermq.pipeline.timeline.delta_reads import delta_reads
from latermq.pipeline.timeline.root import Root

_PATIENCE_S = 1.0
_HISTORY = 500  # commits in which the last compaction is looked for


class WindowHealth(msgspec.Struct, kw_only=True):
    """One of the last windows that have an attempt, finished or not."""

    window: int
    due_from_ms: int
    due_until_ms: int
    built_by: str
    epoch: int | None  # of the driver that built it
    rows: int | None
    is_finished: bool
    built_ms: int | None  # when
    took_ms: int | None


class BrokerHealth(msgspec.Struct, kw_only=True):
    """One broker, as it reports itself; only a name and an error if it does not answer."""

    broker: str
    address: str
    error: str = ""
    store_id: str = ""
    epoch: int = 0  # 0: no driver has ever begun
    lag_entries: int = 0
    lag_ms: int = 0
    keeps_far_timers: bool = False  # because ingest lags
    windows_ready: int = 0  # unfinished windows that have an attempt
    windows_waiting: int = 0
    deadline_ms: int | None = None  # when the broker builds the next waiting window itself
    built_by: dict[str, int] = {}  # since the start of the broker
    last_windows: list[WindowHealth] = []  # the latest last


class TableHealth(msgspec.Struct, kw_only=True):
    """One Delta table of the pipeline."""

    name: str
    version: int
    files: int
    size_bytes: int


class Health(msgspec.Struct, kw_only=True):
    """The whole pipeline."""

    timeline: str
    driver: dict[str, Any] | None = None  # as the driver describes itself
    driver_absent: str = ""  # why there is no description
    brokers: list[BrokerHealth] = []
    tables: list[TableHealth] = []
    table_error: str = ""
    last_compaction: dict[str, Any] | None = None
    stores: dict[str, str] = {}  # all stores that the timeline has seen, with broker names where known

    @property
    def is_good(self) -> bool:
        """Whether a driver runs, and no broker is unreachable, lags, or waits for a window past its deadline."""
        driver = self.driver or {}
        stalled = [feed for feed in driver.get("brokers", ()) if feed["error"]]
        return bool(driver) and not stalled and not any(one.error or one.keeps_far_timers for one in self.brokers)


def pipeline_health(root: Root, namesrv: str, config: PipelineConfig) -> Health:
    """Ask the driver, the brokers and the timeline."""
    health = Health(timeline=root.uri)
    driver, health.driver_absent = look_up_driver(config, root.uri)
    if driver is not None:
        try:
            health.driver = driver.status()
            health.last_compaction = health.driver.get("last_compaction")
        except LaterMQError as error:
            health.driver_absent = error.message
    health.brokers = [_broker_health(name, address) for name, address in masters(namesrv).items()]
    try:
        health.stores = known_stores(root)
        _measure_tables(root, health)
    except (LaterMQError, DeltaError, OSError, ValueError) as error:
        health.table_error = " ".join(str(error).split())[:300]
    return health


def _broker_health(name: str, address: str) -> BrokerHealth:
    try:
        with BrokerLink(address, patience_s=_PATIENCE_S) as link:
            return broker_health(name, address, link.state())
    except LaterMQError as error:
        return BrokerHealth(broker=name, address=address, error=error.message)


def broker_health(name: str, address: str, state: PipelineState) -> BrokerHealth:
    """The health of a broker from its own report."""
    ready = [window for window in state.windows if window.attempt]
    return BrokerHealth(
        broker=name,
        address=address,
        store_id=state.store_id,
        epoch=state.epoch,
        lag_entries=max(0, state.flushed_entry - state.ingest_offset) if state.epoch else 0,
        lag_ms=state.lag_ms,
        keeps_far_timers=state.keeps_far_timers,
        windows_ready=len(ready),
        windows_waiting=len(state.windows) - len(ready),
        deadline_ms=state.deadline_ms,
        built_by=state.built_by,
        last_windows=[
            WindowHealth(
                window=one.number,
                due_from_ms=one.from_ms,
                due_until_ms=one.until_ms,
                built_by=one.built_by,
                epoch=one.epoch,
                rows=one.rows,
                is_finished=one.is_finished,
                built_ms=one.built_ms,
                took_ms=one.took_ms,
            )
            for one in state.last_windows
        ],
    )


def _measure_tables(root: Root, health: Health) -> None:
    for name, address in (("timeline", root.timeline), ("archive", root.archive)):
        with delta_reads(root, address):
            try:
                table = DeltaTable(address, storage_options=root.delta_options)
            except TableNotFoundError:
                continue
            sizes = pa.table(table.get_add_actions(flatten=True)).column("size_bytes").to_pylist()
        health.tables.append(TableHealth(name=name, version=table.version(), files=len(sizes), size_bytes=sum(sizes)))
        if name == "timeline" and health.last_compaction is None:
            health.last_compaction = _last_compaction(table)


def _last_compaction(table: DeltaTable) -> dict[str, Any] | None:
    """The last rewrite of files in the table's history; when it ended, but not how long all of its steps took."""
    for commit in table.history(_HISTORY):
        if commit.get("operation") == "OPTIMIZE":
            return {"ended_ms": commit["timestamp"]}
    return None
