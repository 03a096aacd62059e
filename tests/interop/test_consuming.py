"""The Java push consumer in all its ways, and the lite pull consumer."""

import itertools
import time
from collections import Counter

import pytest

from tests.interop.programs import Json, Program, ProgramError
from tests.interop.waiting import wait_until


def test_a_tag_filter_lets_only_its_tags_through(client: Program, topic: str, group: str) -> None:
    client.call("send", topic=topic, count=40, tags=["A", "B", "C", "D"])
    client.call("start_consumer", name=group, topic=topic, group=group, expression="A || B")
    client.messages(group, count=20)
    client.call("send", topic=topic, count=2, tags=["C", "A"], prefix="late")
    got = client.messages(group, count=21)
    client.call("stop_consumer", name=group)
    assert Counter(m["tags"] for m in got) == {"A": 11, "B": 10}


def test_a_group_that_skips_everything_still_moves_on(java: Program, topic: str, group: str) -> None:
    """What the filter drops is not looked at again: the group's offset passes it."""
    java.call("send", topic=topic, count=40, tags=["C"], mode="selector")
    java.call("start_consumer", name=group, topic=topic, group=group, expression="A")

    def passed() -> bool:
        queues = java.call("group_offsets", topic=topic, group=group)["queues"]
        return [queue["offset"] for queue in queues] == [10, 10, 10, 10]

    wait_until(passed, 30, "the group's offsets are at the end")
    java.call("stop_consumer", name=group)
    assert java.messages(group) == []


def test_sql_filters_choose_by_properties(java: Program, topic: str, group: str) -> None:
    expected = {
        "a > 5": range(6, 10),
        "a BETWEEN 2 AND 4": range(2, 5),
        "TAGS = 'T1' AND a < 6": [1, 3, 5],
        "name IN ('n1', 'n2') OR a = 9": [1, 2, 9],
        "missing IS NULL AND NOT (a <> 7)": [7],
        "name IS NOT NULL AND a >= 8.5": [9],
    }
    java.call("send", topic=topic, count=10, tags=["T0", "T1"], properties={"a": "%d", "name": "n%d"})
    for number, sql in enumerate(expected):
        java.call("start_consumer", name=sql, topic=topic, group=f"{group}_{number}", sql=sql)
    for sql, numbers in expected.items():
        java.messages(sql, count=len(numbers))
    java.call("send", topic=topic, first=100, tags=["no"], properties={"other": "1"})
    for sql in expected:
        java.call("stop_consumer", name=sql)
        got = {int(m["body"].removeprefix("m-")) for m in java.messages(sql)}
        assert got == set(expected[sql]), sql


def test_a_sql_filter_that_cannot_be_read_is_refused(java: Program, topic: str, group: str) -> None:
    with pytest.raises(ProgramError) as refused:
        java.call("start_consumer", name=group, topic=topic, group=group, sql="a >")
    assert refused.value.code == 23  # SUBSCRIPTION_PARSE_FAILED


def test_broadcasting_gives_every_consumer_every_message(client: Program, topic: str, group: str) -> None:
    names = [f"{group}_1", f"{group}_2"]
    for name in names:
        client.call("start_consumer", name=name, topic=topic, group=group, broadcasting=True)
    wait_until(lambda: [_holds(client, name) for name in names] == [4, 4], 30, "each holds all queues")
    client.call("send", topic=topic, count=20)
    for name in names:
        got = client.messages(name, count=20)
        assert sorted(m["body"] for m in got) == sorted(f"m-{n}" for n in range(20))
        client.call("stop_consumer", name=name)


def test_two_consumers_of_a_group_share_the_messages(client: Program, topic: str, group: str) -> None:
    names = [f"{group}_1", f"{group}_2"]
    for name in names:
        client.call("start_consumer", name=name, topic=topic, group=group)
    wait_until(lambda: [_holds(client, name) for name in names] == [2, 2], 30, "each holds half of the queues")
    client.call("send", topic=topic, count=40, mode="selector")
    got = [client.messages(name, count=20) for name in names]
    for name in names:
        client.call("stop_consumer", name=name)
    assert sorted(m["body"] for half in got for m in half) == sorted(f"m-{n}" for n in range(40))
    assert not {m["queue"] for m in got[0]} & {m["queue"] for m in got[1]}


