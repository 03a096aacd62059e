"""The Java 4.x client's pop mode: the broker assigns the queues, and the client acknowledges message by message."""

import time
from collections import Counter
from collections.abc import Callable

import pytest

from latermq.message.properties import MAX_PROPERTIES_BYTES, encode_properties
from tests.interop.programs import Json, Program
from tests.interop.target import IS_APACHE
from tests.interop.waiting import wait_until

# Apache's broker hands a message out again some seconds after its invisible time.
LATE_MS = 15_000 if IS_APACHE else 2_000
FIRST_BACKOFF_MS = 10_000  # of the client, for a message that its listener refused


@pytest.fixture
def pop_group(java: Program, topic: str, group: str) -> str:
    java.call("set_mode", topic=topic, group=group, mode="POP")
    return group


def start(program: Program, name: str, topic: str, group: str, **options: object) -> None:
    program.call("start_consumer", name=name, topic=topic, group=group, server_rebalance=True, **options)


def pop_queues(program: Program, name: str) -> set[int]:
    return {queue["queue"] for queue in program.call("assigned", name=name)["pop_queues"]}


def bodies(messages: list[Json]) -> Counter[str]:
    return Counter(message["body"] for message in messages)


def test_every_message_is_popped_once_and_acknowledged(java: Program, topic: str, pop_group: str) -> None:
    """With JSON headers only: the binary form has 16 bits for a request code, and those of pop have 18."""
    sent = java.call("send", topic=topic, count=100, mode="selector", keys="k%d", tags=["A", "B"])["results"]
    start(java, pop_group, topic, pop_group, invisible_ms=5_000)
    got = java.messages(pop_group, count=100)
    assert pop_queues(java, pop_group) == {-1}
    assert sorted(message["msg_id"] for message in got) == sorted(one["msg_id"] for one in sent)
    assert {message["topic"] for message in got} == {topic}
    assert all(message["reconsumed"] == 0 and message["properties"]["POP_CK"] for message in got)
    time.sleep(5 + LATE_MS / 1000)  # an acknowledgement that had failed would show now
    assert len(java.messages(pop_group)) == 100
    java.call("stop_consumer", name=pop_group)


def test_a_tag_filter_applies_to_pops(java: Program, topic: str, pop_group: str) -> None:
    java.call("send", topic=topic, count=40, tags=["A", "B", "C", "D"])
    start(java, pop_group, topic, pop_group, expression="B || D")
    got = java.messages(pop_group, count=20)
    time.sleep(1)
    assert len(java.messages(pop_group)) == 20
    assert Counter(message["tags"] for message in got) == {"B": 10, "D": 10}
    java.call("stop_consumer", name=pop_group)


def test_a_message_whose_listener_failed_comes_again_after_the_back_off(
    java: Program, topic: str, pop_group: str
) -> None:
    [sent] = java.call("send", topic=topic, keys="k", properties={"p": "v"})["results"]
    start(java, pop_group, topic, pop_group, failures=1)
    first, second = java.messages(pop_group, count=2, timeout_s=60)
    assert (first["msg_id"], first["reconsumed"]) == (sent["msg_id"], 0)
    assert (second["msg_id"], second["reconsumed"], second["topic"]) == (sent["msg_id"], 1, topic)
    assert second["properties"]["p"] == "v"
    gap_ms = second["seen_ms"] - first["done_ms"]
    assert FIRST_BACKOFF_MS - 1_000 * IS_APACHE <= gap_ms <= FIRST_BACKOFF_MS + LATE_MS
    time.sleep(5)
    assert len(java.messages(pop_group)) == 2
    java.call("stop_consumer", name=pop_group)


