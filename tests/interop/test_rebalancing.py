"""Consumers that come and go: who holds which queue, how soon, and that nothing is lost meanwhile."""

import time
from collections import Counter
from collections.abc import Callable

from tests.interop.programs import Json, Program
from tests.interop.waiting import wait_until

# The client looks by itself every 20 s; anything well below that was the broker's notice.
NOTICED_S = 8


def test_a_second_consumer_gets_its_share_soon(java: Program, java_binary: Program, topic: str, group: str) -> None:
    java.call("start_consumer", name="first", topic=topic, group=group)
    wait_until(lambda: len(_queues(java, "first")) == 4, 30, "the first holds all queues")
    started_s = time.monotonic()
    java_binary.call("start_consumer", name="second", topic=topic, group=group)

    def shared() -> bool:
        mine, yours = _queues(java, "first"), _queues(java_binary, "second")
        return len(mine) == len(yours) == 2 and not mine & yours

    wait_until(shared, 30, "the queues are shared")
    shared_s = time.monotonic() - started_s
    assert shared_s < NOTICED_S
    assert len(java.call("consumer_ids", group=group)["ids"]) == 2

    java_binary.call("stop_consumer", name="second")
    stopped_s = time.monotonic()
    wait_until(lambda: len(_queues(java, "first")) == 4, 30, "the first holds all queues again")
    assert time.monotonic() - stopped_s < NOTICED_S
    java.call("stop_consumer", name="first")
    wait_until(lambda: not java.call("consumer_ids", group=group)["ids"], 10, "the broker has forgotten both")


def test_a_consumer_that_dies_loses_its_queues_soon(
    java: Program, new_java: Callable[[], Program], topic: str, group: str
) -> None:
    """Its process is killed, so nobody says good-bye: the closed connection tells."""
    java.call("start_consumer", name="first", topic=topic, group=group)
    doomed = new_java()
    doomed.call("start_consumer", name="doomed", topic=topic, group=group)
    wait_until(lambda: len(_queues(java, "first")) == len(_queues(doomed, "doomed")) == 2, 30, "the queues are shared")
    doomed.kill()
    killed_s = time.monotonic()
    wait_until(lambda: len(_queues(java, "first")) == 4, 30, "the first holds all queues")
    assert time.monotonic() - killed_s < NOTICED_S
    assert len(java.call("consumer_ids", group=group)["ids"]) == 1
    java.call("stop_consumer", name="first")


def test_nothing_is_lost_while_consumers_join_and_leave(
    java: Program, new_java: Callable[[], Program], topic: str, group: str
) -> None:
    """Three processes come and go under load. Messages may come twice, as the protocol allows; none may be missing."""
    consumers = [new_java() for _ in range(3)]
    sent = 0

    def send(count: int) -> None:
        nonlocal sent
        java.call("send", topic=topic, count=count, first=sent)
        sent += count

    def join(number: int, life: int) -> None:
        consumers[number].call("start_consumer", name=f"life{life}", topic=topic, group=group, work_ms=1)

    join(0, 1)
    send(500)
    for life in (1, 2):
        join(1, life)
        send(500)
        join(2, life)
        send(500)
        wait_until(lambda: consumers[2].events("message"), 30, "the third gets messages")
        consumers[1].call("stop_consumer", name=f"life{life}")
        send(500)
        consumers[2].call("stop_consumer", name=f"life{life}")
        send(500)
    join(1, 3)
    send(300)
    consumers[1].kill()  # without a good-bye, and without a last commit of its offsets
    send(200)

    def bodies() -> Counter[str]:
        return Counter(m["body"] for consumer in consumers for m in consumer.events("message"))

    expected = {f"m-{n}" for n in range(sent)}
    got = wait_until(lambda: counts if set(counts := bodies()) >= expected else None, 60, f"all {sent} are consumed")
    assert set(got) == expected
    duplicates = sum(got.values()) - sent
    print(f"{sent} messages, {duplicates} of them twice; by process {[len(_all(c)) for c in consumers]}")
    assert duplicates < sent // 4
    assert all(_all(consumer) for consumer in consumers)


def _all(consumer: Program) -> list[Json]:
    return consumer.events("message")


def _queues(client: Program, consumer: str) -> set[int]:
    queues = client.call("assigned", name=consumer)["queues"]
    return {queue["queue"] for queue in queues if not queue["topic"].startswith("%RETRY%")}
