"""Transactions of the official clients of the 5.x protocol: commit, rollback, and check-backs for forgotten ones."""

import time
from collections.abc import Iterator

import pytest

from tests.interop.clients5 import Client5
from tests.interop.programs import Program
from tests.interop.target import IS_APACHE, Cluster, running_cluster_with_proxy
from tests.interop.waiting import wait_until

CHECK_TIMEOUT_S = 30
SHORT_AWAIT_S = 5 if IS_APACHE else 1
# Apache announces only producers of topics of this type for check-backs.
TOPIC_TYPE = "TRANSACTION" if IS_APACHE else "MIXED"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = ("transaction.check_after=1s", "transaction.check_every=1s")
    with running_cluster_with_proxy(tmp_path_factory.mktemp("cluster"), *settings) as running:
        yield running


@pytest.fixture
def transaction_topic(mixed_topic: str, java: Program, cluster: Cluster) -> str:
    topic = f"{mixed_topic}_{TOPIC_TYPE}"
    java.call("make_topics", topics=[topic], message_type=TOPIC_TYPE)
    return topic


@pytest.fixture
def group(group: str, java: Program) -> str:
    java.call("make_group", group=group)
    return group


def test_a_message_arrives_when_its_transaction_is_committed(
    client5: Client5, transaction_topic: str, group: str
) -> None:
    producer = client5.producer(transaction_topic, checked_as="unknown")
    consumer = client5.simple(group, transaction_topic, await_s=SHORT_AWAIT_S)
    sent = client5.send(producer, transaction_topic, "paid", tag="T", transaction=group)
    assert client5.receive_once(consumer) == []
    client5.program.call("end_transaction", transaction=group, resolution="commit")
    [got] = client5.receive(consumer)
    client5.ack(consumer, got)
    assert (got["body"], got["tag"], got["message_id"]) == ("paid", "T", sent["message_id"])


def test_a_message_whose_transaction_is_rolled_back_never_arrives(
    client5: Client5, transaction_topic: str, group: str
) -> None:
    producer = client5.producer(transaction_topic, checked_as="commit")
    consumer = client5.simple(group, transaction_topic, await_s=SHORT_AWAIT_S)
    client5.send(producer, transaction_topic, "rolled back", transaction=group)
    client5.program.call("end_transaction", transaction=group, resolution="rollback")
    # Long enough for a check-back, which would commit it.
    end_s = time.monotonic() + 3
    while time.monotonic() < end_s:
        assert client5.receive_once(consumer) == []
    assert [event for event in client5.program.events("check") if event["producer"] == producer] == []


@pytest.mark.parametrize("resolution", ["commit", "rollback"])
def test_a_forgotten_transaction_ends_as_the_producer_says_when_it_is_asked(
    client5: Client5, transaction_topic: str, group: str, resolution: str
) -> None:
    producer = client5.producer(transaction_topic, checked_as=resolution)
    consumer = client5.simple(group, transaction_topic, await_s=SHORT_AWAIT_S)
    sent = client5.send(producer, transaction_topic, "forgotten", transaction=group)
    check = wait_until(
        lambda: [event for event in client5.program.events("check") if event["producer"] == producer],
        CHECK_TIMEOUT_S,
        "the producer is asked for its decision",
    )[0]
    assert (check["body"], check["message_id"]) == ("forgotten", sent["message_id"])
    if resolution == "commit":
        [got] = client5.receive(consumer)
        client5.ack(consumer, got)
        assert got["message_id"] == sent["message_id"]
    else:
        assert client5.receive_once(consumer) == []
