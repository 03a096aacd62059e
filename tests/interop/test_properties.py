"""Properties of received messages, field by field beside those from Apache RocketMQ's broker for the same sends."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.peer import apache_peer
from tests.interop.programs import Json, Program, start_java
from tests.interop.target import IS_APACHE, running_cluster

LEVELS = "1s 2s 1s 1s"
# What only one of the brokers adds; docs/protocol.md says why.
OF_ONE = {"LMQ_DUE_MS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS"}
# Their values depend on the moment, the machine or the client's process.
CHANGING = {"UNIQ_KEY", "ORIGIN_MESSAGE_ID", "TIMER_OUT_MS", "TIMER_DELIVER_MS", "not_before_ms", "CONSUME_START_TIME"}

pytestmark = pytest.mark.skipif(IS_APACHE, reason="it runs both brokers by itself")


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Program, Program]]:
    """The Java client beside our broker, and beside Apache's."""
    folder = tmp_path_factory.mktemp("properties")
    with contextlib.ExitStack() as running:
        ours = running.enter_context(running_cluster(folder / "ours", levels=LEVELS))
        peer = running.enter_context(apache_peer(folder / "apache", {"messageDelayLevel": LEVELS}, heap="1g"))
        yield (
            running.enter_context(start_java(_log(folder, "ours"), {"namesrv": ours.namesrv})),
            running.enter_context(start_java(_log(folder, "apache"), {"namesrv": peer.namesrv})),
        )


def _log(folder: Path, name: str) -> Path:
    home = folder / f"{name}-client"
    home.mkdir()
    return home / "java.log"


def comparable(message: Json) -> Json:
    """A message without what differs between two sends of the same."""
    properties = {name: "…" if name in CHANGING else value for name, value in message["properties"].items()}
    return {"topic": message["topic"], "body": message["body"], "reconsumed": message["reconsumed"], **properties}


def differences(our: Json, apaches: Json) -> Json:
    """By name what one has and the other has not, or has otherwise: ours, then Apache's."""
    names = (our.keys() | apaches.keys()) - OF_ONE
    if our["reconsumed"]:
        names.discard("TIMER_OUT_MS")  # of the wait before the first try, which ours no longer has
    return {name: (our.get(name), apaches.get(name)) for name in names if our.get(name) != apaches.get(name)}


def received(client: Program, topic: str, tries: int, **options: Any) -> list[Json]:
    """What a consumer gets of one message that is sent with these options, at each of its tries."""
    group = f"readers_of_{topic}"
    client.call("make_topics", topics=[topic, f"%RETRY%{group}"], queues=1)
    client.call("start_consumer", name=group, topic=topic, group=group, failures=tries - 1)
    client.call("send", topic=topic, keys="k1 k2", tags=["red"], properties={"region": "north"}, **options)
    messages = client.messages(group, count=tries, timeout_s=60)
    client.call("stop_consumer", name=group)
    return [comparable(message) for message in messages]


@pytest.mark.parametrize(
    ("name", "tries", "options"),
    [
        ("plain", 1, {}),
        ("one_way", 1, {"mode": "oneway"}),
        ("batch", 1, {"mode": "batch"}),
        ("level", 1, {"delay_levels": [2]}),
        ("timer", 1, {"timers": [{"way": "ms", "in_ms": 2_000}]}),
        ("retry", 3, {}),
        ("retry_of_a_level", 2, {"delay_levels": [1]}),
        ("retry_of_a_timer", 2, {"timers": [{"way": "sec", "in_ms": 2_000}]}),
    ],
)
def test_a_received_message_has_the_properties_that_apaches_broker_gives_it(
    clients: tuple[Program, Program], name: str, tries: int, options: Json
) -> None:
    ours, apaches = (received(client, name, tries, **options) for client in clients)
    assert [differences(*pair) for pair in zip(ours, apaches, strict=True)] == [{}] * tries
