"""The client commands against a real server: their output and exit codes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.command_line import Cli
from tests.support.serving import serving


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    data: Path = tmp_path_factory.mktemp("cli") / "data"
    with serving(data, "--set", "store.segment=64MiB") as server:
        yield Cli(server)


def test_send_prints_where_the_message_was_stored(cli: Cli) -> None:
    (row,) = cli.rows("send", "sent", "hello", "--tag", "greeting", "--key", "k1")
    assert (row["status"], row["topic"], row["broker"], row["queue_offset"]) == ("SEND_OK", "sent", "broker-a", 0)
    text = cli.text("send", "sent", "hello")
    assert "status             SEND_OK" in text
    assert "message id" in text


def test_send_takes_the_body_from_a_file_or_from_standard_input(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "body").write_bytes(b"\xff\x00")
    cli.run("send", "bodies", "--file", str(tmp_path / "body"))
    cli.run("send", "bodies", "--file", "-", stdin=b"from a pipe")
    rows = cli.rows("consume", "bodies", "--group", "bodies", "--count", "2", "--timeout", "20s")
    assert sorted(str(row.get("body", row.get("body_base64"))) for row in rows) == ["/wA=", "from a pipe"]


@pytest.mark.parametrize("options", [[], ["--batch", "7"], ["--rate", "1000"]])
def test_send_many_prints_how_many_were_acknowledged(cli: Cli, options: list[str]) -> None:
    assert cli.text("send", "many", "x", "--count", "50", *options).startswith("50 messages acknowledged in ")


def test_a_message_that_cannot_be_sent_is_an_error(cli: Cli) -> None:
    assert cli.error("send", "no such name", "x").startswith(
        "error: topic 'no such name' contains illegal characters\n"
    )


def test_consume_continues_where_its_group_stopped(cli: Cli) -> None:
    cli.run("topic", "create", "steps", "--queues", "1")
    for body in ("one", "two", "three"):
        cli.run("send", "steps", body)
    first = cli.rows("consume", "steps", "--group", "steps", "--count", "2", "--timeout", "20s")
    second = cli.rows("consume", "steps", "--group", "steps", "--count", "1", "--timeout", "20s")
    assert [row["body"] for row in first + second] == ["one", "two", "three"]


def test_consume_stops_when_no_message_arrives_and_says_how_many_are_missing(cli: Cli) -> None:
    cli.run("send", "few", "only one")
    text = cli.text("consume", "few", "--group", "few-a", "--timeout", "2s")
    assert text.endswith("  only one\n")
    error = cli.error("consume", "few", "--group", "few-b", "--count", "2", "--timeout", "2s")
    assert error.startswith("error: received 1 of 2 messages, then none for 2 s\n")


def test_consume_filters_by_tag_and_by_sql(cli: Cli) -> None:
    cli.run("send", "filtered", "a", "--tag", "red", "--property", "size=5")
    cli.run("send", "filtered", "b", "--tag", "blue", "--property", "size=50")
    by_tag = cli.rows(
        "consume", "filtered", "--group", "by-tag", "--filter", "blue || green", "--count", "1", "--timeout", "20s"
    )
    by_sql = cli.rows(
        "consume", "filtered", "--group", "by-sql", "--sql", "size < 10", "--count", "1", "--timeout", "20s"
    )
    assert ([row["body"] for row in by_tag], [row["body"] for row in by_sql]) == (["b"], ["a"])


def test_a_topic_is_created_listed_shown_routed_and_deleted(cli: Cli) -> None:
    cli.run("topic", "create", "orders", "--queues", "3")
    assert "orders" in [row["topic"] for row in cli.rows("topic", "list")]
    assert "TBW102" in cli.text("topic", "list", "--all")
    cli.run("send", "orders", "x")
    shown = cli.rows("topic", "show", "orders")
    assert [row["queue_id"] for row in shown] == [0, 1, 2]
    assert sum(row["messages"] for row in shown) == 1
    (route,) = cli.rows("topic", "route", "orders")
    assert (route["read_queues"], route["write_queues"], route["permission"]) == (3, 3, "rw")
    cli.run("topic", "delete", "orders")
    assert "orders" not in [row["topic"] for row in cli.rows("topic", "list")]
    assert cli.error("topic", "delete", "orders").startswith("error: no route to topic 'orders'")


def test_a_group_is_created_listed_shown_reset_and_deleted(cli: Cli) -> None:
    cli.run("topic", "create", "read", "--queues", "1")
    cli.run("group", "create", "readers", "--retries", "3")
    (row,) = [row for row in cli.rows("group", "list") if row["group"] == "readers"]
    assert (row["max_retries"], row["members"]) == (3, 0)
    for body in ("one", "two"):
        cli.run("send", "read", body)
    cli.run("consume", "read", "--group", "readers", "--count", "2", "--timeout", "20s")
    (progress,) = cli.rows("group", "show", "readers", "--topic", "read")
    assert (progress["offset"], progress["lag"]) == (2, 0)
    (reset,) = cli.rows("group", "reset", "readers", "--topic", "read", "--to", "first")
    assert reset["offset"] == 0
    again = cli.rows("consume", "read", "--group", "readers", "--count", "2", "--timeout", "20s")
    assert [row["body"] for row in again] == ["one", "two"]
    cli.run("group", "delete", "readers")
    assert cli.error("group", "show", "readers").startswith("error: group readers does not exist\n")


def test_a_message_is_found_by_key_and_by_either_id(cli: Cli) -> None:
    (sent,) = cli.rows("send", "kept", '{"order": 4711}', "--key", "4711", "--key", "eu", "--tag", "created")
    cli.run("send", "kept", "other")
    (by_key,) = cli.rows("message", "query", "kept", "--key", "4711")
    (by_id,) = cli.rows("message", "show", sent["message_id"], "--topic", "kept")
    (by_place,) = cli.rows("message", "show", sent["offset_message_id"])
    assert by_key["body"] == by_id["body"] == by_place["body"] == '{"order": 4711}'
    assert by_id["keys"] == ["4711", "eu"]
    assert "stored" in cli.text("message", "show", sent["offset_message_id"])
    assert cli.error("message", "query", "kept", "--key", "0815").startswith("error: topic kept has no message")


def test_print_shows_the_messages_of_a_topic_and_consumes_nothing(cli: Cli) -> None:
    cli.run("topic", "create", "looked-at", "--queues", "2")
    cli.run("send", "looked-at", "x", "--count", "600")
    for _ in range(2):
        assert len(cli.rows("message", "print", "looked-at")) == 600
    assert len(cli.text("message", "print", "looked-at", "--limit", "5").splitlines()) == 5
    assert {row["queue_id"] for row in cli.rows("message", "print", "looked-at", "--queue", "1")} == {1}
    assert cli.rows("message", "print", "looked-at", "--from", "2100-01-01T00:00:00Z") == []
    assert cli.error("message", "print", "looked-at", "--queue", "2").startswith(
        "error: topic looked-at has no queue 2\n"
    )
    assert "CLI_MESSAGE_PRINT" not in [row["group"] for row in cli.rows("group", "list", "--all")]


def test_a_binary_body_in_a_table_is_shown_by_its_size(cli: Cli) -> None:
    cli.run("send", "binary", "--file", "-", "--key", "blob", stdin=b"\xff\x00")
    assert "(2 bytes of binary data; --json shows them)" in cli.text("message", "query", "binary", "--key", "blob")


def test_a_message_id_without_a_topic_connects_to_no_broker(cli: Cli) -> None:
    (sent,) = cli.rows("send", "kept", "x")
    for message_id in (sent["message_id"], "nonsense"):
        assert cli.error("message", "show", message_id) == (
            f"error: {message_id} is not an offset message id of this cluster\n"
            "hint: For a message id, add --topic TOPIC\n"
        )


def test_a_topic_that_does_not_exist_is_an_error_with_a_hint(cli: Cli) -> None:
    assert cli.error("topic", "show", "unknown").endswith("hint: `latermq topic list` lists the topics\n")


def test_the_doctor_finds_the_server(cli: Cli) -> None:
    checks = {row["check"]: row for row in cli.rows("doctor")}
    assert checks["name server"]["status"] == "ok"
    assert "broker-a" in checks["name server"]["details"]
