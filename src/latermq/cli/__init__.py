"""The `latermq` command. Each subcommand has its own module; this one registers them and reports their errors."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

import latermq
from latermq.cli.access import acl
from latermq.cli.access import user as user_commands
from latermq.cli.access.own_user import AsSecretFile, AsUser, take_credentials
from latermq.cli.bench import bench
from latermq.cli.commands import cancel, cert, config, consume, dlq, group, message, move, pending, send, topic
from latermq.cli.doctor import doctor
from latermq.cli.output import print_error
from latermq.cli.pipeline import pipeline
from latermq.cli.servers import broker, console, namesrv, proxy, serve
from latermq.cli.status import status, top
from latermq.errors import ConfigError, LaterMQError, TopicNotFound

# Plain help: rendering it with rich takes 0.4 s, four times as long as everything else.
app = typer.Typer(
    name="latermq",
    help="A message broker for delayed messages, compatible with RocketMQ clients.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        print(f"latermq {latermq.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
    tls: Annotated[bool, typer.Option("--tls", help="Connect to name servers and brokers with TLS.")] = False,
    tls_ca: Annotated[
        Path | None,
        typer.Option("--tls-ca", metavar="FILE", help="Trusted authority of servers; implies --tls."),
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option("--tls-cert", metavar="FILE", help="Certificate to present.")] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", metavar="FILE", help="Key of this certificate.")] = None,
    as_user: AsUser = None,
    as_secret_file: AsSecretFile = None,
) -> None:
    files = {"ca": tls_ca, "cert": tls_cert, "key": tls_key}
    given = {key: str(file) for key, file in files.items() if file is not None}
    if tls or given:
        from latermq.config import as_environment

        # The clients of this process, and of those that it starts, read them there.
        os.environ.update(as_environment(["tls.connect=on", *(f"tls.{key}={file}" for key, file in given.items())]))


app.command("serve")(serve.serve)
app.command("namesrv")(namesrv.namesrv)
app.command("broker")(broker.broker)
app.command("proxy")(proxy.proxy)
app.command("console")(console.console)
app.command("send")(send.send)
app.command("consume")(consume.consume)
app.command("cancel")(cancel.cancel)
app.command("move")(move.move)
app.command("pending")(pending.pending)
app.add_typer(topic.app, name="topic")
app.add_typer(group.app, name="group")
app.add_typer(message.app, name="message")
app.add_typer(dlq.app, name="dlq")
app.add_typer(bench.app, name="bench")
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(config.app, name="config")
app.add_typer(cert.app, name="cert")
app.add_typer(user_commands.app, name="user")
app.add_typer(acl.app, name="acl")
app.command("status")(status.status)
app.command("top")(top.top)
app.command("doctor")(doctor.doctor)
take_credentials(app, servers=frozenset({"serve", "namesrv", "broker", "proxy", "console"}))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 success, 1 failure, 2 wrong usage or settings."""
    try:
        app(args=list(sys.argv[1:] if arguments is None else arguments), prog_name="latermq")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except ConfigError as error:
        print_error(error.message, error.hint, excerpt=getattr(error, "excerpt", ""))
        return 2
    except TopicNotFound as error:
        print_error(error.message, error.hint or "`latermq topic list` lists the topics")
        return 1
    except LaterMQError as error:
        print_error(error.message, error.hint)
        return 1
    return 0
