"""The requests that schedule timers in bulk, and the brokers that accept or may hold the timers of a topic."""

from typing import NamedTuple

import msgspec

from latermq.client.admin import Admin
from latermq.client.session.retry import with_retries
from latermq.errors import ServiceUnavailable
from latermq.model.rows import RowBatch
from latermq.model.timers import Outcome
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.rows import encode_rows
from latermq.protocol.remoting.timers import decode_outcomes

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


class SchedulingAdmin(Admin):
    """The admin client, with the bulk request of LaterMQ's brokers."""

    job = "client"  # brokers require a name for the job of bulk rows

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

    async def schedule_rows(self, address: str, batch: RowBatch) -> RowsReply:
        """Schedule rows at one broker. They may be sent again: a broker schedules each unique key once."""
        response = await self._call(address, Request.SCHEDULE_ROWS, {"job": self.job}, encode_rows(batch))
        return RowsReply(response.header(_RowsFields).nowMs, response.body)

    async def status_at(self, address: str, topic: str, unique_key: str) -> Outcome:
        """Return the state of a timer at one broker."""
        fields = {"topic": topic, "uniqueKey": unique_key}
        [outcome] = decode_outcomes((await self._call(address, Request.TIMER_STATUS, fields)).body)
        return outcome
