"""`latermq dlq` against a real server: lists, shows and resends dead letters."""

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from latermq.cli.commands import resender
from latermq.client import Message, OutgoingMessage, blocking
from latermq.errors import ServiceUnavailable
from latermq.message.ids import parse_offset_message_id
from tests.integration.command_line import Cli
from tests.interop.waiting import wait_until
from tests.support.brokers_in_memory import STAMP
from tests.support.serving import Server, serving


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data: Path = tmp_path_factory.mktemp("dlq") / "data"
    with serving(data, "--set", "store.segment=64MiB", "--set", "timer.levels=1s 2s") as running:
        yield running


@pytest.fixture
def cli(server: Server) -> Cli:
    return Cli(server)


def bury(server: Server, group: str, topic: str, *sent: OutgoingMessage) -> None:
    """Let a group fail on messages that it may not retry."""

    def fail(message: Message) -> None:
        raise RuntimeError("never")

    with (
        blocking.Admin(server.namesrv) as admin,
        blocking.Producer(server.namesrv) as producer,
        blocking.PushConsumer(
            server.namesrv, group, fail, consume_from="first", max_reconsume_times=0, concurrency=1
        ) as consumer,
    ):
        admin.create_topic(topic, queues=1)
        consumer.subscribe(topic)
        before = consumer.statistics()["sent_back"]
        for message in sent:
            producer.send(message)
        wait_until(lambda: consumer.statistics()["sent_back"] == before + len(sent), 30, "all are sent back")
        wait_until(lambda: f"%DLQ%{group}" in admin.topics(), 30, "the dead letters are announced")


def consumed(cli: Cli, topic: str, group: str, count: int) -> list[dict[str, Any]]:
    return cli.rows("consume", topic, "--group", group, "--count", str(count), "--timeout", "20s")


def at(ms: int) -> str:
    return datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC).isoformat(timespec="milliseconds")


def test_dead_letters_are_counted_listed_and_shown_with_their_reason(server: Server, cli: Cli) -> None:
    message = OutgoingMessage("shown", b"body", tag="red", keys=["k1", "k2"], properties={"mine": "yes"})
    bury(server, "show", "shown", message)
    rows = {row["group"]: row for row in cli.rows("dlq", "list")}
    assert (rows["show"]["messages"], rows["rmq_sys_timer_dlq"]["messages"]) == (1, 0)
    assert "show" in cli.text("dlq", "list")
    (listed,) = cli.rows("dlq", "list", "show")
    assert (listed["original_topic"], listed["keys"], listed["failures"]) == ("shown", ["k1", "k2"], 1)
    assert listed["reason"] == "attempt 1 failed, the limit is 0 retries"
    assert listed["message_id"] in cli.text("dlq", "list", "%DLQ%show")
    for message_id in (listed["message_id"], listed["offset_message_id"]):
        text = cli.text("dlq", "show", "show", message_id)
        assert "original topic" in text
        assert "attempt 1 failed" in text
        assert "mine=yes" in text
    (shown,) = cli.rows("dlq", "show", "show", listed["message_id"])
    assert shown == listed
    assert "has no message" in cli.error("dlq", "show", "show", "F" * 32)
    assert "has no message" in cli.error("dlq", "show", "show", "nonsense")
    assert cli.rows("dlq", "list", "show", "--key", "k3") == []


def test_a_group_without_dead_letters_has_an_empty_list(cli: Cli) -> None:
    cli.run("group", "create", "healthy")
    for group in ("healthy", "unknown"):
        assert cli.run("dlq", "list", group) == ("", f"{group} has no dead letters\n")
        assert cli.rows("dlq", "list", group) == []
        assert cli.run("dlq", "list", group, "--key", "k") == ("", "no matching dead letters\n")
        assert f"%DLQ%{group} has no message" in cli.error("dlq", "show", group, "F" * 32)
        assert f"{group} has no matching dead letters" in cli.error("dlq", "resend", group, "--all")


def test_a_message_is_resent_without_transit_properties_and_stays_a_dead_letter(server: Server, cli: Cli) -> None:
    bury(
        server, "one", "ones",
        OutgoingMessage("ones", b"first", tag="red", keys="k", properties={"mine": "yes", "DELAY": "1"}),
        OutgoingMessage("ones", b"second"),
    )  # fmt: skip
    dead = {row["body"]: row for row in cli.rows("dlq", "list", "one")}
    assert dead.keys() == {"first", "second"}
    (sent,) = cli.rows("dlq", "resend", "one", "--id", dead["first"]["message_id"])
    assert (sent["status"], sent["topic"]) == ("SEND_OK", "ones")
    assert sent["message_id"] != dead["first"]["message_id"]
    got = [row for row in consumed(cli, "ones", "one-check", 3) if row["message_id"] == sent["message_id"]]
    assert [(row["body"], row["tag"], row["keys"], row["reconsume_times"]) for row in got] == [
        ("first", "red", ["k"], 0)
    ]
    origin = dead["first"]["properties"]["ORIGIN_MESSAGE_ID"]
    assert got[0]["properties"] == {"mine": "yes", "ORIGIN_MESSAGE_ID": origin, **STAMP}
    assert len(cli.rows("dlq", "list", "one")) == 2


