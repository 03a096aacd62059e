"""Consumer groups: their members and their progress, and resets of their offsets."""

import asyncio
from http import HTTPStatus
from typing import Annotated

import msgspec

from latermq.access.resources import GET, LIST, SUB
from latermq.client.admin import FIRST, LAST
from latermq.errors import ConsumerOffline, GroupNotFound
from latermq.http.api.access_rules import cluster_access, group_access
from latermq.http.brokers import Brokers
from latermq.http.endpoint import Answer, Call, Endpoint
from latermq.http.timer_request import parse_time_ms
from latermq.message.names import RETRY_PREFIX, check_group, check_topic
from latermq.model.group import Group

GROUPS_AT_ONCE = 16  # asked for their members at the same time


class GroupQuery(msgspec.Struct, forbid_unknown_fields=True):
    """With `lag`, every broker is asked for the progress of each group."""

    lag: bool = False


class GroupInfo(msgspec.Struct):
    """A group and how many of its members are connected. `lag` and `topics` are null unless they were asked for."""

    group: str
    members: int
    can_consume: bool
    is_ordered: bool
    max_retries: int
    lag: int | None = None
    topics: list[str] | None = None


class GroupList(msgspec.Struct):
    """All groups. If `is_partial`, only those that the user has a right to."""

    groups: list[GroupInfo]
    is_partial: bool = False


class Member(msgspec.Struct):
    """A connected member."""

    client_id: str
    address: str
    language: str


class Progress(msgspec.Struct):
    """The progress of a group in a queue. `lag` is the number of messages after its offset."""

    topic: str
    broker: str
    queue_id: int
    offset: int
    max_offset: int
    lag: int
    in_flight: int
    last_consumed_ms: int


class GroupState(msgspec.Struct):
    """A group with its members and its progress. `lag` is that of all queues."""

    group: str
    lag: int
    members: list[Member]
    queues: list[Progress]


class OffsetReset(msgspec.Struct, forbid_unknown_fields=True):
    """Where a group continues in a topic: `first`, `last`, or a time (RFC 3339)."""

    topic: Annotated[str, msgspec.Meta(max_length=255)]
    to: Annotated[str, msgspec.Meta(max_length=60)]
    dry_run: bool = False


class NewOffset(msgspec.Struct):
    """The offset of a queue before and after a reset; -1 before the first."""

    topic: str
    broker: str
    queue_id: int
    before: int
    after: int


class ResetReport(msgspec.Struct):
    """What a reset did, or would do with `dry_run`."""

    dry_run: bool
    queues: list[NewOffset]


class GroupApi:
    """The requests on groups."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers

    @property
    def endpoints(self) -> list[Endpoint]:
        path, ok = "/api/v1/groups", HTTPStatus.OK
        reset = path + "/{group}/offsets:reset"
        return [
            Endpoint("GET", path, self._list, "List groups", {ok: GroupList}, "groups", query=GroupQuery),
            Endpoint("GET", path + "/{group}", self._show, "Show a group", {ok: GroupState}, "groups"),
            Endpoint("POST", reset, self._reset, "Reset offsets", {ok: ResetReport}, "groups", body=OffsetReset),
        ]

    async def _list(self, call: Call) -> Answer:
        query: GroupQuery = call.query
        turns = asyncio.Semaphore(GROUPS_AT_ONCE)

        async def describe(group: Group) -> GroupInfo:
            async with turns:
                members = len(await self._members(group.name))
                info = GroupInfo(group.name, members, group.can_consume, group.is_ordered, group.max_retries)
                if query.lag:
                    progress = await self._progress(group.name, None)
                    info.lag = sum(one.lag for one in progress)
                    own = (one.topic for one in progress if not one.topic.startswith(RETRY_PREFIX))
                    info.topics = list(dict.fromkeys(own))
                return info

        sees_all = call.sees(cluster_access(GET, LIST))
        groups = [
            group  # of others, brokers are not even asked
            for group in await self._brokers.groups()
            if sees_all or call.sees(group_access(group.name, SUB, GET, LIST))
        ]
        return Answer(GroupList(list(await asyncio.gather(*map(describe, groups)))))

    async def _show(self, call: Call) -> Answer:
        group = await self._known(call.path["group"])
        members, queues = await self._members(group), await self._progress(group, None)
        return Answer(GroupState(group, sum(one.lag for one in queues), members, queues))

    async def _reset(self, call: Call) -> Answer:
        reset: OffsetReset = call.body
        check_topic(reset.topic)
        to = reset.to if reset.to in (FIRST, LAST) else parse_time_ms(reset.to)
        group = await self._known(call.path["group"])
        await self._brokers.route(reset.topic)  # raises TopicNotFound
        before = {(one.broker, one.queue_id): one.offset for one in await self._progress(group, reset.topic)}
        if reset.dry_run:
            after = await self._brokers.offsets_at(reset.topic, to)
        else:
            after = await self._brokers.reset_offsets(group, reset.topic, to)
        queues = [
            NewOffset(
                queue.topic, queue.brokerName, queue.queueId, before.get((queue.brokerName, queue.queueId), -1), at
            )
            for queue, at in after.items()
        ]
        return Answer(ResetReport(reset.dry_run, queues))

    async def _known(self, group: str) -> str:
        check_group(group)
        if group not in {one.name for one in await self._brokers.groups()}:
            raise GroupNotFound(f"group {group!r} does not exist", hint="GET /api/v1/groups lists the groups")
        return group

    async def _members(self, group: str) -> list[Member]:
        try:
            found = await self._brokers.consumer_connections(group)
        except ConsumerOffline:
            return []
        return [Member(one.clientId, one.clientAddr, one.language) for one in found.connectionSet]

    async def _progress(self, group: str, topic: str | None) -> list[Progress]:
        return [
            Progress(
                queue.topic,
                queue.brokerName,
                queue.queueId,
                one.consumerOffset,
                one.brokerOffset,
                one.brokerOffset - one.consumerOffset,
                max(0, one.pullOffset - one.consumerOffset),
                one.lastTimestamp,
            )
            for queue, one in (await self._brokers.consume_stats(group, topic)).items()
        ]
