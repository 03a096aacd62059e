"""Delay levels with the Java client: each level at its millisecond in fed time, and four of them in real time."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.interop.programs import Json, Program, ProgramError, start_java
from tests.interop.target import IS_APACHE
from tests.interop.waiting import wait_until
from tests.support.fifo_clock import FifoClock
from tests.support.serving import serving

DELAYS_MS = [
    1_000, 5_000, 10_000, 30_000, 60_000, 120_000, 180_000, 240_000, 300_000, 360_000, 420_000, 480_000, 540_000,
    600_000, 1_200_000, 1_800_000, 3_600_000, 7_200_000,
]  # fmt: skip
START_MS = 1_900_000_000_000
IN_REAL_TIME = 100  # messages of each of the first four levels


@dataclass(frozen=True)
class FedBroker:
    """A broker that goes by the test's clock, and a client of it."""

    java: Program
    clock: FifoClock


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FedBroker]:
    if IS_APACHE:
        pytest.skip("Apache RocketMQ's broker has no clock that a test could feed")
    folder = tmp_path_factory.mktemp("fed")
    with FifoClock(folder / "clock") as clock, serving(folder / "data", *clock.settings) as server:
        clock.advance_to(START_MS)
        with start_java(folder / "java.log", {"namesrv": server.namesrv}) as java:
            yield FedBroker(java, clock)


def stored(client: Program, topic: str) -> list[Json]:
    """Everything in a topic, queue by queue; offsets are without holes."""
    found: list[Json] = []
    for queue in client.call("queues", topic=topic)["queues"]:
        own: list[Json] = []
        while len(own) < queue["max"]:
            place = {"topic": topic, "broker": "broker-a", "queue": queue["queue"], "offset": len(own)}
            own += client.call("pull", **place)["messages"]
        assert [message["queue_offset"] for message in own] == list(range(len(own)))
        found += own
    return found


def count(client: Program, topic: str) -> int:
    return sum(queue["max"] for queue in client.call("queues", topic=topic)["queues"])


def wait_for_count(client: Program, topic: str, wanted: int) -> None:
    wait_until(lambda: count(client, topic) == wanted, 10, f"{topic} holds {wanted} messages")


def test_each_of_the_18_levels_arrives_at_its_millisecond_and_not_before(fed: FedBroker) -> None:
    java, clock, topic = fed.java, fed.clock, "all_levels"
    java.call("make_topics", topics=[topic], queues=4)
    levels = list(range(1, 19))
    sent = java.call("send", topic=topic, count=18, mode="selector", first=0, delay_levels=levels)["results"]
    java.call("start_consumer", name="reader", topic=topic, group="readers")
    for number, delay_ms in enumerate(DELAYS_MS):
        clock.advance_to(START_MS + delay_ms - 1)
        assert count(java, topic) == number
        clock.advance_to(START_MS + delay_ms)
        wait_for_count(java, topic, number + 1)
    got = java.messages("reader", count=18)
    java.call("stop_consumer", name="reader")
    assert {m["body"]: m["stored_ms"] - START_MS for m in got} == {f"m-{n}": DELAYS_MS[n] for n in range(18)}
    assert {m["body"]: m["msg_id"] for m in got} == {f"m-{n}": sent[n]["msg_id"] for n in range(18)}
    assert len(stored(java, topic)) == 18


def test_a_delayed_message_keeps_what_it_was_sent_with(client: Program, topic: str, group: str) -> None:
    client.call("start_consumer", name=group, topic=topic, group=group, expression="red")
    options = {"tags": ["red", "blue"], "keys": f"{topic}-%d", "properties": {"colour": "c%d"}}
    sent = client.call("send", topic=topic, count=8, mode="selector", delay_levels=[1], **options)["results"]
    got = sorted(client.messages(group, count=4), key=lambda m: str(m["body"]))
    assert [m["body"] for m in got] == ["m-0", "m-2", "m-4", "m-6"]  # the others are blue
    for message in got:
        number = int(message["body"][2:])
        wanted = {"DELAY": "1", "REAL_TOPIC": topic, "REAL_QID": str(number % 4), "colour": f"c{number}"}
        assert wanted.items() <= message["properties"].items()
        assert (message["queue"], message["msg_id"]) == (number % 4, sent[number]["msg_id"])

    def found() -> Json | None:
        try:
            [one] = client.call("query_message", topic=topic, key=f"{topic}-3")["messages"]
        except ProgramError:
            return None
        return dict(one)

    assert wait_until(found, 20, "the key is in the index")["body"] == "m-3"
    client.call("stop_consumer", name=group)


