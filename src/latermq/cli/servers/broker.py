"""`latermq broker`: runs a broker only."""

from typing import Annotated

import typer

from latermq.cli.options import (
    ConfigFile,
    Data,
    Host,
    Insecure,
    ParentPid,
    Port,
    Settings,
    effective_config,
    given_settings,
)
from latermq.cli.servers.data_directory import require_writable
from latermq.cli.servers.part import run_part


def broker(
    data: Data,
    namesrv: Annotated[
        str | None,
        typer.Option(
            "--namesrv",
            metavar="HOST:PORT",
            envvar="NAMESRV_ADDR",
            help="Name servers to register with; separate several with ';'.",
        ),
    ] = None,
    host: Host = None,
    port: Port = None,
    insecure: Insecure = False,
    config: ConfigFile = None,
    settings: Settings = None,
    parent_pid: ParentPid = None,
) -> None:
    """Run a broker and register it with name servers.

    Prints one line that starts with "latermq ready" once it accepts connections. On SIGTERM or Ctrl-C it refuses new
    requests, flushes, writes a checkpoint and exits with 0.
    """
    own = given_settings({"server.namesrv": namesrv or None, "access.insecure": insecure or None})
    settings = [*(settings or ()), *own]
    effective = effective_config(config, settings, host=host, namesrv_port=None, port=port)
    from latermq.server.reachability import require_users

    listen_host = effective.server.host
    require_users(effective.access, "broker", listen_host, "broker", str(data))
    require_writable(data)

    from latermq.server.broker.process import run_broker

    raise typer.Exit(
        run_part("broker", effective, parent_pid, lambda ready: run_broker(effective, data, ready), host=listen_host)
    )
