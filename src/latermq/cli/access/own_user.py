"""The user that a command signs its requests as: options of every client command, the environment, or tools.yml."""

import functools
import inspect
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

from typer import Option, Typer
from typer.models import CommandInfo

from latermq.errors import ConfigError

USER, SECRET, SECRET_FILE = "LATERMQ_USER", "LATERMQ_SECRET", "LATERMQ_SECRET_FILE"
TOOLS_FILE = Path("conf") / "tools.yml"  # below ROCKETMQ_HOME, as mqadmin's
MAX_TOOLS_BYTES = 64 * 1024
USER_HELP = "Sign requests as this user; with --secret-file."
SECRET_FILE_HELP = "File with the user's secret, which only its owner may read."


def sign_as(user: str | None) -> str | None:
    """Take the user for this process, and for those that it starts."""
    if user is not None:
        os.environ[USER] = user
    return user


def sign_with(file: str | None) -> str | None:
    """Take the file with the secret of the user."""
    if file is not None:
        os.environ[SECRET_FILE] = str(Path(file).absolute())
        os.environ.pop(SECRET, None)
    return file


AsUser = Annotated[str | None, Option("--user", metavar="NAME", help=USER_HELP, callback=sign_as)]
AsSecretFile = Annotated[str | None, Option("--secret-file", metavar="FILE", help=SECRET_FILE_HELP, callback=sign_with)]
_OWN_OPTIONS = {"as_user": AsUser, "as_secret_file": AsSecretFile}


def take_credentials(app: Typer, servers: frozenset[str]) -> None:
    """Give --user and --secret-file to all commands with a name server, except those that run servers."""
    for command in _commands(app):
        function = command.callback
        name = command.name or getattr(function, "__name__", "")
        if function is not None and name not in servers and "namesrv" in function.__annotations__:
            command.callback = _with_own_options(function)


def _with_own_options(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def command(*arguments: Any, **options: Any) -> Any:
        use_tools_file()
        return function(*arguments, **{name: value for name, value in options.items() if name not in _OWN_OPTIONS})

    own = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in _OWN_OPTIONS.items()
    ]
    signature = inspect.signature(function)
    command.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *own])  # type: ignore[attr-defined]
    command.__annotations__ = {**function.__annotations__, **_OWN_OPTIONS}
    return command


def _commands(app: Typer) -> Iterator[CommandInfo]:
    yield from app.registered_commands
    for group in app.registered_groups:
        if group.typer_instance is not None:
            yield from _commands(group.typer_instance)


def use_tools_file() -> None:
    """Sign as mqadmin does, unless options or variables name a user or a secret."""
    home = os.environ.get("ROCKETMQ_HOME")
    if not home or any(os.environ.get(name) for name in (USER, SECRET, SECRET_FILE)):
        return
    file = Path(home) / TOOLS_FILE
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_TOOLS_BYTES + 1)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(
            f"cannot read {file}: {error.strerror}", hint="Set LATERMQ_USER to use another user"
        ) from None
    settings = _parsed(file, data)
    user, secret = (str(settings.get(key) or "").strip() for key in ("accessKey", "secretKey"))
    if user and secret:
        os.environ[USER], os.environ[SECRET] = user, secret


def _parsed(file: Path, data: bytes) -> dict[str, Any]:
    import yaml

    try:
        settings = yaml.safe_load(data) if len(data) <= MAX_TOOLS_BYTES else None
    except (yaml.YAMLError, ValueError):  # ValueError: a number or a date that is none
        settings = None
    if data.strip() and not isinstance(settings, dict):
        raise ConfigError(
            f"{file} is not YAML with accessKey and secretKey",
            hint="Repair it, or set LATERMQ_USER to use another user",
        )
    return settings or {}
