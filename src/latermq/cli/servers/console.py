"""`latermq console`: runs the HTTP API only."""

from typing import Annotated

import typer

from latermq.cli.options import ConfigFile, ParentPid, Settings, given_settings
from latermq.cli.servers.part import run_part


def console(
    namesrv: Annotated[
        str | None,
        typer.Option(
            "--namesrv",
            metavar="HOST:PORT",
            envvar="NAMESRV_ADDR",
            help="Name servers that know the brokers; separate several with ';'.",
        ),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            "--host", metavar="H", help="Address to listen on; except on loopback, with users or http.token, and TLS."
        ),
    ] = None,
    port: Annotated[
        int | None, typer.Option("--port", metavar="P", min=0, max=65535, help="Port to listen on; 0 picks a free one.")
    ] = None,
    config: ConfigFile = None,
    settings: Settings = None,
    parent_pid: ParentPid = None,
) -> None:
    """Run the HTTP API.

    It keeps no messages: several may run, and clients may use any of them. Prints one line that starts with "latermq
    ready" once it accepts connections. On SIGTERM or Ctrl-C it finishes the requests in flight and exits with 0.
    """
    from latermq.config import load_config

    own = given_settings({"http.namesrv": namesrv, "http.host": host, "http.port": port})
    effective = load_config(config, settings=[*(settings or ()), *own])

    from latermq.http.process import run_console

    raise typer.Exit(run_part("console", effective, parent_pid, lambda ready: run_console(effective, ready)))
