"""Calls of the HTTP API from within the process: pages show and change nothing that the API does not."""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.datastructures import Headers

from latermq.access.resources import Access
from latermq.errors import InvalidParameter
from latermq.http.api.access_rules import Fixed
from latermq.http.api.cluster import LiveState
from latermq.http.collector import Collector
from latermq.http.endpoint import Answer, Call, Endpoint, check_access, permitted_answer
from latermq.http.security.roles import EVERYBODY, Identity, Role

MAX_RECENT = 256  # answers that visitors share; above it the one that was used least recently is forgotten

_Values = tuple[tuple[str, Any], ...]
_Key = tuple[str, _Values, _Values]


class Api:
    """The rows of the API's route table, and answers that visitors share for some seconds."""

    def __init__(self, endpoints: list[Endpoint], collector: Collector) -> None:
        self._rows = {(row.method, row.path): row for row in endpoints}
        self._collector = collector
        self._recent: OrderedDict[_Key, tuple[float, asyncio.Task[Any]]] = OrderedDict()

    def find(self, method: str, path: str) -> Endpoint | None:
        """Return a row."""
        return self._rows.get((method, path))

    async def state(self) -> LiveState:
        """Return the state of all brokers, at most a second old."""
        found = await self._collector.newest()
        assert isinstance(found, LiveState)
        return found

    async def recent(self, row: Endpoint, query: Mapping[str, Any], parts: Mapping[str, str], max_age_s: float) -> Any:
        """Return an answer to a GET that is at most so old. Visitors who ask at the same time wait for the same one."""
        loop = asyncio.get_running_loop()
        key = (row.path, tuple(sorted(query.items())), tuple(sorted(parts.items())))
        known = self._recent.get(key)
        # A slow answer is waited for, however old the question: asking again would make it slower.
        if known is None or (known[1].done() and (loop.time() - known[0] >= max_age_s or known[1].exception())):
            known = loop.time(), loop.create_task(call_row(row, EVERYBODY, query, None, None, parts))
            known[1].add_done_callback(lambda task: task.cancelled() or task.exception())  # all waiters may have gone
            self._recent[key] = known
        self._recent.move_to_end(key)
        if len(self._recent) > MAX_RECENT:
            self._recent.popitem(last=False)
        return (await asyncio.shield(known[1])).body


class ApiCalls:
    """The API with the rights of one visitor."""

    def __init__(self, api: Api, identity: Identity) -> None:
        self._api = api
        self._identity = identity

    def has(self, method: str, path: str) -> bool:
        """Whether the API has a row that this visitor may request, at least for some topic or group."""
        row = self._api.find(method, path)
        if row is None:
            return False
        rights = self._identity.rights
        if rights is not None and isinstance(row.access, Fixed):
            return rights.may(row.access.accesses)
        return self._identity.role >= row.needed_role

    def may(self, *accesses: Access) -> bool:
        """Whether this visitor may change these resources."""
        rights = self._identity.rights
        return self._identity.role >= Role.OPERATOR if rights is None else rights.may(accesses)

    async def get(
        self, path: str, query: Mapping[str, Any] | None = None, parts: Mapping[str, str] | None = None
    ) -> Any:
        """Return the struct that a GET is answered with. `path` is that of the row; `parts` are its parameters."""
        return (await self.call("GET", path, query=query, parts=parts)).body

    async def recent(
        self,
        path: str,
        query: Mapping[str, Any] | None = None,
        parts: Mapping[str, str] | None = None,
        *,
        max_age_s: float,
    ) -> Any:
        """Return the struct that a GET is answered with, at most so old and shared by all visitors."""
        row = self._row("GET", path)
        check_access(row, self._identity, _decoded(row, query, None, None, parts))
        found = await self._api.recent(row, query or {}, parts or {}, max_age_s)
        rights = self._identity.rights
        return found if rights is None or row.visible is None else row.visible(found, rights)

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        parts: Mapping[str, str] | None = None,
    ) -> Answer:
        """Call a row. `query` and `body` are converted to the row's structs; empty values of the query are left out."""
        return await call_row(self._row(method, path), self._identity, query, body, headers, parts)

    async def state(self) -> LiveState:
        """Return the state of all brokers, at most a second old and shared by all visitors."""
        row = self._row("GET", "/api/v1/state")
        check_access(row, self._identity, _decoded(row, None, None, None, None))
        return await self._api.state()

    def _row(self, method: str, path: str) -> Endpoint:
        row = self._api.find(method, path)
        assert row is not None, f"the API has no {method} {path}"
        return row


async def call_row(
    row: Endpoint,
    identity: Identity,
    query: Mapping[str, Any] | None,
    body: Any,
    headers: Mapping[str, str] | None,
    parts: Mapping[str, str] | None,
) -> Answer:
    """Call a row with values that are not converted yet."""
    return await permitted_answer(row, identity, _decoded(row, query, body, headers, parts))


def _decoded(
    row: Endpoint,
    query: Mapping[str, Any] | None,
    body: Any,
    headers: Mapping[str, str] | None,
    parts: Mapping[str, str] | None,
) -> Call:
    given = {name: value for name, value in (query or {}).items() if value not in ("", None)}
    try:
        decoded = msgspec.convert(given, row.query, strict=False) if row.query is not None else None
        sent = msgspec.convert(body, row.body) if row.body is not None and isinstance(body, dict) else body
    except msgspec.ValidationError as error:
        raise InvalidParameter(f"a value is not valid: {error}") from None
    return Call(parts or {}, decoded, sent, Headers(dict(headers or {})))
