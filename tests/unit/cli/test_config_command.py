"""`latermq config`: sources of settings, and every problem with its place and the nearest name."""

import json
from pathlib import Path
from typing import Any

import pytest

from latermq.cli import main
from latermq.config import Config, Duration, load_config
from latermq.errors import ConfigError

SECRET = "not-to-be-shown-1234"


def _json(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> list[dict[str, Any]]:
    assert main(["config", *arguments, "--json"]) == code
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def _file(tmp_path: Path, text: str) -> str:
    file = tmp_path / "latermq.toml"
    file.write_text(text)
    return str(file)


def test_show_names_the_source_of_each_value(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = _file(tmp_path, '# mine\n[store]\nflush = "sync"\nretention = "40d"\n\n[broker]\nname = "b"\n')
    monkeypatch.setenv("LATERMQ_STORE_RETENTION", "50d")
    monkeypatch.setenv("LATERMQ_BROKER_NAME", "c")
    rows = _json(capsys, "show", "store", "broker.name", "--config", file, "--set", "broker.name=d")
    shown = {row["setting"]: (row["value"], row["source"]) for row in rows}
    assert shown["store.flush"] == ("sync", f"{file}:3")
    assert shown["store.retention"] == ("50d", "LATERMQ_STORE_RETENTION")
    assert shown["broker.name"] == ("d", "--set")
    assert shown["store.segment"] == ("1GiB", "default")
    assert all(name.startswith("store.") for name in shown if name != "broker.name")


def test_show_prints_values_that_set_accepts(capsys: pytest.CaptureFixture[str]) -> None:
    rows = _json(capsys, "show")
    again = load_config(settings=[f"{row['setting']}={row['value']}" for row in rows], environment={})
    assert again == Config()
    assert _json(capsys, "show", "--changed") == []


def test_show_says_which_settings_were_shortened_to_fit_the_horizon(capsys: pytest.CaptureFixture[str]) -> None:
    rows = _json(capsys, "show", "--changed", "--set", "pipeline.near_horizon=3m")
    assert {row["setting"]: row["source"] for row in rows} == {
        "pipeline.near_horizon": "--set",
        "pipeline.window": "shortened to fit pipeline.near_horizon",
        "pipeline.roll_deadline": "shortened to fit pipeline.near_horizon",
        "pipeline.ingest_every": "shortened to fit pipeline.near_horizon",
    }


@pytest.mark.parametrize("arguments", [("show",), ("show", "--json"), ("check",), ("check", "--json")])
def test_secrets_are_never_printed(
    arguments: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = _file(tmp_path, f'[http]\ntoken = "{SECRET}"\n[pipeline]\ntimeline = "s3://user:{SECRET}@host/folder"\n')
    assert main(["config", *arguments, "--config", file]) == 0
    assert SECRET not in "".join(capsys.readouterr())


@pytest.mark.parametrize("token", [f'"{SECRET} "', "[1234567890123456]"])
def test_a_wrong_secret_is_not_quoted(token: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [row] = _json(capsys, "check", "--config", _file(tmp_path, f"[http]\ntoken = {token}\n"), code=2)
    assert row["place"].endswith(":2")
    assert "1234" not in json.dumps(row)


def test_check_lists_every_problem_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = _file(
        tmp_path,
        'colour = "red"\n[store]\nretenton = "40d"\nsegment = "big"\n"flush" = 7\n'
        '[ brokr ]\nname = "b"\n[server]\nport = true\n',
    )
    rows = _json(capsys, "check", "--config", file, "--set", "log.levle=debug", code=2)
    assert {(row["place"].removeprefix(file), row["problem"]) for row in rows} == {
        (":1", "colour is not a section"),
        (":3", "there is no setting store.retenton"),
        (":4", "store.segment: 'big' is not a valid size; use a number and B, KiB, MiB, GiB or TiB, such as 64MiB"),
        (":5", "store.flush must be async or sync, not 7"),
        (":7", "there is no setting brokr.name"),
        (":9", "server.port must be an integer, not True"),
        ("--set", "there is no setting log.levle"),
    }


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("store.retenton", "store.retention"),
        ("broker.retention", "store.retention"),
        ("brokr.name", "broker.name"),
        ("http.prot", "http.port"),
        ("sever.port", "server.port"),
    ],
)
def test_the_nearest_name_is_suggested(wrong: str, meant: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(settings=[f"{wrong}=1"], environment={})
    assert caught.value.hint == f"Did you mean {meant}?"


def test_a_name_like_no_other_gets_the_list_of_names() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(settings=["store.colour=1"], environment={})
    assert caught.value.hint == "`latermq config show store` lists the settings of this section"
    with pytest.raises(ConfigError) as caught:
        load_config(settings=["colour.red=1"], environment={})
    assert caught.value.hint.startswith("Sections: broker, store, ")


def test_a_server_names_the_first_problem_and_counts_the_others(tmp_path: Path) -> None:
    file = tmp_path / "latermq.toml"
    file.write_text('[store]\nretenton = "40d"\nsegment = "big"\n')
    with pytest.raises(ConfigError) as caught:
        load_config(file, environment={})
    assert caught.value.message == f"there is no setting store.retenton ({file}:2)"
    assert caught.value.hint == (
        "Did you mean store.retention? There is 1 more problem: `latermq config check` lists all"
    )


def test_a_contradiction_names_the_places_of_the_settings_involved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = _file(tmp_path, "[store]\n\ndisk_high = 0.99\n")
    monkeypatch.setenv("LATERMQ_STORE_DISK_FULL", "0.97")
    [row] = _json(capsys, "check", "--config", file, code=2)
    assert row["place"] == f"{file}:3, LATERMQ_STORE_DISK_FULL"


def test_a_variable_that_sets_nothing_is_a_warning(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LATERMQ_STORE_RETENTON", "4d")
    [row] = _json(capsys, "check")
    assert (row["severity"], row["place"], row["advice"]) == (
        "warning",
        "LATERMQ_STORE_RETENTON",
        "Did you mean LATERMQ_STORE_RETENTION?",
    )


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"[store\n", "is not TOML: "),
        (b"\xff\xfe", "is not TOML: not UTF-8 text"),
        (b"a = " + b"[" * 5_000, "is not TOML: nested too deeply"),
    ],
)
def test_a_file_that_is_no_toml_is_one_clear_error(
    content: bytes, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.toml").write_bytes(content)
    assert main(["config", "check", "--config", str(tmp_path / "bad.toml")]) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('[log]\nlevel = "loud"\n', 2),
        ('log.level = "loud"\n', 1),
        ('\nlog = {format = "text", level = "loud"}\n', 2),
        ('["log"] # comment\n"level" = "loud"\n', 2),
        ('[broker]\nname = """\n[log]\nlevel = 1\n"""\n[log]\nlevel = "loud"\n', 7),
    ],
)
def test_the_line_of_a_value_is_found_in_every_notation(
    text: str, line: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = _file(tmp_path, text)
    [row] = _json(capsys, "check", "--config", file, code=2)
    assert row["place"] == f"{file}:{line}"


@pytest.mark.parametrize("value", ["-5", "9" * 400 + "d", "true", "1e3s"])
def test_durations_are_positive_and_finite(value: str) -> None:
    with pytest.raises(ConfigError, match=r"store\.retention"):
        load_config(settings=[f"store.retention={value}"], environment={})
    with pytest.raises(ValueError, match="not a valid duration"):
        Duration.parse(value)
