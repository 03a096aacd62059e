"""Offsets and look-ups of the Java client: a queue's ends, an offset by time, a message by id, key and unique key."""

import time

import pytest

from tests.interop.programs import Json, Program, ProgramError
from tests.interop.waiting import wait_until


def test_a_queue_tells_its_ends_and_its_oldest_time(client: Program, topic: str) -> None:
    before_ms = int(time.time() * 1000)
    client.call("send", topic=topic, count=6, mode="selector")
    queues = client.call("queues", topic=topic)["queues"]
    assert [(q["queue"], q["min"], q["max"]) for q in queues] == [(0, 0, 2), (1, 0, 2), (2, 0, 1), (3, 0, 1)]
    assert all(before_ms <= q["earliest_ms"] <= time.time() * 1000 for q in queues)


def test_an_empty_queue_has_no_oldest_time(java: Program, topic: str) -> None:
    queues = java.call("queues", topic=topic)["queues"]
    assert [(q["min"], q["max"], q["earliest_ms"]) for q in queues] == [(0, 0, -1)] * 4


def test_the_offset_of_a_time_is_that_of_the_first_message_stored_then_or_later(client: Program, topic: str) -> None:
    place = {"topic": topic, "broker": "broker-a", "queue": 0}
    stored_ms = []
    for number in range(5):
        client.call("send", topic=topic, mode="selector", first=4 * number)
        [message] = client.call("pull", **place, offset=number, count=1)["messages"]
        stored_ms.append(message["stored_ms"])
        wait_until(lambda: time.time() * 1000 > stored_ms[-1] + 3, 5, "the clock moves on")
    for offset, time_ms in enumerate(stored_ms):
        assert client.call("offset_at", **place, time_ms=time_ms)["offset"] == offset
        assert client.call("offset_at", **place, time_ms=time_ms - 1)["offset"] == offset
    assert client.call("offset_at", **place, time_ms=0)["offset"] == 0
    assert client.call("offset_at", **place, time_ms=stored_ms[-1] + 60_000)["offset"] == 5


def test_a_pull_tells_where_it_stands(client: Program, topic: str) -> None:
    place = {"topic": topic, "broker": "broker-a", "queue": 0}
    client.call("send", topic=topic, count=40, mode="selector", tags=["A", "B"])  # queue 0 gets ten, all tagged A
    some = client.call("pull", **place, offset=0, count=3)
    assert [m["queue_offset"] for m in some["messages"]] == [0, 1, 2]
    assert (some["status"], some["next"], some["min"], some["max"]) == ("FOUND", 3, 0, 10)
    rest = client.call("pull", **place, offset=3, count=32)
    assert [m["queue_offset"] for m in rest["messages"]] == list(range(3, 10))
    at_end = client.call("pull", **place, offset=10)
    assert (at_end["status"], at_end["next"]) == ("NO_NEW_MSG", 10)
    beyond = client.call("pull", **place, offset=99)
    assert (beyond["status"], beyond["next"]) == ("OFFSET_ILLEGAL", 10)
    unmatched = client.call("pull", **place, offset=0, expression="B")
    assert (unmatched["status"], unmatched["next"]) == ("NO_MATCHED_MSG", 10)


def test_a_pull_from_a_queue_the_topic_does_not_have_is_refused(java: Program, topic: str) -> None:
    with pytest.raises(ProgramError) as refused:
        java.call("pull", topic=topic, broker="broker-a", queue=9, offset=0)
    assert refused.value.code == 29  # INVALID_PARAMETER


def test_a_group_keeps_the_offsets_that_it_commits(client: Program, topic: str, group: str) -> None:
    client.call("send", topic=topic, count=40, mode="selector")
    place = {"topic": topic, "broker": "broker-a", "group": group}
    # Nothing was committed, nothing of the queue was ever deleted: 0.
    assert client.call("committed", **place, queue=2)["offset"] == 0
    client.call("commit", **place, queue=2, offset=7)

    def stored() -> bool:
        return bool(client.call("committed", **place, queue=2)["offset"] == 7)

    wait_until(stored, 10, "the commit, which is one-way, has arrived")
    offsets = {q["queue"]: q for q in client.call("group_offsets", topic=topic, group=group)["queues"]}
    assert (offsets[2]["offset"], offsets[2]["max"]) == (7, 10)


def test_an_empty_queue_has_no_offset_for_a_new_group(java: Program, topic: str, group: str) -> None:
    place = {"topic": topic, "broker": "broker-a", "group": group}
    assert java.call("committed", **place, queue=0)["offset"] == -1


def test_a_message_is_found_by_the_id_of_its_place(client: Program, topic: str) -> None:
    sent = client.call("send", topic=topic, count=3, keys="k%d", tags=["T"])["results"]
    got = client.call("view_message", topic=topic, id=sent[1]["offset_msg_id"])
    assert (got["topic"], got["body"], got["keys"], got["tags"]) == (topic, "m-1", "k1", "T")
    assert (got["queue"], got["queue_offset"]) == (sent[1]["queue"], sent[1]["queue_offset"])


def test_an_id_of_no_place_finds_nothing(java: Program, topic: str) -> None:
    [sent] = java.call("send", topic=topic)["results"]
    beyond = sent["offset_msg_id"][:-16] + f"{1 << 40:016X}"
    with pytest.raises(ProgramError):
        java.call("view_message", topic=topic, id=beyond)


def test_messages_are_found_by_key(client: Program, topic: str) -> None:
    key = {"topic": topic, "key": "shared"}
    client.call("send", topic=topic, count=5, keys="shared own%d")
    found = wait_until(lambda: _found(client, key, 5), 10, "the index knows the messages")
    assert sorted(m["body"] for m in found) == [f"m-{n}" for n in range(5)]
    [one] = client.call("query_message", topic=topic, key="own3")["messages"]
    assert one["body"] == "m-3"
    middle_ms = int(found[0]["stored_ms"])
    early = {"begin_ms": 0, "end_ms": middle_ms - 3_600_000}
    with pytest.raises(ProgramError) as nothing:
        client.call("query_message", topic=topic, key="shared", **early)
    assert nothing.value.code == 208  # NO_MESSAGE
    with pytest.raises(ProgramError) as nothing:
        client.call("query_message", topic=topic, key="nobody")
    assert nothing.value.code == 208


def test_a_key_belongs_to_its_topic(java: Program, topic: str) -> None:
    other = f"{topic}_other"
    java.call("make_topics", topics=[other])
    java.call("send", topic=other, keys="same", prefix="other")
    java.call("send", topic=topic, keys="same", prefix="mine")
    found = wait_until(lambda: _found(java, {"topic": topic, "key": "same"}, 1), 10, "the index knows the message")
    assert [m["body"] for m in found] == ["mine-0"]


def test_a_message_is_found_by_its_unique_key(client: Program, topic: str) -> None:
    sent = client.call("send", topic=topic, count=3)["results"]

    def viewed() -> Json | None:
        try:
            return client.call("view_message", topic=topic, id=sent[2]["msg_id"])
        except ProgramError:
            return None

    got = wait_until(viewed, 10, "the index knows the message")
    assert (got["body"], got["msg_id"]) == ("m-2", sent[2]["msg_id"])


def _found(client: Program, key: Json, count: int) -> list[Json] | None:
    try:
        found: list[Json] = client.call("query_message", **key)["messages"]
    except ProgramError:
        return None
    return found if len(found) >= count else None
