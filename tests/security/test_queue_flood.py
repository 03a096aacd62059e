"""A stranger makes queues by the thousand: limits of open files and maps end neither the broker nor its restarts."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from latermq.protocol.remoting.codes import Request, Response
from tests.integration.brokers import send_fields
from tests.interop.ports import free_port
from tests.security.attacker import Attacker, attacking
from tests.support.needs import LONG

LIMIT = 256
TOPIC_QUEUES = 1_000
TOPICS = 20 if LONG else 1
SENT_AT_ONCE = 200
SETTINGS = ("store.segment=16MiB", "store.queue_file_entries=200", "store.index_slots=97", "store.index_entries=50000",
            "broker.max_message=64KiB", "metrics.port=0", "store.checkpoint_every=1h")  # fmt: skip


def command(*arguments: str, settings: tuple[str, ...] = ()) -> list[str]:
    """A command of ours in a process that may open few files, whatever it tries."""
    words = [word for setting in (*SETTINGS, *settings) for word in ("--set", setting)]
    return ["sh", "-c", f'ulimit -n {LIMIT}; exec "$@"', "sh", sys.executable, "-m", "latermq", *arguments, *words]


@contextlib.contextmanager
def limited_broker(data: Path, *settings: str) -> Iterator[tuple[Attacker, subprocess.Popen[str]]]:
    port = free_port()
    run = command("broker", "--data", str(data), "--port", str(port), "--namesrv", "127.0.0.1:1", settings=settings)
    log = data.parent / "broker.log"
    with log.open("a") as err, subprocess.Popen(run, stdout=subprocess.PIPE, stderr=err, text=True) as broker:
        try:
            assert broker.stdout is not None
            assert broker.stdout.readline().startswith("latermq ready"), log.read_text()[-4000:]
            with attacking(port) as attacker:
                yield attacker, broker
        finally:
            # Not asked to stop: syncing every file of every queue would take longer than the test.
            broker.kill()
            broker.wait()


def make_topic(attacker: Attacker, topic: str, queues: int) -> tuple[int, str]:
    reply = attacker.call(
        Request.UPDATE_AND_CREATE_TOPIC,
        {"topic": topic, "readQueueNums": str(queues), "writeQueueNums": str(queues), "perm": "6", "order": "false",
         "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0"},
    )  # fmt: skip
    return reply.code, reply.remark or ""


def send(attacker: Attacker, topic: str, queue_id: int, properties: str = "") -> tuple[int, str]:
    reply = attacker.call(
        Request.SEND_MESSAGE_V2, send_fields(topic, queue_id=queue_id, properties=properties), b"message"
    )
    return reply.code, reply.remark or ""


def send_to_all(attacker: Attacker, topic: str, queues: int) -> list[int]:
    """Without waiting for answers in between, as strangers do."""
    codes = []
    for first in range(0, queues, SENT_AT_ONCE):
        upto = min(queues, first + SENT_AT_ONCE)
        attacker.push(
            b"".join(
                attacker.request(Request.SEND_MESSAGE_V2, send_fields(topic, queue_id=queue_id), b"message")
                for queue_id in range(first, upto)
            )
        )
        codes += [attacker.receive().code for _ in range(first, upto)]
    return codes


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def test_thousands_of_queues_need_no_thousands_of_open_files(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for start in range(2):
        with limited_broker(data) as (attacker, broker):
            for number in range(TOPICS):
                if start == 0:
                    assert make_topic(attacker, f"flood{number}", TOPIC_QUEUES)[0] == Response.SUCCESS
                assert set(send_to_all(attacker, f"flood{number}", TOPIC_QUEUES)) == {Response.SUCCESS}
                assert open_files(broker.pid) < LIMIT
            end = attacker.call(Request.GET_MAX_OFFSET, {"topic": "flood0", "queueId": "7"}).text_fields()["offset"]
            assert end == str(start + 1)
    log = (tmp_path / "broker.log").read_text()
    assert "fewer queue files stay open than configured" in log
    assert f"the limit of open files is {LIMIT}" in log
    assert f"queues={TOPICS * TOPIC_QUEUES}" in log.replace("'", "")
    with subprocess.Popen(
        command("doctor", "--data", str(data), "--json"), stdout=subprocess.PIPE, text=True
    ) as doctor:
        out, _ = doctor.communicate(timeout=120)
    found = {row["check"]: row for row in map(json.loads, out.splitlines())}
    assert found["store"]["status"] == "ok", found["store"]
    assert found["queues"]["status"] == "warn"
    assert str(LIMIT) in found["queues"]["details"]


def test_a_bound_of_queues_harms_only_who_reaches_it(tmp_path: Path) -> None:
    with limited_broker(tmp_path / "data", "store.max_queues=40") as (attacker, _):
        for topic in ("orders", "flood"):
            assert make_topic(attacker, topic, 100)[0] == Response.SUCCESS
        assert send(attacker, "orders", 0)[0] == Response.SUCCESS
        codes = send_to_all(attacker, "flood", 100)
        assert codes.count(Response.SUCCESS) == 39
        assert set(codes[39:]) == {Response.NO_PERMISSION}
        for properties in ("", "TIMER_DELAY_MS\x015000\x02", "DELAY\x013\x02"):
            code, remark = send(attacker, "orders", 1, properties)
            assert code == Response.NO_PERMISSION
            assert "store.max_queues" in remark
        assert send(attacker, "orders", 0)[0] == Response.SUCCESS
        assert send(attacker, "orders", 0, "TIMER_DELAY_MS\x015000\x02")[0] == Response.SUCCESS


def test_a_topic_with_too_many_queues_is_refused(tmp_path: Path) -> None:
    with limited_broker(tmp_path / "data") as (attacker, _):
        for queues in (1_025, 65_535, 2_147_483_647):
            code, remark = make_topic(attacker, "wide", queues)
            assert code == Response.INVALID_PARAMETER
            assert "broker.max_topic_queues" in remark
        assert make_topic(attacker, "wide", 1_024)[0] == Response.SUCCESS
