"""`latermq namesrv`: runs a name server only."""

from pathlib import Path
from typing import Annotated

import typer

from latermq.cli.options import ConfigFile, Host, Insecure, ParentPid, Settings, effective_config, given_settings
from latermq.cli.servers.part import run_part


def namesrv(
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            metavar="DIR",
            help="Directory for the key-value table and the broker names; default: in memory.",
        ),
    ] = None,
    host: Host = None,
    port: Annotated[
        int | None, typer.Option("--port", metavar="P", min=0, max=65535, help="Port to listen on; 0 picks a free one.")
    ] = None,
    insecure: Insecure = False,
    config: ConfigFile = None,
    settings: Settings = None,
    parent_pid: ParentPid = None,
) -> None:
    """Run a name server.

    Brokers register with it, and clients get the routes of topics from it. Prints one line that starts with "latermq
    ready" once it accepts connections. SIGTERM and Ctrl-C stop it.
    """
    settings = [*(settings or ()), *given_settings({"access.insecure": insecure or None})]
    effective = effective_config(config, settings, host=host, namesrv_port=port, port=None)

    from latermq.server.namesrv.name_server import run_name_server
    from latermq.server.reachability import require_users

    listen_host = effective.server.host
    require_users(effective.access, "name server", listen_host, "namesrv")
    raise typer.Exit(
        run_part(
            "name server",
            effective,
            parent_pid,
            lambda ready: run_name_server(effective, data, ready),
            host=listen_host,
        )
    )
