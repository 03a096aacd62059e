"""The doctor's checks, each on a machine that passes and on one that does not."""

import json
import resource
import socket
from pathlib import Path
from typing import NamedTuple

import pytest

from latermq.cli import main
from latermq.cli.doctor import checks
from latermq.config import AccessConfig, Config, load_config
from latermq.server.remoting import open_files


class _Usage(NamedTuple):
    total: int
    used: int
    free: int


def _java(folder: Path, answer: str) -> Path:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{answer}\nEND\n")
    program.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        ('openjdk version "17.0.15" 2025-04-15', "ok"),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "21" 2023-09-19', "ok"),
        ('java version "1.8.0_402"', "warn"),
        ("no idea", "warn"),
    ],
)
def test_java_must_be_17(answer: str, status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(_java(tmp_path, answer)))
    check = checks.check_java()
    assert check.status == status
    assert bool(check.advice) == (status != "ok")


def test_no_java_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert checks.check_java().status == "warn"


def test_a_port_is_free_in_use_or_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert checks.check_port("broker", "127.0.0.1", port, "--port").status == "warn"
    assert checks.check_port("broker", "127.0.0.1", port, "--port").status == "ok"
    # This address is reserved for documentation, so no machine has it.
    assert checks.check_port("broker", "192.0.2.1", port, "--port").status == "fail"


@pytest.mark.parametrize(("hard", "status"), [(6024, "ok"), (6023, "warn"), (resource.RLIM_INFINITY, "ok")])
def test_the_file_limit_must_be_enough_for_all_connections(
    hard: int, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (1024, hard))
    config = load_config(settings=["server.max_connections=5000"], environment={})
    assert checks.check_file_limit(config).status == status


def test_the_doctor_counts_open_files_as_the_server_does() -> None:
    assert checks.SPARE_FILES == open_files.SPARE_FILES


@pytest.mark.parametrize(
    ("used", "free_bytes", "status"),
    [(0.5, 1 << 40, "ok"), (0.5, 1 << 30, "warn"), (0.84, 1 << 40, "ok"), (0.86, 1 << 40, "fail")],
)
def test_disk_usage_must_be_below_the_limit(
    used: float, free_bytes: int, status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = _Usage(0, round(free_bytes * used / (1 - used)), free_bytes)
    monkeypatch.setattr("shutil.disk_usage", lambda _path: usage)
    assert checks.check_disk_space(tmp_path, Config()).status == status


def test_the_data_directory_may_be_missing_but_not_be_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert checks.check_data_dir(tmp_path).status == "ok"
    assert checks.check_data_dir(tmp_path / "a" / "b").status == "ok"
    assert checks.check_data_dir(tmp_path / "file" / "b").status == "fail"


def test_a_data_directory_that_others_can_read_is_a_warning(tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    check = checks.check_data_dir(tmp_path)
    assert check.status == "warn"
    assert "the next start removes their access" in check.advice


@pytest.mark.parametrize(("host", "status"), [("127.0.0.1", "ok"), ("0.0.0.0", "warn"), ("192.0.2.1", "warn")])
def test_a_server_that_other_machines_can_reach_is_a_warning(host: str, status: str) -> None:
    check = checks.check_network(host, AccessConfig())
    assert check.status == status
    assert ("Set access.enabled" in check.advice) == (status == "warn")
    assert checks.check_network(host, AccessConfig(enabled=True)).status == "ok"


@pytest.mark.parametrize(
    ("prefix", "options", "status"),
    [
        ("/usr", "", "ok"),
        ("/opt/python", "'--enable-shared' '--enable-optimizations'", "ok"),
        ("/opt/python", "'--enable-shared'", "warn"),
    ],
)
def test_a_python_without_optimisation_is_a_warning(prefix: str, options: str, status: str) -> None:
    check = checks.check_python(prefix, options)
    assert check.status == status
    assert ("a tenth less CPU time" in check.advice) == (status == "warn")


def test_disk_space_can_be_reserved_and_nothing_is_left_behind(tmp_path: Path) -> None:
    assert checks.check_fallocate(tmp_path / "not" / "there").status in ("ok", "warn")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "status"), [("always [madvise] never\n", "ok"), ("[always] madvise never\n", "warn"), ("", "ok")]
)
def test_huge_pages_should_not_be_forced(text: str, status: str, tmp_path: Path) -> None:
    setting = tmp_path / "enabled"
    setting.write_text(text)
    assert checks.check_huge_pages(setting).status == status


@pytest.mark.parametrize(("text", "status"), [("65530\n", "ok"), ("1000\n", "warn"), ("", "ok")])
def test_the_kernel_must_allow_enough_maps(text: str, status: str, tmp_path: Path) -> None:
    setting = tmp_path / "max_map_count"
    setting.write_text(text)
    assert checks.check_map_count(setting).status == status


def test_a_name_server_is_only_required_when_it_was_named() -> None:
    assert checks.check_name_server("127.0.0.1:1", required=False).status == "warn"
    assert checks.check_name_server("127.0.0.1:1", required=True).status == "fail"


def test_the_doctor_exits_1_when_a_check_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["doctor", "--json", "--data", str(tmp_path / "file" / "data")]) == 1
    found = {row["check"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert found["data directory"]["status"] == "fail"
    assert found["data directory"]["advice"]
    assert found["Python"]["status"] == "ok"


def test_the_doctor_prints_a_table_of_all_checks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", "--data", str(tmp_path)])
    text = capsys.readouterr().out
    for name in ("Python", "Java", "open files", "disk space", "fallocate", "clock", "vm.max_map_count", "name server"):
        assert name in text
