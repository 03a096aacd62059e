"""`latermq proxy`: runs a gRPC proxy only."""

from pathlib import Path
from typing import Annotated

import typer

from latermq.cli.options import ConfigFile, Insecure, ParentPid, Settings, given_settings
from latermq.cli.servers.data_directory import require_writable
from latermq.cli.servers.part import run_part


def proxy(
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="DIR", help="Directory for the self-signed certificate; created if missing."),
    ] = None,
    namesrv: Annotated[
        str | None,
        typer.Option(
            "--namesrv",
            metavar="HOST:PORT",
            envvar="NAMESRV_ADDR",
            help="Name servers that know the brokers; separate several with ';'.",
        ),
    ] = None,
    host: Annotated[str | None, typer.Option("--host", metavar="H", help="Address to listen on.")] = None,
    port: Annotated[
        int | None, typer.Option("--port", metavar="P", min=0, max=65535, help="Port to listen on; 0 picks a free one.")
    ] = None,
    insecure: Insecure = False,
    config: ConfigFile = None,
    settings: Settings = None,
    parent_pid: ParentPid = None,
) -> None:
    """Run a gRPC proxy for clients of RocketMQ's 5.x protocol.

    It keeps no messages: several may run, and clients may use any of them. It accepts TLS and plaintext on one port.
    Prints one line that starts with "latermq ready" once it accepts connections. On SIGTERM or Ctrl-C it takes no more
    calls, finishes those in flight, lets waiting consumers go and exits with 0.
    """
    from latermq.config import load_config

    own = given_settings(
        {
            "proxy.namesrv": namesrv,
            "proxy.host": host,
            "proxy.port": port,
            "access.insecure": insecure or None,
        }
    )
    effective = load_config(config, settings=[*(settings or ()), *own])
    from latermq.server.reachability import require_users

    listen_host = effective.proxy.host or effective.server.host
    require_users(effective.access, "proxy", listen_host, "proxy")
    if data is not None:
        require_writable(data)

    from latermq.server.proxy.process import run_proxy

    raise typer.Exit(
        run_part("proxy", effective, parent_pid, lambda ready: run_proxy(effective, data, ready), host=listen_host)
    )
