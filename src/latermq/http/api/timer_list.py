"""Pending timers by filter, in the order of their due times: those of the brokers, and far ones from the timeline."""

import asyncio
import base64
import binascii
import contextlib
import heapq
import zlib
from collections.abc import Sequence
from http import HTTPStatus
from typing import Annotated, NamedTuple

import msgspec

from latermq.access.resources import GET, PUB
from latermq.config import HttpConfig
from latermq.errors import InvalidParameter, TopicNotFound
from latermq.http.api.access_rules import ALL_TOPICS
from latermq.http.api.timers import Timer, timer_of
from latermq.http.brokers import Brokers
from latermq.http.endpoint import Answer, Call, Endpoint
from latermq.http.far_timers import NOWHERE, FarTimers
from latermq.http.paging import page_limit
from latermq.http.timeline_process import TimelineUnavailable
from latermq.http.timer_request import parse_bound_ms
from latermq.message.names import is_system_topic
from latermq.model.topic_access import topic_access
from latermq.pipeline.timeline.far_reads import FarPlace

MAX_EMPTY_PAGES = 50  # pages without a match that one request reads of one broker
MAX_TOPICS = 50  # that one request merges for a user who may not see all
_MAX_CURSOR_CHARS = 16_384


class TimerQuery(msgspec.Struct, forbid_unknown_fields=True, rename={"from_": "from"}):
    """Which timers: of a topic, with a key (needs a topic), due in [from, to). Times are RFC 3339 or milliseconds."""

    topic: Annotated[str, msgspec.Meta(max_length=255)] = ""
    key: Annotated[str, msgspec.Meta(max_length=16_384)] = ""
    from_: str = ""
    to: str = ""
    limit: Annotated[int, msgspec.Meta(ge=1)] | None = None
    cursor: Annotated[str, msgspec.Meta(max_length=_MAX_CURSOR_CHARS)] = ""


class TimerPage(msgspec.Struct):
    """Timers in the order of their due times. `next` is the cursor of the next page, empty on the last one.

    A page may be short or empty and still have a next one. `far_missing` says why the list has no far timers, if the
    brokers may have some; it is on the first page. If `is_partial`, the timers are those of the topics that the user
    has a right to.
    """

    timers: list[Timer]
    next: str = ""
    far_missing: str = ""
    is_partial: bool = False


