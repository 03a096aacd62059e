"""What `latermq status` shows: every part of a server or a cluster with its state, and the groups that lag."""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from latermq.addresses import connectable
from latermq.cli.output import counted
from latermq.cli.status.probes import (
    PROBE_TIMEOUT_S,
    GroupLag,
    Probe,
    group_lags,
    probe_broker,
    probe_name_server,
    probe_port,
)
from latermq.config import Config, Duration
from latermq.errors import LaterMQError
from latermq.http.brokers import Brokers, name_servers_of, open_brokers
from latermq.server.serve_record import READY, STARTING, PartRecord, ServeRecord

UP, DOWN, OFFLINE = "up", "down", "offline"
NAME_SERVER, BROKER, PIPELINE = "name server", "broker", "pipeline"


class PartStatus(NamedTuple):
    """One part. `state` is up, starting, restarting, down, or offline for a broker that the name servers miss."""

    part: str
    state: str
    address: str
    version: str = ""
    started_ms: int = 0
    detail: str = ""

    @property
    def is_good(self) -> bool:
        return self.state in (UP, STARTING)


class Overview(NamedTuple):
    """The state of everything. `groups` is None if it could not be asked for."""

    parts: list[PartStatus]
    lagging: list[GroupLag] | None
    groups: int = 0

    @property
    def is_good(self) -> bool:
        return all(part.is_good for part in self.parts)


async def overview_of(config: Config, record: ServeRecord | None) -> Overview:
    """Ask all parts of a server that wrote this record, or without one all that the name servers know."""
    parts = [] if record is None else list(await asyncio.gather(*(_part(config, record, one) for one in record.parts)))
    if record is None:
        servers = [server for server in name_servers_of(config).split(";") if server]
        parts += await asyncio.gather(*(_name_server(config, server) for server in servers))
    found = None
    async with _client(config, name_servers_of(config)) as brokers:
        parts += await _registered(brokers, parts)
        with contextlib.suppress(LaterMQError):
            found = await group_lags(brokers)
    lagging, groups = (None, 0) if found is None else found
    return Overview(parts, lagging, groups)


async def _part(config: Config, record: ServeRecord, part: PartRecord) -> PartStatus:
    """A part of `serve`: what the supervisor wrote, and whether it answers."""
    restarts = f"{counted(part.restarts, 'restart')}, the last after: {part.reason}" if part.restarts else ""
    if part.state != READY:
        state = part.state if part.state != STARTING or not part.restarts else "restarting"
        return PartStatus(part.name, state, part.address, record.version, 0, restarts)
    # A driver's ready line names its Spark master, which is not an address of its own.
    address = part.address if part.name == PIPELINE else connectable(part.address)
    if part.name == PIPELINE:
        probe = Probe(True)
    elif part.name == NAME_SERVER:
        probe = await _ask_name_server(config, address)
    elif part.name == BROKER:
        probe = await _ask_broker(config, address)
    else:
        probe = await probe_port(address)
    details = "; ".join(filter(None, (probe.detail, restarts)))
    return PartStatus(
        part.name,
        UP if probe.is_up else DOWN,
        address,
        probe.version or record.version,
        probe.started_ms or part.since_ms,
        details,
    )


async def _name_server(config: Config, address: str) -> PartStatus:
    probe = await _ask_name_server(config, address)
    return PartStatus(NAME_SERVER, UP if probe.is_up else DOWN, address, detail=probe.detail)


async def _ask_name_server(config: Config, address: str) -> Probe:
    async with _client(config, address) as client:
        return await probe_name_server(client)


async def _ask_broker(config: Config, address: str) -> Probe:
    async with _client(config, name_servers_of(config)) as client:
        return await probe_broker(client, address)


def _client(config: Config, namesrv: str) -> Brokers:
    # Less than a probe may take, so that the error of the last try is known and not only the time.
    timeout = min(config.http.broker_timeout, Duration(PROBE_TIMEOUT_S * 800))
    http = msgspec.structs.replace(config.http, namesrv=namesrv, broker_timeout=timeout)
    return open_brokers(msgspec.structs.replace(config, http=http))


async def _registered(brokers: Brokers, listed: list[PartStatus]) -> list[PartStatus]:
    """The brokers that the name servers know, without those that are listed already, maybe at another address."""
    known = {part.address for part in listed}
    same = {(part.address.rpartition(":")[2], part.started_ms) for part in listed if part.part == BROKER}
    try:
        found, offline = await asyncio.gather(brokers.brokers(), brokers.offline())
    except LaterMQError:
        return []  # the name server is listed as down
    places = [
        (broker.brokerName, address)
        for broker in found
        for _, address in sorted(broker.brokerAddrs.items())
        if address not in known
    ]
    probes: Sequence[Probe] = await asyncio.gather(*(probe_broker(brokers, address) for _, address in places))
    parts = [
        PartStatus(
            f"broker {name}", UP if probe.is_up else DOWN, address, probe.version, probe.started_ms, probe.detail
        )
        for (name, address), probe in zip(places, probes, strict=True)
        if (address.rpartition(":")[2], probe.started_ms) not in same
    ]
    return parts + [
        PartStatus(f"broker {name}", OFFLINE, "", detail="the name servers miss its heartbeats") for name in offline
    ]