@pytest.mark.skipif(IS_APACHE, reason="its broker adds the handle anyway, and the client then reads no property")
def test_a_message_with_as_many_properties_as_possible_comes_again_with_a_handle(
    java: Program, topic: str, pop_group: str
) -> None:
    java.call("send", topic=topic, properties={"p": "v"})
    start(java, "short", topic, pop_group)
    [short] = java.messages("short", count=1)
    java.call("stop_consumer", name="short")
    added = {"POP_CK", "1ST_POP_TIME"} | {name for name in short["properties"] if name.endswith("_OFFSET")}
    stored = {name: value for name, value in short["properties"].items() if name not in added}
    fill = "x" * (1 + MAX_PROPERTIES_BYTES - len(encode_properties(stored).encode()))
    [sent] = java.call("send", topic=topic, properties={"p": fill})["results"]
    start(java, pop_group, topic, pop_group, failures=1)
    first, second = java.messages(pop_group, count=2, timeout_s=60)
    assert len(first["properties"]["p"]) == len(fill)
    assert "POP_CK" in first["properties"]
    assert (second["msg_id"], second["reconsumed"], second["topic"]) == (sent["msg_id"], 1, topic)
    assert second["properties"]["p"] == fill
    assert second["properties"]["POP_CK"].split(" ")[4] == "1", "the mark of the retry topic"
    time.sleep(5)
    assert len(java.messages(pop_group)) == 2
    java.call("stop_consumer", name=pop_group)


def test_a_message_that_is_not_acknowledged_in_time_is_delivered_again(
    java: Program, new_java: Callable[[], Program], topic: str, pop_group: str
) -> None:
    """The process that holds it is killed, so nobody acknowledges."""
    java.call("send", topic=topic, count=8, mode="selector")
    doomed = new_java()
    start(doomed, "doomed", topic, pop_group, work_ms=60_000, invisible_ms=5_000)
    wait_until(lambda: pop_queues(doomed, "doomed") == {-1}, 30, "the doomed consumer pops")
    time.sleep(2)
    doomed.kill()
    killed_ms = time.time() * 1000
    start(java, pop_group, topic, pop_group)
    got = java.messages(pop_group, count=8, timeout_s=60)
    assert len(bodies(got)) == 8
    assert {message["reconsumed"] for message in got} <= {0, 1}
    assert max(message["seen_ms"] for message in got) - killed_ms < 5_000 + LATE_MS + 2_000
    java.call("stop_consumer", name=pop_group)


def test_two_pop_consumers_share_all_queues_and_nothing_is_delivered_twice(
    java: Program, new_java: Callable[[], Program], topic: str, pop_group: str
) -> None:
    other = new_java()
    start(java, "first", topic, pop_group)
    start(other, "second", topic, pop_group)
    for program, name in ((java, "first"), (other, "second")):
        wait_until(lambda: pop_queues(program, name) == {-1}, 30, f"{name} pops from all queues")  # noqa: B023
    for _ in range(10):
        java.call("send", topic=topic, count=100, mode="selector")
        time.sleep(0.1)

    def all_received() -> bool:
        return len(java.messages("first")) + len(other.messages("second")) >= 1000

    wait_until(all_received, 30, "both together receive 1000 messages")
    time.sleep(1)
    got = java.messages("first") + other.messages("second")
    assert len({message["msg_id"] for message in got}) == len(got) == 1000
    assert java.messages("first")
    assert other.messages("second")
    other.call("stop_consumer", name="second")
    java.call("send", topic=topic, count=20, mode="selector")
    wait_until(lambda: len(java.messages("first")) + len(other.messages("second")) >= 1020, 30, "the rest")
    java.call("stop_consumer", name="first")


def test_members_share_neighbouring_queues_if_the_mode_says_so(
    java: Program, new_java: Callable[[], Program], topic: str, group: str
) -> None:
    java.call("set_mode", topic=topic, group=group, mode="POP", shared_with=1)
    others = [new_java() for _ in range(2)]
    start(java, "m0", topic, group, invisible_ms=5_000)
    for number, other in enumerate(others, 1):
        start(other, f"m{number}", topic, group, invisible_ms=5_000)

    def assigned() -> list[set[int]]:
        return [pop_queues(java, "m0"), *(pop_queues(other, f"m{n}") for n, other in enumerate(others, 1))]

    def shared() -> bool:
        found = assigned()
        return all(-1 not in one and one for one in found) and sum(map(len, found)) == 8

    wait_until(shared, 40, "each queue has two members")
    assert Counter(queue for one in assigned() for queue in one) == dict.fromkeys(range(4), 2)
    java.call("send", topic=topic, count=40, mode="selector")

    def received() -> int:
        """What a member pops for a queue that it has just lost it drops, and the broker delivers it again."""
        return len({m["msg_id"] for number, p in enumerate([java, *others]) for m in p.messages(f"m{number}")})

    wait_until(lambda: received() == 40, 60, "40 messages arrive")
    java.call("stop_consumer", name="m0")
