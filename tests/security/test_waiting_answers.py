"""Strangers whose requests are answered later: what each of them keeps in the broker meanwhile."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from latermq.config_json.groups import GroupJson
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.groups import SubscriptionGroupList
from latermq.protocol.remoting.json_body import encode_body
from tests.security.attacker import Attacker, attacking, resident_bytes
from tests.support.serving import Server, serving

MIB = 1 << 20
GROUPS = 16_000


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path) as running:
        yield running


def peak_bytes(server: Server, client: Attacker, answers: int) -> tuple[int, list[int]]:
    """The most that the broker held while the answers came, and their codes."""
    peak, codes = 0, []
    for count in range(answers):
        if count % 20 == 0:
            peak = max(peak, resident_bytes(server.broker_pid()))
        codes.append(client.receive().code)
    return peak, codes


def test_changes_of_a_large_table_are_saved_together(server: Server) -> None:
    changes, ballast = 500, "x" * 50_000
    with attacking(server.port) as client:
        for first in range(0, GROUPS, 2_000):
            groups = [GroupJson(name=f"group-{first + number:05}") for number in range(2_000)]
            listed = encode_body(SubscriptionGroupList(groupConfigList=groups))
            assert client.call(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body=listed).code == Response.SUCCESS
        before = resident_bytes(server.broker_pid())
        one = encode_body(GroupJson(name="group-00000"))
        code = Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        client.push(b"".join(client.request(code, {"unknown": ballast}, one) for _ in range(changes)))
        peak, codes = peak_bytes(server, client, changes)
        assert set(codes) == {Response.SUCCESS}
        assert peak - before < 100 * MIB
