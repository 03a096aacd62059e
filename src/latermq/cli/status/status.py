"""`latermq status`: shows every part of a server or a cluster, and whether it is up."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from latermq.cli.event_loop import run
from latermq.cli.options import ConfigFile, Json, Settings
from latermq.cli.output import counted, print_json, print_note, print_rows
from latermq.cli.views.message_rows import moment
from latermq.errors import StoreError

if TYPE_CHECKING:
    from latermq.cli.status.overview import Overview, PartStatus
    from latermq.config import Config
    from latermq.server.serve_record import ServeRecord

_COLUMNS = {
    "part": "part",
    "state": "state",
    "address": "address",
    "version": "version",
    "started": "since",
    "detail": "detail",
}
_SHOWN_GROUPS = 10

DataOfServe = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", help="Data directory of a `latermq serve` on this machine."),
]
StatusNamesrv = Annotated[
    str | None,
    typer.Option(
        "--namesrv",
        metavar="HOST:PORT",
        envvar="NAMESRV_ADDR",
        help="Name servers of a cluster; separate several with ';'. By default those of --data, or 127.0.0.1:9876.",
    ),
]


def status(
    data: DataOfServe = None,
    namesrv: StatusNamesrv = None,
    config: ConfigFile = None,
    settings: Settings = None,
    json: Json = False,
) -> None:
    """Show name servers, brokers and the other parts of a server, their addresses and versions, and what lags.

    With --data it also knows the parts of a `serve` that no name server knows: proxy, console and pipeline. Exits with
    1 if a part is down. A pipeline that is starting is not.

    Example: latermq status --data /var/lib/latermq
    """
    from latermq.cli.status.overview import overview_of

    effective, record = find_cluster(data, namesrv, config, settings)
    found = run(overview_of(effective, record))
    if json:
        _print_json(found)
    else:
        _print(found)
    if not found.is_good:
        raise typer.Exit(1)


def find_cluster(
    data: Path | None, namesrv: str | None, config: Path | None, settings: list[str] | None
) -> "tuple[Config, ServeRecord | None]":
    """Return the settings to reach a cluster with, and the record of the server on a data directory if one is given."""
    from latermq.addresses import connectable
    from latermq.cli.options import given_settings
    from latermq.config import load_config
    from latermq.server.serve_record import read_record

    record = None
    if data is not None:
        record = read_record(data)
        if record is None:
            raise StoreError(f"no server runs on {data}", hint=f"Start it: latermq serve --data {data}")
        addresses = [connectable(part.address) for part in record.parts if part.name == "name server" and part.address]
        namesrv = namesrv or ";".join(addresses) or None
    own = given_settings({"http.namesrv": namesrv, "access.inner_file": _inner_file(data)})
    effective = load_config(config, settings=[*(settings or ()), *own])
    return effective, record


def _inner_file(data: Path | None) -> Path | None:
    """The secret of the server's own processes, for its owner. A user that the environment names is used instead."""
    import os

    from latermq.access.inner_credentials import FILE_NAME
    from latermq.client.session.credentials import USER

    if data is None or os.environ.get(USER):
        return None
    path = data.absolute() / FILE_NAME
    return path if os.access(path, os.R_OK) else None


def _print(found: "Overview") -> None:
    rows = [{**_row(part), "started": moment(part.started_ms)} for part in found.parts]
    print_rows(rows, _COLUMNS, as_json=False, empty="")
    if found.lagging is None:
        print_note("the lag of groups is not known, because no broker answers")
        return
    groups = [{"group": one.group, "lag": one.lag} for one in found.lagging[:_SHOWN_GROUPS]]
    nothing = f"{counted(found.groups, 'group')}, none lags"
    print_rows(groups, {"group": "group", "lag": "messages behind"}, as_json=False, empty=nothing)
    if len(found.lagging) > _SHOWN_GROUPS:
        print_note(f"{len(found.lagging) - _SHOWN_GROUPS} more groups lag; --json lists all")


def _print_json(found: "Overview") -> None:
    for part in found.parts:
        print_json({**_row(part), "started_ms": part.started_ms, "is_good": part.is_good})
    for one in found.lagging or ():
        print_json({"group": one.group, "lag": one.lag})


def _row(part: "PartStatus") -> dict[str, Any]:
    return {
        "part": part.part,
        "state": part.state,
        "address": part.address or None,
        "version": part.version or None,
        "detail": part.detail,
    }
