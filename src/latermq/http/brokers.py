"""The connections of the console to name servers and brokers, shared by all requests."""

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

from latermq.client import BrokerFailed, MessageQueue
from latermq.client.admin import LAST
from latermq.client.consumer import queue_offsets
from latermq.client.scheduling.brokers import SchedulingAdmin
from latermq.client.session.credentials import own_credentials
from latermq.config import Config
from latermq.errors import QueryNotFound
from latermq.message.names import TIMER_TOPIC
from latermq.message.properties import KEY_SEPARATOR, KEYS, UNIQUE_KEY
from latermq.message.record import Message, decode_records
from latermq.model.pipeline_state import PipelineState
from latermq.model.timer_changes import ChangeOutcomes, TimerChanges
from latermq.model.timers import Outcome, PendingPage
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.groups import GroupList
from latermq.protocol.remoting.json_body import decode_body
from latermq.protocol.remoting.pipeline import decode_state
from latermq.protocol.remoting.runtime import BrokerStats
from latermq.protocol.remoting.timer_changes import decode_change_outcomes, encode_changes
from latermq.protocol.remoting.timers import decode_outcomes, decode_page
from latermq.tls.client import own_tls


class TopicTraffic(NamedTuple):
    """Messages that a topic received: per second in the last minute, and in the last hour and day."""

    rate: float = 0.0
    hour: int = 0
    day: int = 0


class Brokers(SchedulingAdmin):
    """The admin client, with requests of LaterMQ's brokers that it does not have."""

    job = "http"

    async def masters(self) -> dict[str, str]:
        """Return the address of each broker by its name."""
        return await self._masters()

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

    async def topic_traffic(self, topic: str) -> TopicTraffic:
        """Return what the brokers of a topic received for it together."""
        fields = {"statsName": "TOPIC_PUT_NUMS", "statsKey": topic}

        async def ask(address: str) -> TopicTraffic:
            try:
                stats = decode_body(
                    (await self._call(address, Request.VIEW_BROKER_STATS_DATA, fields)).body, BrokerStats
                )
            except BrokerFailed:  # RocketMQ's broker counts a topic from its first message on
                return TopicTraffic()
            return TopicTraffic(stats.statsMinute.tps, stats.statsHour.sum, stats.statsDay.sum)

        found = await asyncio.gather(*map(ask, await self._topic_addresses(topic)))
        return TopicTraffic(*(sum(part) for part in zip(*found, strict=True))) if found else TopicTraffic()

    async def pending_page(self, address: str, fields: dict[str, str]) -> PendingPage:
        """Return a page of the pending timers of one broker."""
        return decode_page((await self._call(address, Request.LIST_TIMERS, fields)).body)

    async def change_timers(self, address: str, changes: TimerChanges) -> ChangeOutcomes:
        """Cancel or move many timers at one broker. Repeated, the request has the same effect."""
        reply = await self._call(address, Request.CHANGE_TIMERS, {}, encode_changes(changes))
        return decode_change_outcomes(reply.body)

    async def change_seen_timer(
        self, address: str, topic: str, unique_key: str, timer_ids: Iterable[int], due_ms: int | None
    ) -> Outcome:
        """Move a timer at one broker, or cancel it without a due time, if the name has no other pending timers."""
        fields = {"topic": topic, "uniqueKey": unique_key, "timerIds": ",".join(map(str, timer_ids))}
        code = Request.CANCEL_TIMER
        if due_ms is not None:
            code, fields["dueMs"] = Request.MOVE_TIMER, str(due_ms)
        [outcome] = decode_outcomes((await self._call(address, code, fields)).body)
        return outcome

    async def pipeline_state(self, address: str) -> PipelineState:
        """Return what a broker reports on its far timers."""
        return decode_state((await self._call(address, Request.PIPELINE_STATE)).body)

    async def timer_record(self, address: str, topic: str, unique_key: str) -> Message | None:
        """Return the record of a timer, pending or delivered, as long as the broker's log has it."""
        for searched in (TIMER_TOPIC, topic):
            for message in await self.records_of(address, searched, unique_key, 4):
                return message
        return None

    async def records_of(self, address: str, topic: str, unique_key: str, limit: int) -> list[Message]:
        """Return the records of a topic at one broker that have this unique key."""
        found = await self._records(address, topic, unique_key, limit, is_unique=True)
        return [message for message in found if message.properties.get(UNIQUE_KEY) == unique_key]

    async def keyed_records_of(self, address: str, topic: str, key: str, limit: int) -> list[Message]:
        """Return the records of a topic at one broker that have this message key."""
        found = await self._records(address, topic, key, limit, is_unique=False)
        return [message for message in found if key in message.properties.get(KEYS, "").split(KEY_SEPARATOR)]

    async def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have consumed a topic or subscribe to it."""
        fields = {"topic": topic}
        replies = [
            await self._call(address, Request.QUERY_TOPIC_CONSUME_BY_WHO, fields)
            for address in (await self.holders_of(topic)).values()
        ]
        return sorted({group for reply in replies for group in decode_body(reply.body, GroupList).groupList})

    async def _records(self, address: str, topic: str, key: str, limit: int, *, is_unique: bool) -> list[Message]:
        fields = {
            "topic": topic,
            "key": key,
            "maxNum": str(limit),
            "beginTimestamp": "0",
            "endTimestamp": str((1 << 63) - 1),
            "_UNIQUE_KEY_QUERY": str(is_unique).lower(),
        }
        try:
            response = await self._call(address, Request.QUERY_MESSAGE, fields)
        except QueryNotFound:
            return []
        return list(decode_records(response.body))


def name_servers_of(config: Config) -> str:
    """Return the addresses of the name servers."""
    server = config.server
    return config.http.namesrv or server.namesrv or f"{server.host}:{server.namesrv_port}"


def open_brokers(config: Config) -> Brokers:
    """Return the connections, to be started."""
    return Brokers(
        name_servers_of(config),
        request_timeout_s=config.http.broker_timeout / 1000,
        tls=own_tls(config.tls) or False,
        credentials=own_credentials(config.access) or False,
    )
