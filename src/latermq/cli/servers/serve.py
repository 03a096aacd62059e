"""`latermq serve`: runs and supervises all parts of a server."""

import contextlib
import errno
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from latermq.addresses import connectable
from latermq.cli.options import (
    ConfigFile,
    Data,
    Host,
    Insecure,
    NamesrvPort,
    Port,
    Settings,
    as_settings,
    effective_config,
    given_settings,
)
from latermq.cli.servers.data_directory import require_writable
from latermq.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from latermq.config import Config
    from latermq.server.serve_record import PartRecord, ServeLock

NAME_SERVER = "name server"
BROKER = "broker"
PROXY = "proxy"
CONSOLE = "console"
PIPELINE = "pipeline"
PIPELINE_NICE = 10  # keeps the broker's event loop punctual

_PREDECESSOR_TIMEOUT_S = 3.0  # a server that was just killed still holds its ports and its lock
_POLL_S = 0.05


def serve(
    data: Data,
    host: Host = None,
    namesrv_port: NamesrvPort = None,
    port: Port = None,
    grpc_port: Annotated[
        int | None,
        typer.Option("--grpc-port", metavar="P", min=0, max=65535, help="Port of the gRPC proxy; 0 picks a free one."),
    ] = None,
    http_port: Annotated[
        int | None,
        typer.Option("--http-port", metavar="P", min=0, max=65535, help="Port of the HTTP API; 0 picks a free one."),
    ] = None,
    no_grpc: Annotated[bool, typer.Option("--no-grpc", help="Run without the gRPC proxy.")] = False,
    no_http: Annotated[bool, typer.Option("--no-http", help="Run without the HTTP API.")] = False,
    no_pipeline: Annotated[
        bool, typer.Option("--no-pipeline", help="Run without the Spark pipeline; the broker keeps all timers.")
    ] = False,
    insecure: Insecure = False,
    config: ConfigFile = None,
    settings: Settings = None,
) -> None:
    """Run a name server, a broker, a gRPC proxy, the HTTP API and the Spark pipeline.

    Restarts a part that fails. Once all parts accept connections, prints one line that starts with "latermq ready" and
    contains their addresses. Logs go to standard error. On SIGTERM or Ctrl-C the proxy finishes its calls, the broker
    refuses new requests, flushes and writes a checkpoint, then serve exits with 0. Exits with 2 if it cannot start.

    The pipeline starts in the background: it takes a few seconds, and no timer depends on it. Without Java or the
    pipeline's packages serve reports this and runs as with --no-pipeline. To use a driver on another machine, pass
    --no-pipeline --set pipeline.enabled=true.

    Example: latermq serve --data /var/lib/latermq --host 10.0.0.5 --set access.enabled=true
    """
    # An explicit setting overrides the option: the broker then expects a driver that is not one of these parts.
    settings = [*(["pipeline.enabled=false"] if no_pipeline else ()), *(settings or ())]
    settings += given_settings({"proxy.port": grpc_port, "http.port": http_port, "access.insecure": insecure or None})
    defaults = {"pipeline": {"enabled": True}}
    effective = effective_config(config, settings, host=host, namesrv_port=namesrv_port, port=port, defaults=defaults)
    from latermq.server.private_files import keep_private

    _require_users(effective, data, with_proxy=not no_grpc)
    pipeline = _choose_pipeline(effective, no_pipeline)
    settings.append(f"pipeline.enabled={str(pipeline.enabled).lower()}")
    keep_private(effective)  # also covers the driver, whose timeline may be in the data directory
    require_writable(data)

    from latermq.server.serve_record import ServeLock

    lock = ServeLock(data)
    _wait_for_predecessor(effective, data, lock, with_proxy=not no_grpc, with_http=not no_http)

    import asyncio

    from latermq.config import as_environment
    from latermq.server.logs import set_up_logs
    from latermq.server.supervisor import Part, Supervisor

    set_up_logs(effective.log, "serve")
    settings += [*_certificate_settings(data, effective), *_access_settings(data, effective)]
    inherited = _inherited_options(config)
    settings += as_settings(host, namesrv_port, port)
    shared = as_environment(settings)
    parts = [
        Part(NAME_SERVER, lambda ready: _name_server_command(data, inherited, ready), environment=shared),
        Part(BROKER, lambda ready: _broker_command(data, inherited, effective, ready), environment=shared),
    ]
    if not no_grpc:
        parts.append(Part(PROXY, lambda ready: _proxy_command(data, inherited, effective, ready), environment=shared))
    if not no_http:
        console_environment = as_environment([*settings, *_console_settings(data, effective)])
        parts.append(
            Part(CONSOLE, lambda ready: _console_command(inherited, effective, ready), environment=console_environment)
        )
    if pipeline.is_part:
        driver_environment = as_environment([*settings, *_pipeline_settings(data, effective)])
        parts.append(
            Part(PIPELINE, _pipeline_command(inherited, effective), is_optional=True, environment=driver_environment)
        )

    async def supervise() -> int:
        return await Supervisor(parts, lambda addresses: _announce(addresses, pipeline), _record_keeper(lock)).run()

    try:
        raise typer.Exit(asyncio.run(supervise()))
    finally:
        lock.release()


