"""Brokers, and the state that the event stream carries."""

import asyncio
from collections.abc import Mapping
from http import HTTPStatus

import msgspec

from latermq.client import Density
from latermq.errors import LaterMQError
from latermq.http.alerts.alert import Alert
from latermq.http.alerts.monitor import AlertMonitor
from latermq.http.api.density import DensityApi, DensityReport, density_report
from latermq.http.brokers import Brokers
from latermq.http.endpoint import Answer, Call, Endpoint

MAX_LIVE_ALERTS = 100  # in each state; GET /api/v1/alerts has all


class BrokerState(msgspec.Struct, omit_defaults=True):
    """A broker as it reports itself, or why it does not. `late_ms` is how late its deliveries are now."""

    broker: str
    address: str
    error: str = ""
    version: str = ""
    started_ms: int = 0
    messages_in: int = 0
    messages_out: int = 0
    messages_in_rate: float = 0.0
    messages_out_rate: float = 0.0
    pending_timers: int = 0
    timers_in_rate: float = 0.0
    timers_delivered_rate: float = 0.0
    late_ms: int = 0
    disk_used_ratio: float = 0.0


class BrokerList(msgspec.Struct):
    """All registered brokers."""

    brokers: list[BrokerState]


class LiveState(msgspec.Struct):
    """What the event stream carries once per second."""

    brokers: list[BrokerState]
    density: DensityReport
    alerts: list[Alert]


class ClusterApi:
    """The requests on brokers."""

    def __init__(self, brokers: Brokers, density: DensityApi, alerts: AlertMonitor) -> None:
        """`alerts` examines every state that is collected."""
        self._brokers = brokers
        self._density = density
        self._alerts = alerts

    @property
    def endpoints(self) -> list[Endpoint]:
        ok = HTTPStatus.OK
        return [
            Endpoint("GET", "/api/v1/brokers", self._list, "Show all brokers", {ok: BrokerList}, "cluster"),
            Endpoint("GET", "/api/v1/state", self._show_state, "Show the current state", {ok: LiveState}, "cluster"),
        ]

    async def collect(self) -> LiveState:
        """Ask all brokers for their state, and examine it."""
        try:
            masters = await self._brokers.masters()
        except LaterMQError as error:
            self._alerts.observe_failure(error)
            raise
        infos, counts = await asyncio.gather(self._infos(masters), self._counts())
        self._alerts.observe(masters, infos, None if isinstance(counts, LaterMQError) else counts[0])
        if isinstance(counts, LaterMQError):
            raise counts
        states = [_state(name, masters[name], info) for name, info in infos.items()]
        return LiveState(states, density_report(*counts), self._alerts.engine.firing()[:MAX_LIVE_ALERTS])

    async def _show_state(self, call: Call) -> Answer:
        return Answer(await self.collect())

    async def _list(self, call: Call) -> Answer:
        return Answer(BrokerList(await self._states()))

    async def _states(self) -> list[BrokerState]:
        masters = await self._brokers.masters()
        infos = await self._infos(masters)
        return [_state(name, masters[name], info) for name, info in infos.items()]

    async def _infos(self, masters: Mapping[str, str]) -> dict[str, dict[str, str] | LaterMQError]:
        return dict(zip(masters, await asyncio.gather(*map(self._info, masters.values())), strict=True))

    async def _info(self, address: str) -> dict[str, str] | LaterMQError:
        try:
            return await self._brokers.broker_runtime_info(address)
        except LaterMQError as error:
            return error

    async def _counts(self) -> tuple[Density, int] | LaterMQError:
        try:
            return await self._density.ask()
        except LaterMQError as error:
            return error


def _state(name: str, address: str, info: Mapping[str, str] | LaterMQError) -> BrokerState:
    if isinstance(info, LaterMQError):
        return BrokerState(name, address, info.message)
    in_rate, out_rate = (_number(info.get(rate, "").partition(" ")[0]) for rate in ("putTps", "getFoundTps"))
    return BrokerState(
        name,
        address,
        "",
        info.get("latermqVersion", ""),
        _count(info, "bootTimestamp"),
        _count(info, "putMessageTimesTotal"),
        _count(info, "msgGetTotalTodayNow"),
        in_rate,
        out_rate,
        _count(info, "timerCongestNum"),
        _number(info.get("timerEnqueueTps", "")),
        _number(info.get("timerDequeueTps", "")),
        _count(info, "timerReadBehind") * 1000,
        _number(info.get("commitLogDiskRatio", "")),
    )


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _count(info: Mapping[str, str], name: str) -> int:
    return int(_number(info.get(name, "")))
