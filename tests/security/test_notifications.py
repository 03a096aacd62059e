"""Strangers that make the broker speak: changes of groups and offset resets, told to members that do not read."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from latermq.protocol.remoting.clients import ConsumerData, HeartbeatData, SubscriptionData
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.json_body import encode_body
from tests.integration.brokers import send_fields
from tests.security.attacker import Attacker, attacking, resident_bytes
from tests.support.serving import Server, serving

GROUP = "g" * 120
WIDE, QUEUES = "wide", 40_000
MIB = 1 << 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data: Path = tmp_path_factory.mktemp("data")
    with serving(data, "--set", f"broker.max_topic_queues={QUEUES}") as running:
        with attacking(running.port) as client:
            assert client.call(Request.SEND_MESSAGE_V2, send_fields("orders"), b"first").code == Response.SUCCESS
            wide = {"topic": WIDE, "readQueueNums": str(QUEUES), "writeQueueNums": "1", "perm": "6"}
            assert client.call(Request.UPDATE_AND_CREATE_TOPIC, wide).code == Response.SUCCESS
        yield running


def heartbeat(client: Attacker, client_id: str, group: str = GROUP, version: int = 1) -> bytes:
    wants = SubscriptionData(topic="orders", subVersion=version)
    beat = HeartbeatData(
        clientID=client_id, consumerDataSet=[ConsumerData(groupName=group, subscriptionDataSet=[wants])]
    )
    return client.request(Request.HEART_BEAT, body=encode_body(beat))


@contextlib.contextmanager
def deaf_members(server: Server, count: int, group: str) -> Iterator[list[Attacker]]:
    """Members that have joined and read nothing from then on."""
    with contextlib.ExitStack() as stack:
        members = []
        for number in range(count):
            members.append(stack.enter_context(attacking(server.port, receive_buffer_bytes=4096)))
            members[-1].push(heartbeat(members[-1], f"deaf-{number}", group))
            while not (answer := members[-1].receive()).is_response:
                pass
            assert answer.code == Response.SUCCESS
        yield members


def told_before(client: Attacker, opaque: int) -> int:
    """How many notifications came before the answer with this opaque."""
    told = 0
    while True:
        command = client.receive()
        if command.is_response and command.opaque == opaque:
            return told
        told += command.code == Request.NOTIFY_CONSUMER_IDS_CHANGED


def test_many_changes_of_a_group_are_told_its_members_as_few(server: Server) -> None:
    changes = 3_000
    with attacking(server.port) as member, attacking(server.port) as restless:
        member.call(Request.HEART_BEAT, body=heartbeat_body("member", "busy"))
        restless.push(b"".join(heartbeat(restless, "restless", "busy", version) for version in range(changes)))
        told_before(restless, changes)
        member.push(member.request(Request.GET_MAX_OFFSET, {"topic": "orders", "queueId": "0"}))
        assert 1 <= told_before(member, 2) <= changes // 10
        # The last change is told too, soon.
        restless.push(heartbeat(restless, "restless", "busy", changes))
        while member.receive().code != Request.NOTIFY_CONSUMER_IDS_CHANGED:
            pass


def heartbeat_body(client_id: str, group: str) -> bytes:
    return encode_body(HeartbeatData(clientID=client_id, consumerDataSet=[ConsumerData(groupName=group)]))


def test_changes_of_a_group_cost_nothing_for_members_that_do_not_read(server: Server) -> None:
    changes = 60_000
    with deaf_members(server, 25, GROUP), attacking(server.port) as restless:
        before = resident_bytes(server.broker_pid())
        for first in range(0, changes, 500):
            restless.push(b"".join(heartbeat(restless, "r", version=first + step) for step in range(500)))
            told_before(restless, first + 500)
        assert resident_bytes(server.broker_pid()) - before < 40 * MIB


def test_a_reset_of_a_wide_topic_is_kept_once_for_all_its_members(server: Server) -> None:
    resets, group = 3, "resetters"
    with deaf_members(server, 40, group) as members, attacking(server.port) as operator:
        fields = {"topic": WIDE, "group": group, "timestamp": "-1", "isForce": "true"}
        before = resident_bytes(server.broker_pid())
        for _ in range(resets):
            answer = operator.call(Request.INVOKE_BROKER_TO_RESET_OFFSET, fields)
            assert answer.code == Response.SUCCESS
            assert answer.body.count(b'"queueId"') == QUEUES
        assert resident_bytes(server.broker_pid()) - before < 80 * MIB
        # Whoever reads at last is told the whole table.
        while (told := members[0].receive()).code != Request.RESET_CONSUMER_CLIENT_OFFSET:
            pass
        assert told.text_fields()["group"] == group
        assert told.body == answer.body
