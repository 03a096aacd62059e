"""The Go client: its producer in all its ways, its push consumer, and both beside the Java client."""

import hashlib

import pytest

from tests.interop.programs import Program
from tests.interop.waiting import wait_until


@pytest.mark.parametrize("mode", ["sync", "async", "oneway"])
def test_what_go_sends_is_consumed_by_go_and_java(
    go: Program, java: Program, mode: str, topic: str, group: str
) -> None:
    sent = go.call("send", topic=topic, count=20, mode=mode, prefix=mode, tags=["A"], keys="k%d all")["results"]
    assert all(result["status"] == 0 for result in sent)
    assert len(sent) == (0 if mode == "oneway" else 20)
    for client, reader in ((go, f"{group}_go"), (java, f"{group}_java")):
        client.call("start_consumer", name=reader, topic=topic, group=reader)
        got = client.messages(reader, count=20)
        client.call("stop_consumer", name=reader)
        assert sorted(m["body"] for m in got) == sorted(f"{mode}-{n}" for n in range(20))
        assert {m["tags"] for m in got} == {"A"}
        assert sorted(m["keys"].split() for m in got) == sorted([f"k{n}", "all"] for n in range(20))
        if sent:
            places = {(r["queue"], r["queue_offset"]): r["msg_id"] for r in sent}
            assert {(m["queue"], m["queue_offset"]): m["msg_id"] for m in got} == places


def test_a_batch_of_go_arrives_as_single_messages(go: Program, topic: str, group: str) -> None:
    [result] = go.call("send", topic=topic, count=10, mode="batch", prefix="b", tags=["A", "B"])["results"]
    assert result["status"] == 0
    go.call("start_consumer", name=group, topic=topic, group=group)
    got = sorted(go.messages(group, count=10), key=lambda m: int(m["queue_offset"]))
    go.call("stop_consumer", name=group)
    assert [m["body"] for m in got] == [f"b-{n}" for n in range(10)]
    assert {m["queue"] for m in got} == {result["queue"]}


def test_what_java_sends_arrives_in_go(go: Program, java: Program, topic: str, group: str) -> None:
    """With a body that the Java client compresses, and properties."""
    properties = {"colour": "blue", "umlaut": "äöü€"}
    sent = java.call("send", topic=topic, size_bytes=100_000, tags=["T"], keys="a b", properties=properties)
    go.call("start_consumer", name=group, topic=topic, group=group)
    [got] = go.messages(group, count=1)
    go.call("stop_consumer", name=group)
    assert (got["size_bytes"], got["sha1"]) == (100_000, sent["sha1"][0])
    assert (got["tags"], got["keys"]) == ("T", "a b")
    assert {name: got["properties"][name] for name in properties} == properties


def test_a_body_that_go_compresses_arrives_in_java(go: Program, java: Program, topic: str, group: str) -> None:
    go.call("send", topic=topic, count=1, mode="sync", prefix="z", size_bytes=50_000)
    java.call("start_consumer", name=group, topic=topic, group=group)
    [got] = java.messages(group, count=1)
    java.call("stop_consumer", name=group)
    assert got["sha1"] == hashlib.sha1(b"z-0".ljust(50_000, b"\0")).hexdigest()


def test_a_tag_filter_lets_only_its_tags_through(go: Program, topic: str, group: str) -> None:
    go.call("send", topic=topic, count=40, mode="sync", prefix="m", tags=["A", "B", "C", "D"])
    go.call("start_consumer", name=group, topic=topic, group=group, expression="A || C")
    got = go.messages(group, count=20)
    go.call("stop_consumer", name=group)
    assert sorted(m["body"] for m in got) == sorted(f"m-{n}" for n in range(0, 40, 2))


def test_broadcasting_gives_every_consumer_every_message(go: Program, java: Program, topic: str, group: str) -> None:
    names = [f"{group}_1", f"{group}_2"]
    for name in names:
        go.call("start_consumer", name=name, topic=topic, group=group, broadcasting=True)
    sent = 0

    def both_listen_to_all_queues() -> bool:
        nonlocal sent
        go.call("send", topic=topic, count=4, first=sent, mode="selector", prefix="early")
        sent += 4
        return all(len({m["queue"] for m in go.messages(name)}) == 4 for name in names)

    # The Go client's hash of the sharding key spreads four keys over the four queues.
    wait_until(both_listen_to_all_queues, 30, "both get messages of every queue")
    go.call("send", topic=topic, count=20, mode="sync", prefix="late")
    wanted = {f"late-{n}" for n in range(20)}
    wait_until(lambda: all(wanted <= {m["body"] for m in go.messages(name)} for name in names), 30, "both get all")
    for name in names:
        go.call("stop_consumer", name=name)


def test_orderly_consuming_keeps_each_queues_order(go: Program, topic: str, group: str) -> None:
    go.call("send", topic=topic, count=200, mode="selector", prefix="m")
    go.call("start_consumer", name=group, topic=topic, group=group, orderly=True)
    got = go.messages(group, count=200)
    go.call("stop_consumer", name=group)
    for queue in {m["queue"] for m in got}:
        offsets = [m["queue_offset"] for m in got if m["queue"] == queue]
        assert offsets == list(range(len(offsets)))


def test_go_and_java_consumers_share_a_group(go: Program, java: Program, topic: str, group: str) -> None:
    """Both sort queues and clients alike, so that each of them gets its half."""
    go.call("start_consumer", name=group, topic=topic, group=group)
    java.call("start_consumer", name=group, topic=topic, group=group)
    wait_until(lambda: len(java.call("consumer_ids", group=group)["ids"]) == 2, 30, "the broker knows both")

    def java_holds_half() -> bool:
        queues = java.call("assigned", name=group)["queues"]
        return len([q for q in queues if q["topic"] == topic]) == 2

    wait_until(java_holds_half, 30, "Java holds half of the queues")
    go.call("send", topic=topic, count=40, mode="sync", prefix="m")
    expected = {f"m-{n}" for n in range(40)}
    wait_until(
        lambda: {m["body"] for m in go.messages(group) + java.messages(group)} == expected, 45, "all are consumed"
    )
    go.call("stop_consumer", name=group)
    java.call("stop_consumer", name=group)
    assert {m["queue"] for m in java.messages(group)}
    assert {m["queue"] for m in go.messages(group)}
