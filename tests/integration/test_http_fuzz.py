"""Requests that no client would write, at every row of the route table: none finds a defect."""

import json
from collections.abc import Iterator
from random import Random
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from latermq.http.endpoint import Endpoint
from latermq.http.process import ConsoleProcess
from tests.support.http_console import HttpClient, Reply, running_console
from tests.support.needs import LONG
from tests.support.serving import serving

REQUESTS = 2_000 if LONG else 40  # per row
TEXTS = (
    "", "0", "-1", "1", "99999999999999999999", "1e400", "true", "null", "a", "orders", "%DLQ%orders", "rmq_sys_x",
    "TBW102", "../../etc/passwd", "a/b", "a b", "é", "\x00", "\x01\x02", "%", "%zz", "x" * 300, "*", "first", "last",
    "2027-01-01T00:00:00Z", "9999-12-31T23:59:59.999999+14:00", "0000-00-00", "1d", "9" * 30 + "d", "W10",
    "b3JkZXJzIFUx", "[]", "{}", "'; --", "😀",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1.5,
    1 << 63,
    1 << 70,
    [],
    {},
    [[]],
    {"a": {}},
    ["a"],
    {"a": "b"},
    *TEXTS,
)
Console = tuple[ConsoleProcess, HttpClient]


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    settings = ("http.rate=0", "http.max_page=20")
    with (
        serving(tmp_path_factory.mktemp("data") / "data") as server,
        running_console(server.namesrv, *settings) as found,
    ):
        found[1].post("/api/v1/timers", {"topic": "orders", "body": "b", "delay": "1h"})
        yield found


def fields_of(struct: Any) -> list[str]:
    return [field.encode_name for field in msgspec.structs.fields(struct)] if struct is not None else []


def odd_request(row: Endpoint, chance: Random) -> tuple[str, bytes | None, dict[str, str]]:
    """A path with its query, a body and headers. The fields are mostly real, and the values are not."""
    path = row.path
    for name in ("id", "topic", "group"):
        path = path.replace(f"{{{name}}}", quote(chance.choice(TEXTS) or "x", safe=""))
    names = [*fields_of(row.query), "nonsense"] if chance.random() < 0.9 else ["\x00", "é"]
    query = "&".join(
        f"{quote(chance.choice(names))}={quote(chance.choice(TEXTS))}" for _ in range(chance.choice((0, 0, 1, 2, 5)))
    )
    body = None
    headers: dict[str, str] = {}
    if row.body is not None:
        known = fields_of(row.body)
        document = {chance.choice(known): chance.choice(VALUES) for _ in range(chance.randrange(len(known) + 1))}
        body = json.dumps(document).encode()
        if chance.random() < 0.2:
            at = chance.randrange(len(body))
            body = body[:at] + bytes([chance.randrange(256)]) + body[at + 1 :]
        headers["Content-Type"] = (
            row.body_type if chance.random() < 0.9 else chance.choice(("text/plain", "", "a/b; c=d"))
        )
    for field in row.headers:
        if chance.random() < 0.5:
            headers[field.name] = chance.choice(("*", '"a"', "x" * 300, "a,b", "key"))
    return f"{path}?{query}" if query else path, body, headers


def check_documented(document: dict[str, Any], row: Endpoint, reply: Reply) -> None:
    responses = document["paths"][row.path][row.method.lower()]["responses"]
    response = responses.get(str(reply.status))
    if response is None:
        assert reply.headers["content-type"] == "application/problem+json", reply
        problem = reply.json
        assert problem["status"] == reply.status
        assert problem["title"]
        assert problem["detail"]
        return
    [kind] = response["content"]
    assert reply.headers["content-type"].startswith(kind)


def test_no_odd_request_finds_a_defect(console: Console) -> None:
    process, client = console
    document = client.get("/openapi.json").json
    OpenAPIV31SpecValidator(document).validate()
    statuses: set[int] = set()
    for number, row in enumerate(process.endpoints):
        chance = Random(number)
        for _ in range(REQUESTS):
            path, body, headers = odd_request(row, chance)
            reply = client.request(row.method, path, body, headers=headers)
            assert reply.status < 500, (row.method, path, body, headers, reply.body)
            check_documented(document, row, reply)
            statuses.add(reply.status)
    assert {200, 400, 404, 415, 422} <= statuses
