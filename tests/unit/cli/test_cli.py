"""The command line without a server: usage, refused options, and error messages."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from latermq.cli import app, main
from latermq.cli.options import as_settings, effective_config, parse_duration_s, parse_moment_ms, parse_pairs
from latermq.cli.output import print_fields, print_rows
from latermq.cli.views.message_rows import message_line, message_row, moment, readable_row
from latermq.message.record import Message

COMMANDS = [
    "serve", "namesrv", "broker", "proxy", "console", "send", "consume", "cancel", "move", "pending", "topic", "group",
    "message", "config", "user", "acl", "doctor",
]  # fmt: skip
# No process listens on port 1, which only root can bind.
NOWHERE = "127.0.0.1:1"


def test_help_names_every_command() -> None:
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0
    listed = [line.split()[0] for line in result.output.partition("Commands:")[2].splitlines() if line.strip()]
    assert set(COMMANDS) <= set(listed)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert f"Usage: latermq {command}" in result.output


def test_help_loads_neither_numpy_nor_an_event_loop() -> None:
    program = (
        "import sys; from latermq.cli import main; main(['--help']);"
        "print([name for name in ('numpy', 'uvloop', 'asyncio', 'structlog', 'rich.table') if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["serve"], "Missing option '--data'"),
        (["serve", "--data", "d", "--port", "70000"], "less than or equal to 65535"),
        (["nonsense"], "No such command 'nonsense'"),
        (["send", "orders"], "either as an argument or with --file"),
        (["send", "orders", "body", "--file", "f"], "either as an argument or with --file"),
        (["send", "orders", "--file", "/nowhere/at/all"], "cannot read /nowhere/at/all"),
        (["send", "orders", "body", "--property", "novalue"], "'novalue' is not of the form key=value"),
        (["send", "orders", "body", "--oneway", "--batch", "2"], "--oneway and --batch are mutually exclusive"),
        (["send", "orders", "body", "--delay", "soon"], "'soon' is not a valid duration"),
        (["send", "orders", "body", "--at", "tomorrow"], "'tomorrow' is not a valid time"),
        (["send", "orders", "body", "--level", "0"], "greater than or equal to 1"),
        (
            ["send", "orders", "body", "--delay", "5s", "--level", "3"],
            "--delay, --at and --level are mutually exclusive",
        ),
        (["cancel", "orders"], "specify one of --key, --unique-key and --handle"),
        (["cancel", "orders", "--key", "4711", "--handle", "h"], "specify one of --key, --unique-key and --handle"),
        (["move", "orders", "--key", "4711"], "specify one of --delay and --at"),
        (
            ["move", "orders", "--key", "4711", "--delay", "5s", "--at", "2027-01-01T00:00:00Z"],
            "one of --delay and --at",
        ),
        (["move", "orders", "--delay", "5s"], "one of --key, --unique-key and --handle"),
        (["pending", "--key", "4711"], "--key requires TOPIC"),
        (["pending", "orders", "--density"], "--density covers all timers"),
        (["pending", "--until", "later"], "'later' is not a valid time"),
        (["consume", "orders"], "Missing option '--group'"),
        (["consume", "orders", "--group", "g", "--timeout", "soon"], "'soon' is not a valid duration"),
        (["consume", "orders", "--group", "g", "--from", "somewhere"], "'somewhere' is not a valid time"),
        (
            ["consume", "orders", "--group", "g", "--filter", "a", "--sql", "a = 1"],
            "--filter and --sql are mutually exclusive",
        ),
        (["group", "reset", "g", "--topic", "t", "--to", "nowhere"], "'nowhere' is not a valid time"),
    ],
)
def test_wrong_usage_says_what_is_wrong_and_exits_2(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert complaint in " ".join(captured.err.split())


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("store.flush=sometimes", "store.flush must be async or sync, not 'sometimes' (--set)"),
        ("store.colour=red", "there is no setting store.colour (--set)"),
        ("nonsense", "setting 'nonsense' is not valid"),
    ],
)
def test_a_wrong_setting_is_one_line_and_exits_2(
    setting: str, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--data", str(tmp_path / "data"), "--set", setting]) == 2
    error, *hints = capsys.readouterr().err.splitlines()
    assert error.startswith("error: ")
    assert len(hints) <= 1
    assert complaint in error
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["topic", "list"],
        ["topic", "show", "orders"],
        ["group", "list"],
        ["send", "orders", "body"],
        ["message", "query", "orders", "--key", "k"],
        ["cancel", "orders", "--key", "k"],
        ["pending", "--density"],
    ],
)
def test_an_unreachable_name_server_is_one_line_and_exits_1(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--namesrv", NOWHERE]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert NOWHERE in captured.err
    assert "Traceback" not in captured.err


def test_the_name_server_may_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", NOWHERE)
    assert main(["topic", "list"]) == 1
    assert NOWHERE in capsys.readouterr().err


def test_an_option_overrides_a_setting_and_a_setting_overrides_the_file(tmp_path: Path) -> None:
    file = tmp_path / "latermq.toml"
    file.write_text('[server]\nport = 1\nnamesrv_port = 2\nhost = "127.0.0.3"\n')
    config = effective_config(file, ["server.namesrv_port=5", "server.port=6"], host=None, namesrv_port=None, port=7)
    assert (config.server.host, config.server.namesrv_port, config.server.port) == ("127.0.0.3", 5, 7)


def test_only_given_options_become_settings() -> None:
    assert as_settings(None, 0, None) == ["server.namesrv_port=0"]


def test_durations_and_times_are_parsed() -> None:
    assert parse_duration_s("1500ms") == 1.5
    assert parse_moment_ms("2027-01-01T00:00:00+08:00") == 1_798_732_800_000
    assert parse_moment_ms("2027-01-01T00:00:00.250Z") == 1_798_761_600_250


def test_a_property_may_contain_an_equals_sign() -> None:
    assert parse_pairs(["where=a=b", "empty="]) == {"where": "a=b", "empty": ""}
    with pytest.raises(typer.BadParameter):
        parse_pairs(["=value"])


def test_a_message_is_shown_with_its_fields() -> None:
    message = Message(
        "orders",
        b'{"order": 4711}',
        {"TAGS": "created", "KEYS": "4711 eu", "UNIQ_KEY": "U1", "region": "eu"},
        queue_id=3,
        queue_offset=17,
        store_timestamp_ms=1_798_732_800_000,
        message_id="O1",
    )
    row = message_row(message)
    assert (row["message_id"], row["offset_message_id"]) == ("U1", "O1")
    assert (row["tag"], row["keys"], row["properties"]) == ("created", ["4711", "eu"], {"region": "eu"})
    assert message_line(message).endswith('queue 3 offset 17  tag=created key=4711 key=eu  {"order": 4711}')
    assert readable_row(message)["stored"] == moment(1_798_732_800_000)


def test_a_binary_body_is_base64_in_json_and_a_size_in_text() -> None:
    message = Message("orders", b"\xff\x00")
    assert message_row(message)["body_base64"] == "/wA="
    assert "2 bytes of binary data" in message_line(message)


def test_rows_are_printed_as_json_lines_or_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"name": "a[b]", "count": 1, "more": ["x"]}, {"name": "c", "count": 20, "more": []}]
    print_rows(rows, {"name": "name", "count": "how many"}, as_json=True, empty="none")
    assert capsys.readouterr().out.splitlines() == [
        '{"name":"a[b]","count":1,"more":["x"]}',
        '{"name":"c","count":20,"more":[]}',
    ]
    print_rows(rows, {"name": "name", "count": "how many"}, as_json=False, empty="none")
    table = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert table[0] == ["name", "how", "many"]
    assert table[2:] == [["a[b]", "1"], ["c", "20"]]


def test_an_empty_table_is_a_note_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([], {"name": "name"}, as_json=False, empty="no topics yet")
    assert capsys.readouterr() == ("", "no topics yet\n")


def test_fields_are_printed_one_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_fields({"queue_id": 3, "keys": ["a", "b"], "none": None}, as_json=False)
    assert capsys.readouterr().out == "queue id  3\nkeys      a, b\nnone      -\n"


_PRESSED_WHILE_LOADING = """
import os, signal, sys
from latermq.__main__ import main

class Presses:
    def find_spec(self, name, path=None, target=None):
        if name == "latermq.cli":
            os.kill(os.getpid(), signal.SIGINT)

{before}
sys.meta_path.insert(0, Presses())
sys.argv = ["latermq", "--version"]
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("before", "code"),
    [("", -signal.SIGINT), ("signal.signal(signal.SIGINT, signal.SIG_IGN)", 0)],
    ids=["as usual", "in a background job of a shell, which ignores it"],
)
def test_ctrl_c_while_the_commands_are_loaded_prints_no_traceback(before: str, code: int) -> None:
    program = _PRESSED_WHILE_LOADING.format(before=before)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (code, "")
