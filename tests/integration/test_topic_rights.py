"""The same rights to every kind of topic, whether a user asks a broker or the console."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from latermq.http.process import ConsoleProcess
from latermq.message.names import CLUSTER_TOPICS
from latermq.protocol.remoting.codes import Request
from tests.integration.brokers import send_fields
from tests.integration.raw_client import connect
from tests.support.console_users import USERS, client_of, create_users, running_console_with_users, secret_of
from tests.support.serving import Server, serving
from tests.support.signed_requests import signed

ENTRIES = {
    "gets-cluster": (("Cluster:*", "Get"),),
    "updates-cluster": (("Cluster:*", "Update"),),
    "pubs-topics": (("Topic:*", "Pub"),),
    "gets-topics": (("Topic:*", "Get"),),
    "pubs-groups": (("Group:*", "Pub"),),
    "subs-groups": (("Group:*", "Sub"),),
    "gets-namespace": (("Topic:ns%*", "Get"),),
}
TOPICS = [
    "orders",
    "ns%orders",
    "%RETRY%readers",
    "%RETRY%ns%readers",
    "%RETRY%readers_orders",
    "%DLQ%readers",
    "%DLQ%ns%readers",
    "TBW102",
    "RMQ_SYS_TRACE_TOPIC",
    "rmq_sys_REVIVE_LOG_DefaultCluster",
    *sorted(CLUSTER_TOPICS),
]
REFUSAL = " has no permission to access "


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("users")


@pytest.fixture(scope="module")
def server(data: Path) -> Iterator[Server]:
    with serving(data, *USERS) as running:
        create_users(data, ENTRIES)
        yield running


@pytest.fixture(scope="module")
def console(server: Server, data: Path) -> Iterator[ConsoleProcess]:
    with running_console_with_users(server, data, "http.rate=0") as process:
        yield process


async def answers_of_broker(port: int, name: str) -> dict[str, tuple[str, str]]:
    """Why a broker refuses to take a message for each topic, and to show it. Empty if the rights suffice."""
    found, secret = {}, secret_of(name)
    async with connect(port) as client:
        for topic in TOPICS:
            fields, body = send_fields(topic), b"body"
            sent = await client.call(Request.SEND_MESSAGE_V2, signed(name, fields, body, secret), body)
            shown = await client.call(Request.GET_TOPIC_STATS_INFO, signed(name, {"topic": topic}, secret=secret))
            found[topic] = refusal(sent.remark or ""), refusal(shown.remark or "")
    return found


def answers_of_console(console: ConsoleProcess, name: str) -> dict[str, tuple[str, str]]:
    client, found = client_of(console, name), {}
    for topic in TOPICS:
        sent = client.post("/api/v1/messages", {"topic": topic, "body": "body"})
        timer = client.post("/api/v1/timers", {"topic": topic, "body": "body", "delay": "1h"})
        shown = client.get(f"/api/v1/topics/{quote(topic, safe='')}")
        found[topic] = refusal(sent.json.get("detail", "")), refusal(shown.json.get("detail", ""))
        assert refusal(timer.json.get("detail", "")) == found[topic][0], "a timer takes the right that a message takes"
    return found


def refusal(text: str) -> str:
    return text if REFUSAL in text else ""


@pytest.mark.parametrize("name", ENTRIES)
def test_a_broker_and_the_console_refuse_the_same_with_the_same_words(
    server: Server, console: ConsoleProcess, name: str
) -> None:
    by_broker = asyncio.run(answers_of_broker(server.port, name))
    assert answers_of_console(console, name) == by_broker
    refused = [bool(text) for texts in by_broker.values() for text in texts]
    assert any(refused)
    assert all(refused) == (name == "pubs-groups"), "a group is written to by those who consume for it"
