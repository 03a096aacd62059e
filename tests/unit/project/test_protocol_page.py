"""docs/protocol.md lists every request and call that is served, with the permission that it needs, and no other."""

import asyncio
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from latermq.clock import SystemClock
from latermq.config import Config
from latermq.server.proxy.composition import ProxyParts
from latermq.server.remoting.endpoints import Endpoint
from tests.support.served_requests import broker_endpoints, name_server_endpoints

PAGE = Path(__file__).resolve().parents[3] / "docs" / "protocol.md"
_ROW = re.compile(r"^\| (\d+) \| ([A-Z]\w+) \| ([^|]*) \|", re.MULTILINE)


def documented(heading: str) -> dict[int, tuple[str, str]]:
    """Name and permission of each code in the first table of a section."""
    sections = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)
    [text] = [part for part in sections if part.startswith(heading + "\n")]
    return {int(code): (name, permission) for code, name, permission in _ROW.findall(text)}


def served(endpoints: Iterable[Endpoint]) -> dict[int, tuple[str, str]]:
    rows = sorted(endpoints, key=lambda endpoint: endpoint.code)
    return {int(row.code): (row.code.name, "; ".join(map(str, row.access)) or "none") for row in rows}


def test_the_page_lists_what_a_name_server_serves() -> None:
    assert documented("Name server") == served(name_server_endpoints())


@pytest.mark.parametrize("subject", broker_endpoints())
def test_the_page_lists_what_a_broker_serves(subject: str) -> None:
    assert documented(f"Broker: {subject}") == served(broker_endpoints()[subject])


def test_the_page_lists_the_calls_of_the_proxy() -> None:
    async def calls() -> dict[str, str]:
        table = ProxyParts(Config(), "127.0.0.1:1", SystemClock()).table
        found = {row.name: "; ".join(map(str, row.access)) for row in table.endpoints}
        assert len(table.methods) == len(found) + 1
        return {**found, "Telemetry": "–"}

    text = PAGE.read_text().partition("\n## gRPC proxy\n")[2]
    rows = re.findall(r"^\| ([A-Z][A-Za-z]+) \| ([^|]*) \| [^|]* \| [^|]*\|$", text, re.MULTILINE)
    assert dict(rows) == asyncio.run(calls())
    assert [name for name, _ in rows] == sorted(name for name, _ in rows)
