"""The official clients of the 5.x protocol: every kind of message, simple and push consumers, filters, dead letters."""

import time
from collections.abc import Iterator

import pytest

from tests.interop.clients5 import Client5
from tests.interop.programs import Json, Program, ProgramError
from tests.interop.target import IS_APACHE, Cluster, running_cluster_with_proxy
from tests.interop.waiting import wait_until

INVALID_RECEIPT_HANDLE = 40013
# Apache looks for due messages once per second, and wakes a waiting consumer late if others wait for the topic too.
LATEST_MS = 5_000 if IS_APACHE else 500
# Apache refuses shorter ones.
SHORT_AWAIT_S = 5 if IS_APACHE else 1
# Push consumers wait for their polls in flight when they stop.
SHORT_POLLS = "proxy.poll_timeout=3s"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster_with_proxy(tmp_path_factory.mktemp("cluster"), SHORT_POLLS) as running:
        yield running


@pytest.fixture
def group(group: str, java: Program) -> str:
    java.call("make_group", group=group)
    return group


def due_in(seconds: int) -> int:
    """A time in whole seconds, because the Python client knows no others."""
    return (int(time.time()) + 1 + seconds) * 1000


def dead_letters(java: Program, group: str) -> list[Json]:
    """The dead letters of a group, read by the Java client of the 4.x protocol."""
    topic = f"%DLQ%{group}"

    def pulled() -> list[Json] | None:
        try:
            answer = java.call("pull", topic=topic, broker="broker-a", queue=0, offset=0)
        except ProgramError:  # its route is not known before the first one is stored
            return None
        found: list[Json] = answer["messages"]
        return found

    return wait_until(pulled, 30, f"{topic} holds a message")


def test_a_message_arrives_with_all_that_it_was_sent_with(client5: Client5, mixed_topic: str, group: str) -> None:
    producer = client5.producer(mixed_topic)
    sent = client5.send(producer, mixed_topic, "grüße", tag="T", keys=["k1", "k2"], properties={"p": "v", "q": "ü"})
    consumer = client5.simple(group, mixed_topic)
    [got] = client5.receive(consumer)
    client5.ack(consumer, got)
    assert got["message_id"] == sent["message_id"]
    assert (got["topic"], got["body"], got["tag"], got["attempt"]) == (mixed_topic, "grüße", "T", 1)
    assert sorted(got["keys"]) == ["k1", "k2"]
    assert got["properties"] == {"p": "v", "q": "ü"}
    assert not got["message_group"]


def test_a_delayed_message_arrives_at_its_time(client5: Client5, mixed_topic: str, group: str) -> None:
    producer = client5.producer(mixed_topic)
    consumer = client5.simple(group, mixed_topic)
    due_ms = due_in(1)
    client5.send(producer, mixed_topic, "later", deliver_at_ms=due_ms)
    [got] = client5.receive(consumer)
    client5.ack(consumer, got)
    late_ms = got["received_ms"] - due_ms
    print(f"{client5.language}: {late_ms} ms after its time")
    assert got["body"] == "later"
    assert got["deliver_at_ms"] == due_ms
    assert 0 <= late_ms <= LATEST_MS


def test_a_recalled_message_never_arrives(client5: Client5, mixed_topic: str, group: str) -> None:
    producer = client5.producer(mixed_topic)
    consumer = client5.simple(group, mixed_topic)
    due_ms = due_in(2)
    recalled = client5.send(producer, mixed_topic, "recalled", deliver_at_ms=due_ms)
    kept = client5.send(producer, mixed_topic, "kept", deliver_at_ms=due_ms)
    answer = client5.program.call("recall", producer=producer, topic=mixed_topic, handle=recalled["recall_handle"])
    # Some clients return the id itself, others an object that holds it.
    assert recalled["message_id"] in answer["message_id"]
    [got] = client5.receive(consumer)
    with pytest.raises(ProgramError):
        client5.program.call("recall", producer=producer, topic=mixed_topic, handle=kept["recall_handle"])
    assert got["body"] == "kept"
    client5.ack(consumer, got)
    late = client5.simple(group, mixed_topic, await_s=SHORT_AWAIT_S)
    assert client5.receive_once(late) == []


