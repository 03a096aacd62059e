"""The connections of the console to name servers and brokers, shared by all requests."""

import asyncio
from typing import NamedTuple

import msgspec

from latermq.client import Admin, MessageQueue
from latermq.client.admin import LAST
from latermq.client.consumer import queue_offsets
from latermq.client.session.retry import with_retries
from latermq.config import Config
from latermq.errors import QueryNotFound, ServiceUnavailable
from latermq.message.names import TIMER_TOPIC
from latermq.message.properties import UNIQUE_KEY
from latermq.message.record import Message, decode_records
from latermq.model.pipeline_state import PipelineState
from latermq.model.rows import RowBatch
from latermq.model.timers import Outcome, PendingPage
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.pipeline import decode_state
from latermq.protocol.remoting.rows import encode_rows
from latermq.protocol.remoting.timers import decode_outcomes, decode_page

_JOB = "http"  # brokers require a name for the job of bulk rows

NAMES_SHOWN = 5  # of offline brokers


class Place(NamedTuple):
    """A broker that accepts the messages of a topic."""

    broker: str
    address: str


class RowsReply(NamedTuple):
    """What a broker did with rows: its clock, and for each row whether it was scheduled before."""

    now_ms: int
    known: bytes


class _RowsFields(msgspec.Struct):
    """Header fields of the SCHEDULE_ROWS response."""

    nowMs: int


class Brokers(Admin):
    """The admin client, with requests of LaterMQ's brokers that it does not have."""

    async def masters(self) -> dict[str, str]:
        """Return the address of each broker by its name."""
        return await self._masters()

    async def places_of(self, topic: str) -> list[Place]:
        """Return the brokers that accept messages of a topic, or would create it, in a fixed order."""
        self._session.check_running()
        routes = self._session.routes
        route = await with_retries(self._session.request_timeout_s, lambda left_s: routes.get_for_send(topic))
        names = sorted({queue.brokerName for queue in route.writable})
        return [Place(name, route.addresses[name]) for name in names]

    async def offline(self) -> list[str]:
        """Return the names of brokers that may come back."""
        return (await self._cluster_info()).offlineBrokers

    async def check_all_online(self) -> None:
        """Raise ServiceUnavailable if a broker is offline, which may have what no other broker has."""
        away = await self.offline()
        if away:
            more = f" and {len(away) - NAMES_SHOWN} more" if len(away) > NAMES_SHOWN else ""
            raise ServiceUnavailable(
                f"no broker that is online has this timer, and offline are {', '.join(away[:NAMES_SHOWN])}{more}",
                hint="Try again when they are online",
            )

    async def holders_of(self, topic: str) -> dict[str, str]:
        """Return the address of each broker that may hold timers of a topic, or of any topic, by its name."""
        if not topic:
            return await self._masters()
        return dict(sorted((await self._route(topic)).addresses.items()))

    async def offsets_at(self, topic: str, to: int | str) -> dict[MessageQueue, int]:
        """Return the offsets that a reset to a position would set: epoch milliseconds, "first" or "last"."""
        queues = (await self._route(topic)).readable
        if to == LAST:
            found = [queue_offsets.max_offset(self._session, queue) for queue in queues]
        elif isinstance(to, int):
            found = [queue_offsets.search_offset(self._session, queue, to) for queue in queues]
        else:
            found = [queue_offsets.min_offset(self._session, queue) for queue in queues]
        return dict(zip(queues, await asyncio.gather(*found), strict=True))

    async def schedule_rows(self, address: str, batch: RowBatch) -> RowsReply:
        """Schedule rows at one broker. They may be sent again: a broker schedules each unique key once."""
        response = await self._call(address, Request.SCHEDULE_ROWS, {"job": _JOB}, encode_rows(batch))
        return RowsReply(response.header(_RowsFields).nowMs, response.body)

    async def pending_page(self, address: str, fields: dict[str, str]) -> PendingPage:
        """Return a page of the pending timers of one broker."""
        return decode_page((await self._call(address, Request.LIST_TIMERS, fields)).body)

    async def status_at(self, address: str, topic: str, unique_key: str) -> Outcome:
        """Return the state of a timer at one broker."""
        fields = {"topic": topic, "uniqueKey": unique_key}
        [outcome] = decode_outcomes((await self._call(address, Request.TIMER_STATUS, fields)).body)
        return outcome

    async def pipeline_state(self, address: str) -> PipelineState:
        """Return what a broker reports on its far timers."""
        return decode_state((await self._call(address, Request.PIPELINE_STATE)).body)

    async def timer_record(self, address: str, topic: str, unique_key: str) -> Message | None:
        """Return the record of a timer, pending or delivered, as long as the broker's log has it."""
        for searched in (TIMER_TOPIC, topic):
            fields = {
                "topic": searched,
                "key": unique_key,
                "maxNum": "4",
                "beginTimestamp": "0",
                "endTimestamp": str((1 << 63) - 1),
                "_UNIQUE_KEY_QUERY": "true",
            }
            try:
                response = await self._call(address, Request.QUERY_MESSAGE, fields)
            except QueryNotFound:
                continue
            for message in decode_records(response.body):
                if message.properties.get(UNIQUE_KEY) == unique_key:
                    return message
        return None


def name_servers_of(config: Config) -> str:
    """Return the addresses of the name servers."""
    server = config.server
    return config.http.namesrv or server.namesrv or f"{server.host}:{server.namesrv_port}"


def open_brokers(config: Config) -> Brokers:
    """Return the connections, to be started."""
    return Brokers(name_servers_of(config), request_timeout_s=config.http.broker_timeout / 1000)
