"""The pipeline's secret: a small file that brokers and their driver share, and what a request is signed with.

Who can read it may take over the ingest of far timers. It never goes over the network: a request carries an HMAC.
"""

import contextlib
import hashlib
import hmac
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from latermq.errors import ConfigError, StoreError

SUFFIX = ".secret"
MIN_CHARS = 32
_MAX_BYTES = 4096
_OTHERS = 0o077


def secret_path(secret_file: str, timeline: str, data: Path | None = None) -> Path:
    """Where the secret lies: as it is set, else beside the timeline's folder, else in a broker's data directory."""
    if secret_file:
        return Path(secret_file).absolute()
    if timeline and "://" not in timeline:
        folder = Path(timeline).absolute()
        return folder.with_name(folder.name + SUFFIX)
    if data is None:
        raise ConfigError(
            "the pipeline's secret is not named, and the timeline is no folder of this machine",
            hint="Copy the file pipeline.secret from a broker's data directory, and name it: "
            "--set pipeline.secret_file=PATH",
        )
    return data.absolute() / f"pipeline{SUFFIX}"


def load_secret(path: Path) -> bytes:
    """The secret in a file; StoreError, which may pass, where there is none or it is not to be used."""
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES + 1).strip()
    except OSError as error:
        raise StoreError(
            f"the pipeline's secret {path} cannot be read: {error.strerror}",
            hint="A broker makes it at its first start; copy that file, or name it with pipeline.secret_file",
        ) from None
    if not MIN_CHARS <= len(text) <= _MAX_BYTES:
        raise StoreError(
            f"the pipeline's secret {path} has {len(text)} characters, it must have {MIN_CHARS} to {_MAX_BYTES}",
            hint="Remove it, and a broker makes another at its next start; then copy that to where drivers run",
        )
    return text


def make_secret(path: Path) -> bytes:
    """The secret in a file, which is made where there is none: as a whole, and by one of those that start together."""
    if path.exists():
        return load_secret(path)
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}.draft")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32) + "\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            with contextlib.suppress(FileExistsError):
                os.link(draft, path)
            draft.unlink()
        except OSError:  # a file system without hard links
            draft.replace(path)
    except OSError as error:
        raise ConfigError(
            f"the pipeline's secret {path} cannot be made: {error.strerror}",
            hint="Set pipeline.secret_file to a path that this broker can write",
        ) from None
    return load_secret(path)


def is_open_to_others(path: Path) -> bool:
    """Whether other users of this machine may read it."""
    return bool(path.stat().st_mode & _OTHERS)


class Recipient(NamedTuple):
    """Whom a request is signed for: the process that serves a store, as its state tells it.

    The instance is random and another one after each start. So what was overheard is worth nothing to a store that an
    old copy took back to epochs and entries that it will have again.
    """

    store_id: str
    instance: str


def sign(secret: bytes, code: int, recipient: Recipient, fields: Mapping[str, object]) -> str:
    """What proves that who sends this request knows the secret, and means this process of this store."""
    lines = [str(code), *recipient, *(f"{name}={fields[name]}" for name in sorted(fields))]
    # Each line with its length before it: no two requests have the same text, whatever their fields hold.
    text = "".join(f"{len(line)}:{line}" for line in lines)
    return hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()


def is_signed(signature: str, secret: bytes, code: int, recipient: Recipient, fields: Mapping[str, object]) -> bool:
    """Whether a signature is right, in a time that tells nothing about it. Without a secret none is."""
    right = sign(secret, code, recipient, fields)
    return bool(secret) and hmac.compare_digest(signature.encode(errors="replace"), right.encode())
