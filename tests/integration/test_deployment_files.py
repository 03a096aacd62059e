"""The systemd unit, the container file and the compose file agree with the program, and what they start works."""

import base64
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from latermq.access.inner_credentials import load_inner_secret
from latermq.cli import app
from latermq.config import Config, load_config
from tests.interop.ports import HOST, free_port
from tests.interop.waiting import wait_until
from tests.support.http_console import HttpClient
from tests.support.needs import need_tool
from tests.support.serving import serving

ROOT = Path(__file__).parents[2]
PACKAGING = ROOT / "packaging"
UNIT = PACKAGING / "systemd" / "latermq.service"
CONTAINER = (PACKAGING / "container" / "Containerfile").read_text()
HEALTH_CHECK = PACKAGING / "container" / "healthcheck"
ENTRYPOINT = PACKAGING / "container" / "entrypoint"
OF_ENTRYPOINT = {"LATERMQ_ADMIN_USER", "LATERMQ_ADMIN_SECRET_FILE"}
SPARK_DEFAULTS = PACKAGING / "compose" / "spark-defaults.conf"
COMPOSE: dict[str, Any] = yaml.safe_load((PACKAGING / "compose" / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if "entrypoint" not in service}
BIN = Path(sys.executable).parent
CONTAINER_DATA = "/var/lib/latermq"
SPARK_PORTS = {"spark-master": 8080, "spark-worker-1": 8081, "spark-worker-2": 8081}  # of its web pages


def directives() -> dict[str, list[str]]:
    """The values of each directive of the unit, whatever its section."""
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r"^(\w+)=(.*)$", UNIT.read_text(), re.MULTILINE):
        found.setdefault(name, []).append(value)
    return found


def parsed(words: Sequence[str]) -> dict[str, Any]:
    """The options of a call of `latermq` without its name, or an error as on the command line."""
    command: Any = typer.main.get_command(app)
    path = ["latermq"]
    rest = list(words)
    while inner := getattr(command, "commands", None):
        path.append(rest.pop(0))
        command = inner[path[-1]]
    options: dict[str, Any] = command.make_context(" ".join(path), rest).params
    return options


