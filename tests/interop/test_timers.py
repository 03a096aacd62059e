"""Timers with the Java client: every way to set a time, recalls, cancels by property, refusals, retries and mqadmin."""

import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.interop.mqadmin import MqAdmin
from tests.interop.ports import HOST, free_port
from tests.interop.programs import Json, Program, ProgramError, start_java
from tests.interop.target import IS_APACHE, Cluster, running_cluster
from tests.interop.test_levels import START_MS, count, stored, wait_for_count
from tests.interop.waiting import wait_until
from tests.support.fifo_clock import FifoClock
from tests.support.serving import serving

TIMER_TOPIC = "rmq_sys_wheel_timer"
HOUR_MS = 3_600_000
DAY_S = 86_400
DAY_MS = DAY_S * 1_000
MAX_DELAY_S = 3 * DAY_S
LEVELS = "1s 5s 1s 1s"
PROPERTIES = {
    "sec": "TIMER_DELAY_SEC", "ms": "TIMER_DELAY_MS", "deliver": "TIMER_DELIVER_MS", "start": "__STARTDELIVERTIME",
}  # fmt: skip
WAYS = [way for way in PROPERTIES if not (IS_APACHE and way == "start")]  # Apache RocketMQ does not know the last
SOON_MS = 3_000
WHILE_MS = 600_000  # longer than the tests take
SETTLED_MS = SOON_MS + (3_000 if IS_APACHE else 500)
LATEST_MS = 3_000  # Apache RocketMQ is up to a second late by design; the rest is for a busy machine
ILLEGAL_MESSAGE, ILLEGAL_OPERATION = 13, 604
SMALL_LOG = tuple(
    word
    for setting in (
        "broker.max_message=256KiB",
        "store.segment=512KiB",
        "store.reserve_step=512KiB",
        "store.index_slots=1000",
        "store.index_entries=4000",
        "store.checkpoint_every=200ms",
        "store.retention_every=200ms",
    )
    for word in ("--set", setting)
)
PREPARED = 4  # the system flag of a half message


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with running_cluster(folder, levels=LEVELS, max_delay_s=MAX_DELAY_S) as running:
        yield running


@pytest.fixture(scope="module")
def admin(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MqAdmin]:
    with start_java(tmp_path_factory.mktemp("mqadmin") / "java.log", {}, log_level="OFF") as program:
        yield MqAdmin(program, cluster.namesrv)


def send(client: Program, topic: str, way: str, in_ms: int, **options: object) -> Json:
    """Send one message for later; the result."""
    result: Json = client.call("send", topic=topic, timers=[{"way": way, "in_ms": in_ms}], **options)["results"][0]
    return result


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def settle(client: Program, topic: str) -> list[str]:
    """The bodies in a topic once all that was scheduled for the next seconds has come: a later one tells it."""
    send(client, topic, "ms", SETTLED_MS, prefix="settled")

    def settled() -> list[str] | None:
        bodies = sorted(message["body"] for message in stored(client, topic))
        return [body for body in bodies if body != "settled-0"] if "settled-0" in bodies else None

    return wait_until(settled, 30, f"{topic} settles")


def refused(client: Program, command: str, **arguments: object) -> ProgramError:
    with pytest.raises(ProgramError) as refusal:
        client.call(command, **arguments)
    return refusal.value


# Times


