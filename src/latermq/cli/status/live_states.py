"""The states of a cluster for the terminal, from the collector of the console's event stream."""

import asyncio
from types import TracebackType
from typing import Self, cast

import msgspec

from latermq.cli.status.probes import GroupLag, group_lags
from latermq.clock import Clock
from latermq.config import Config
from latermq.errors import LaterMQError
from latermq.http.alerts.monitor import AlertMonitor
from latermq.http.api.cluster import ClusterApi, LiveState
from latermq.http.api.density import DensityApi
from latermq.http.brokers import open_brokers
from latermq.http.collector import Collector

LAGS_EVERY_S = 5.0  # each group costs a request to every broker


class LiveStates:
    """The newest state, and what groups lag. Posts no alerts, and keeps no file."""

    def __init__(self, config: Config, clock: Clock) -> None:
        quiet = msgspec.structs.replace(config.alerts, webhook="", state_file="")
        self._brokers = open_brokers(config)
        self._alerts = AlertMonitor(quiet, clock, self._brokers.pipeline_state, lambda: "")
        cluster = ClusterApi(self._brokers, DensityApi(self._brokers), self._alerts)
        self._collector = Collector(cluster.collect, max_streams=1)
        self._lags: list[GroupLag] = []
        self._lags_s = float("-inf")
        self._asking: asyncio.Task[None] | None = None

    async def newest(self) -> LiveState:
        """Return a state that is at most a second old."""
        return cast(LiveState, await self._collector.newest())

    def lags(self) -> list[GroupLag]:
        """Return the groups that lag, as last known. They are asked for in the background."""
        now_s = asyncio.get_running_loop().time()
        if self._asking is None and now_s - self._lags_s >= LAGS_EVERY_S:
            self._asking = asyncio.create_task(self.ask_lags())
            self._asking.add_done_callback(self._on_asked)
        return self._lags

    async def ask_lags(self) -> None:
        """Ask for the groups that lag."""
        try:
            self._lags, _ = await group_lags(self._brokers)
        except LaterMQError:
            self._lags = []  # the state says what is wrong

    async def __aenter__(self) -> Self:
        await self._brokers.start()
        self._alerts.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
        await self._alerts.close()
        await self._brokers.close()

    def _on_asked(self, task: asyncio.Task[None]) -> None:
        self._asking = None
        self._lags_s = asyncio.get_running_loop().time()