def checked(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def settings_of(environment: Mapping[str, str], file: Path | None = None) -> Config:
    """The settings of a process with this environment. Unknown names fail, which a process would only ignore."""
    known = {f"LATERMQ_{section}_{key}".upper() for section, key in SETTINGS}
    environment = {name: value for name, value in environment.items() if name not in OF_ENTRYPOINT}
    assert {name for name in environment if name.startswith("LATERMQ_")} <= known
    return load_config(file, environment=environment)


def _setting_names() -> Iterator[tuple[str, str]]:
    default = load_config(None, environment={})
    for section in default.__struct_fields__:
        for key in getattr(default, section).__struct_fields__:
            yield section, key


SETTINGS = list(_setting_names())


def environment_of(service: str) -> dict[str, str]:
    """The variables of a service, where its file leaves them at their defaults."""
    given = SERVICES[service].get("environment") or {}
    assert all(isinstance(value, str) for value in given.values()), "numbers and booleans have to be quoted"
    return {name: re.sub(r"\$\{[A-Z_]+:-(\w*)\}", r"\1", value) for name, value in given.items()}


def is_served(client: HttpClient) -> bool:
    return client.get("/api/v1/brokers").status == 200


def start_container(
    folder: Path, *command: str, user: str = "exit 1", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the script with a `latermq` that prints what it is started with, and for `latermq user` does as given."""
    own = folder / f"bin-{time.monotonic_ns()}-{threading.get_ident()}"
    own.mkdir()
    program = own / "latermq"
    program.write_text(f'#!/bin/sh\nif [ "$1" = user ]; then\n{user}\nelse\necho "$@"; env | grep LATERMQ_\nfi\n')
    program.chmod(0o755)
    variables = {"PATH": f"{own}:{os.environ['PATH']}", "LATERMQ_ACCESS_ENABLED": "true", **environment}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LATERMQ_")}
    return subprocess.run(
        ["sh", str(ENTRYPOINT), *command], env=kept | variables, capture_output=True, text=True, timeout=60, check=False
    )


def test_files_of_packaging_that_a_page_names_exist() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    named = {name for page in pages for name in re.findall(r"packaging/[\w./-]*\w", page.read_text())}
    assert {"packaging/systemd/latermq.service", "packaging/compose/compose.yaml"} <= named
    assert [name for name in named if not (ROOT / name).exists()] == []


class TestTheSystemdUnit:
    def test_systemd_accepts_it_and_finds_it_closed(self, tmp_path: Path) -> None:
        systemd = need_tool("systemd-analyze", "it checks the unit")
        unit = tmp_path / UNIT.name
        unit.write_text(UNIT.read_text().replace("/opt/latermq/bin/latermq", str(BIN / "latermq")))
        # The user is not on this machine, and nothing else may be said.
        said = checked(systemd, "verify", "--man=no", unit, cwd=tmp_path)
        assert unit.name not in said, said
        checked(systemd, "security", "--offline=true", "--threshold=20", unit, cwd=tmp_path)

    def test_it_starts_a_command_that_exists_with_settings_that_are_valid(self) -> None:
        (start,) = directives()["ExecStart"]
        program, command, *options = shlex.split(start)
        assert program == "/opt/latermq/bin/latermq"
        given = parsed([command, *options])
        assert str(given["data"]) == f"/var/lib/{directives()['StateDirectory'][0]}"
        assert str(given["config"]) == f"/etc/{directives()['ConfigurationDirectory'][0]}/latermq.toml"
        settings = settings_of({}, PACKAGING / "systemd" / "latermq.toml")
        assert settings.server.host == HOST

    def test_it_leaves_room_for_every_connection_and_a_stop_in_order(self) -> None:
        settings = load_config(None, environment={})
        wanted = settings.server.max_connections + 2 * settings.store.max_open_queues
        assert int(directives()["LimitNOFILE"][0]) > wanted
        stops = settings.proxy.stop_timeout + settings.http.stop_timeout
        assert int(directives()["TimeoutStopSec"][0]) * 1000 > 2 * stops
        assert directives()["KillMode"] == ["mixed"]
        assert directives()["RestartPreventExitStatus"] == ["2"]

    def test_its_user_is_the_one_that_is_created(self) -> None:
        (line,) = [
            line for line in (PACKAGING / "systemd" / "latermq.conf").read_text().splitlines() if line[:1] != "#"
        ]
        assert line.split()[:2] == ["u", directives()["User"][0]]
        assert directives()["Group"] == directives()["User"]


class TestTheContainerFile:
    def test_it_copies_files_that_the_build_may_see(self) -> None:
        ignored = (PACKAGING / "container" / "Containerfile.dockerignore").read_text().splitlines()
        allowed = {line[1:] for line in ignored if line.startswith("!")}
        copied = {
            source
            for line in re.findall(r"^COPY (?!--from)(.+)$", CONTAINER, re.MULTILINE)
            for source in line.split()[:-1]
        }
        assert copied == allowed
        assert all((ROOT / name).exists() for name in copied)

    def test_it_takes_exactly_what_the_lock_names(self) -> None:
        syncs = re.findall(r"uv sync ([^\n&]+)", CONTAINER)
        assert syncs
        assert all("--locked" in sync and "--no-default-groups" in sync for sync in syncs)
        assert "--require-hashes" in CONTAINER

    def test_it_runs_as_nobody_in_particular_and_starts_a_server(self) -> None:
        assert re.findall(r"^USER (.+)$", CONTAINER, re.MULTILINE) == ["10001:10001"]
        assert re.search(r"useradd .*--uid 10001 ", CONTAINER)
        (start,) = re.findall(r"^CMD (\[.+\])$", CONTAINER, re.MULTILINE)
        assert str(parsed(yaml.safe_load(start))["data"]) == CONTAINER_DATA
        settings = load_config(None, environment={})
        (ports,) = re.findall(r"^EXPOSE (.+)$", CONTAINER, re.MULTILINE)
        assert {int(port) for port in ports.split()} == {
            settings.server.namesrv_port,
            settings.server.port,
            settings.proxy.port,
            settings.http.port,
        }

    def test_modules_that_it_runs_exist(self) -> None:
        modules = re.findall(r"-m (latermq\.[\w.]+)", CONTAINER)
        assert modules
        for module in modules:
            assert (ROOT / "src" / Path(*module.split("."))).with_suffix(".py").is_file(), module

    def test_the_health_check_tells_a_running_server_from_none(self, tmp_path: Path) -> None:
        port, data = free_port(), tmp_path / "data"
        script = tmp_path / "healthcheck"
        script.write_text(HEALTH_CHECK.read_text().replace(CONTAINER_DATA, str(data)))
        environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}

        def health(*arguments: str) -> int:
            done = subprocess.run(["sh", str(script), *arguments], env=environment, capture_output=True, timeout=60)
            return done.returncode

        with serving(data, "--set", f"metrics.port={port}"):
            assert health() == 0
            assert health(f"http://{HOST}:{port}/metrics") == 0
        assert health() != 0
        assert health(f"http://{HOST}:{port}/metrics") != 0
        assert os.access(HEALTH_CHECK, os.X_OK)

    def test_it_starts_with_users_through_the_script(self) -> None:
        (start,) = re.findall(r"^ENTRYPOINT (\[.+\])$", CONTAINER, re.MULTILINE)
        assert yaml.safe_load(start) == ["tini", "--", "latermq-entrypoint"]
        assert f"{ENTRYPOINT.relative_to(ROOT)} /opt/latermq/bin/latermq-entrypoint" in CONTAINER
        assert re.search(r"^ +LATERMQ_ACCESS_ENABLED=true$", CONTAINER, re.MULTILINE)
        assert "--insecure" not in CONTAINER
        assert os.access(ENTRYPOINT, os.X_OK)


class TestTheEntrypoint:
    """The first start of a container: the real script, with `latermq` from this environment."""

    def test_the_first_start_makes_a_user_and_the_console_asks_for_it(self, tmp_path: Path) -> None:
        data = tmp_path / "data"
        environment = {"LATERMQ_ACCESS_ENABLED": "true", "PATH": f"{BIN}:{os.environ['PATH']}"}
        program = ("sh", str(ENTRYPOINT))
        for start in ("the first", "the second"):
            with serving(data, program=program, http=True, environment=environment) as server:
                port = int(server.http.rpartition(":")[2])
                secret = (data / "admin.secret").read_text()
                assert re.fullmatch("[0-9a-f]{64}", secret)
                assert (data / "admin.secret").stat().st_mode & 0o777 == 0o600
                assert f"with the secret in {data}/admin.secret" in server.log(), start
                assert secret not in server.log()
                assert server.http.startswith("0.0.0.0:")
                assert HttpClient(port).get("/api/v1/brokers").status == 401
                pair = base64.b64encode(f"admin:{secret}".encode()).decode()
                admin = HttpClient(port, {"Authorization": f"Basic {pair}"})
                wait_until(partial(is_served, admin), 30.0, "the console's copy of the users")
        (data / "admin.secret").unlink()
        done = start_container(tmp_path, "serve", "--data", str(data))
        assert (done.returncode, done.stderr) == (0, "")
        assert not (data / "admin.secret").exists()

    @pytest.mark.parametrize("moment", ["before", "after"])
    def test_a_start_that_is_killed_is_repeated_with_the_same_secret(self, tmp_path: Path, moment: str) -> None:
        data = tmp_path / "data"
        create = f'{BIN}/latermq "$@"'
        kill = "kill -9 $PPID; exit 1"
        done = start_container(
            tmp_path, "broker", f"--data={data}", user=f"{create}; {kill}" if moment == "after" else kill
        )
        assert done.returncode == -9
        secret = (data / "admin.secret").read_text()
        assert (data / "config" / "latermq.access").exists() == (moment == "after")
        done = start_container(tmp_path, "broker", f"--data={data}", user=create)
        assert (done.returncode, done.stdout.split()[0]) == (0, "broker")
        assert (data / "admin.secret").read_text() == secret
        listed = checked(BIN / "latermq", "user", "list", "--data", data, cwd=tmp_path)
        assert re.search(r"admin +super", listed, re.IGNORECASE)

    def test_a_secret_of_ones_own_is_taken(self, tmp_path: Path) -> None:
        data, own = tmp_path / "data", tmp_path / "mounted"
        own.write_text("my own secret\n")
        asked = tmp_path / "asked"
        done = start_container(
            tmp_path, "serve", "--data", str(data), user=f'echo "$@" > {asked}', LATERMQ_ADMIN_SECRET_FILE=str(own),
            LATERMQ_ADMIN_USER="boss",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert asked.read_text() == f"user create boss --super --new-secret-file {own} --data {data}\n"
        assert "LATERMQ_ADMIN" not in done.stdout
        missing = start_container(tmp_path, "serve", LATERMQ_ADMIN_SECRET_FILE="/proc/nowhere/secret")
        assert missing.returncode == 2
        assert "cannot write the secret /proc/nowhere/secret" in missing.stderr

    def test_containers_that_start_together_share_one_secret(self, tmp_path: Path) -> None:
        inner = tmp_path / "secrets" / "latermq.inner"
        with ThreadPoolExecutor(8) as threads:
            starts = [
                threads.submit(start_container, tmp_path, "namesrv", LATERMQ_ACCESS_INNER_FILE=str(inner))
                for _ in range(8)
            ]
            assert [start.result().returncode for start in starts] == [0] * 8
        assert load_inner_secret(inner)
        assert list(inner.parent.iterdir()) == [inner]

    def test_without_users_the_processes_that_sign_have_their_secret_nevertheless(self, tmp_path: Path) -> None:
        inner = tmp_path / "latermq.inner"
        settings = {"LATERMQ_ACCESS_ENABLED": "false", "LATERMQ_ACCESS_INNER_FILE": str(inner)}
        assert start_container(tmp_path, "console", **settings).returncode == 0
        assert load_inner_secret(inner)

    def test_without_users_nothing_is_made(self, tmp_path: Path) -> None:
        done = start_container(tmp_path, "serve", "--data", str(tmp_path / "data"), LATERMQ_ACCESS_ENABLED="false")
        assert (done.returncode, done.stderr) == (0, "")
        assert "LATERMQ_HTTP_HOST" not in done.stdout
        assert not (tmp_path / "data").exists()


class TestTheComposeFile:
    @pytest.mark.parametrize("name", OURS)
    def test_a_service_starts_a_command_with_valid_options_and_settings(self, name: str) -> None:
        service = SERVICES[name]
        given = parsed(service["command"])
        settings = settings_of(environment_of(name))
        # What is reached from another container does not listen on loopback.
        assert settings.access.enabled, "other machines reach it"
        assert not settings.access.insecure
        hosts = {str(given.get("host") or ""), settings.server.host, settings.http.host, settings.proxy.host}
        assert "0.0.0.0" in hosts
        if data := given.get("data"):
            assert any(volume.endswith(f":{data}") for volume in service["volumes"])

    def test_the_console_takes_secrets_in_plaintext_only_because_it_is_published_on_loopback(self) -> None:
        host = parsed(SERVICES["console"]["command"])["host"]
        settings = load_config(settings=[f"http.host={host}"], environment=environment_of("console"))
        assert settings.http.plaintext
        assert all(port.startswith("127.0.0.1:") for port in SERVICES["console"]["ports"])

    def test_the_cluster_has_the_parts_that_a_cluster_has(self) -> None:
        commands = [service["command"][0] for service in OURS.values()]
        assert sorted(commands) == ["broker", "broker", "console", "namesrv", "pipeline", "proxy"]
        classes = [service["command"][0].rpartition(".")[2] for name, service in SERVICES.items() if name not in OURS]
        assert sorted(classes) == ["Master", "Worker", "Worker"]

    def test_brokers_differ_in_their_names_and_share_a_timeline_with_the_driver_and_its_workers(self) -> None:
        brokers = {name: settings_of(environment_of(name)) for name in OURS if name.startswith("broker")}
        assert {settings.broker.name for settings in brokers.values()} == brokers.keys()
        assert all(settings.broker.advertise_host == name for name, settings in brokers.items())
        assert all(settings.pipeline.enabled for settings in brokers.values())
        (folder,) = {settings.pipeline.timeline for settings in brokers.values()}
        assert parsed(SERVICES["pipeline"]["command"])["timeline"] == folder
        volume = f"timeline:{Path(folder).parent}"
        users = {name for name, service in SERVICES.items() if volume in service.get("volumes", ())}
        assert users == {*brokers, "pipeline", "spark-worker-1", "spark-worker-2"}
        # A volume belongs to the user only where the image has the folder.
        assert re.search(rf"install -d .* -o latermq .* {Path(folder).parent}\b", CONTAINER)

    def test_all_processes_share_the_secrets_that_the_first_start_makes(self) -> None:
        files = {
            environment_of(name)[f"LATERMQ_{key}"]
            for name in OURS
            for key in ("ACCESS_INNER_FILE", "ADMIN_SECRET_FILE")
        }
        assert {str(Path(file).parent) for file in files} == {"/secrets"}
        users = {
            name
            for name, service in SERVICES.items()
            if any(v.startswith("secrets:/secrets") for v in service.get("volumes", ()))
        }
        assert users == {*OURS, "spark-worker-1", "spark-worker-2"}
        assert re.search(r"install -d .* -o latermq .* /secrets\b", CONTAINER)

    def test_a_secret_of_ones_own_goes_to_all_brokers(self) -> None:
        own = yaml.safe_load((PACKAGING / "compose" / "admin-secret.yaml").read_text())
        assert set(own["services"]) == {name for name in OURS if name.startswith("broker")}
        for service in own["services"].values():
            [name] = service["secrets"]
            assert name in own["secrets"]
            assert service["environment"] == {"LATERMQ_ADMIN_SECRET_FILE": f"/run/secrets/{name}"}

    def test_every_name_that_is_used_is_a_service_or_a_volume(self) -> None:
        text = yaml.safe_dump(SERVICES)
        for host in re.findall(r"(?:spark|http)://([a-z0-9-]+):\d+", text):
            assert host in SERVICES
        for name, service in SERVICES.items():
            assert set(service.get("depends_on", ())) <= SERVICES.keys() - {name}
            for volume in service.get("volumes", ()):
                source, target, *_ = volume.split(":")
                assert source in COMPOSE["volumes"] or (PACKAGING / "compose" / source).exists()
                assert target.startswith("/")
            namesrv = environment_of(name).get("NAMESRV_ADDR")
            assert namesrv in (None, f"namesrv:{load_config(None, environment={}).server.namesrv_port}")

    def test_published_ports_are_those_of_the_services_and_on_loopback(self) -> None:
        settings = load_config(None, environment={})
        published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
        assert published == {
            "proxy": [f"127.0.0.1:{settings.proxy.port}:{settings.proxy.port}"],
            "console": [f"127.0.0.1:{settings.http.port}:{settings.http.port}"],
        }

    @pytest.mark.parametrize("name", SERVICES)
    def test_health_checks_ask_where_the_service_answers(self, name: str) -> None:
        kind, program, address = SERVICES[name]["healthcheck"]["test"]
        assert (kind, program) == ("CMD", "latermq-healthcheck")
        assert f"{HEALTH_CHECK.relative_to(ROOT)} /opt/latermq/bin/{program}" in CONTAINER
        metrics = load_config(None, environment={}).metrics
        ports = {
            "namesrv": metrics.namesrv_port,
            "broker-a": metrics.port,
            "broker-b": metrics.port,
            "proxy": metrics.proxy_port,
            "console": load_config(None, environment={}).http.port,
            "pipeline": metrics.pipeline_port,
        } | SPARK_PORTS
        assert f":{ports[name]}/" in address

    def test_spark_fits_into_its_workers_and_knows_the_driver(self) -> None:
        settings = dict(
            line.split(maxsplit=1) for line in SPARK_DEFAULTS.read_text().splitlines() if not line.startswith("#")
        )
        assert settings["spark.driver.host"] in SERVICES
        worker = SERVICES["spark-worker-1"]["command"]
        assert int(worker[worker.index("--cores") + 1]) >= int(settings["spark.executor.cores"])
        assert worker[worker.index("--memory") + 1] == "1536m"  # an executor of 1 GiB and its overhead of 384 MiB
        assert settings["spark.executor.memory"] == "1g"
        configured = environment_of("pipeline")["SPARK_CONF_DIR"]
        assert f"./{SPARK_DEFAULTS.name}:{configured}/{SPARK_DEFAULTS.name}:ro" in SERVICES["pipeline"]["volumes"]
