"""The user that a client signs its requests as, and where programs and commands find it."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from latermq.access.inner_credentials import inner_file, load_inner_secret
from latermq.access.signatures import (
    ACCESS_KEY,
    BOUND,
    SIGNATURE,
    Signer,
    bound_content,
    signed_content,
)
from latermq.access.users import INNER_USER
from latermq.config import AccessConfig
from latermq.errors import ConfigError

USER: Final = "LATERMQ_USER"
SECRET: Final = "LATERMQ_SECRET"
SECRET_FILE: Final = "LATERMQ_SECRET_FILE"
VARIABLES = (USER, SECRET, SECRET_FILE)
MAX_FILE_BYTES = 4096
_OTHER_USERS = 0o077


class Credentials:
    """A user and its secret. All clients of a program may share one."""

    __slots__ = ("_secret", "_signer", "is_bound", "user")

    def __init__(self, user: str, secret: str, *, is_bound: bool = False) -> None:
        """With `is_bound`, no signature can be used for another request. RocketMQ's servers refuse such signatures."""
        if not user.strip():
            raise ConfigError("the name of the user is empty", hint=f"Set {USER}, or pass the name with --user")
        if not secret.strip():
            raise ConfigError(
                f"the secret of user {user!r} is empty",
                hint=f"Set {SECRET}, or {SECRET_FILE} to a file that contains it",
            )
        self.user = user
        self.is_bound = is_bound or user == INNER_USER
        self._secret = secret
        self._signer = Signer(secret)

    @classmethod
    def from_file(cls, user: str, path: str | Path) -> Self:
        """Credentials with the secret in a file, which only its owner may read. White space around it is dropped."""
        return cls(user, read_secret(Path(path)))

    def bound(self) -> "Credentials":
        """The same user, with signatures that can be used for no other request."""
        return Credentials(self.user, self._secret, is_bound=True)

    def signature(self, content: bytes, body: bytes = b"") -> bytes:
        """The signature of a request.

        `content` is the values of its fields in the order of their names, or the bound content up to the body.
        """
        signature = self._signer.sign(content, body)
        return BOUND.encode() + signature if self.is_bound else signature

    def signed(self, fields: Mapping[str, str], body: bytes, code: int) -> dict[str, str]:
        """The fields of a request with the user and the signature added."""
        named = {**fields, ACCESS_KEY: self.user}
        content = bound_content(code, named, b"") if self.is_bound else signed_content(named, b"")
        named[SIGNATURE] = self.signature(content, body).decode()
        return named

    def __repr__(self) -> str:
        return f"Credentials({self.user!r})"  # without the secret


def read_secret(path: Path) -> str:
    """Read a secret from a file. Raises ConfigError if it is missing, or if other users of this machine may read it."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"cannot read the secret file {path}: {error.strerror}", hint="Check its path and its owner"
        ) from None
    if mode & _OTHER_USERS:
        raise ConfigError(
            f"other users of this machine may read the secret file {path} (mode {mode & 0o777:o})",
            hint=f"chmod 600 {path}",
        )
    try:
        secret = data.decode().strip()
    except UnicodeDecodeError:
        secret = ""
    if not secret or len(data) > MAX_FILE_BYTES:
        raise ConfigError(
            f"the secret file {path} is empty, not text, or longer than {MAX_FILE_BYTES} bytes",
            hint="It must contain the secret and nothing else",
        )
    return secret


def credentials_from_environment(environment: Mapping[str, str] | None = None) -> Credentials | None:
    """The credentials that the variables give: LATERMQ_USER with LATERMQ_SECRET or LATERMQ_SECRET_FILE. None: none."""
    variables = os.environ if environment is None else environment
    user, secret, file = (variables.get(name, "") for name in VARIABLES)
    if not user:
        if secret or file:
            raise ConfigError(f"{SECRET if secret else SECRET_FILE} is set, but {USER} is not", hint=f"Set {USER}")
        return None
    if secret and file:
        raise ConfigError(f"{SECRET} and {SECRET_FILE} are both set", hint="Unset one of them")
    if file:
        return Credentials.from_file(user, file)
    if not secret:
        raise ConfigError(
            f"{USER} is set, but no secret", hint=f"Set {SECRET}, or {SECRET_FILE} to a file that contains it"
        )
    return Credentials(user, secret)


def chosen_credentials(choice: "Credentials | bool | None") -> Credentials | None:
    """The credentials of a client: those that it was given, none for False, otherwise those of the environment."""
    if isinstance(choice, Credentials):
        return choice
    return None if choice is False else credentials_from_environment()


def own_credentials(access: AccessConfig, data: Path | None = None) -> Credentials | None:
    """The credentials with which a server process connects to name servers and brokers. Reads the disk."""
    path = inner_file(access, data)
    return credentials_from_environment() if path is None else Credentials(INNER_USER, load_inner_secret(path))


def as_variables(access: AccessConfig) -> dict[str, str]:
    """What makes processes that a server starts, such as Spark's executors, sign as the server does."""
    path = inner_file(access, None)
    return {} if path is None else {USER: INNER_USER, SECRET: "", SECRET_FILE: str(path)}
