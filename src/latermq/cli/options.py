"""Options that several commands take, and the values they are written in."""

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

# The configuration is read when a command needs it: loading the module doubles the time that `--help` takes.
if TYPE_CHECKING:
    from latermq.config import Config

DEFAULT_NAMESRV = "127.0.0.1:9876"

Namesrv = Annotated[
    str,
    typer.Option(
        "--namesrv", metavar="HOST:PORT", envvar="NAMESRV_ADDR", help="The name server; several are joined by ';'."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line, for scripts.")]

Raw = Annotated[
    bool,
    typer.Option("--raw", help="Print names and bodies as they came; else control characters are shown as \\x1b."),
]

Delay = Annotated[
    str | None,
    typer.Option("--delay", metavar="D", help="So long from now, as in 90s, 15m or 40d; by the broker's clock."),
]
At = Annotated[
    str | None, typer.Option("--at", metavar="TIME", help="At this moment, as in 2027-01-01T00:00:00+08:00.")
]
TimerKey = Annotated[
    str | None, typer.Option("--key", metavar="K", help="All timers of the topic that were sent with this key.")
]
TimerUniqueKey = Annotated[
    str | None, typer.Option("--unique-key", metavar="U", help="The timer that `send` printed this message id for.")
]
TimerHandle = Annotated[
    str | None, typer.Option("--handle", metavar="H", help="The timer that `send` printed this recall handle for.")
]

Data = Annotated[
    Path, typer.Option("--data", metavar="DIR", help="Where the messages are kept; made if it is not there.")
]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Settings in TOML; see docs/operations.md for the keys.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="One setting, above file and environment; repeatable."),
]
Host = Annotated[str | None, typer.Option("--host", metavar="H", help="The address to listen on.")]
NamesrvPort = Annotated[
    int | None,
    typer.Option("--namesrv-port", metavar="P", min=0, max=65535, help="Port of the name server; 0: any free one."),
]
Port = Annotated[
    int | None,
    typer.Option("--port", metavar="P", min=0, max=65535, help="Port of the broker; 0: any free one."),
]
# Set by `serve` for the processes it starts.
ParentPid = Annotated[int | None, typer.Option("--parent-pid", hidden=True)]


def effective_config(
    file: Path | None,
    settings: list[str] | None,
    *,
    host: str | None,
    namesrv_port: int | None,
    port: int | None,
    defaults: Mapping[str, Mapping[str, Any]] | None = None,
) -> "Config":
    """The settings of a server process: an option of its own goes above everything else."""
    from latermq.config import load_config

    own = as_settings(host, namesrv_port, port)
    return load_config(file, settings=[*(settings or ()), *own], defaults=defaults)


def as_settings(host: str | None, namesrv_port: int | None, port: int | None) -> list[str]:
    options = {"server.host": host, "server.namesrv_port": namesrv_port, "server.port": port}
    return [f"{key}={value}" for key, value in options.items() if value is not None]


def parse_duration_s(text: str) -> float:
    """Seconds out of `10s`, `500ms` or `2m`."""
    return parse_duration_ms(text) / 1000


def parse_duration_ms(text: str) -> int:
    """Milliseconds out of `90s`, `500ms` or `40d`."""
    from latermq.config import Duration

    try:
        return int(Duration.parse(text))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def parse_moment_ms(text: str) -> int:
    """Epoch milliseconds out of `2027-01-01T00:00:00+08:00`; a time without an offset is local time."""
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no time; write it as 2027-01-01T00:00:00+08:00") from None
    return round(moment.timestamp() * 1000)


def parse_timer_name(key: str | None, unique_key: str | None, handle: str | None) -> dict[str, str]:
    """What names a timer, as arguments of the client's methods; exactly one of the options has to."""
    names = {"key": key, "unique_key": unique_key, "handle": handle}
    given = {name: value for name, value in names.items() if value}
    if len(given) != 1:
        raise typer.BadParameter("say which timer: --key, --unique-key or --handle, one of them")
    return given


def parse_pairs(pairs: list[str] | None) -> dict[str, str]:
    """Properties out of repeated `key=value`."""
    parsed: dict[str, str] = {}
    for pair in pairs or ():
        key, separator, value = pair.partition("=")
        if not (separator and key):
            raise typer.BadParameter(f"{pair!r} is no property; write key=value")
        parsed[key] = value
    return parsed