@pytest.mark.timeout(180)
def test_the_first_four_levels_in_real_time_are_never_early(java: Program, topic: str, group: str) -> None:
    """Each message is delayed by its level at least, and by less than the next."""
    java.call("start_consumer", name=group, topic=topic, group=group)
    total = 4 * IN_REAL_TIME
    java.call("send", topic=topic, count=total, mode="async", delay_levels=[1, 2, 3, 4])
    got = java.messages(group, count=total, timeout_s=90)
    java.call("stop_consumer", name=group)
    assert sorted(m["body"] for m in got) == sorted(f"m-{n}" for n in range(total))
    for message in got:
        level = int(message["properties"]["DELAY"])
        waited_ms = message["stored_ms"] - message["born_ms"]
        assert DELAYS_MS[level - 1] <= waited_ms < DELAYS_MS[level]
        if not IS_APACHE:
            assert message["stored_ms"] >= int(message["properties"]["LMQ_DUE_MS"])
    assert len(stored(java, topic)) == total


def test_a_level_above_the_last_waits_as_long_as_the_last(fed: FedBroker) -> None:
    java, clock, topic = fed.java, fed.clock, "above_the_last"
    start_ms = START_MS + 10 * DELAYS_MS[-1]
    clock.advance_to(start_ms)
    java.call("make_topics", topics=[topic], queues=1)
    java.call("send", topic=topic, delay_levels=[99])
    clock.advance_to(start_ms + DELAYS_MS[-1])
    wait_for_count(java, topic, 1)
    [message] = stored(java, topic)
    assert (message["stored_ms"], message["properties"]["DELAY"]) == (start_ms + DELAYS_MS[-1], "18")


def test_nobody_can_consume_where_messages_wait(java: Program, topic: str) -> None:
    java.call("send", topic=topic, delay_levels=[1])
    wait_until(lambda: count(java, topic) == 1, 30, "the message has waited")
    place = {"topic": "SCHEDULE_TOPIC_XXXX", "broker": "broker-a", "queue": 0, "offset": 0}
    stored(java, topic)  # after which the client knows the broker's address
    if IS_APACHE:
        assert java.call("pull", **place)["status"] == "FOUND"
        return
    with pytest.raises(ProgramError) as refused:
        java.call("pull", **place)
    assert refused.value.code == 16  # NO_PERMISSION
    assert "cannot be consumed" in refused.value.message


def test_a_batch_of_the_java_client_may_not_be_delayed(java: Program, topic: str) -> None:
    """The client refuses it itself; what the broker does with one is tested with raw frames."""
    with pytest.raises(ProgramError):
        java.call("send", topic=topic, count=3, mode="batch", delay_levels=[1])


def test_waiting_messages_outlive_a_restart(tmp_path: Path) -> None:
    if IS_APACHE:
        pytest.skip("Apache RocketMQ's broker has no clock that a test could feed")
    topic = "over_a_restart"
    with FifoClock(tmp_path / "clock") as clock:
        with serving(tmp_path / "data", *clock.settings) as server:
            clock.advance_to(START_MS)
            with start_java(tmp_path / "first.log", {"namesrv": server.namesrv}) as java:
                java.call("make_topics", topics=[topic], queues=4)
                java.call("send", topic=topic, count=9, mode="selector", delay_levels=[1, 5, 9])
                clock.advance_to(START_MS + DELAYS_MS[0])
                wait_for_count(java, topic, 3)
        with (
            serving(tmp_path / "data", *clock.settings, *server.same_ports) as again,
            start_java(tmp_path / "second.log", {"namesrv": again.namesrv}) as java,
        ):
            clock.advance_to(START_MS + DELAYS_MS[4])
            wait_for_count(java, topic, 6)
            clock.advance_to(START_MS + DELAYS_MS[8])
            wait_for_count(java, topic, 9)
            found = {m["body"]: m["stored_ms"] - START_MS for m in stored(java, topic)}
    assert found == {f"m-{n}": DELAYS_MS[(0, 4, 8)[n % 3]] for n in range(9)}
