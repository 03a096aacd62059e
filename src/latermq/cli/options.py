"""Options shared by several commands, and the parsers of their values."""

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

# Imported only when a command needs it: loading the module doubles the time that `--help` takes.
if TYPE_CHECKING:
    from latermq.config import Config

DEFAULT_NAMESRV = "127.0.0.1:9876"


class UsageError(typer.BadParameter):
    """Options that do not fit together. The message does not begin with "Invalid value", as no single one is wrong."""

    def format_message(self) -> str:
        return self.message


Namesrv = Annotated[
    str,
    typer.Option(
        "--namesrv", metavar="HOST:PORT", envvar="NAMESRV_ADDR", help="Name server; separate several with ';'."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]

Raw = Annotated[
    bool,
    typer.Option("--raw", help="Print names and bodies unchanged; by default control characters are escaped."),
]

Delay = Annotated[
    str | None,
    typer.Option("--delay", metavar="D", help="Delay from now, by the broker's clock, e.g. 90s, 15m or 40d."),
]
At = Annotated[str | None, typer.Option("--at", metavar="TIME", help="Due time, e.g. 2027-01-01T00:00:00+08:00.")]
TimerKey = Annotated[str | None, typer.Option("--key", metavar="K", help="All timers of the topic that have this key.")]
TimerUniqueKey = Annotated[
    str | None, typer.Option("--unique-key", metavar="U", help="The timer with this message id, as printed by `send`.")
]
TimerHandle = Annotated[
    str | None, typer.Option("--handle", metavar="H", help="The timer with this recall handle, as printed by `send`.")
]

Data = Annotated[Path, typer.Option("--data", metavar="DIR", help="Data directory; created if it does not exist.")]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="TOML file with settings; see docs/operations.md.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Setting that overrides file and environment; repeatable."),
]
Host = Annotated[str | None, typer.Option("--host", metavar="H", help="Address to listen on.")]
Insecure = Annotated[bool, typer.Option("--insecure", help="Listen for other machines even if users are not checked.")]
NamesrvPort = Annotated[
    int | None,
    typer.Option("--namesrv-port", metavar="P", min=0, max=65535, help="Port of the name server; 0 picks a free one."),
]
Port = Annotated[
    int | None,
    typer.Option("--port", metavar="P", min=0, max=65535, help="Port of the broker; 0 picks a free one."),
]
# `serve` passes it to the processes that it starts.
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
    """The settings of a server process. Its dedicated options override all other sources."""
    from latermq.config import load_config

    own = as_settings(host, namesrv_port, port)
    return load_config(file, settings=[*(settings or ()), *own], defaults=defaults)


def as_settings(host: str | None, namesrv_port: int | None, port: int | None) -> list[str]:
    return given_settings({"server.host": host, "server.namesrv_port": namesrv_port, "server.port": port})


def given_settings(options: Mapping[str, object]) -> list[str]:
    """The options that were given, as settings; None means that an option was not."""
    texts = {key: str(value).lower() if isinstance(value, bool) else value for key, value in options.items()}
    return [f"{key}={text}" for key, text in texts.items() if text is not None]


def parse_duration_s(text: str) -> float:
    """Seconds from `10s`, `500ms` or `2m`."""
    return parse_duration_ms(text) / 1000


def parse_duration_ms(text: str) -> int:
    """Milliseconds from `90s`, `500ms` or `40d`."""
    from latermq.config import Duration

    try:
        return int(Duration.parse(text))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def parse_moment_ms(text: str) -> int:
    """Epoch milliseconds from `2027-01-01T00:00:00+08:00`. A time without an offset is local time."""
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a valid time; use e.g. 2027-01-01T00:00:00+08:00") from None
    return round(moment.timestamp() * 1000)


def parse_timer_name(key: str | None, unique_key: str | None, handle: str | None) -> dict[str, str]:
    """Keyword arguments that identify a timer for the client's methods. Exactly one option must be given."""
    names = {"key": key, "unique_key": unique_key, "handle": handle}
    given = {name: value for name, value in names.items() if value}
    if len(given) != 1:
        raise UsageError("specify one of --key, --unique-key and --handle")
    return given


def parse_pairs(pairs: list[str] | None) -> dict[str, str]:
    """A mapping from repeated `key=value` options."""
    parsed: dict[str, str] = {}
    for pair in pairs or ():
        key, separator, value = pair.partition("=")
        if not (separator and key):
            raise typer.BadParameter(f"{pair!r} is not of the form key=value")
        parsed[key] = value
    return parsed
