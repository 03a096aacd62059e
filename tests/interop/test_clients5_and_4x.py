"""Both protocols at once: what one sends the other receives, cancels and moves."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from tests.interop.clients5 import LANGUAGES, Client5
from tests.interop.programs import Program
from tests.interop.target import IS_APACHE, Cluster, running_cluster_with_proxy

LATEST_MS = 5_000 if IS_APACHE else 500
# The Java client of the 4.x protocol compresses bodies above 4 KiB.
LARGE_BYTES = 20_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster_with_proxy(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def group(group: str, java: Program) -> str:
    java.call("make_group", group=group)
    return group


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def latermq(cluster: Cluster, *arguments: str) -> dict[str, object]:
    """The one line that a command of `latermq` prints."""
    command = [sys.executable, "-m", "latermq", *arguments, "--json", "--namesrv", cluster.namesrv]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    line: dict[str, object] = json.loads(done.stdout)
    return line


@pytest.mark.skipif(IS_APACHE, reason="only LaterMQ moves timers")
def test_timers_of_a_5x_client_are_cancelled_and_moved_through_4x(
    clients5: Callable[[str], Client5], mixed_topic: str, group: str, cluster: Cluster, java: Program
) -> None:
    java.call("start_consumer", name=group, topic=mixed_topic, group=group)
    client = clients5("java")
    producer = client.producer(mixed_topic)
    due_ms = now_ms() + 6_000
    sent = {
        body: client.send(producer, mixed_topic, body, deliver_at_ms=due_ms, keys=[body])
        for body in ("kept", "cancelled", "recalled", "moved")
    }
    assert (
        latermq(cluster, "cancel", mixed_topic, "--unique-key", sent["cancelled"]["message_id"])["verdict"]
        == "cancelled"
    )
    java.call("recall", topic=mixed_topic, handle=sent["recalled"]["recall_handle"])
    moved_at_ms = now_ms()
    moved = latermq(cluster, "move", mixed_topic, "--unique-key", sent["moved"]["message_id"], "--delay", "2s")
    assert moved["verdict"] == "moved"
    java.messages(group, count=2)
    time.sleep(1)
    got = {m["body"]: m for m in java.messages(group)}
    java.call("stop_consumer", name=group)
    assert set(got) == {"kept", "moved"}
    early, kept = got["moved"], got["kept"]
    assert moved_at_ms + 2_000 <= early["stored_ms"] <= moved_at_ms + 2_000 + 5_000
    assert due_ms <= kept["stored_ms"] <= due_ms + LATEST_MS


@pytest.mark.parametrize("language", LANGUAGES)
def test_messages_of_a_4x_client_arrive_at_a_5x_client(
    language: str, clients5: Callable[[str], Client5], mixed_topic: str, group: str, java: Program
) -> None:
    if IS_APACHE and language == "node":
        pytest.skip("Apache calls the zlib of 4.x clients gzip, which this client fails to read")
    client = clients5(language)
    consumer = client.simple(group, mixed_topic)
    options = {"topic": mixed_topic, "keys": "k%d", "tags": ["T"], "properties": {"p": "v"}}
    [plain] = java.call("send", prefix="plain", **options)["results"]
    [timer] = java.call("send", prefix="timer", timers=[{"way": "ms", "in_ms": 1_500}], **options)["results"]
    sent_ms = now_ms()
    large = java.call("send", prefix="large", size_bytes=LARGE_BYTES, **options)
    got = {m["body"].partition("-")[0]: m for m in client.receive(consumer, 3)}
    client.ack(consumer, *got.values())
    assert set(got) == {"plain", "timer", "large"}
    assert got["plain"]["message_id"] == plain["msg_id"]
    assert (got["plain"]["tag"], got["plain"]["keys"], got["plain"]["properties"]) == ("T", ["k0"], {"p": "v"})
    assert len(got["large"]["body"]) == LARGE_BYTES, large
    assert sent_ms + 1_000 <= got["timer"]["received_ms"] <= sent_ms + 1_500 + LATEST_MS
    assert timer["msg_id"] == got["timer"]["message_id"]


@pytest.mark.parametrize("language", LANGUAGES)
def test_messages_of_a_5x_client_arrive_at_a_4x_client(
    language: str, clients5: Callable[[str], Client5], mixed_topic: str, group: str, java: Program
) -> None:
    client = clients5(language)
    producer = client.producer(mixed_topic)
    java.call("start_consumer", name=group, topic=mixed_topic, group=group)
    sent = client.send(producer, mixed_topic, "over", tag="T", keys=["k"], properties={"p": "v"})
    [got] = java.messages(group, count=1)
    java.call("stop_consumer", name=group)
    assert (got["body"], got["properties"]["UNIQ_KEY"]) == ("over", sent["message_id"])
    assert (got["properties"]["TAGS"], got["properties"]["KEYS"], got["properties"]["p"]) == ("T", "k", "v")
