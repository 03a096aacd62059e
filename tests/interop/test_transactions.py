"""Transactions with the Java client and with Apache RocketMQ's own example program."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.programs import Program, ProgramError
from tests.interop.target import IS_APACHE, Cluster, running_cluster
from tests.interop.test_levels import count, stored
from tests.interop.toolchain import build_java
from tests.interop.waiting import TookTooLongError, wait_until

EXAMPLE = "org.apache.rocketmq.example.transaction.TransactionProducer"
EXAMPLE_TOPIC = "TopicTest1234"
CHECK_EVERY_S = 1
# Apache's example answers a check with a commit if it has not yet executed the local transaction. On a busy machine a
# second can pass between the answer to its send and that, so the first check comes later.
CHECK_AFTER_S = 5
CHECKS = 15
GIVEN_UP = "TRANS_CHECK_MAX_TIME_TOPIC"
COMMIT, ROLL_BACK, UNKNOWN = "COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(
        tmp_path_factory.mktemp("cluster"), check_every_s=CHECK_EVERY_S, check_after_s=CHECK_AFTER_S
    ) as running:
        yield running


def bodies(java: Program, topic: str) -> list[str]:
    """All bodies of a topic, none while it does not exist."""
    try:
        return sorted(message["body"] for message in stored(java, topic))
    except ProgramError:
        return []


def test_a_committed_message_is_there_and_a_rolled_back_one_never(client: Program, topic: str, group: str) -> None:
    client.call("send_in_transaction", topic=topic, group=group, prefix="no", local=ROLL_BACK)
    sent = client.call("send_in_transaction", topic=topic, group=group, prefix="yes", tags=["t"], keys="k")
    (message,) = wait_until(lambda: stored(client, topic), 20, "the message is committed")
    assert message["body"] == "yes-0"
    assert message["queue"] == sent["queue"]
    assert sent["transaction_id"] == sent["msg_id"]
    assert message["properties"]["UNIQ_KEY"] == sent["msg_id"]
    assert "TRAN_MSG" not in message["properties"]


@pytest.mark.parametrize(("answer", "expected"), [(COMMIT, ["m-0"]), (ROLL_BACK, [])])
def test_a_producer_that_does_not_decide_is_asked_until_it_does(
    client: Program, topic: str, group: str, answer: str, expected: list[str]
) -> None:
    result = client.call(
        "send_in_transaction", topic=topic, group=group, local=UNKNOWN, answers=[UNKNOWN, answer], keys="key"
    )
    assert len(result["checks"]) == 2
    for check in result["checks"]:
        assert (check["topic"], check["queue"], check["body"]) == (topic, result["queue"], "m-0")
        assert check["transaction_id"] == result["msg_id"]
    if expected:
        wait_until(lambda: bodies(client, topic) == expected or None, 20, "the message is committed")
    time.sleep(2 * CHECK_EVERY_S)
    assert bodies(client, topic) == expected


@pytest.mark.skipif(IS_APACHE, reason="Apache RocketMQ ignores this property")
def test_a_timer_in_a_transaction_waits_from_its_commit_on(java: Program, topic: str, group: str) -> None:
    before_ms = time.time_ns() // 1_000_000
    timers = [{"way": "start", "in_ms": 10_000}]
    java.call("send_in_transaction", topic=topic, group=group, timers=timers, local=UNKNOWN, answers=[COMMIT])
    assert count(java, topic) == 0
    (message,) = wait_until(lambda: stored(java, topic), 20, "the timer is delivered")
    assert message["stored_ms"] >= before_ms + 10_000
    assert count(java, topic) == 1


def test_apaches_example_program_runs_unchanged(java: Program, cluster: Cluster, tmp_path: Path) -> None:
    """It leaves every transaction open, and answers checks: a third unknown, a third commit, a third roll back."""
    out = tmp_path / "example.log"
    command = ["java", "-Xmx256m", f"-Duser.home={tmp_path}", "-cp", build_java().servers, EXAMPLE]
    with out.open("wb") as log:
        environment = {**os.environ, "NAMESRV_ADDR": cluster.namesrv, "HOME": str(tmp_path)}
        example = subprocess.Popen(command, stdout=log, stderr=log, cwd=tmp_path, env=environment)
    try:
        wait_until(lambda: out.read_text().count("SEND_OK") == 10 or None, 60, "all halves are sent")
        expected = [f"Hello RocketMQ {number}" for number in (1, 4, 7)]
        wait_until(lambda: bodies(java, EXAMPLE_TOPIC) == expected or None, 30, "a third is committed")
        if not IS_APACHE:
            unknown = [f"Hello RocketMQ {number}" for number in (0, 3, 6, 9)]
            wait_until(
                lambda: bodies(java, GIVEN_UP) == unknown or None, (CHECKS + 20) * CHECK_EVERY_S, "a third is given up"
            )
        assert bodies(java, EXAMPLE_TOPIC) == expected
    except TookTooLongError as error:
        error.add_note(out.read_text()[-4_000:])
        raise
    finally:
        example.kill()
        example.wait()