def test_orderly_consuming_keeps_each_queues_order_when_a_second_consumer_joins(
    java: Program, topic: str, group: str
) -> None:
    """The lock of a queue passes from one consumer to the other: at no time do both work on it."""
    java.call("send", topic=topic, count=400, mode="selector")
    orderly = {"topic": topic, "group": group, "orderly": True, "work_ms": 15}
    java.call("start_consumer", name=f"{group}_1", **orderly)
    java.messages(f"{group}_1", count=20)
    java.call("start_consumer", name=f"{group}_2", **orderly)

    def all_seen() -> list[Json] | None:
        got = java.messages(f"{group}_1") + java.messages(f"{group}_2")
        return got if len({m["body"] for m in got}) == 400 else None

    got = wait_until(all_seen, 60, "all are consumed")
    assert java.messages(f"{group}_2"), "the second consumer got no queue"
    for name in (f"{group}_1", f"{group}_2"):
        java.call("stop_consumer", name=name)
    for queue in range(4):
        mine = sorted((m for m in got if m["queue"] == queue), key=lambda m: float(m["seen_ms"]))
        first_seen = list(dict.fromkeys(m["queue_offset"] for m in mine))
        assert first_seen == list(range(100)), f"queue {queue} was consumed out of order"
        for before, after in itertools.pairwise(mine):
            if before["consumer"] != after["consumer"]:
                assert before["done_ms"] <= after["seen_ms"], f"two consumers worked on queue {queue} at once"


