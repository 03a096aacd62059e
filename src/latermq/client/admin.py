"""The admin client: topics, groups, offsets, message lookup by key or id, timers, and broker state."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from latermq.client.consumer import queue_offsets
from latermq.client.consumer.keyed_tables import keyed_table
from latermq.client.consumer.offsets import BrokerOffsets
from latermq.client.producer.compression import decompress_message
from latermq.client.session.credentials import Credentials
from latermq.client.session.failures import BrokerFailed
from latermq.client.session.session import Session
from latermq.client.timers import TimerAdmin
from latermq.config_json.groups import GroupTableJson, encode_group
from latermq.config_json.java_json import convert
from latermq.errors import ConsumerOffline, LaterMQError, QueryNotFound
from latermq.message.compression import MAX_BODY_BYTES, UnreadableBody
from latermq.message.ids import parse_offset_message_id
from latermq.message.names import AUTO_CREATE_TOPIC, check_group, check_topic
from latermq.message.properties import KEY_SEPARATOR, KEYS, UNIQUE_KEY
from latermq.message.record import Message, decode_record, decode_records
from latermq.model.group import Group, GroupTable
from latermq.model.topic import READ, WRITE
from latermq.protocol.remoting.clients import ConsumerConnection
from latermq.protocol.remoting.codes import Request
from latermq.protocol.remoting.groups import OffsetWrapper
from latermq.protocol.remoting.json_body import decode_body
from latermq.protocol.remoting.queues import MessageQueue
from latermq.protocol.remoting.routes import KVTable, TopicRoute
from latermq.protocol.remoting.topics import TopicList, TopicOffset
from latermq.tls.client import ClientTls

FIRST, LAST = "first", "last"
MAX_TIME_MS = 0x7FFFFFFFFFFFFFFF


class Admin(TimerAdmin):
    """Inspects and changes a cluster. Methods that change something apply the change to every broker concerned."""

    def __init__(
        self,
        namesrv: str = "127.0.0.1:9876",
        *,
        instance: str = "",
        request_timeout_s: float = 5.0,
        encoding: str = "json",
        tls: ClientTls | bool | None = None,
        credentials: Credentials | bool | None = None,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        """`max_body_bytes` limits the decompressed size of all compressed bodies in one response."""
        self._max_body_bytes = max_body_bytes
        self._session = Session(
            namesrv,
            instance=instance,
            encoding=encoding,
            tls=tls,
            credentials=credentials,
            request_timeout_s=request_timeout_s,
        )

    # Brokers

    async def broker_runtime_info(self, address: str) -> dict[str, str]:
        """Return a broker's counters and measurements."""
        return decode_body((await self._call(address, Request.GET_BROKER_RUNTIME_INFO)).body, KVTable).table

    async def broker_config(self, address: str) -> dict[str, str]:
        """Return a broker's settings."""
        text = (await self._call(address, Request.GET_BROKER_CONFIG)).body.decode()
        pairs = (line.partition("=") for line in text.splitlines() if line and not line.startswith("#"))
        return {name.strip(): value.strip() for name, _, value in pairs}

    # Topics

    async def topics(self) -> list[str]:
        """Return the names of all topics, including system and retry topics."""
        body = await self._call_name_server(Request.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return sorted(decode_body(body, TopicList).topicList)

    async def create_topic(
        self,
        name: str,
        queues: int = 8,
        *,
        perm: int = READ | WRITE,
        order: bool = False,
        attributes: Mapping[str, str] | None = None,
        broker: str | None = None,
    ) -> None:
        """Create or update a topic on every broker, or on one. Waits until the name servers have its route."""
        check_topic(name)
        fields = {
            "topic": name,
            "defaultTopic": AUTO_CREATE_TOPIC,
            "readQueueNums": str(queues),
            "writeQueueNums": str(queues),
            "perm": str(perm),
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": str(order).lower(),
            "attributes": ",".join(f"+{key}={value}" for key, value in (attributes or {}).items()),
        }
        masters = await self._masters(broker)
        for address in masters.values():
            await self._call(address, Request.UPDATE_AND_CREATE_TOPIC, fields)
        await self._await_route(name, masters.keys(), queues, perm)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic from every broker and from the name servers."""
        masters = await self._masters()
        for address in masters.values():
            await self._call(address, Request.DELETE_TOPIC_IN_BROKER, {"topic": name})
        for server in self._session.routes.servers:
            await self._call(server, Request.DELETE_TOPIC_IN_NAMESRV, {"topic": name})

    async def route(self, topic: str) -> TopicRoute:
        """Return a topic's route: its queues and their brokers."""
        return (await self._route(topic)).data

    async def topic_stats(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        """Return the first and the next offset of each queue, and the time of its last message."""
        stats: dict[MessageQueue, TopicOffset] = {}
        for address in await self._topic_addresses(topic):
            body = (await self._call(address, Request.GET_TOPIC_STATS_INFO, {"topic": topic})).body
            stats.update(
                (queue, msgspec.convert(entry, TopicOffset)) for queue, entry in keyed_table(body, "offsetTable")
            )
        return dict(sorted(stats.items()))

    # Groups

    async def groups(self) -> list[Group]:
        """Return all consumer groups of all brokers."""
        found: dict[str, Group] = {}
        for address in (await self._masters()).values():
            body = (await self._call(address, Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)).body
            found.update(convert(decode_body(body, GroupTableJson), GroupTable).groups)
        return [found[name] for name in sorted(found)]

    async def create_group(
        self,
        name: str,
        *,
        retry_max_times: int = 16,
        retry_queues: int = 1,
        consume_enabled: bool = True,
        orderly: bool = False,
        retry_levels: Sequence[int | str] | None = None,
    ) -> None:
        """Create or update a consumer group on every broker.

        `retry_levels` lists the delays of successive retries as delay levels or durations such as `30s`. Only LaterMQ
        brokers support it. An empty list restores RocketMQ's default levels; None leaves the levels unchanged.
        """
        check_group(name)
        group = Group(
            name=name,
            max_retries=retry_max_times,
            retry_queues=retry_queues,
            can_consume=consume_enabled,
            is_ordered=orderly,
        )
        if retry_levels is not None:
            sign = "+" if retry_levels else "-"
            group.attributes[f"{sign}retry.levels"] = " ".join(map(str, retry_levels))
        for address in (await self._masters()).values():
            await self._call(address, Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, encode_group(group))

    async def delete_group(self, name: str, *, remove_offsets: bool = True) -> None:
        """Delete a consumer group and, by default, its offsets."""
        fields = {"groupName": name, "cleanOffset": str(remove_offsets).lower()}
        for address in (await self._masters()).values():
            await self._call(address, Request.DELETE_SUBSCRIPTIONGROUP, fields)

    async def consumer_connections(self, group: str) -> ConsumerConnection:
        """Return a group's connected members and subscriptions. Raises ConsumerOffline if no member is connected."""
        found: ConsumerConnection | None = None
        offline: LaterMQError | None = None
        for address in (await self._masters()).values():
            try:
                response = await self._call(address, Request.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": group})
            except ConsumerOffline as error:
                offline = error
                continue
            part = decode_body(response.body, ConsumerConnection)
            if found is None:
                found = part
                continue
            known = {connection.clientId for connection in found.connectionSet}
            found.connectionSet += [connection for connection in part.connectionSet if connection.clientId not in known]
            found.subscriptionTable.update(part.subscriptionTable)
        if found is None:
            raise offline or ConsumerOffline(f"no member of group {group!r} is connected")
        return found

    async def consume_stats(self, group: str, topic: str | None = None) -> dict[MessageQueue, OffsetWrapper]:
        """Return a group's progress in each queue. The lag is `brokerOffset - consumerOffset`."""
        fields = {"consumerGroup": group} | ({"topic": topic} if topic else {})
        stats: dict[MessageQueue, OffsetWrapper] = {}
        for address in (await self._masters()).values():
            body = (await self._call(address, Request.GET_CONSUME_STATS, fields)).body
            stats.update(
                (queue, msgspec.convert(entry, OffsetWrapper)) for queue, entry in keyed_table(body, "offsetTable")
            )
        return dict(sorted(stats.items()))

    async def reset_offsets(self, group: str, topic: str, to: int | str) -> dict[MessageQueue, int]:
        """Move a group to another position: epoch milliseconds, "first" or "last". Return the new offsets.

        The broker notifies connected members at once. If none is connected, the stored offsets change.
        """
        if isinstance(to, str) and to not in (FIRST, LAST):
            raise ValueError(f"{to!r} is not a valid position; use epoch milliseconds, {FIRST!r} or {LAST!r}")
        timestamp_ms = {FIRST: 0, LAST: -1}[to] if isinstance(to, str) else to
        fields = {"topic": topic, "group": group, "timestamp": str(timestamp_ms), "isForce": "true"}
        offsets: dict[MessageQueue, int] = {}
        for address in await self._topic_addresses(topic):
            try:
                body = (await self._call(address, Request.INVOKE_BROKER_TO_RESET_OFFSET, fields)).body
            except (ConsumerOffline, BrokerFailed):
                # No member is connected, or the group never committed here: there is no member to notify.
                offsets.update(await self._store_offsets(group, topic, address, to))
            else:
                offsets.update((queue, int(offset)) for queue, offset in keyed_table(body, "offsetTable"))
        return dict(sorted(offsets.items()))

    # Messages

    async def view_message(self, offset_message_id: str) -> Message:
        """Return the message with this offset message id."""
        ip, port, physical_offset = parse_offset_message_id(offset_message_id)
        address = f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"
        response = await self._call(address, Request.VIEW_MESSAGE_BY_ID, {"offset": str(physical_offset)})
        return decompress_message(decode_record(response.body), self._max_body_bytes)

    async def query_by_key(
        self,
        topic: str,
        key: str,
        *,
        max_messages: int = 32,
        begin_ms: int = 0,
        end_ms: int = MAX_TIME_MS,
        on_unreadable: Callable[[UnreadableBody], None] | None = None,
    ) -> list[Message]:
        """Return the messages of a topic that were sent with a key, in the order in which they were stored.

        For a message whose body cannot be decompressed, the error is passed to `on_unreadable`. Without that callback,
        the first such error is raised.
        """
        found = await self._query(topic, key, max_messages, begin_ms, end_ms, unique=False)
        # Key indexes hold hashes, so the response may contain messages with other keys.
        matching = [message for message in found if key in message.properties.get(KEYS, "").split(KEY_SEPARATOR)]
        return self._decompress(matching, on_unreadable)

    async def query_by_unique_key(
        self, topic: str, unique_key: str, *, max_messages: int = 32, begin_ms: int = 0, end_ms: int = MAX_TIME_MS
    ) -> list[Message]:
        """Return the messages of a topic with this unique key. There can be several if a send was retried."""
        found = await self._query(topic, unique_key, max_messages, begin_ms, end_ms, unique=True)
        return self._decompress([message for message in found if message.properties.get(UNIQUE_KEY) == unique_key])

    async def _query(
        self, topic: str, key: str, max_messages: int, begin_ms: int, end_ms: int, *, unique: bool
    ) -> list[Message]:
        fields = {
            "topic": topic,
            "key": key,
            "maxNum": str(max_messages),
            "beginTimestamp": str(begin_ms),
            "endTimestamp": str(end_ms),
            "_UNIQUE_KEY_QUERY": str(unique).lower(),
        }
        found: list[Message] = []
        for address in await self._topic_addresses(topic):
            try:
                response = await self._call(address, Request.QUERY_MESSAGE, fields)
            except QueryNotFound:
                continue
            found += decode_records(response.body)
        return sorted(found, key=lambda message: (message.store_timestamp_ms, message.physical_offset))

    def _decompress(
        self, messages: list[Message], on_unreadable: Callable[[UnreadableBody], None] | None = None
    ) -> list[Message]:
        readable: list[Message] = []
        left_bytes = self._max_body_bytes
        for message in messages:
            try:
                readable.append(decompress_message(message, max(0, left_bytes)))
            except UnreadableBody as error:
                if on_unreadable is None:
                    raise
                on_unreadable(error)
                continue
            left_bytes -= len(readable[-1].body) if readable[-1] is not message else 0
        return readable

    async def _store_offsets(self, group: str, topic: str, address: str, to: int | str) -> dict[MessageQueue, int]:
        route = await self._route(topic)
        queues = [queue for queue in route.readable if route.addresses[queue.brokerName] == address]
        if to == LAST:
            found = [await queue_offsets.max_offset(self._session, queue) for queue in queues]
        elif isinstance(to, int):
            found = [await queue_offsets.search_offset(self._session, queue, to) for queue in queues]
        else:
            found = [await queue_offsets.min_offset(self._session, queue) for queue in queues]
        offsets = dict(zip(queues, found, strict=True))
        await BrokerOffsets(self._session, group).save(offsets)
        return offsets

    async def _await_route(self, topic: str, brokers: Iterable[str], queues: int, perm: int) -> None:
        """Wait for a topic's route: brokers register a new topic with the name servers shortly after its creation."""
        deadline_s = asyncio.get_running_loop().time() + self._session.request_timeout_s
        while True:
            try:
                data = (await self._session.routes.refresh(topic)).data
            except LaterMQError:
                if asyncio.get_running_loop().time() > deadline_s:
                    raise
            else:
                known = {
                    queue.brokerName
                    for queue in data.queueDatas
                    if queue.writeQueueNums == queues and queue.perm == perm
                }
                if known >= set(brokers) or asyncio.get_running_loop().time() > deadline_s:
                    return
            await asyncio.sleep(0.05)
