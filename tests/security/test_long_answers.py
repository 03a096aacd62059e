"""Strangers who fill tables and then ask for all of them at once: no answer is longer than a frame."""

import json
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from latermq.protocol.remoting.codes import Request, Response
from tests.security.attacker import Attacker, attacking
from tests.support.serving import Server, serving

LONG_ID = "\x01" * 1_000  # six bytes each in JSON


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("long"), "--set=server.max_frame=5MiB") as server:
        yield server


def join(client: Attacker, client_id: str, producers: int, consumer_group: str) -> None:
    beat = {
        "clientID": client_id,
        "producerDataSet": [{"groupName": f"p{number}"} for number in range(producers)],
        "consumerDataSet": [{"groupName": consumer_group, "subscriptionDataSet": []}],
    }
    assert client.call(Request.HEART_BEAT, body=json.dumps(beat).encode()).code == Response.SUCCESS


def test_lists_of_clients_that_fit_no_frame_are_refused(server: Server) -> None:
    with ExitStack() as stack:
        client = stack.enter_context(attacking(server.port))
        for number in range(900):
            join(client, f"{number}{LONG_ID}", 0, "crowd")
        maker = stack.enter_context(attacking(server.port))
        join(maker, LONG_ID, 900, "makers")
        for code, fields in (
            (Request.GET_ALL_PRODUCER_INFO, {}),
            (Request.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "crowd"}),
            (Request.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "crowd"}),
        ):
            reply = maker.call(code, fields)
            assert "server.max_frame" in str(reply.remark), code
        assert maker.call(Request.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "makers"}).code == Response.SUCCESS


def test_a_table_of_groups_that_fits_no_frame_is_refused(server: Server) -> None:
    with attacking(server.port) as client:
        assert client.call(Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).code == Response.SUCCESS
        wants = [{"topic": "t" * 7_500}]
        for first in range(0, 800, 100):
            groups = [{"groupName": f"g{number}", "subscriptionDataSet": wants} for number in range(first, first + 100)]
            body = json.dumps({"groupConfigList": groups}).encode()
            reply = client.call(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body=body)
            assert reply.code == Response.SUCCESS
        assert "server.max_frame" in str(client.call(Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).remark)
        assert client.call(Request.GET_ALL_TOPIC_CONFIG).code == Response.SUCCESS