def test_a_message_is_seen_at_once_by_a_waiting_consumer(client: Program, topic: str, group: str) -> None:
    """Its pull is held open for up to 15 s; a message ends the wait."""
    client.call("start_consumer", name=group, topic=topic, group=group)
    client.call("send", topic=topic, count=4, mode="selector")
    client.messages(group, count=4)
    for number in range(4, 12):
        client.call("send", topic=topic, first=number)
        client.messages(group, count=number + 1)
    client.call("stop_consumer", name=group)
    delays_ms = sorted(m["seen_ms"] - m["born_ms"] for m in client.messages(group)[4:])
    assert delays_ms[-1] < 1000
    assert delays_ms[len(delays_ms) // 2] < 200


def test_a_pull_that_finds_nothing_waits_for_the_next_message(java: Program, java_binary: Program, topic: str) -> None:
    place = {"topic": topic, "broker": "broker-a", "queue": 0}
    empty = java.call("pull", **place, offset=0)
    assert (empty["status"], empty["next"], empty["min"], empty["max"]) == ("NO_NEW_MSG", 0, 0, 0)
    waiting = java.begin("pull", **place, offset=0, wait=True)
    with pytest.raises(AssertionError, match="not within"):
        java.finish(waiting, timeout_s=1)
    java_binary.call("send", topic=topic, mode="selector")
    got = java.finish(waiting, timeout_s=15)
    assert (got["status"], got["next"]) == ("FOUND", 1)
    [message] = got["messages"]
    assert message["seen_ms"] - message["stored_ms"] < 1000


@pytest.mark.parametrize("from_where", ["FIRST_OFFSET", "LAST_OFFSET", "TIMESTAMP"])
def test_a_new_group_reads_a_young_topic_from_its_beginning(
    java: Program, from_where: str, topic: str, group: str
) -> None:
    """While nothing of a queue was deleted and it is in memory, brokers answer 0, wherever the group would begin."""
    java.call("send", topic=topic, count=8, mode="selector")
    where = {"from": from_where, "from_ms": int(time.time() * 1000) + 60_000}
    java.call("start_consumer", name=group, topic=topic, group=group, **where)
    got = java.messages(group, count=8)
    java.call("stop_consumer", name=group)
    assert len(got) == 8


@pytest.mark.parametrize(("from_where", "seen"), [("FIRST_OFFSET", "abc"), ("LAST_OFFSET", "c"), ("TIMESTAMP", "bc")])
def test_a_consumer_without_an_offset_begins_where_it_wants(
    java: Program, from_where: str, seen: str, topic: str, group: str
) -> None:
    """Broadcasting, because then the consumer itself keeps the offset and has to ask for a first one."""
    java.call("send", topic=topic, count=8, mode="selector", prefix="a")
    # The time to begin at is told in whole seconds.
    boundary_ms = (int(time.time()) + 1) * 1000
    wait_until(lambda: time.time() * 1000 > boundary_ms, 5, "the next second begins")
    java.call("send", topic=topic, count=8, mode="selector", prefix="b")
    where = {"from": from_where, "from_ms": boundary_ms, "broadcasting": True}
    java.call("start_consumer", name=group, topic=topic, group=group, **where)
    wait_until(lambda: _holds(java, group) == 4, 30, "it holds all queues")
    java.call("send", topic=topic, count=8, mode="selector", prefix="c")
    got = java.messages(group, count=8 * len(seen))
    java.call("stop_consumer", name=group)
    assert sorted(m["body"] for m in got) == sorted(f"{prefix}-{n}" for prefix in seen for n in range(8))


def test_a_group_goes_on_where_it_stopped(client: Program, topic: str, group: str) -> None:
    client.call("send", topic=topic, count=20)
    client.call("start_consumer", name=f"{group}_1", topic=topic, group=group)
    client.messages(f"{group}_1", count=20)
    client.call("stop_consumer", name=f"{group}_1")
    client.call("send", topic=topic, count=5, first=20)
    client.call("start_consumer", name=f"{group}_2", topic=topic, group=group)
    got = client.messages(f"{group}_2", count=5)
    client.call("stop_consumer", name=f"{group}_2")
    assert sorted(m["body"] for m in got) == sorted(f"m-{n}" for n in range(20, 25))


def test_a_message_that_failed_comes_again_later(java: Program, topic: str, group: str) -> None:
    """The consumer gives it back; the first retry waits for level 3, ten seconds."""
    [sent] = java.call("send", topic=topic, keys="k", tags=["T"], properties={"p": "v"})["results"]
    java.call("start_consumer", name=group, topic=topic, group=group, failures=1)
    first, second = java.messages(group, count=2, timeout_s=45)
    java.call("stop_consumer", name=group)
    assert (first["reconsumed"], second["reconsumed"]) == (0, 1)
    assert second["seen_ms"] - first["seen_ms"] >= 10_000
    # The client shows the topic that the message was sent to, not the retry topic that it came from.
    assert (second["topic"], second["body"], second["keys"], second["tags"]) == (topic, "m-0", "k", "T")
    assert second["properties"]["p"] == "v"
    assert second["properties"]["RETRY_TOPIC"] == topic
    assert second["msg_id"] == sent["msg_id"]
    assert second["properties"]["ORIGIN_MESSAGE_ID"] == sent["offset_msg_id"]


def test_lite_pull_subscribed_gets_everything_and_commits(client: Program, topic: str, group: str) -> None:
    client.call("send", topic=topic, count=40, mode="selector", tags=["A", "B"])
    got = client.call("lite_pull", topic=topic, group=group, count=40)
    assert sorted(m["body"] for m in got["messages"]) == sorted(f"m-{n}" for n in range(40))
    assert [q["offset"] for q in got["committed"]] == [10, 10, 10, 10]


def test_lite_pull_seeks_by_offset_and_by_time(java: Program, topic: str, group: str) -> None:
    first = java.call("send", topic=topic, count=8, mode="selector")["results"]
    assert {result["queue_offset"] for result in first} == {0, 1}
    boundary_ms = _stored_ms(java, topic, queue=3, offset=1) + 1
    wait_until(lambda: time.time() * 1000 > boundary_ms + 1, 5, "the clock moves on")
    java.call("send", topic=topic, count=8, first=8, mode="selector")
    seek = {"0": 3, "1": 2, "2": 0, "3": 4}
    got = java.call("lite_pull", topic=topic, group=group, assign=True, seek=seek, count=7)["messages"]
    assert Counter(m["queue"] for m in got) == {0: 1, 1: 2, 2: 4}
    got = java.call("lite_pull", topic=topic, group=f"{group}_t", assign=True, seek_ms=boundary_ms, count=8)["messages"]
    assert sorted(m["body"] for m in got) == sorted(f"m-{n}" for n in range(8, 16))


def _holds(client: Program, consumer: str) -> int:
    """How many queues of its topic a consumer holds; the group's retry topic is not counted."""
    queues = client.call("assigned", name=consumer)["queues"]
    return sum(not queue["topic"].startswith("%RETRY%") for queue in queues)


def _stored_ms(java: Program, topic: str, queue: int, offset: int) -> int:
    [message] = java.call("pull", topic=topic, broker="broker-a", queue=queue, offset=offset, count=1)["messages"]
    return int(message["stored_ms"])