def _require_users(config: "Config", data: Path, *, with_proxy: bool) -> None:
    from latermq.server.reachability import require_users

    require_users(config.access, "broker", config.server.host, "serve", str(data))
    if with_proxy:
        require_users(config.access, "proxy", config.proxy.host or config.server.host, "serve", str(data))


def _record_keeper(lock: "ServeLock") -> "Callable[[Sequence[PartRecord]], None]":
    """Return a function that writes the state of the parts for `latermq status`."""
    import structlog

    from latermq import __version__
    from latermq.server.serve_record import ServeRecord

    log = structlog.get_logger()
    started_ms = time.time_ns() // 1_000_000

    def keep(parts: "Sequence[PartRecord]") -> None:
        problem = lock.write(ServeRecord(os.getpid(), __version__, started_ms, list(parts)))
        if problem:
            log.warning("cannot record the state of the parts, so `latermq status` shows an old one", reason=problem)

    return keep


class _Pipeline(NamedTuple):
    """Whether the driver is a part of this server, whether the broker expects one, and the description for users."""

    is_part: bool
    enabled: bool
    description: str


def _choose_pipeline(config: "Config", no_pipeline: bool) -> _Pipeline:
    if no_pipeline or not config.pipeline.enabled:
        is_external = config.pipeline.enabled
        return _Pipeline(False, is_external, "external pipeline" if is_external else "no pipeline")

    from latermq.pipeline.spark.requirements import check_requirements

    try:
        check_requirements()
    except ConfigError as error:
        return _Pipeline(False, False, f"no pipeline: {error.message}")
    return _Pipeline(True, True, f"pipeline starting on {config.pipeline.master}")


def _announce(addresses: Mapping[str, str], pipeline: _Pipeline) -> None:
    running = ", ".join(f"{part} {addresses[part]}" for part in (NAME_SERVER, BROKER))
    proxy = f"gRPC proxy {addresses[PROXY]}" if PROXY in addresses else "no gRPC proxy"
    http = f"HTTP {addresses[CONSOLE]}" if CONSOLE in addresses else "no HTTP"
    print(f"latermq ready: {running}, {proxy}, {http}, {pipeline.description}", flush=True)


def _inherited_options(config: Path | None) -> list[str]:
    options = ["--parent-pid", str(os.getpid())]
    if config is not None:
        options += ["--config", str(config)]
    return options


def _name_server_command(data: Path, inherited: list[str], ready: Mapping[str, str]) -> list[str]:
    command = [sys.executable, "-m", "latermq", "namesrv", "--data", str(data / "namesrv"), *inherited]
    return command + _port_option(ready.get(NAME_SERVER))


def _broker_command(data: Path, inherited: list[str], config: "Config", ready: Mapping[str, str]) -> list[str]:
    command = [sys.executable, "-m", "latermq", "broker", "--data", str(data), *inherited]
    namesrv = config.server.namesrv or connectable(ready[NAME_SERVER])
    return [*command, "--namesrv", namesrv, *_port_option(ready.get(BROKER))]


def _proxy_command(data: Path, inherited: list[str], config: "Config", ready: Mapping[str, str]) -> list[str]:
    command = [sys.executable, "-m", "latermq", "proxy", "--data", str(data), *inherited]
    namesrv = config.proxy.namesrv or config.server.namesrv or connectable(ready[NAME_SERVER])
    return [*command, "--namesrv", namesrv, *_port_option(ready.get(PROXY))]


def _console_command(inherited: list[str], config: "Config", ready: Mapping[str, str]) -> list[str]:
    command = [sys.executable, "-m", "latermq", "console", *inherited]
    namesrv = config.http.namesrv or config.server.namesrv or connectable(ready[NAME_SERVER])
    return [*command, "--namesrv", namesrv, *_port_option(ready.get(CONSOLE))]