def test_dead_letters_are_resent_by_key_and_by_time(server: Server, cli: Cli) -> None:
    bury(server, "many", "manies", *(OutgoingMessage("manies", b"%d" % n, keys=f"k{n % 2}") for n in range(6)))
    dead = cli.rows("dlq", "list", "many")
    by_key = cli.rows("dlq", "resend", "many", "--key", "k1")
    assert len(by_key) == 3
    first_ms, last_ms = dead[0]["stored_ms"], dead[-1]["stored_ms"]
    in_time = [row for row in dead if row["stored_ms"] < last_ms]
    if in_time:
        text = cli.text("dlq", "resend", "many", "--from", at(first_ms), "--until", at(last_ms))
        assert text.startswith(f"{len(in_time)} message")
    assert cli.text("dlq", "resend", "many", "--all") == "6 messages resent to manies\n"
    assert "many has no matching dead letters" in cli.error("dlq", "resend", "many", "--from", "2100-01-01T00:00:00")


def test_a_dry_run_sends_nothing(server: Server, cli: Cli) -> None:
    bury(server, "dry", "dries", OutgoingMessage("dries", b"x"), OutgoingMessage("dries", b"y"))
    assert cli.text("dlq", "resend", "dry", "--all", "--dry-run") == "2 messages would be resent to dries\n"
    rows = cli.rows("dlq", "resend", "dry", "--all", "--dry-run", "--topic", "manies-copy", code=1)
    assert rows == []
    assert [row["status"] for row in cli.rows("dlq", "resend", "dry", "--all", "--dry-run")] == ["DRY_RUN", "DRY_RUN"]
    (shown,) = cli.rows("topic", "show", "dries")
    assert shown["messages"] == 2


def test_an_interrupted_resend_reports_its_progress_and_continues_from_there(server: Server, cli: Cli) -> None:
    bury(server, "long", "longs", *(OutgoingMessage("longs", b"%d" % n) for n in range(5)))
    dead = cli.rows("dlq", "list", "long")
    real = resender.Resender._resend
    done = 0

    async def fail_at_the_fourth(*arguments: Any) -> None:
        nonlocal done
        if done == 3:
            raise ServiceUnavailable("the broker went away")
        done += 1
        await real(*arguments)

    with mock.patch.object(resender.Resender, "_resend", fail_at_the_fourth):
        told = cli.error("dlq", "resend", "long", "--all")
    assert "stopped after 3 messages; all dead letters are still in %DLQ%long\n" in told
    assert f"add --after {dead[2]['offset_message_id']}\n" in told
    assert told.endswith("error: the broker went away\n")
    rest = cli.rows("dlq", "resend", "long", "--after", dead[2]["offset_message_id"])
    assert [row["dead_letter_id"] for row in rest] == [row["offset_message_id"] for row in dead[3:]]
    assert "has no message" in cli.error("dlq", "resend", "long", "--after", "F" * 32)


def test_a_deleted_topic_stops_the_resend_and_another_can_be_chosen(server: Server, cli: Cli) -> None:
    bury(server, "lost", "losts", OutgoingMessage("losts", b"x"))
    cli.run("topic", "delete", "losts")
    cli.run("topic", "create", "found", "--queues", "1")
    error = cli.error("dlq", "resend", "lost", "--all")
    assert "error: topic losts of message " in error
    assert " does not exist\n" in error
    assert "all dead letters are still in %DLQ%lost" in error
    assert cli.text("dlq", "resend", "lost", "--all", "--topic", "found") == "1 message resent to found\n"
    assert [row["body"] for row in consumed(cli, "found", "found-check", 1)] == ["x"]


def test_undeliverable_timers_are_listed_and_resent(server: Server, cli: Cli) -> None:
    cli.run("topic", "create", "doomed", "--queues", "1")
    cli.run("send", "doomed", "late", "--property", "DELAY=2", "--key", "k")
    cli.run("topic", "delete", "doomed")
    (dead,) = wait_until(lambda: cli.rows("dlq", "list", "rmq_sys_timer_dlq"), 20, "the timer is a dead letter")
    assert (dead["original_topic"], dead["reason"]) == ("doomed", "topic 'doomed' does not exist")
    assert parse_offset_message_id(dead["offset_message_id"])
    cli.run("topic", "create", "doomed", "--queues", "1")
    cli.run("dlq", "resend", "rmq_sys_timer_dlq", "--id", dead["message_id"])
    (got,) = consumed(cli, "doomed", "doomed-check", 1)
    assert (got["body"], got["keys"]) == ("late", ["k"])
    assert got["properties"] == {"ORIGIN_MESSAGE_ID": dead["offset_message_id"], **STAMP}


def test_resend_requires_a_selection(cli: Cli) -> None:
    for wrong in ([], ["--all", "--id", "x"]):
        assert "select messages with --id" in " ".join(cli.run("dlq", "resend", "one", *wrong, code=2)[1].split())
