"""`latermq doctor`: checks whether this machine can run a server, and whether a running one replies."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from latermq.cli.options import DEFAULT_NAMESRV, ConfigFile, Json, Settings

if TYPE_CHECKING:
    from latermq.cli.doctor.checks import Check
    from latermq.config import Config

_COLUMNS = {"check": "check", "status": "status", "details": "details", "advice": "advice"}


def doctor(
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="Data directory to check; it need not exist.")
    ] = None,
    namesrv: Annotated[
        str | None,
        typer.Option(
            "--namesrv", metavar="HOST:PORT", envvar="NAMESRV_ADDR", help="Name server that must be reachable."
        ),
    ] = None,
    config: ConfigFile = None,
    settings: Settings = None,
    json: Json = False,
) -> None:
    """Check this machine and a stopped store.

    Checks Python, Java, ports, limits, disk, clock, kernel settings and the name server. If the data directory contains
    a stopped store, rehearses a start without changing any file and reports damage. Each check is ok, warn or fail and
    says what to do. Exits with 1 if a check fails.

    Example: latermq doctor --data /var/lib/latermq
    """
    from latermq.cli.output import print_rows
    from latermq.config import load_config

    checks = _all_checks(load_config(config, settings=settings or ()), (data or Path()).absolute(), namesrv)
    rows = [{field: getattr(check, field) for field in _COLUMNS} for check in checks]
    print_rows(rows, _COLUMNS, as_json=json, empty="")
    if any(check.status == "fail" for check in checks):
        raise typer.Exit(1)


def _all_checks(config: "Config", data: Path, namesrv: str | None) -> list["Check"]:
    from latermq.cli.doctor import checks
    from latermq.cli.doctor.store_checks import check_store

    server = config.server
    return [
        checks.check_python(),
        checks.check_java(),
        checks.check_port("name server", server.host, server.namesrv_port, "--namesrv-port"),
        checks.check_port("broker", server.host, server.port, "--port"),
        checks.check_port("proxy", config.proxy.host or server.host, config.proxy.port, "--grpc-port"),
        checks.check_network(server.host, config.access),
        checks.check_file_limit(config),
        checks.check_open_queues(config),
        checks.check_data_dir(data),
        *check_store(data, config),
        checks.check_disk_space(data, config),
        checks.check_fallocate(data),
        checks.check_clock(),
        checks.check_huge_pages(),
        checks.check_map_count(),
        checks.check_name_server(namesrv or DEFAULT_NAMESRV, required=namesrv is not None),
    ]
