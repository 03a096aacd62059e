"""Secrets of users on their way into a command: from a file or standard input, or generated. Never from an argument."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from latermq.cli.options import UsageError
from latermq.errors import ConfigError

MAX_FILE_BYTES = 4096
_GENERATED_BYTES = 24

NewSecretFile = Annotated[
    str | None,
    typer.Option(
        "--new-secret-file",
        metavar="FILE",
        help="File with the new secret, or - for standard input; by default one is generated and printed.",
    ),
]
Save = Annotated[
    Path | None,
    typer.Option("--save", metavar="FILE", help="Write the generated secret to a new file with mode 0600 instead."),
]


class NewSecret:
    """The new secret of a user, and where a generated one goes."""

    def __init__(self, file: str | None, save: Path | None) -> None:
        if file is not None and save is not None:
            raise UsageError("--new-secret-file and --save are mutually exclusive")
        self.is_generated = file is None
        self.is_printed = file is None and save is None
        self.text = _generated() if file is None else read_secret(file)
        self._save = save
        if save is not None:
            self._write(save)

    def discard(self) -> None:
        """Remove the file: no broker has the secret."""
        if self._save is not None:
            self._save.unlink(missing_ok=True)

    def _write(self, path: Path) -> None:
        try:
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(self.text + "\n")
        except FileExistsError:
            raise ConfigError(f"{path} exists, and is not overwritten", hint="Choose another file") from None
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror}") from None


def read_secret(file: str) -> str:
    """Read a secret from a file, or from standard input if the name is `-`. White space around it is dropped."""
    try:
        if file == "-":
            data = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
        else:
            with Path(file).open("rb") as opened:
                data = opened.read(MAX_FILE_BYTES + 1)
        text = data.decode().strip()
    except OSError as error:
        raise ConfigError(f"cannot read the secret from {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"the secret in {file} is not valid UTF-8") from None
    if not text or len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"{'standard input' if file == '-' else file} must hold one secret, and nothing else")
    return text


def _generated() -> str:
    """A random secret of letters, digits, `-` and `_`."""
    import secrets

    return secrets.token_urlsafe(_GENERATED_BYTES)
