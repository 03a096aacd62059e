"""The Java consumer's retries: the ladder of delays, the dead letters at its end, and consumers in order."""

import itertools
from collections.abc import Iterator

import pytest

from tests.interop.programs import Json, Program
from tests.interop.target import IS_APACHE, Cluster, running_cluster
from tests.interop.waiting import wait_until

# Retries start at level 3; short ones, so that the ladder is climbed within the test, yet told from each other.
LEVELS = "1s 4s 1s 2s 3s 1s"
LADDER_MS = [1_000, 2_000, 3_000]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster"), levels=LEVELS) as running:
        yield running


@pytest.fixture
def group(group: str, java: Program) -> str:
    """Its retry topic is there before it is: the client looks for one that it has not found when it next rebalances,
    20 s later.
    """
    java.call("make_topics", topics=[f"%RETRY%{group}"], queues=1)
    return group


def dead_letters(java: Program, group: str, count: int) -> list[Json]:
    """The dead letters of a group, once there are as many."""
    topic = f"%DLQ%{group}"

    def pulled() -> list[Json] | None:
        try:
            answer = java.call("pull", topic=topic, broker="broker-a", queue=0, offset=0)
        except Exception:  # its route is not known before the first one is stored
            return None
        found: list[Json] = answer["messages"]
        return found if len(found) >= count else None

    return wait_until(pulled, 30, f"{topic} holds {count} messages")


def gaps_ms(got: list[Json]) -> list[int]:
    """How long after each failure the message came again."""
    return [after["stored_ms"] - before["seen_ms"] for before, after in itertools.pairwise(got)]


def test_a_listener_that_always_fails_climbs_the_ladder_and_ends_in_the_dead_letters(
    client: Program, topic: str, group: str
) -> None:
    [sent] = client.call("send", topic=topic, keys="k", tags=["T"], properties={"p": "v"})["results"]
    client.call("start_consumer", name=group, topic=topic, group=group, failures=99, max_reconsume_times=3)
    got = client.messages(group, count=4, timeout_s=60)
    [dead] = dead_letters(client, group, 1)
    client.call("stop_consumer", name=group)
    assert [m["reconsumed"] for m in got] == [0, 1, 2, 3]
    assert len(client.messages(group)) == 4
    for gap_ms, level_ms in zip(gaps_ms(got), LADDER_MS, strict=True):
        assert level_ms <= gap_ms < level_ms + 3_000
    for message in got[1:]:
        assert message["topic"] == topic
        assert message["properties"]["ORIGIN_MESSAGE_ID"] == sent["offset_msg_id"]
        assert message["properties"]["RETRY_TOPIC"] == topic
    assert (dead["topic"], dead["body"], dead["reconsumed"]) == (f"%DLQ%{group}", "m-0", 4)
    assert (dead["keys"], dead["tags"], dead["msg_id"]) == ("k", "T", sent["msg_id"])
    wanted = {"p": "v", "RETRY_TOPIC": topic, "ORIGIN_MESSAGE_ID": sent["offset_msg_id"], "WAIT": "false"}
    assert wanted.items() <= dead["properties"].items()


def test_a_level_that_the_listener_names_is_waited_for(client: Program, topic: str, group: str) -> None:
    client.call("send", topic=topic)
    client.call("start_consumer", name=group, topic=topic, group=group, failures=1, delay_level=2)
    first, second = client.messages(group, count=2, timeout_s=60)
    client.call("stop_consumer", name=group)
    assert 4_000 <= second["stored_ms"] - first["seen_ms"] < 7_000
    assert second["reconsumed"] == 1


def test_a_listener_may_give_a_message_up_at_once(client: Program, topic: str, group: str) -> None:
    [sent] = client.call("send", topic=topic, keys="k")["results"]
    client.call("start_consumer", name=group, topic=topic, group=group, failures=1, delay_level=-1)
    [dead] = dead_letters(client, group, 1)
    client.call("stop_consumer", name=group)
    assert len(client.messages(group)) == 1
    assert (dead["reconsumed"], dead["properties"]["ORIGIN_MESSAGE_ID"]) == (1, sent["offset_msg_id"])


def test_a_consumer_in_order_tries_again_by_itself_and_then_gives_the_message_up(
    client: Program, topic: str, group: str
) -> None:
    """The failed message holds its queue; what it gives up goes to the dead letters and the next one comes."""
    client.call("send", topic=topic, count=2, mode="selector", prefix="a")
    [sent, _] = client.call("send", topic=topic, count=2, mode="selector", prefix="b")["results"]
    options = {"orderly": True, "failures": 3, "max_reconsume_times": 2, "suspend_ms": 100}
    client.call("start_consumer", name=group, topic=topic, group=group, **options)
    dead = dead_letters(client, group, 4)
    got = client.messages(group, count=12)
    client.call("stop_consumer", name=group)
    of_queue = [m for m in got if m["queue"] == sent["queue"]]
    assert [(m["body"], m["reconsumed"]) for m in of_queue] == [
        (body, times) for body in ("a-0", "b-0") for times in (0, 1, 2)
    ]
    assert sorted(m["body"] for m in dead) == ["a-0", "a-1", "b-0", "b-1"]
    assert {m["reconsumed"] for m in dead} == {3}
    assert {m["properties"]["RETRY_TOPIC"] for m in dead} == {topic}


@pytest.mark.skipif(IS_APACHE, reason="the levels of a group are LaterMQ's own")
def test_a_group_with_levels_of_its_own_waits_by_them(java: Program, cluster: Cluster, topic: str, group: str) -> None:
    options = ("-b", cluster.address, "-g", group, "-r", "2", "--attributes", "+retry.levels=2 1")
    printed = java.call("mqadmin", argv=["updateSubGroup", *options, "-n", cluster.namesrv])["output"]
    assert "retry.levels=2 1" in printed
    java.call("send", topic=topic)
    java.call("start_consumer", name=group, topic=topic, group=group, failures=99, max_reconsume_times=2)
    got = java.messages(group, count=3, timeout_s=60)
    java.call("stop_consumer", name=group)
    first, second = gaps_ms(got)
    assert 4_000 <= first < 7_000
    assert 1_000 <= second < 3_500


def test_a_send_back_that_finds_no_message_is_put_by_the_client_itself(java: Program, topic: str, group: str) -> None:
    """The client falls back to a plain send into the retry topic when its send-back is refused."""
    [sent] = java.call("send", topic=topic, properties={"p": "v"})["results"]
    java.call("start_consumer", name=group, topic=topic, group=group, failures=1, forget_offset=True)
    first, second = java.messages(group, count=2, timeout_s=60)
    java.call("stop_consumer", name=group)
    assert (first["reconsumed"], second["reconsumed"]) == (0, 1)
    assert second["stored_ms"] - first["seen_ms"] >= 1_000
    assert (second["topic"], second["body"], second["properties"]["p"]) == (topic, "m-0", "v")
    assert second["properties"]["RETRY_TOPIC"] == topic
    # It knows the message by its unique key, and names it by that.
    assert second["properties"]["ORIGIN_MESSAGE_ID"] == sent["msg_id"]