def spread_timers(total: int) -> list[Json]:
    """Times spread over four seconds, in all ways; whole seconds where only those can be told."""
    timers = []
    for number in range(total):
        way, in_ms = WAYS[number % len(WAYS)], SOON_MS + 4_000 * number // total
        timers.append({"way": way, "in_ms": in_ms // 1_000 * 1_000 if way == "sec" else in_ms})
    return timers


def test_every_way_to_set_a_time_is_kept_to(client: Program, topic: str, group: str) -> None:
    client.call("start_consumer", name=group, topic=topic, group=group)
    timers = spread_timers(100)
    for mode, first, amount in (("sync", 0, 34), ("async", 34, 33), ("oneway", 67, 33)):
        client.call("send", topic=topic, mode=mode, first=first, count=amount, timers=timers, keys="k%d", tags=["T"])
    got = client.messages(group, count=100)
    client.call("stop_consumer", name=group)
    assert sorted(m["body"] for m in got) == sorted(f"m-{n}" for n in range(100))
    for message in got:
        way, properties = timers[int(message["body"][2:])]["way"], message["properties"]
        late_ms = message["stored_ms"] - int(properties["not_before_ms"])
        assert 0 <= late_ms < LATEST_MS
        assert {PROPERTIES[way], "TIMER_OUT_MS"} <= set(properties)
        assert (properties["REAL_TOPIC"], properties["REAL_QID"]) == (topic, str(message["queue"]))
        assert (message["topic"], message["keys"], message["tags"]) == (topic, f"k{message['body'][2:]}", "T")
        if not IS_APACHE:
            assert message["stored_ms"] >= int(properties["LMQ_DUE_MS"]) >= int(properties["not_before_ms"])
    assert count(client, topic) == 100


def test_a_moment_that_has_passed_is_now(client: Program, topic: str) -> None:
    for way in WAYS[2:]:
        assert send(client, topic, way, -5_000, prefix=way)["recall_handle"] is None
    assert count(client, topic) == len(WAYS[2:])
    assert all("REAL_TOPIC" not in message["properties"] for message in stored(client, topic))


# Far times


def pass_days(clock: FifoClock, java: Program, from_ms: int, until_ms: int, steps: Random) -> None:
    """Let the broker's time pass in steps of hours, with a message at each, so that the log behind goes."""
    while from_ms < until_ms:
        from_ms = min(until_ms, from_ms + steps.randint(1, 24) * HOUR_MS)
        clock.advance_to(from_ms)
        java.call("send", topic="filler", size_bytes=200_000, incompressible=True)


@pytest.mark.skipif(IS_APACHE, reason="Apache RocketMQ's broker has no clock that a test could feed")
@pytest.mark.parametrize("engine", ["wheel", "rocksdb"])
def test_timers_outlive_a_kill_and_the_log_that_they_were_stored_in(engine: str, tmp_path: Path) -> None:
    """Forty days in hours' steps: what waits is written anew before its log goes, and arrives at its millisecond."""
    namesrv_port, steps, kill_ms = free_port(), Random(engine), START_MS + 20 * DAY_MS
    due_ms = START_MS + 40 * DAY_MS + 123
    options = (*SMALL_LOG, "--namesrv-port", str(namesrv_port), "--port", str(free_port()))
    options += ("--set", f"timer.engine={engine}")
    defaults = {"namesrv": f"{HOST}:{namesrv_port}"}
    with FifoClock(tmp_path / "clock") as clock, start_java(tmp_path / "java.log", defaults) as java:
        with serving(tmp_path / "data", *options, *clock.settings) as server:
            clock.advance_to(START_MS)
            java.call("make_topics", topics=["far", "filler"], queues=1)
            java.call("send", topic="far", prefix="far", timers=[{"way": "deliver", "value": due_ms}])
            java.call("send", topic="far", prefix="relative", timers=[{"way": "sec", "value": 40 * DAY_S}])
            java.call("send", topic="far", prefix="start", timers=[{"way": "start", "value": due_ms + 1}])
            taken = java.call("send", topic="far", prefix="taken", timers=[{"way": "deliver", "value": due_ms}])
            pass_days(clock, java, START_MS, kill_ms, steps)
            server.kill()
        with serving(tmp_path / "data", *options, *clock.settings):
            pass_days(clock, java, kill_ms, START_MS + 40 * DAY_MS - 1, steps)
            java.call("recall", topic="far", handle=taken["results"][0]["recall_handle"])
            for number, time_ms in enumerate((START_MS + 40 * DAY_MS, due_ms, due_ms + 1), start=1):
                clock.advance_to(time_ms - 1)
                assert count(java, "far") == number - 1
                clock.advance_to(time_ms)
                wait_for_count(java, "far", number)
            pass_days(clock, java, due_ms + 1, due_ms + 3 * DAY_MS, steps)
            arrived = [(message["body"], message["stored_ms"]) for message in stored(java, "far")]
            [filler] = java.call("queues", topic="filler")["queues"]
    assert arrived == [("relative-0", START_MS + 40 * DAY_MS), ("far-0", due_ms), ("start-0", due_ms + 1)]
    assert filler["min"] > 0, "the log goes after three days"


# Recalls


def send_all_kinds(client: Program, topic: str) -> list[Json]:
    """One message for now, one with a level, one of each kind of timer that RocketMQ's client knows."""
    sent: list[Json] = client.call("send", topic=topic, prefix="now")["results"]
    sent += client.call("send", topic=topic, prefix="level", delay_levels=[1])["results"]
    return sent + [send(client, topic, way, SOON_MS, prefix=way) for way in ("ms", "sec", "deliver")]


def test_recalled_timers_do_not_arrive_and_the_others_do(client: Program, cluster: Cluster, topic: str) -> None:
    sent = send_all_kinds(client, topic)
    handles = [result["recall_handle"] for result in sent]
    assert [handle is not None for handle in handles] == [False, False, True, True, True]
    for result in sent[2:]:
        told = client.call("read_handle", handle=result["recall_handle"])
        assert (told["topic"], told["broker"], told["id"]) == (topic, cluster.broker, result["msg_id"])
        for _ in range(2):  # asked again, the answer is the same
            recalled = client.call("recall", topic=topic, handle=result["recall_handle"])
            assert recalled["msg_id"] == result["msg_id"]
    assert settle(client, topic) == ["level-0", "now-0"]


def test_a_recall_under_another_topic_takes_nothing(java: Program, cluster: Cluster, topic: str) -> None:
    """A broker that writes the topic into what it cancels tells the same unique key in two topics apart."""
    java.call("make_topics", topics=[f"{topic}_other"], queues=1)
    for result in send_all_kinds(java, topic)[2:]:
        handle = result["recall_handle"]
        assert refused(java, "recall", topic=f"{topic}_other", handle=handle).code == ILLEGAL_OPERATION
        told = {**java.call("read_handle", handle=handle), "topic": f"{topic}_other"}
        collision = java.call("make_handle", **told)["handle"]
        if IS_APACHE:  # it does not look whether there is anything to recall
            java.call("recall", topic=f"{topic}_other", handle=collision)
        else:
            nothing = refused(java, "recall", topic=f"{topic}_other", handle=collision)
            assert (nothing.code, "not found" in nothing.message) == (ILLEGAL_OPERATION, True)
    assert settle(java, topic) == ["deliver-0", "level-0", "ms-0", "now-0", "sec-0"]
    assert count(java, f"{topic}_other") == 0


def test_what_has_arrived_cannot_be_recalled(java: Program, topic: str) -> None:
    handle = send(java, topic, "ms", 1_200)["recall_handle"]
    wait_for_count(java, topic, 1)
    late = refused(java, "recall", topic=topic, handle=handle)
    assert late.code == ILLEGAL_OPERATION
    assert ("timestamp invalid" if IS_APACHE else "already delivered") in late.message


def test_a_handle_that_is_none_recalls_nothing(java: Program, cluster: Cluster, topic: str) -> None:
    java.call("send", topic=topic)  # after which the client knows the broker
    place = {"topic": topic, "broker": cluster.broker, "address": cluster.address}
    for handle in ("", "no handle", "djIgYSBiIDEgYw==", "djEgYSBi"):  # "v2 a b 1 c", "v1 a b"
        answer = refused(java, "recall_raw", handle=handle, **place)
        assert (answer.code, "recall handle is invalid" in answer.message) == (ILLEGAL_OPERATION, True)
        assert "recall handle is invalid" in refused(java, "recall", topic=topic, handle=handle).message


# Cancels by property


def cancel(client: Program, topic: str, at_ms: int, name: str) -> None:
    timer = {"way": "deliver", "value": at_ms}
    client.call("send", topic=topic, prefix="cancel", timers=[timer], reserved_properties={"TIMER_DEL_UNIQKEY": name})


def test_a_cancel_takes_what_it_names_and_never_arrives(java: Program, topic: str) -> None:
    java.call("make_topics", topics=[f"{topic}_other"], queues=1)
    at_ms = now_ms() + SOON_MS
    sent = java.call("send", topic=topic, count=5, timers=[{"way": "deliver", "value": at_ms}])["results"]
    cancel(java, topic, at_ms, f"{topic}+{sent[1]['msg_id']}")
    cancel(java, topic, at_ms, f"{topic}_other+{sent[2]['msg_id']}")
    cancel(java, f"{topic}_other", at_ms, f"{topic}_other+{sent[3]['msg_id']}")
    cancel(java, topic, at_ms, f"{topic}+0000")
    assert settle(java, topic) == ["m-0", "m-2", "m-3", "m-4"]
    assert count(java, f"{topic}_other") == 0


@pytest.mark.skipif(IS_APACHE, reason="a setting of Apache's broker decides whether a cancel names the topic too")
def test_a_cancel_takes_a_key_with_the_separator_whether_it_names_the_topic_or_not(java: Program, topic: str) -> None:
    at_ms = now_ms() + SOON_MS
    for key in ("a+b", "c+d", "stays+e"):
        properties = {"UNIQ_KEY": key}
        timer = {"way": "deliver", "value": at_ms}
        java.call("send", topic=topic, prefix=key, timers=[timer], reserved_properties=properties)
    cancel(java, topic, at_ms, "a+b")
    cancel(java, topic, at_ms, f"{topic}+c+d")
    assert settle(java, topic) == ["stays+e-0"]


def test_a_cancel_whose_time_has_passed_is_refused(java: Program, topic: str) -> None:
    with pytest.raises(ProgramError) as refusal:
        cancel(java, topic, now_ms() - 1_000, f"{topic}+0000")
    assert refusal.value.code == ILLEGAL_MESSAGE
    assert count(java, topic) == 0


# Refusals


@pytest.mark.parametrize("way", WAYS)
def test_a_time_beyond_the_limit_is_refused(java: Program, topic: str, way: str) -> None:
    beyond_ms = (MAX_DELAY_S + 60) * 1_000
    error = refused(java, "send", topic=topic, timers=[{"way": way, "in_ms": beyond_ms}])
    assert error.code == ILLEGAL_MESSAGE
    if not IS_APACHE:
        assert PROPERTIES[way] in error.message
        assert "timer.max_delay" in error.message
    assert send(java, topic, way, (MAX_DELAY_S - 60) * 1_000)["recall_handle"]
    assert count(java, topic) == 0


@pytest.mark.skipif(IS_APACHE, reason="Apache RocketMQ takes some of them as now")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("value", [2**63 - 1, 2**63 // 1000 + 1, -1])
def test_a_number_that_is_no_time_is_refused(java: Program, topic: str, way: str, value: int) -> None:
    error = refused(java, "send", topic=topic, timers=[{"way": way, "value": value}])
    assert (error.code, PROPERTIES[way] in error.message) == (ILLEGAL_MESSAGE, True)
    assert count(java, topic) == 0


@pytest.mark.skipif(IS_APACHE, reason="Apache RocketMQ takes it, and no consumer ever sees it")
def test_the_flag_of_a_transaction_without_its_property_is_refused(java: Program, cluster: Cluster, topic: str) -> None:
    place = {"topic": topic, "broker": cluster.broker, "address": cluster.address, "sysflag": PREPARED}
    java.call("send", topic=topic)
    for way in WAYS:
        error = refused(java, "send_raw", timers=[{"way": way, "in_ms": 2_000}], **place)
        assert error.code == ILLEGAL_MESSAGE
        assert "TRAN_MSG is not true" in error.message
    assert count(java, topic) == 1


# Retries


@pytest.mark.parametrize("forget_offset", [False, True], ids=["sent-back", "sent-anew"])
def test_a_retry_waits_for_its_level_alone(java: Program, topic: str, group: str, forget_offset: bool) -> None:
    """Given back to the broker, or put into the retry topic by the client with all properties that it came with."""
    # The client looks every 20 s for queues of a topic that it did not find at its start.
    java.call("make_topics", topics=[f"%RETRY%{group}"], queues=1)
    java.call("send", topic=topic, count=8, timers=[{"way": way, "in_ms": 2_000} for way in WAYS])
    java.call("start_consumer", name=group, topic=topic, group=group, failures=1, forget_offset=forget_offset)
    got = java.messages(group, count=16)
    java.call("stop_consumer", name=group)
    for number in range(8):
        first, second = [message for message in got if message["body"] == f"m-{number}"]
        assert (first["reconsumed"], second["reconsumed"]) == (0, 1)
        assert 1_000 <= second["stored_ms"] - first["seen_ms"] < 1_000 + LATEST_MS
        assert second["properties"]["RETRY_TOPIC"] == topic


# mqadmin


def test_mqadmin_finds_a_timer_where_it_waits_and_then_where_it_arrived(
    java: Program, admin: MqAdmin, topic: str
) -> None:
    waits = send(java, topic, "ms", WHILE_MS, keys="order-1")
    arrives = send(java, topic, "ms", 1_200, keys="order-2")
    pending = admin.described("queryMsgByUniqueKey", "-t", TIMER_TOPIC, "-i", waits["msg_id"])
    assert pending["Topic"] == TIMER_TOPIC
    assert f"REAL_TOPIC={topic}" in pending["Properties"]
    [row] = admin.rows("queryMsgByKey", "-t", TIMER_TOPIC, "-k", "order-1")
    assert row[0].split()[0] == waits["msg_id"]
    wait_for_count(java, topic, 1)
    # mqadmin cannot look two unique keys up in one process.
    assert java.call("view_message", topic=topic, id=arrives["msg_id"])["keys"] == "order-2"
    [row] = admin.rows("queryMsgByKey", "-t", topic, "-k", "order-2")
    assert row[0].split()[0] == arrives["msg_id"]


def test_mqadmin_tells_how_many_timers_wait(java: Program, admin: MqAdmin, cluster: Cluster, topic: str) -> None:
    before = int(admin.settings("brokerStatus", "-b", cluster.address)["timerCongestNum"])
    java.call("send", topic=topic, count=10, timers=[{"way": "ms", "in_ms": WHILE_MS}])
    assert topic in [row[0] for row in admin.rows("topicList")]

    def counted() -> dict[str, str] | None:
        status = admin.settings("brokerStatus", "-b", cluster.address)
        is_counted = int(status["timerCongestNum"]) == before + 10 and status["timerOffsetBehind"] == "0"
        return status if is_counted and float(status["timerEnqueueTps"]) > 0 else None

    status = wait_until(counted, 20, "the status counts the timers")
    assert -1 <= int(status["timerReadBehind"]) <= 2
    assert float(status["timerDequeueTps"]) >= 0