class _Cursor(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Where a page ended: a position at each broker and on the timeline if they have more, and the filter."""

    filter: int
    positions: dict[str, str]
    far: FarPlace | None = None


class _Listed(NamedTuple):
    """A timer, the id that its broker knows it by, and where the list continues after it."""

    timer: Timer
    broker_id: int
    position: str | FarPlace


class ListedPage(NamedTuple):
    """A page of the list, with the brokers' ids of its timers."""

    timers: list[Timer]
    broker_ids: list[int]
    next: str
    far_missing: str


class _FarSource:
    """The far timers of all brokers."""

    name = ""  # which no broker has

    def __init__(self, far: FarTimers, holders: dict[str, str], query: "_Filter", place: FarPlace) -> None:
        self._far = far
        self._holders = holders
        self._query = query
        self.first_position: FarPlace | None = place
        self.position: FarPlace | None = place
        self.timers: list[_Listed] = []
        self.has_more = True
        self.missing = ""

    async def fill(self, limit: int) -> None:
        """Read until there are `limit` timers, or nothing more, or enough was read for one request."""
        query = self._query
        assert self.position is not None
        try:
            page = await self._far.page(self._holders, query.topic, query.from_ms, query.until_ms, self.position, limit)
        except TimelineUnavailable as error:
            if self.position != NOWHERE:  # the pages before had far timers
                raise
            self.missing = f"{error.message}. {error.hint}"
            self.position, self.has_more = None, False
            return
        for row in page.rows:
            timer = timer_of(row.timer, row.broker)
            timer.is_far = True
            self.timers.append(_Listed(timer, row.timer.timer_id, row.place))
        self.position = page.next
        self.has_more = page.next is not None


class _Filter(NamedTuple):
    """What a client asks for."""

    topic: str
    key: str
    from_ms: int
    until_ms: int

    @property
    def fields(self) -> dict[str, str]:
        """The same as a request to a broker."""
        return {"topic": self.topic, "key": self.key, "fromMs": str(self.from_ms), "untilMs": str(self.until_ms)}


class _Source:
    """The timers of one broker, page by page."""

    max_pages = MAX_EMPTY_PAGES

    def __init__(
        self, brokers: Brokers, broker: str, address: str, fields: dict[str, str], position: str, name: str = ""
    ) -> None:
        """`name` tells sources of the same broker apart."""
        self._brokers = brokers
        self._broker = broker
        self._address = address
        self._fields = fields
        self.name = name or broker
        self.first_position = self.position = position
        self.timers: list[_Listed] = []
        self.has_more = True

    async def fill(self, limit: int) -> None:
        """Read until there are `limit` timers, or nothing more, or enough was read for one request."""
        for _ in range(self.max_pages):
            fields = {**self._fields, "limit": str(limit - len(self.timers)), "cursor": self.position}
            page = await self._brokers.pending_page(self._address, fields)
            self.timers += [_Listed(timer_of(one, self._broker), one.timer_id, one.position) for one in page.timers]
            self.position = page.next
            self.has_more = bool(page.next)
            if not self.has_more or len(self.timers) >= limit:
                return


class TimerListApi:
    """The list of pending timers."""

    def __init__(self, brokers: Brokers, far: FarTimers, config: HttpConfig) -> None:
        self._brokers = brokers
        self._far = far
        self._max_page = config.max_page

    @property
    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                "GET",
                "/api/v1/timers",
                self._list,
                "List pending timers",
                {HTTPStatus.OK: TimerPage},
                "timers",
                query=TimerQuery,
            )
        ]

    async def _list(self, call: Call) -> Answer:
        query: TimerQuery = call.query
        limit = page_limit(query.limit, self._max_page)
        if query.topic or call.sees(topic_access(ALL_TOPICS, (PUB, GET))):
            page = await self.page(query, limit)
        else:
            page = await self._page_of(await self._topics_of(call), query, limit)
        return Answer(TimerPage(page.timers, page.next, page.far_missing))

    async def _topics_of(self, call: Call) -> list[str]:
        """Return the topics whose timers a user may see. Raises InvalidParameter if they are too many for one list."""
        known = (name for name in await self._brokers.topics() if not is_system_topic(name))
        names = [name for name in known if call.sees(topic_access(name, (PUB, GET)))]
        if len(names) > MAX_TOPICS:
            raise InvalidParameter(
                f"you have a right to {len(names)} topics, and a list shows up to {MAX_TOPICS}", hint="Choose a topic"
            )
        return names

    async def page(self, query: TimerQuery, limit: int) -> ListedPage:
        """Return a page; `limit` of the query does not count."""
        if query.key and not query.topic:
            raise InvalidParameter("a search by key needs a topic", hint="Add the parameter topic")
        from_ms, until_ms = (parse_bound_ms(text) if text else 0 for text in (query.from_, query.to))
        wanted = _Filter(query.topic, query.key, from_ms, until_ms)
        mark = zlib.crc32(repr(wanted).encode())
        holders = await self._brokers.holders_of(query.topic)
        # A broker finds far timers by key itself.
        start = _Cursor(mark, dict.fromkeys(holders, ""), None if query.key else NOWHERE)
        if query.cursor:
            start = _decode_cursor(query.cursor, mark)
        near: list[_Source] = [
            _Source(self._brokers, name, holders[name], wanted.fields, position)
            for name, position in start.positions.items()
            if name in holders
        ]
        far = [_FarSource(self._far, holders, wanted, start.far)] if start.far is not None else []
        page = await self._read([*near, *far], mark, limit)
        return page._replace(far_missing=far[0].missing if far else "")

    async def _page_of(self, topics: Sequence[str], query: TimerQuery, limit: int) -> ListedPage:
        """Return a page of some topics. Of several, it has no far timers: each would be a search of the timeline."""
        if len(topics) == 1:
            return await self.page(msgspec.structs.replace(query, topic=topics[0]), limit)
        if query.key:
            raise InvalidParameter("a search by key needs a topic", hint="Add the parameter topic")
        bounds = [parse_bound_ms(text) if text else 0 for text in (query.from_, query.to)]
        mark = zlib.crc32(repr((topics, bounds)).encode())
        start = _decode_cursor(query.cursor, mark).positions if query.cursor else None
        sources, brokers = list[_Source](), dict[str, str]()
        for topic in topics:
            with contextlib.suppress(TopicNotFound):
                for name, address in (await self._brokers.holders_of(topic)).items():
                    brokers[name] = address
                    key = f"{topic} {name}"
                    if start is None or key in start:
                        fields = _Filter(topic, "", *bounds).fields
                        position = start[key] if start is not None else ""
                        sources.append(_Source(self._brokers, name, address, fields, position, key))
        for source in sources:  # brokers search all their timers for those of a topic
            source.max_pages = max(1, MAX_EMPTY_PAGES // len(sources))
        page = await self._read(sources, mark, limit)
        if not query.cursor and await self._far.has_timeline(brokers):
            page = page._replace(far_missing="Of several topics, only the timers on brokers are listed. Choose a topic")
        return page

    async def _read(self, sources: "Sequence[_Source | _FarSource]", mark: int, limit: int) -> ListedPage:
        await asyncio.gather(*(source.fill(limit) for source in sources))
        listed, left = _merge(sources, limit)
        end = _Cursor(mark, {name: place for name, place in left.items() if isinstance(place, str)})
        end.far = next((place for place in left.values() if not isinstance(place, str)), None)
        timers, broker_ids = [one.timer for one in listed], [one.broker_id for one in listed]
        return ListedPage(timers, broker_ids, _encode_cursor(end) if left else "", "")


def _merge(sources: Sequence[_Source | _FarSource], limit: int) -> tuple[list[_Listed], dict[str, str | FarPlace]]:
    """Return the first timers of all sources, and where each source that has more continues.

    A broker that has not been read far enough to have a next timer ends the page: its next one may be due earlier.
    """
    taken = dict.fromkeys((source.name for source in sources), 0)
    heap = [
        (source.timers[0].timer.due_ms, source.timers[0].timer.id, at)
        for at, source in enumerate(sources)
        if source.timers
    ]
    heapq.heapify(heap)
    is_cut = any(not source.timers and source.has_more for source in sources)
    merged: list[_Listed] = []
    while heap and len(merged) < limit and not is_cut:
        _, _, at = heapq.heappop(heap)
        source = sources[at]
        found = source.timers[taken[source.name]]
        # A far timer that a broker has just loaded is in both.
        if not merged or (merged[-1].timer.id, merged[-1].broker_id) != (found.timer.id, found.broker_id):
            merged.append(found)
        taken[source.name] += 1
        if taken[source.name] < len(source.timers):
            following = source.timers[taken[source.name]].timer
            heapq.heappush(heap, (following.due_ms, following.id, at))
        else:
            is_cut = source.has_more
    left: dict[str, str | FarPlace] = {}
    for source in sources:
        count = taken[source.name]
        if count == len(source.timers):
            if source.has_more and source.position is not None:
                left[source.name] = source.position
        elif count:
            left[source.name] = source.timers[count - 1].position
        elif source.first_position is not None:
            left[source.name] = source.first_position
    return merged, left


def _encode_cursor(cursor: _Cursor) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(cursor)).rstrip(b"=").decode()


def _decode_cursor(text: str, mark: int) -> _Cursor:
    hint = "Use `next` of the previous page, with the same filter"
    try:
        data = base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), b"-_", validate=True)
        cursor = msgspec.json.decode(data, type=_Cursor)
    except (binascii.Error, ValueError):
        raise InvalidParameter(f"{text[:40]!r} is not a cursor", hint=hint) from None
    if cursor.filter != mark:
        raise InvalidParameter("the cursor belongs to another filter", hint=hint)
    return cursor