def test_filters_by_tag_and_by_expression_let_only_their_messages_through(
    client5: Client5, mixed_topic: str, group: str, java: Program, cluster: Cluster
) -> None:
    producer = client5.producer(mixed_topic)
    for tag, price in (("A", "1"), ("B", "2"), ("C", "3"), ("A", "4")):
        client5.send(producer, mixed_topic, f"{tag}{price}", tag=tag, properties={"price": price})
    by_tag = client5.simple(group, mixed_topic, tags="A||B")
    got = client5.receive(by_tag, 3)
    client5.ack(by_tag, *got)
    assert sorted(m["body"] for m in got) == ["A1", "A4", "B2"]
    other_group = f"{group}_sql"
    java.call("make_group", group=other_group)
    by_expression = client5.simple(other_group, mixed_topic, sql="price > 2 AND TAGS <> 'A'")
    [only] = client5.receive(by_expression)
    client5.ack(by_expression, only)
    assert only["body"] == "C3"


def test_a_message_comes_again_when_its_changed_invisible_time_is_over(
    client5: Client5, mixed_topic: str, group: str
) -> None:
    producer = client5.producer(mixed_topic)
    consumer = client5.simple(group, mixed_topic)
    client5.send(producer, mixed_topic, "again")
    [first] = client5.receive(consumer)
    changed_ms = int(time.time() * 1000)
    client5.change(consumer, first, 2)
    [second] = client5.receive(consumer)
    assert second["body"] == "again"
    assert (first["attempt"], second["attempt"]) == (1, 2)
    assert 2_000 <= second["received_ms"] - changed_ms <= 2_000 + LATEST_MS
    client5.ack(consumer, second)


def test_a_stale_handle_is_refused_and_the_new_holder_keeps_the_message(
    client5: Client5, mixed_topic: str, group: str
) -> None:
    producer = client5.producer(mixed_topic)
    consumer = client5.simple(group, mixed_topic)
    client5.send(producer, mixed_topic, "held")
    [stale] = client5.receive(consumer)
    client5.change(consumer, stale, 1)
    [held] = client5.receive(consumer)
    if client5.language == "go":
        client5.ack(consumer, stale)  # this client does not look at the answer
    else:
        with pytest.raises(ProgramError) as refused:
            client5.ack(consumer, stale)
        assert refused.value.code == INVALID_RECEIPT_HANDLE
    with pytest.raises(ProgramError):
        client5.change(consumer, stale, 1)
    again = client5.simple(group, mixed_topic, await_s=SHORT_AWAIT_S)
    assert client5.receive_once(again) == []
    client5.ack(consumer, held)


def test_a_push_consumer_gets_each_message_once(client5: Client5, mixed_topic: str, group: str) -> None:
    producer = client5.producer(mixed_topic)
    consumer = client5.push(group, mixed_topic)
    sent = [client5.send(producer, mixed_topic, f"m{i}")["message_id"] for i in range(20)]
    got = client5.pushed(consumer, 20)
    assert sorted(m["message_id"] for m in got) == sorted(sent)


def test_a_push_consumer_that_fails_gets_the_message_again(client5: Client5, mixed_topic: str, group: str) -> None:
    producer = client5.producer(mixed_topic)
    consumer = client5.push(group, mixed_topic, failures=1)
    client5.send(producer, mixed_topic, "again")
    got = client5.pushed(consumer, 2)
    assert [m["attempt"] for m in got] == [1, 2]


def test_messages_of_a_message_group_come_in_order(
    client5: Client5, mixed_topic: str, group: str, java: Program, cluster: Cluster
) -> None:
    java.call("make_group", group=group, in_order=True)
    producer = client5.producer(mixed_topic)
    for i in range(10):
        for message_group in ("a", "b"):
            client5.send(producer, mixed_topic, f"{i}", message_group=message_group)
    consumer = client5.push(group, mixed_topic, busy_ms=10)
    got = client5.pushed(consumer, 20)
    for message_group in ("a", "b"):
        assert [m["body"] for m in got if m["message_group"] == message_group] == [str(i) for i in range(10)]


def test_a_message_that_is_never_acked_becomes_one_dead_letter(
    client5: Client5, mixed_topic: str, group: str, java: Program
) -> None:
    java.call("make_group", group=group, retries=1)
    producer = client5.producer(mixed_topic)
    consumer = client5.simple(group, mixed_topic, await_s=SHORT_AWAIT_S)
    sent = client5.send(producer, mixed_topic, "doomed")
    for attempt in (1, 2):
        [got] = client5.receive(consumer)
        assert got["attempt"] == attempt
        client5.change(consumer, got, 1)
    # Apache buries it only when a consumer asks for messages after its time.
    time.sleep(1)
    assert client5.receive_once(consumer) == []
    [dead] = dead_letters(java, group)
    assert dead["body"] == "doomed"
    assert dead["properties"]["UNIQ_KEY"] == sent["message_id"]
