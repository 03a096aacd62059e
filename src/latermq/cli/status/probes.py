"""Asks the parts of a cluster how they are: name servers, brokers, and whatever accepts connections."""

import asyncio
import contextlib
from typing import NamedTuple

from latermq.cli.output import counted
from latermq.client.session.connection import split_address
from latermq.errors import LaterMQError, NoPermission
from latermq.http.api.groups import GROUPS_AT_ONCE
from latermq.http.brokers import Brokers

PROBE_TIMEOUT_S = 3.0
MAX_GROUPS = 500  # whose lag is asked for; further groups are counted only


class Probe(NamedTuple):
    """Whether a part answers, and what it says of itself."""

    is_up: bool
    detail: str = ""
    version: str = ""
    started_ms: int = 0


class GroupLag(NamedTuple):
    """How many messages a group has not consumed yet."""

    group: str
    lag: int


async def probe_port(address: str) -> Probe:
    """Whether something accepts connections at an address."""
    host, port = split_address(address)
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), port)
    except TimeoutError:
        return Probe(False, f"does not accept connections within {PROBE_TIMEOUT_S:g} s")
    except OSError as error:
        return Probe(False, error.strerror or str(error))
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return Probe(True)


async def probe_name_server(brokers: Brokers) -> Probe:
    """Whether the only name server of this client answers a request."""
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            count = len(await brokers.brokers())
    except (LaterMQError, TimeoutError) as error:
        return _down(error)
    return Probe(True, "no broker is registered" if not count else counted(count, "broker"))


async def probe_broker(brokers: Brokers, address: str) -> Probe:
    """Whether a broker answers, and its most important figures."""
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            info = await brokers.broker_runtime_info(address)
    except NoPermission:
        return Probe(True, "asks for credentials to say more")
    except (LaterMQError, TimeoutError) as error:
        return _down(error)
    late_ms = _number(info, "latermqOverdueMs")
    timers = f"{int(_number(info, 'timerCongestNum')):,} pending timers, "
    timers += f"{late_ms / 1000:,.1f} s late" if late_ms else "on time"
    disk = f", disk {_number(info, 'commitLogDiskRatio'):.0%} full"
    return Probe(True, timers + disk, info.get("latermqVersion", ""), int(_number(info, "bootTimestamp")))


async def group_lags(brokers: Brokers) -> tuple[list[GroupLag], int]:
    """Return the groups that lag, the worst first, and the number of all groups."""
    groups = [group.name for group in await brokers.groups()]
    turns = asyncio.Semaphore(GROUPS_AT_ONCE)

    async def lag_of(group: str) -> GroupLag:
        async with turns:
            try:
                stats = await brokers.consume_stats(group)
            except LaterMQError:  # such as a group that has never consumed
                return GroupLag(group, 0)
        return GroupLag(group, sum(max(0, one.brokerOffset - one.consumerOffset) for one in stats.values()))

    found = await asyncio.gather(*map(lag_of, groups[:MAX_GROUPS]))
    return sorted((one for one in found if one.lag), key=lambda one: (-one.lag, one.group)), len(groups)


def _down(error: LaterMQError | TimeoutError) -> Probe:
    if isinstance(error, LaterMQError):
        return Probe(False, error.message)
    return Probe(False, f"does not answer within {PROBE_TIMEOUT_S:g} s")


def _number(info: dict[str, str], name: str) -> float:
    try:
        return float(info.get(name, ""))
    except ValueError:
        return 0.0
