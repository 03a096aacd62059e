"""Strangers whose pulls wait: what each keeps in the broker, and how many places one connection takes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.frames import Command
from tests.integration.brokers import pull_fields, send_fields
from tests.interop.waiting import wait_until
from tests.security.attacker import Attacker, attacking, resident_bytes
from tests.support.serving import Server, serving

LONG_MS = "60000"
PER_CONNECTION = 1000
MIB = 1 << 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data: Path = tmp_path_factory.mktemp("data")
    settings = (f"broker.max_waiting_pulls_per_connection={PER_CONNECTION}", "broker.max_waiting_filters=16MiB")
    with serving(data, *(option for setting in settings for option in ("--set", setting))) as running:
        yield running


@pytest.fixture
def topic(server: Server, request: pytest.FixtureRequest) -> str:
    """A topic with one message, so that nothing is left to pull from offset 1 on."""
    name: str = request.node.name[:100]
    with attacking(server.port) as client:
        assert client.call(Request.SEND_MESSAGE_V2, send_fields(name), b"first").code == Response.SUCCESS
    return name


def waiting_pull(client: Attacker, topic: str, *, body: bytes = b"", **changes: str) -> bytes:
    fields = pull_fields(topic, 1, **{"sysFlag": "6", "suspendTimeoutMillis": LONG_MS} | changes)
    return client.request(Request.PULL_MESSAGE, fields, body)


def has_served(client: Attacker) -> list[Command]:
    """Everything that came before the answer to one more request: all that was pushed before it is served."""
    marker = client.request(Request.GET_MAX_OFFSET, {"topic": "TBW102", "queueId": "0"})
    client.push(marker)
    answers = []
    while True:
        answers.append(client.receive())
        if "offset" in answers[-1].text_fields():
            return answers[:-1]


def test_a_waiting_pull_keeps_neither_the_body_nor_the_header_it_came_with(server: Server, topic: str) -> None:
    pulls, ballast = 1_000, b"x" * 300_000
    with attacking(server.port) as client:
        has_served(client)
        before = resident_bytes(server.broker_pid())
        for _ in range(pulls // 2):
            client.push(waiting_pull(client, topic, body=ballast))
            client.push(waiting_pull(client, topic, unknown=ballast[:50_000].decode()))
        assert has_served(client) == []  # they wait
        assert resident_bytes(server.broker_pid()) - before < 60 * MIB


def test_filters_of_waiting_pulls_are_bounded_together(server: Server, topic: str) -> None:
    """Compiled, each of them takes half a MiB."""
    pulls = 200
    with attacking(server.port) as client:
        has_served(client)
        before = resident_bytes(server.broker_pid())
        for number in range(pulls):
            tags = "||".join(f"a-tag-of-pull-{number}-{tag}" for tag in range(2_000))
            client.push(waiting_pull(client, topic, subscription=tags))
        refused = has_served(client)
        assert {reply.code for reply in refused} == {Response.SYSTEM_BUSY}
        assert 0 < len(refused) < pulls
        assert resident_bytes(server.broker_pid()) - before < 50 * MIB
        client.push(waiting_pull(client, topic, subscription="*"))  # takes none
        assert has_served(client) == []


def test_one_connection_has_its_share_of_places_and_is_told_so(server: Server, topic: str) -> None:
    with attacking(server.port) as greedy, attacking(server.port) as modest:
        greedy.push(b"".join(waiting_pull(greedy, topic) for _ in range(PER_CONNECTION + 5)))
        refused = has_served(greedy)
        # After an error clients pause; PULL_NOT_FOUND they repeat at once.
        assert {reply.code for reply in refused} == {Response.SYSTEM_BUSY}
        assert len(refused) == 5
        assert "max_waiting_pulls_per_connection" in (refused[0].remark or "")

        modest.push(waiting_pull(modest, topic))
        assert has_served(modest) == []
        modest.push(modest.request(Request.SEND_MESSAGE_V2, send_fields(topic), b"second"))
        codes = [modest.receive().code for _ in range(2)]
        assert codes == [Response.SUCCESS, Response.SUCCESS]  # its message, and its pull that this woke
        woken = [greedy.receive() for _ in range(PER_CONNECTION)]
        assert {reply.code for reply in woken} == {Response.SUCCESS}


def test_the_places_of_a_connection_are_free_once_it_closes(server: Server, topic: str) -> None:
    for _ in range(3):
        with attacking(server.port) as client:
            client.push(b"".join(waiting_pull(client, topic) for _ in range(PER_CONNECTION)))
            assert has_served(client) == []
    with attacking(server.port) as client:

        def none_waits() -> bool:
            return b'"latermq_waiting_pulls":"0"' in client.call(Request.GET_BROKER_RUNTIME_INFO).body

        wait_until(none_waits, 10.0, "no pull to wait")


def test_a_client_that_reads_nothing_is_sent_nothing_more_though_its_pulls_are_up(server: Server, topic: str) -> None:
    pulls, size = 250, 500_000
    with attacking(server.port) as sender, attacking(server.port) as deaf:
        deaf.push(b"".join(waiting_pull(deaf, topic, suspendTimeoutMillis="1000") for _ in range(pulls)))
        assert has_served(deaf) == []
        before = resident_bytes(server.broker_pid())
        assert sender.call(Request.SEND_MESSAGE_V2, send_fields(topic), b"x" * size).code == Response.SUCCESS
        ends_later = pull_fields(topic, 2, sysFlag="6", suspendTimeoutMillis="2000")
        assert sender.call(Request.PULL_MESSAGE, ends_later).code == Response.PULL_NOT_FOUND
        assert resident_bytes(server.broker_pid()) - before < 60 * MIB

        # At last it reads, and everything comes.
        answers = [deaf.receive() for _ in range(pulls)]
        assert {reply.code for reply in answers} == {Response.SUCCESS}
        assert all(len(reply.body) > size for reply in answers)
