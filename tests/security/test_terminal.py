"""Escape sequences that strangers send: commands and logs show them, and no terminal obeys them."""

import json
from collections.abc import Iterator

import pytest

from latermq.message.properties import encode_properties
from latermq.protocol.remoting.clients import ConsumerData, HeartbeatData, SubscriptionData
from latermq.protocol.remoting.codes import Request, Response
from latermq.protocol.remoting.json_body import encode_body
from tests.integration.brokers import send_fields
from tests.integration.command_line import Cli
from tests.security.attacker import attacking
from tests.support.serving import Server, serving

# Clears the screen, sets the title, turns text around, begins a line of its own; C1 too, which 8-bit terminals obey.
EVIL = "x\x1b[2J\x1b]0;owned\x07\x9b31m\u202eevil\u2066\u200b\nforged\r\u2028\x7f"
SHOWN = r"x\x1b[2J\x1b]0;owned\x07\x9b31m\u202eevil\u2066\u200b\nforged\r\u2028\x7f"
TOPIC = "terminal"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("data")) as running:
        with attacking(running.port) as attacker:
            for delay in ({}, {"TIMER_DELAY_SEC": "3600"}):
                properties = encode_properties({"KEYS": f"k {EVIL.split()[0]}", "TAGS": EVIL, "colour": EVIL, **delay})
                reply = attacker.call(Request.SEND_MESSAGE_V2, send_fields(TOPIC, properties=properties), EVIL.encode())
                assert reply.code == Response.SUCCESS
        yield running


@pytest.fixture
def cli(server: Server) -> Cli:
    return Cli(server)


COMMANDS = [
    ("consume", TOPIC, "--group", "a", "--count", "1", "--timeout", "20s"),
    ("message", "query", TOPIC, "--key", "k"),
    ("message", "print", TOPIC),
    ("pending", TOPIC),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_body_is_shown_and_not_obeyed(cli: Cli, command: tuple[str, ...]) -> None:
    out, errors = cli.run(*command)
    assert all(line.isprintable() for line in (out + errors).split("\n"))
    # Tables fold long cells, so the blanks and line ends of a table are left out.
    assert SHOWN in "".join(out.split()) or r"x\x1b[2J\x1b]0;owned" in out
    raw, _ = cli.run(*(word if word != "a" else "b" for word in command), "--raw")
    assert "\x1b]0;owned" in raw


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_json_tells_all_of_it_in_escapes(cli: Cli, command: tuple[str, ...]) -> None:
    out, errors = cli.run(*(word if word != "a" else "c" for word in command), "--json")
    assert all(line.isprintable() for line in (out + errors).split("\n"))
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["tag"] for row in rows] == [EVIL]
    if command[0] != "pending":  # whose samples of bodies the broker makes readable
        assert rows[0]["body"] == EVIL


def test_one_message_and_its_properties_are_shown_likewise(cli: Cli) -> None:
    (row,) = cli.rows("message", "query", TOPIC, "--key", "k")
    out, _ = cli.run("message", "show", row["offset_message_id"])
    assert all(line.isprintable() for line in out.split("\n"))
    assert f"colour={SHOWN}" in out
    assert f"\nbody               {SHOWN}\n" in out


def test_a_member_with_an_evil_name_is_shown_likewise(server: Server, cli: Cli) -> None:
    told = SubscriptionData(topic=TOPIC, subString=EVIL)
    beat = HeartbeatData(clientID=EVIL, consumerDataSet=[ConsumerData(groupName="members", subscriptionDataSet=[told])])
    with attacking(server.port) as attacker:
        attacker.call(Request.HEART_BEAT, body=encode_body(beat))
        out, errors = cli.run("group", "show", "members")
    assert all(line.isprintable() for line in (out + errors).split("\n"))


def test_what_a_server_says_is_shown_likewise(cli: Cli) -> None:
    error = cli.error("topic", "show", f"no-such-{EVIL}")
    assert all(line.isprintable() for line in error.split("\n"))
    assert error.startswith("error: ")


def test_names_of_clients_are_escaped_in_the_log_and_make_no_lines(server: Server) -> None:
    with attacking(server.port) as attacker:
        reply = attacker.call(Request.SEND_MESSAGE_V2, send_fields(EVIL * 2_000), b"x")
        assert reply.code != Response.SUCCESS
    log = server.log()
    assert r"\x1b[2J" in log
    assert all(line.isprintable() for line in log.split("\n"))
    assert not any(line.startswith("forged") for line in log.split("\n"))
    assert all(len(line) < 20_000 for line in log.split("\n"))
