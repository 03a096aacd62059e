"""Strangers whose pulls wait: what each keeps in the broker, and how many places one connection takes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.frames import Command
from tests.integration.brokers import pull_fields, send_fields
from tests.security.attacker import Attacker, attacking, resident_bytes
from tests.serving import Server, serving

LONG_MS = "60000"
PER_CONNECTION = 1000
MIB = 1 << 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data: Path = tmp_path_factory.mktemp("data")
    options = ("--set", f"broker.max_waiting_pulls_per_connection={PER_CONNECTION}")
    with serving(data, *options) as running:
        with attacking(running.port) as client:
            assert client.call(Request.SEND_MESSAGE_V2, send_fields("orders"), b"first").code == Response.SUCCESS
        yield running


def waiting_pull(client: Attacker, *, body: bytes = b"", **changes: str) -> bytes:
    fields = pull_fields("orders", 1, **{"sysFlag": "6", "suspendTimeoutMillis": LONG_MS} | changes)
    return client.request(Request.PULL_MESSAGE, fields, body)


def has_served(client: Attacker) -> list[Command]:
    """Everything that came before the answer to one more request: all that was pushed before it is served."""
    marker = client.request(Request.GET_MAX_OFFSET, {"topic": "orders", "queueId": "0"})
    client.push(marker)
    answers = []
    while True:
        answers.append(client.receive())
        if "offset" in answers[-1].text_fields():
            return answers[:-1]


def test_a_waiting_pull_keeps_neither_the_body_nor_the_header_it_came_with(server: Server) -> None:
    pulls, ballast = 900, b"x" * 300_000
    with attacking(server.port) as client:
        has_served(client)
        before = resident_bytes(server.broker_pid())
        for _ in range(pulls // 2):
            client.push(waiting_pull(client, body=ballast))
            client.push(waiting_pull(client, unknown=ballast.decode()))
        assert has_served(client) == []  # they wait
        assert resident_bytes(server.broker_pid()) - before < 60 * MIB


def test_filters_of_waiting_pulls_are_bounded_together(server: Server) -> None:
    """Compiled, each of them takes half a MiB."""
    pulls = 400
    with attacking(server.port) as client:
        has_served(client)
        before = resident_bytes(server.broker_pid())
        for number in range(pulls):
            tags = "||".join(f"a-tag-of-pull-{number}-{tag}" for tag in range(2_000))
            client.push(waiting_pull(client, subscription=tags))
        refused = has_served(client)
        assert {reply.code for reply in refused} == {Response.SYSTEM_BUSY}
        assert 0 < len(refused) < pulls
        assert resident_bytes(server.broker_pid()) - before < 130 * MIB
        client.push(waiting_pull(client, subscription="*"))  # takes none
        assert has_served(client) == []


def test_one_connection_has_its_share_of_places_and_is_told_so(server: Server) -> None:
    with attacking(server.port) as greedy, attacking(server.port) as modest:
        greedy.push(b"".join(waiting_pull(greedy) for _ in range(PER_CONNECTION + 5)))
        refused = has_served(greedy)
        assert {reply.code for reply in refused} == {
            Response.SYSTEM_BUSY
        }  # an error, after which clients pause; NOT_FOUND they repeat
        assert len(refused) == 5
        assert "max_waiting_pulls_per_connection" in (refused[0].remark or "")

        modest.push(waiting_pull(modest))
        assert has_served(modest) == []
        modest.push(modest.request(Request.SEND_MESSAGE_V2, send_fields("orders"), b"second"))
        codes = [modest.receive().code for _ in range(2)]
        assert codes == [Response.SUCCESS, Response.SUCCESS]  # its message, and its pull that this woke
        woken = [greedy.receive() for _ in range(PER_CONNECTION)]
        assert {reply.code for reply in woken} == {Response.SUCCESS}


def test_the_places_of_a_connection_are_free_once_it_closes(server: Server) -> None:
    for _ in range(3):
        with attacking(server.port) as client:
            client.push(b"".join(waiting_pull(client) for _ in range(PER_CONNECTION)))
            assert has_served(client) == []
    with attacking(server.port) as client:
        runtime = client.call(Request.GET_BROKER_RUNTIME_INFO)
        assert b'"latermq_waiting_pulls":"0"' in runtime.body


def test_a_client_that_reads_nothing_is_sent_nothing_more_though_its_pulls_are_up(server: Server) -> None:
    pulls, size = 250, 500_000
    with attacking(server.port) as sender, attacking(server.port) as deaf:
        deaf.push(b"".join(waiting_pull(deaf, suspendTimeoutMillis="1000") for _ in range(pulls)))
        assert has_served(deaf) == []
        before = resident_bytes(server.broker_pid())
        assert sender.call(Request.SEND_MESSAGE_V2, send_fields("orders"), b"x" * size).code == Response.SUCCESS
        ends_later = pull_fields("orders", 2, sysFlag="6", suspendTimeoutMillis="2000")
        assert sender.call(Request.PULL_MESSAGE, ends_later).code == Response.PULL_NOT_FOUND
        assert resident_bytes(server.broker_pid()) - before < 60 * MIB

        # At last it reads, and everything comes.
        answers = [deaf.receive() for _ in range(pulls)]
        assert {reply.code for reply in answers} == {Response.SUCCESS}
        assert all(len(reply.body) > size for reply in answers)
