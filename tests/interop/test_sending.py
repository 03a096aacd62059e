"""The Java producer, in all its ways of sending, and what a consumer of another process's making gets."""

import pytest

from tests.interop.programs import Program, ProgramError
from tests.interop.target import IS_APACHE, Cluster


@pytest.mark.parametrize("mode", ["sync", "async", "oneway", "selector"])
def test_what_is_sent_is_consumed(client: Program, mode: str, topic: str, group: str) -> None:
    sent = client.call("send", topic=topic, count=20, mode=mode, prefix=mode)["results"]
    assert all(result["status"] == "SEND_OK" for result in sent)
    assert len(sent) == (0 if mode == "oneway" else 20)
    client.call("start_consumer", name=group, topic=topic, group=group)
    got = client.messages(group, count=20)
    client.call("stop_consumer", name=group)
    assert sorted(m["body"] for m in got) == sorted(f"{mode}-{n}" for n in range(20))
    if sent:
        places = {(r["queue"], r["queue_offset"]): r["msg_id"] for r in sent}
        assert {(m["queue"], m["queue_offset"]): m["msg_id"] for m in got} == places


def test_a_batch_arrives_as_single_messages_in_order(client: Program, topic: str, group: str) -> None:
    [result] = client.call("send", topic=topic, count=10, mode="batch", tags=["A"], keys="key%d")["results"]
    assert result["status"] == "SEND_OK"
    assert len(result["msg_id"].split(",")) == 10
    client.call("start_consumer", name=group, topic=topic, group=group, threads=1)
    got = sorted(client.messages(group, count=10), key=lambda m: int(m["queue_offset"]))
    client.call("stop_consumer", name=group)
    assert [m["body"] for m in got] == [f"m-{n}" for n in range(10)]
    assert {m["queue"] for m in got} == {result["queue"]}
    assert [m["queue_offset"] for m in got] == list(range(result["queue_offset"], result["queue_offset"] + 10))
    assert [m["msg_id"] for m in got] == result["msg_id"].split(",")
    assert [m["keys"] for m in got] == [f"key{n}" for n in range(10)]


def test_a_selector_chooses_the_queue(java: Program, topic: str) -> None:
    sent = java.call("send", topic=topic, count=8, mode="selector")["results"]
    assert [result["queue"] for result in sent] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert [result["queue_offset"] for result in sent] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert {result["broker"] for result in sent} == {"broker-a"}


def test_tags_keys_and_properties_arrive(client: Program, topic: str, group: str) -> None:
    properties = {"colour": "blau %d", "weight": "12", "umlaut": "äöü€"}
    client.call("send", topic=topic, tags=["TagA"], keys="key1 key2", properties=properties)
    client.call("start_consumer", name=group, topic=topic, group=group)
    [got] = client.messages(group, count=1)
    client.call("stop_consumer", name=group)
    assert got["tags"] == "TagA"
    assert got["keys"] == "key1 key2"
    assert {name: got["properties"][name] for name in properties} == {**properties, "colour": "blau 0"}
    assert got["born_ms"] <= got["stored_ms"] + 1000


@pytest.mark.parametrize("incompressible", [False, True])
def test_a_body_the_client_compresses_arrives_intact(
    client: Program, incompressible: bool, topic: str, group: str
) -> None:
    """From 4 KiB on the client compresses, and the consumer undoes it; a million bytes take many socket reads."""
    sizes = [4096, 4097, 100_000, 1_000_000]
    sent = [
        client.call("send", topic=topic, size_bytes=size, first=size, incompressible=incompressible)["sha1"][0]
        for size in sizes
    ]
    client.call("start_consumer", name=group, topic=topic, group=group)
    got = client.messages(group, count=len(sizes))
    client.call("stop_consumer", name=group)
    assert {m["size_bytes"]: m["sha1"] for m in got} == dict(zip(sizes, sent, strict=True))


def test_an_empty_tag_and_a_one_byte_body_arrive(client: Program, topic: str, group: str) -> None:
    client.call("send", topic=topic, size_bytes=1)
    client.call("start_consumer", name=group, topic=topic, group=group)
    [got] = client.messages(group, count=1)
    client.call("stop_consumer", name=group)
    assert (got["size_bytes"], got["tags"], got["keys"]) == (1, None, None)


def test_a_body_of_four_mebibytes_is_taken_and_one_byte_more_is_refused(
    java: Program, cluster: Cluster, topic: str
) -> None:
    limit_bytes = 4 * 1024 * 1024
    raw = {"address": cluster.address, "broker": cluster.broker, "topic": topic}
    assert java.call("send_raw", **raw, size_bytes=limit_bytes)["status"] == "SEND_OK"
    with pytest.raises(ProgramError) as refused:
        java.call("send_raw", **raw, size_bytes=limit_bytes + 1)
    assert refused.value.code == 13  # MESSAGE_ILLEGAL
    # The connection outlives the refusal.
    assert java.call("send", topic=topic)["results"][0]["status"] == "SEND_OK"


def test_an_illegal_topic_is_refused(java: Program, cluster: Cluster) -> None:
    raw = {"address": cluster.address, "broker": cluster.broker}
    with pytest.raises(ProgramError) as refused:
        java.call("send_raw", **raw, topic="no spaces, please")
    illegal = 29 if IS_APACHE else 13  # LaterMQ answers as for every message that can never be stored
    assert refused.value.code == illegal
    with pytest.raises(ProgramError) as refused:
        java.call("send_raw", **raw, topic="x" * 128)
    assert refused.value.code == illegal


def test_a_topic_of_the_broker_itself_is_refused(java: Program, cluster: Cluster) -> None:
    raw = {"address": cluster.address, "broker": cluster.broker}
    for topic in ("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"):
        with pytest.raises(ProgramError) as refused:
            java.call("send_raw", **raw, topic=topic)
        assert refused.value.code == 16, topic  # NO_PERMISSION


def test_a_queue_the_topic_does_not_have_is_refused(java: Program, cluster: Cluster, topic: str) -> None:
    with pytest.raises(ProgramError) as refused:
        java.call("send_raw", address=cluster.address, broker=cluster.broker, topic=topic, queue=99)
    assert refused.value.code == 29


def test_an_unknown_topic_without_a_template_is_refused(java: Program, cluster: Cluster) -> None:
    raw = {"address": cluster.address, "broker": cluster.broker, "topic": "never_made"}
    with pytest.raises(ProgramError) as refused:
        java.call("send_raw", **raw, default_topic="no_such_template")
    assert refused.value.code == 17  # TOPIC_NOT_EXIST


def test_an_unknown_topic_is_made_from_the_template(java: Program, group: str) -> None:
    topic = f"auto_{group}"
    [sent] = java.call("send", topic=topic)["results"]
    assert sent["status"] == "SEND_OK"
    java.call("start_consumer", name=group, topic=topic, group=group)
    [got] = java.messages(group, count=1)
    java.call("stop_consumer", name=group)
    assert got["msg_id"] == sent["msg_id"]