def _console_settings(data: Path, config: "Config") -> list[str]:
    """Where the console keeps what must survive a restart. One that runs alone has no data directory."""
    settings = [] if config.alerts.state_file else [f"alerts.state_file={data.absolute() / 'alerts.json'}"]
    if not config.http.jobs_folder:
        settings.append(f"http.jobs_folder={data.absolute() / 'console-jobs'}")
    if not config.http.sign_outs_file:
        settings.append(f"http.sign_outs_file={data.absolute() / 'console-sign-outs'}")
    if config.access.enabled and not config.audit.folder:
        settings.append(f"audit.folder={data.absolute() / 'audit'}")
    return settings


def _certificate_settings(data: Path, config: "Config") -> list[str]:
    """The self-signed certificate that all parts share, unless the operator has one."""
    if config.tls.cert or (config.tls.mode == "disabled" and not config.http.tls and not config.metrics.tls):
        return []
    from latermq.tls.server_certificates import self_signed_certificate

    files = self_signed_certificate(config, data, time.time_ns() // 1_000_000)
    settings = [f"tls.cert={files.certificate}", f"tls.key={files.key}"]
    if not config.tls.ca and (config.tls.mode == "enforcing" or config.tls.connect == "on"):
        settings.append(f"tls.ca={files.certificate}")  # the parts verify each other
    return settings


def _access_settings(data: Path, config: "Config") -> list[str]:
    """The file with the secret that all parts sign with. The name server, which starts first, needs it too."""
    from latermq.access.inner_credentials import inner_file, load_or_create_inner_secret

    path = inner_file(config.access, data)
    if path is None:
        return []
    load_or_create_inner_secret(path)
    return [f"access.inner_file={path}"]


def _pipeline_settings(data: Path, config: "Config") -> list[str]:
    """The settings with which the driver finds the broker's timeline and secret."""
    from latermq.pipeline_secret import secret_path

    pipeline = config.pipeline
    timeline = pipeline.timeline or str(data.absolute() / "pipeline")
    secret = secret_path(pipeline.secret_file, pipeline.timeline, data)
    return [f"pipeline.timeline={timeline}", f"pipeline.secret_file={secret}"]


def _pipeline_command(inherited: list[str], config: "Config") -> Callable[[Mapping[str, str]], Sequence[str]]:
    command = [sys.executable, "-m", "latermq", "pipeline", "run", "--nice", str(PIPELINE_NICE), *inherited]
    return lambda ready: [*command, "--namesrv", config.server.namesrv or connectable(ready[NAME_SERVER])]


def _port_option(address: str | None) -> list[str]:
    """Options that make a restarted part listen on its previous port, even if the kernel chose that port."""
    if address is None:
        return []
    return ["--port", address.rpartition(":")[2]]


def _wait_for_predecessor(
    config: "Config", data: Path, lock: "ServeLock", *, with_proxy: bool, with_http: bool
) -> None:
    """Wait until a server that was just killed has released its ports and its locks. Raise if one stays in use.

    Afterwards this process holds the lock of the data directory.
    """
    from latermq.server.serve_record import holder_of

    host = config.server.host
    ports = {"--namesrv-port": (host, config.server.namesrv_port), "--port": (host, config.server.port)}
    if with_proxy:
        ports["--grpc-port"] = (config.proxy.host or host, config.proxy.port)
    if with_http:
        ports["--http-port"] = (config.http.host, config.http.port)
    deadline_s = time.monotonic() + _PREDECESSOR_TIMEOUT_S
    while True:
        busy = [option for option, address in ports.items() if not _is_free(*address)]
        has_data = lock.acquire() and _is_unlocked(data)
        if not busy and has_data:
            return
        if time.monotonic() > deadline_s:
            break
        time.sleep(_POLL_S)
    if not has_data:
        raise ConfigError(
            f"the data directory {data} is in use by {holder_of(data)}",
            hint="Stop it, or choose another directory with --data",
        )
    for option in busy:
        host, port = ports[option]
        raise ConfigError(
            f"port {port} on {host} is in use",
            hint=f"Stop the process that listens there, or choose another port with {option}",
        )


def _is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            # The part that listens on the address reports any other error.
            return error.errno != errno.EADDRINUSE
        return True


def _is_unlocked(data: Path) -> bool:
    from latermq.store.files.disk import FileDisk

    disk = FileDisk(data)
    with contextlib.suppress(StoreError):
        disk.lock()
        disk.unlock()
        return True
    return False
